package bus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"sandkeep/internal/snapshot"
)

// common are the members that every request may have.
type common struct {
	TimeoutMs *int64 `json:"timeoutMs,omitempty"`
	// Claim, alone in a request, says where the request is.
	Claim *string `json:"$object,omitempty"`
}

// lenient is for text that is already known to be UTF-8: it lets duplicate
// names and unpaired surrogate escapes through, which are judged here.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// decode fills the targets, two pointers to structs whose members are flattened
// into one object: the request and what all requests have in common. It finds
// faults in this order: the shape of the whole request, its identifiers, what
// the request's own CheckIDs finds between them (identifiers in arrays are not
// set yet), its other fields. It changes nothing on a fault. A request that is only {"$object": …} fills nothing but that.
func decode(data []byte, targets ...any) error {
	if err := checkSyntax(data); err != nil {
		return err
	}
	s := shapeOf(targets)
	p := parser{data: data, dec: newDecoder(data)}
	root, err := p.object(s, place{}, snapshot.BadRequest)
	if err != nil {
		return err
	}
	fresh := make([]reflect.Value, len(targets))
	for i, t := range targets {
		fresh[i] = reflect.New(reflect.TypeOf(t).Elem()).Elem()
	}
	if claim := root["$object"]; !claim.isNull() {
		err = fillClaim(s, root, fresh)
	} else {
		err = fillAll(s, root, fresh)
	}
	if err != nil {
		return err
	}
	for i, t := range targets {
		reflect.ValueOf(t).Elem().Set(fresh[i])
	}
	return nil
}

func newDecoder(data []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(data), lenient...)
}

// checkSyntax wants one JSON object in UTF-8 and nothing after it.
func checkSyntax(data []byte) error {
	const advice = `send one JSON object, like {"threadId":"t1"}`
	if !utf8.Valid(data) {
		return snapshot.Errorf(snapshot.BadRequest, "the request is not valid UTF-8; %s", advice)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return snapshot.Errorf(snapshot.BadRequest, "the request is empty; %s", advice)
	}
	dec := newDecoder(data)
	kind := dec.PeekKind()
	err := dec.SkipValue()
	if err == nil {
		if _, err = dec.ReadToken(); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("there is something after it")
		}
	}
	if err != nil {
		return snapshot.Errorf(snapshot.BadRequest, "the request is not one JSON value (fault near byte %d); %s", dec.InputOffset(), advice).Because(err)
	}
	if kind != '{' {
		return snapshot.Errorf(snapshot.BadRequest, "the request is %s; %s", kindName(kind), advice)
	}
	return nil
}

// member is a value of the request: the text, or a parsed nested object.
type member struct {
	raw    jsontext.Value
	object map[string]member
}

func (m member) isNull() bool { return m.object == nil && (m.raw == nil || m.raw.Kind() == 'n') }

// parser reads an object along its shape, so that its own depth is bounded by
// the shape's, whatever the request holds.
type parser struct {
	data []byte
	dec  *jsontext.Decoder
}

func (p *parser) object(s *shape, at place, code snapshot.Code) (map[string]member, error) {
	if _, err := p.dec.ReadToken(); err != nil {
		return nil, syntaxFault(err)
	}
	out := map[string]member{}
	for p.dec.PeekKind() != '}' {
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		f, ok := s.byName[name]
		if !ok {
			return nil, unknownMember(s, at, name, code)
		}
		if _, twice := out[name]; twice {
			return nil, snapshot.Errorf(f.code, "member %q is there twice; give it once", at.of(name))
		}
		if out[name], err = p.member(f, at); err != nil {
			return nil, err
		}
	}
	_, err := p.dec.ReadToken()
	return out, syntaxFault(err)
}

func (p *parser) name() (string, error) {
	raw, err := p.value()
	if err != nil {
		return "", err
	}
	name, err := unquote(raw)
	if err != nil {
		return string(raw), nil // no member is called like that
	}
	return name, nil
}

func (p *parser) member(f *field, at place) (member, error) {
	switch kind := p.dec.PeekKind(); {
	case f.object != nil && kind == '{':
		object, err := p.object(f.object, at.in(f), f.code)
		return member{object: object}, err
	case f.item != nil && kind == '[':
		raw, err := p.items(f, at, func(member, place) error { return nil })
		return member{raw: raw}, err
	}
	raw, err := p.value()
	if err != nil || f.value() == messagesType {
		return member{raw: raw}, err
	}
	if k := raw.Kind(); (k == '{' || k == '[') && !raw.IsValid(jsontext.AllowInvalidUTF8(true)) {
		return member{}, snapshot.Errorf(f.code, "a name is there twice inside %q, or it is nested too deep; it must be %s", at.of(f.name), f.wants())
	}
	return member{raw: raw}, nil
}

// value reads the next value as a part of the request's own bytes.
func (p *parser) value() (jsontext.Value, error) {
	raw, err := p.dec.ReadValue()
	if err != nil {
		return nil, syntaxFault(err)
	}
	end := p.dec.InputOffset()
	return p.data[end-int64(len(raw)) : end : end], nil
}

func syntaxFault(err error) error {
	if err == nil {
		return nil
	}
	return snapshot.Errorf(snapshot.BadRequest, "the request is not valid JSON; send one JSON object").Because(err)
}

func unknownMember(s *shape, at place, name string, code snapshot.Code) error {
	if meant, ok := s.folded[strings.ToLower(name)]; ok {
		return snapshot.Errorf(code, "unknown member %q; did you mean %q?", at.of(name), at.of(meant))
	}
	return snapshot.Errorf(code, "unknown member %q; known here are %s", at.of(name), s.names())
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "true or false"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return fmt.Sprintf("of kind %v", k)
}
