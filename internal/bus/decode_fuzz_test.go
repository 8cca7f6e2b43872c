package bus

import (
	"bytes"
	"encoding/base64"
	json1 "encoding/json"
	"errors"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"sandkeep/internal/snapshot"
)

// sample has a member of each kind.
type sample struct {
	ID       snapshot.ThreadID      `json:"id"`
	Other    snapshot.RunID         `json:"other,omitempty"`
	Text     string                 `json:"text"`
	Number   int64                  `json:"number,omitempty"`
	Time     *snapshot.Millis       `json:"time,omitempty"`
	Head     *string                `json:"head"` // must be there, may be null
	Data     *[]byte                `json:"data,omitempty"`
	Messages snapshot.Messages      `json:"messages,omitempty"`
	Include  snapshot.Include       `json:"include,omitempty"`
	Point    *sampleNested          `json:"point,omitempty"`
	Check    *struct{ sampleCheck } `json:"checkpoint,omitempty"`
	Keys     []string               `json:"keys,omitempty"`
	Literal  json1.Number           `json:"literal,omitempty"`
}

// CheckIDs refuses one that is its own other.
func (s sample) CheckIDs() error {
	if string(s.Other) == string(s.ID) {
		return snapshot.Errorf(snapshot.WriterLost, "other is id")
	}
	return nil
}

type sampleNested struct {
	Key snapshot.InstanceKey `json:"key"`
}

type sampleCheck struct {
	Files string       `json:"files"`
	Items []sampleItem `json:"items,omitempty"`
	Plain []plainItem  `json:"plain,omitempty"`
}

type sampleItem struct {
	Key  snapshot.ArtifactID `json:"artifactId"`
	Name string              `json:"name"`
}

type plainItem struct {
	Mtime *json1.Number `json:"mtime,omitempty"`
	Size  int64         `json:"size"`
}

