package workspace

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON replaces secrets by "[redacted]" in the decoded strings, names included,
// and leaves every other byte as it is. It never fails: what is not JSON is
// handed through between the strings.
func (r *Redactor) JSON(raw []byte) ([]byte, int64) {
	if r.a == nil {
		return raw, 0
	}
	var spans []span
	for at := 0; at < len(raw); {
		open := bytes.IndexByte(raw[at:], '"')
		if open < 0 {
			break
		}
		from := at + open + 1
		to := stringEnd(raw, from)
		for _, s := range r.inString(raw[from:to]) {
			spans = append(spans, span{s.from + int64(from), s.to + int64(from)})
		}
		at = to + 1
	}
	if len(spans) == 0 {
		return raw, 0
	}
	return replace(raw, spans, redacted), int64(len(spans))
}

// stringEnd is the index of the quote that ends the string beginning at from.
func stringEnd(raw []byte, from int) int {
	for i := from; i < len(raw); i++ {
		switch raw[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(raw)
}

// inString finds secrets in the decoded text of a string and returns where they
// lie in its raw text.
func (r *Redactor) inString(raw []byte) []span {
	if bytes.IndexByte(raw, '\\') < 0 {
		return r.a.find(raw)
	}
	m := matcher{a: r.a}
	units(raw, func(text []byte, _, _ int) { m.scan(text) })
	if len(m.spans) == 0 {
		return nil
	}
	return rawSpans(raw, m.spans)
}

// rawSpans maps spans of the decoded text to the raw text. An escape that is
// partly covered is covered.
func rawSpans(raw []byte, spans []span) []span {
	out := make([]span, len(spans))
	pos, from, to := int64(0), 0, 0
	units(raw, func(text []byte, rawFrom, rawTo int) {
		end := pos + int64(len(text))
		verbatim := len(text) == rawTo-rawFrom
		for ; from < len(spans) && spans[from].from < end; from++ {
			out[from].from = int64(rawFrom)
			if verbatim {
				out[from].from += spans[from].from - pos
			}
		}
		for ; to < len(spans) && spans[to].to <= end; to++ {
			out[to].to = int64(rawTo)
			if verbatim {
				out[to].to -= end - spans[to].to
			}
		}
		pos = end
	})
	return out
}

// units hands out the decoded text of a string, one escape or one run without
// escapes at a time, with its place in raw.
func units(raw []byte, yield func(text []byte, from, to int)) {
	var scratch [utf8.UTFMax]byte
	for i := 0; i < len(raw); {
		text, size := raw[i:], bytes.IndexByte(raw[i:], '\\')
		switch {
		case size < 0:
			size = len(raw) - i
		case size == 0:
			text, size = unescape(scratch[:0], raw[i:])
		default:
			text = raw[i : i+size]
		}
		yield(text, i, i+size)
		i += size
	}
}

var shortEscapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unescape appends what the escape at the beginning of raw stands for and
// returns its length. An unpaired surrogate becomes bytes that no text has.
func unescape(text, raw []byte) ([]byte, int) {
	if len(raw) > 1 {
		if b, ok := shortEscapes[raw[1]]; ok {
			return append(text, b), 2
		}
	}
	unit, ok := hexUnit(raw)
	if !ok {
		return append(text, raw[0]), 1
	}
	if !utf16.IsSurrogate(unit) {
		return utf8.AppendRune(text, unit), 6
	}
	if low, ok := hexUnit(raw[6:]); ok {
		if pair := utf16.DecodeRune(unit, low); pair != utf8.RuneError {
			return utf8.AppendRune(text, pair), 12
		}
	}
	return append(text, 0xff), 6
}

// hexUnit reads \uXXXX.
func hexUnit(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	v, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	return rune(v), err == nil
}
