package bus

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"sandkeep/internal/snapshot"
)

// set turns a JSON text into v. The error is the end of a sentence that begins
// with the member's name.
func (f *field) set(v reflect.Value, raw jsontext.Value) error {
	if err := f.checkKind(raw.Kind()); err != nil {
		return err
	}
	switch v.Type() {
	case messagesType:
		return setMessages(v, raw)
	case includeType:
		return setInclude(v, raw)
	case bytesType:
		return setBytes(v, raw)
	case stringsType:
		return setStrings(v, raw)
	case numberType:
		v.SetString(string(raw))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		s, err := unquote(raw)
		v.SetString(s)
		return err
	case reflect.Bool:
		v.SetBool(raw.Kind() == 't')
	case reflect.Int64:
		n, err := wholeNumber(string(raw))
		v.SetInt(n)
		return err
	case reflect.Uint64:
		n, err := wholeNumber(string(raw))
		v.SetUint(uint64(n))
		return err
	case reflect.Float64:
		n, err := strconv.ParseFloat(string(raw), 64)
		if err != nil {
			return fmt.Errorf("is %s", raw)
		}
		v.SetFloat(n)
	}
	return nil
}

func (f *field) checkKind(got jsontext.Kind) error {
	want := jsontext.Kind('"')
	switch t := f.value(); {
	case t == messagesType || t == includeType || t == stringsType || f.item != nil:
		want = '['
	case t == numberType:
		want = '0'
	case t == bytesType:
	case t.Kind() == reflect.Bool:
		want = 't'
		if got == 'f' {
			got = 't'
		}
	case t.Kind() == reflect.Int64 || t.Kind() == reflect.Uint64 || t.Kind() == reflect.Float64:
		want = '0'
	case t.Kind() == reflect.Struct:
		want = '{'
	}
	if got != want {
		return errors.New("is " + kindName(got))
	}
	return nil
}

var errSurrogate = errors.New("has an unpaired surrogate escape")

// unquote decodes a string literal of text that is known to be UTF-8 and JSON,
// so that the one fault left is an unpaired surrogate.
func unquote(raw jsontext.Value) (string, error) {
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	b, err := jsontext.AppendUnquote(nil, []byte(raw))
	if err != nil {
		return "", errSurrogate
	}
	return string(b), nil
}

// maxSafe is the largest whole number that every JSON reader keeps exactly.
const maxSafe = 1<<53 - 1

// wholeNumber reads a number whose value is whole, in any spelling: JSON has
// one kind of number, and 5, 5.0 and 50e-1 are the same one.
func wholeNumber(literal string) (int64, error) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(literal), "e")
	digits, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	trimmed := strings.TrimRight(digits, "0")
	if trimmed == "" {
		return 0, nil
	}
	exp, err := strconv.Atoi(strings.TrimPrefix(exponent, "+"))
	if exponent != "" && err != nil || exp > math.MaxInt32 || exp < math.MinInt32 {
		return 0, fmt.Errorf("is %s, which is out of range", literal)
	}
	zeros := exp - len(fraction) + len(digits) - len(trimmed)
	switch {
	case zeros < 0:
		return 0, fmt.Errorf("is %s, which is not whole", literal)
	case negative:
		return 0, fmt.Errorf("is %s, which is negative", literal)
	case len(trimmed)+zeros > 16:
		return 0, fmt.Errorf("is %s, more than %d", literal, maxSafe)
	}
	n, _ := strconv.ParseInt(trimmed+strings.Repeat("0", zeros), 10, 64) // at most 16 digits
	if n > maxSafe {
		return 0, fmt.Errorf("is %s, more than %d", literal, maxSafe)
	}
	return n, nil
}

func setBytes(v reflect.Value, raw jsontext.Value) error {
	s, err := unquote(raw)
	if err != nil {
		return err
	}
	if strings.ContainsAny(s, "\r\n") { // which the decoder would skip
		return errors.New("has a line break")
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return errors.New("is not base64")
	}
	v.SetBytes(b)
	return nil
}

func setInclude(v reflect.Value, raw jsontext.Value) error {
	out := []string{}
	for item := range elements(raw) {
		s := ""
		if item.Kind() == '"' {
			s, _ = unquote(item)
		}
		if s != "files" && s != "conversation" {
			return fmt.Errorf("has %s", item)
		}
		out = append(out, s)
	}
	v.Set(reflect.ValueOf(out).Convert(v.Type()))
	return nil
}

func setStrings(v reflect.Value, raw jsontext.Value) error {
	out := []string{}
	for item := range elements(raw) {
		if len(out) == maxStrings {
			return fmt.Errorf("has more than %d members", maxStrings)
		}
		if item.Kind() != '"' {
			return fmt.Errorf("has %s at [%d]", kindName(item.Kind()), len(out))
		}
		s, err := unquote(item)
		if err != nil {
			return fmt.Errorf("%w at [%d]", err, len(out))
		}
		out = append(out, s)
	}
	v.Set(reflect.ValueOf(out))
	return nil
}

func setMessages(v reflect.Value, raw jsontext.Value) error {
	out := []json.RawMessage{}
	for item := range elements(raw) {
		if len(out) == snapshot.MaxMessages {
			return snapshot.Errorf(snapshot.PayloadTooLarge, "the conversation has more than %d messages; put several into one", snapshot.MaxMessages)
		}
		out = append(out, json.RawMessage(item))
	}
	v.Set(reflect.ValueOf(out).Convert(v.Type()))
	return nil
}

// elements yields the texts of a valid array's items, byte for byte.
func elements(raw jsontext.Value) func(yield func(jsontext.Value) bool) {
	return func(yield func(jsontext.Value) bool) {
		dec := newDecoder(raw)
		if _, err := dec.ReadToken(); err != nil {
			return
		}
		for dec.PeekKind() != ']' {
			item, err := dec.ReadValue()
			if err != nil {
				return
			}
			end := dec.InputOffset()
			if !yield(raw[end-int64(len(item)) : end : end]) {
				return
			}
		}
	}
}