// The codes of faults inside a checkpoint are its own.
func TestDecode_Checkpoint(t *testing.T) {
	for text, want := range map[string]snapshot.Code{
		`{"id":"t","text":"","head":null,"checkpoint":{"files":"x"}}`:   "",
		`{"id":"t","text":"","head":null,"checkpoint":{"File":"x"}}`:    snapshot.InvalidEntry,
		`{"id":"t","text":"","head":null,"checkpoint":{"files":5}}`:     snapshot.InvalidEntry,
		`{"id":"t","text":"","head":null,"checkpoint":5}`:               snapshot.InvalidEntry,
		`{"id":"t","text":"","head":null,"checkpoint":{}}`:              snapshot.InvalidEntry,
		`{"id":"","text":"","head":null,"checkpoint":{}}`:               snapshot.InvalidID,
		`{"id":"t","text":"","checkpoint":{"files":"x"}}`:               snapshot.BadRequest,
		`{"id":"","text":"","head":null,"x":5,"checkpoint":{"file":1}}`: snapshot.BadRequest,
		// identifiers, what is between them, the rest
		`{"id":"t","other":"t","text":5}`:                                                            snapshot.WriterLost,
		`{"id":"t","other":"t","text":5,"x":1}`:                                                      snapshot.BadRequest,
		`{"id":"t","other":"t","text":5,"checkpoint":{"files":5,"items":[{}]}}`:                      snapshot.InvalidID,
		`{"id":"t","other":"t","checkpoint":{"files":5,"items":[{"artifactId":"a"}]}}`:               snapshot.WriterLost,
		`{"id":"t","text":"","head":null,"checkpoint":{"files":"","items":[{"artifactId":"a"}]}}`:    snapshot.InvalidEntry,
		`{"id":"t","text":"","head":null,"checkpoint":{"files":"","items":[5]}}`:                     snapshot.InvalidEntry,
		`{"id":"t","text":"","head":null,"checkpoint":{"files":"","items":{}}}`:                      snapshot.InvalidEntry,
		`{"id":"t","text":"","head":null,"checkpoint":{"files":"","items":null,"plain":[]}}`:         "",
		`{"id":"t","text":"","head":null,"checkpoint":{"files":"","plain":[{"size":1,"size":1}]}}`:   snapshot.InvalidEntry,
		`{"id":"t","text":"","head":null,"checkpoint":{"files":"","plain":[{"size":1,"mtime":""}]}}`: snapshot.InvalidEntry,
	} {
		err := decode([]byte(text), new(sample), new(common))
		var code snapshot.Code
		if e := (*snapshot.Error)(nil); errors.As(err, &e) {
			code = e.Code
		}
		if code != want {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// FuzzDecode compares with a decoder that is slow and plain.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"id":"t","text":"x","head":"h"}`, `{"id":"t","text":"x","head":null,"number":1e3,"time":1.5,"data":"YQ==","messages":[{"a":1,"a":"\ud800"}],"include":["files"]}`,
		`{"id":"","text":"x","head":null}`, `{"Id":"t"}`, `{"id":"t","id":"t"}`, `{"id":"\ud800","text":"","head":null}`, `{"id":"t","text":"","head":null,"point":{"key":"k"}}`,
		`{"id":"t","text":"","head":null,"number":1.0}`, `{"id":"t","text":"","head":null,"number":0.1e1}`, `{"id":"t","text":"","head":null,"point":null}`,
		`{"id":"t","text":"","head":null,"data":"YQ"}`, `{"$object":"a/b"}`, `{"id":"t","text":"","head":null,"timeoutMs":null}`, "{\"id\":\"\xff\"}", `[`, ``, `{}x`,
		`{"id":"t","text":"","head":null,"other":"t"}`, `{"id":"t","text":"","head":null,"keys":["a","\ud800"]}`, `{"id":"t","text":"","head":null,"keys":[],"literal":-1.50e+1}`,
		`{"id":"t","text":"","head":null,"checkpoint":{"files":"","items":[{"artifactId":"a","name":""}, {"artifactId":"b","name":"","Name":""}],"plain":[{"size":1,"mtime":null},{"size":2,"mtime":0.1}]}}`,
		`{"id":"t","text":"","head":null,"checkpoint":{"files":"","plain":[{"size":1},null,[{"a":1,"a":1}]]}}`, `{"id":"t","text":"","head":null,"checkpoint":{"files":"","items":[{"artifactId":""}]}}`,
		`{"id":"t","text":"","head":null,"point":{"key":{"a":1,"a":1}}}`, `{"id":"t","text":"","head":null,"time":1e400}`, `{"id":"t","text":"","head":null,"number":10000000000000000}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got sample
		err := decode(data, &got, new(common))
		if err != nil && !reflect.ValueOf(got).IsZero() {
			t.Errorf("decode(%q) = %v, and yet it gives %+v", data, err, got)
		}
		if e := (*snapshot.Error)(nil); err != nil && !errors.As(err, &e) {
			t.Errorf("decode(%q) has no code: %v", data, err)
		}
		if want := reference(data); (err == nil) != want {
			t.Errorf("decode(%q) = %v, the reference accepts: %v", data, err, want)
		}
	})
}

// reference tells whether a sample with common members is acceptable.
func reference(data []byte) bool {
	// Invalid UTF-8 is let through by the option for surrogates, so it is refused first.
	if strings.ToValidUTF8(string(data), "\ufffd") != string(data) {
		return false
	}
	top, ok := refMembers(data)
	if !ok {
		return false
	}
	if claim, ok := top["$object"]; ok {
		return len(top) == 1 && (refText(claim, 0) || claim.Kind() == 'n')
	}
	known := map[string]func(jsontext.Value) bool{
		"id":         func(v jsontext.Value) bool { return refText(v, 1) },
		"other":      func(v jsontext.Value) bool { return refText(v, 1) },
		"text":       func(v jsontext.Value) bool { return refText(v, 0) },
		"head":       func(v jsontext.Value) bool { return v.Kind() == 'n' || refText(v, 0) },
		"number":     refWhole,
		"timeoutMs":  refWhole,
		"time":       func(v jsontext.Value) bool { var n float64; return v.Kind() == '0' && json.Unmarshal(v, &n) == nil },
		"data":       refBase64,
		"messages":   func(v jsontext.Value) bool { return v.Kind() == '[' },
		"include":    refInclude,
		"point":      func(v jsontext.Value) bool { return refObject(v, "key", 1) },
		"checkpoint": refCheck,
		"keys": func(v jsontext.Value) bool {
			return refArray(v, 1000, func(v jsontext.Value) bool { return refText(v, 0) })
		},
		"literal": func(v jsontext.Value) bool { return v.Kind() == '0' },
	}
	required := map[string]bool{"id": true, "text": true, "head": true}
	for name, value := range top {
		ok := known[name]
		if ok == nil || name != "messages" && !value.IsValid(jsontext.AllowInvalidUTF8(true)) {
			return false
		}
		if value.Kind() == 'n' && !required[name] {
			continue
		}
		if !ok(value) {
			return false
		}
		delete(required, name)
	}
	return len(required) == 0 && !refEqual(top["id"], top["other"])
}

// refEqual compares two texts as they are decoded.
func refEqual(a, b jsontext.Value) bool {
	var s, t string
	return json.Unmarshal(a, &s) == nil && json.Unmarshal(b, &t) == nil && s == t
}

func refCheck(v jsontext.Value) bool {
	isNumber := func(v jsontext.Value) bool { return v.Kind() == '0' }
	text := func(v jsontext.Value) bool { return refText(v, 0) }
	item := func(v jsontext.Value) bool {
		return refRecord(v, map[string]refMember{"artifactId": {check: func(v jsontext.Value) bool { return refText(v, 1) }}, "name": {check: text}})
	}
	plain := func(v jsontext.Value) bool {
		return refRecord(v, map[string]refMember{"mtime": {true, isNumber}, "size": {check: refWhole}})
	}
	return refRecord(v, map[string]refMember{"files": {check: text},
		"items": {true, func(v jsontext.Value) bool { return refArray(v, 1<<30, item) }},
		"plain": {true, func(v jsontext.Value) bool { return refArray(v, 1<<30, plain) }}})
}

type refMember struct {
	optional bool
	check    func(jsontext.Value) bool
}

// refRecord tells whether v is an object of these members.
func refRecord(v jsontext.Value, members map[string]refMember) bool {
	object, ok := refMembers(v)
	if !ok {
		return false
	}
	for name, value := range object {
		m, ok := members[name]
		if !ok || !m.check(value) && !(m.optional && value.Kind() == 'n') {
			return false
		}
	}
	for name, m := range members {
		if !m.optional && object[name] == nil {
			return false
		}
	}
	return true
}

func refArray(v jsontext.Value, most int, item func(jsontext.Value) bool) bool {
	var all []jsontext.Value
	if v.Kind() != '[' || json.Unmarshal(v, &all, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)) != nil || len(all) > most {
		return false
	}
	for _, i := range all {
		if !item(i) {
			return false
		}
	}
	return true
}

// refMembers splits an object whose names differ; what is in it may repeat names.
func refMembers(data []byte) (map[string]jsontext.Value, bool) {
	var all []jsontext.Value
	lenient := []json.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	object := jsontext.Value(data)
	if !object.IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) || object.Kind() != '{' {
		return nil, false
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadToken(); err != nil {
		return nil, false
	}
	for dec.PeekKind() != '}' {
		var v jsontext.Value
		if json.UnmarshalDecode(dec, &v, lenient...) != nil {
			return nil, false
		}
		all = append(all, v)
	}
	out := map[string]jsontext.Value{}
	for i := 0; i < len(all); i += 2 {
		var name string
		if json.Unmarshal(all[i], &name) != nil || out[name] != nil {
			return nil, false
		}
		out[name] = all[i+1]
	}
	return out, true
}

func refText(v jsontext.Value, least int) bool {
	var s string
	return v.Kind() == '"' && json.Unmarshal(v, &s) == nil && len(s) >= least && (least == 0 || len(s) <= 500)
}

func refWhole(v jsontext.Value) bool {
	if _, exponent, _ := strings.Cut(strings.ToLower(string(v)), "e"); v.Kind() != '0' || len(exponent) > 5 {
		return v.Kind() == '0' && strings.Trim(strings.Split(strings.ToLower(string(v)), "e")[0], "-0.") == ""
	}
	n, ok := new(big.Rat).SetString(string(v))
	return ok && n.IsInt() && n.Sign() >= 0 && n.Num().Cmp(big.NewInt(1<<53)) < 0
}

func refBase64(v jsontext.Value) bool {
	var s string
	if v.Kind() != '"' || json.Unmarshal(v, &s) != nil {
		return false
	}
	b, err := base64.StdEncoding.DecodeString(s)
	return err == nil && base64.StdEncoding.EncodeToString(b) == s
}

func refInclude(v jsontext.Value) bool {
	var all []jsontext.Value
	if v.Kind() != '[' || json.Unmarshal(v, &all, jsontext.AllowInvalidUTF8(true)) != nil {
		return false
	}
	for _, item := range all {
		var s string
		if item.Kind() != '"' || json.Unmarshal(item, &s) != nil || s != "files" && s != "conversation" {
			return false
		}
	}
	return true
}

func refObject(v jsontext.Value, member string, least int) bool {
	var object map[string]jsontext.Value
	if v.Kind() != '{' || json.Unmarshal(v, &object, jsontext.AllowInvalidUTF8(true)) != nil {
		return false
	}
	value, ok := object[member]
	return ok && len(object) == 1 && refText(value, least)
}
