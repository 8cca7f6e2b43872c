package workspace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func redactor(t testing.TB, secrets ...string) *Redactor {
	t.Helper()
	r, err := NewRedactor(secrets)
	must(t, err)
	return r
}

func TestNewRedactor_Refuses(t *testing.T) {
	for _, s := range []string{"", "12345", "redacted", "[redac", "a\x00bcdef", strings.Repeat("x", maxSecretBytes+1)} {
		if _, err := NewRedactor([]string{"a good one", s}); err == nil || s != "" && strings.Contains(err.Error(), s) && s != "redacted" && s != "[redac" {
			t.Errorf("%.20q: %v", s, err)
		}
	}
	if r := redactor(t, "super secret"); strings.Contains(fmt.Sprintf("%v %+v %#v", r, r, r), "super") {
		t.Error("a secret is printed")
	}
}

func TestRedactor_Text(t *testing.T) {
	r := redactor(t, "abcdef", "defghi", "xabcdefghix", "secret", "secrets-all")
	for in, want := range map[string]string{
		"":                 "",
		"abcde":            "abcde",
		"-abcdef-":         "-[redacted]-",
		"abcdefghi":        "[redacted]",           // overlapping
		"abcdefabcdef":     "[redacted][redacted]", // side by side
		"xabcdefghix":      "[redacted]",           // one within the other
		"secrets-alm":      "[redacted]s-alm",      // the longer one fails late
		"sesecrets-all!":   "se[redacted]!",
		"absecretabcdefgh": "ab[redacted][redacted]gh",
	} {
		if got := r.Text(in); got != want {
			t.Errorf("Text(%q) is %q, want %q", in, got, want)
		}
	}
	if none := redactor(t); none.Text("abcdef") != "abcdef" {
		t.Error("without secrets a text is changed")
	}
}

func TestRedactor_JSON(t *testing.T) {
	r := redactor(t, `pass/"word`, "grüße🦀!", "line1\nline2", "plain-secret")
	for in, want := range map[string]string{
		`{"a": "x plain-secret y",  "plain-secret":1}`: `{"a": "x [redacted] y",  "[redacted]":1}`,
		`["pass\/\"word","pass/\u0022word"]`:           `["[redacted]","[redacted]"]`,
		`"gr\u00fc\u00DFe\ud83e\udd80\u0021"`:          `"[redacted]"`,
		`"grüße\uD83E\uDD80!\n\ud83e"`:                 `"[redacted]\n\ud83e"`,
		`"line1\nline2\u000a"`:                         `"[redacted]\u000a"`,
		`"\ud800 \udc00\ud800 plain-secret \\"`:        `"\ud800 \udc00\ud800 [redacted] \\"`,
		`"\\" , "plain-secre" , "t"`:                   `"\\" , "plain-secre" , "t"`,
		`"plain-secret`:                                `"[redacted]`,
		`"\u00`:                                        `"\u00`,
		`"\`:                                           `"\`,
		`{"a":"\u0070lain-secret\\\"plain-secret"}`:    `{"a":"[redacted]\\\"[redacted]"}`,
	} {
		got, n := r.JSON([]byte(in))
		if string(got) != want || n != int64(strings.Count(want, redacted)) {
			t.Errorf("JSON(%s) is %s, %d", in, got, n)
		}
	}
}

func TestRedactor_ReaderAcrossBorders(t *testing.T) {
	r := redactor(t, "abcdefgh", "ghijkl")
	text := strings.Repeat("-", 64<<10-3) + "abcdefghijkl" + strings.Repeat("abc", 30000) + "defgh" + "abcdefg"
	want := strings.Replace(text, "abcdefghijkl", strings.Repeat("\x00", 12), 1)
	want = strings.Replace(want, "abcdefgh", strings.Repeat("\x00", 8), 1)
	for name, src := range map[string]io.Reader{
		"whole": strings.NewReader(text), "bytewise": iotest.OneByteReader(strings.NewReader(text)), "error with data": iotest.DataErrReader(strings.NewReader(text)),
	} {
		rr := r.Reader(src)
		got, err := io.ReadAll(rr)
		if err != nil || string(got) != want || rr.Redactions() != 2 {
			t.Errorf("%s: %v, %d redactions", name, err, rr.Redactions())
		}
	}
	if err := iotest.TestReader(redactor(t, "nothing").Reader(strings.NewReader("some text")), []byte("some text")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(r.Reader(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("abc"))))); err != iotest.ErrTimeout {
		t.Errorf("error is %v", err)
	}
}

// modelSpans covers every occurrence, one by one.
func modelSpans(text string, words []string) []span {
	covered := make([]int, len(text)+1) // +1: the byte and the next one are of one match
	for _, w := range words {
		for i := 0; i+len(w) <= len(text); i++ {
			if text[i:i+len(w)] != w {
				continue
			}
			for j := i; j < i+len(w); j++ {
				covered[j] |= 1
				if j+1 < i+len(w) {
					covered[j] |= 2
				}
			}
		}
	}
	var out []span
	for i := 0; i < len(text); i++ {
		if covered[i] == 0 {
			continue
		}
		from := i
		for covered[i]&2 != 0 {
			i++
		}
		out = append(out, span{int64(from), int64(i + 1)})
	}
	return out
}

func modelText(text string, words []string) (string, int64) {
	spans := modelSpans(text, words)
	return string(replace([]byte(text), spans, redacted)), int64(len(spans))
}

func FuzzRedactor(f *testing.F) {
	f.Add("abcabcabc", "bcabca", "xxabcabcabcabyy", uint8(3))
	f.Add("aaaaaa", "aaaaaaaa", "aaaaaaaaaaaaab", uint8(1))
	f.Add("\xff\xfe\xff\xfe\xff\xfe", "abcdef", "\xff\xfe\xff\xfe\xff\xfe\xff\xfe", uint8(2))
	f.Fuzz(func(t *testing.T, one, two, text string, chunk uint8) {
		words := []string{one, two}
		r, err := NewRedactor(words)
		if err != nil {
			return
		}
		want, n := modelText(text, words)
		if got := r.Text(text); got != want {
			t.Fatalf("Text(%q) is %q, want %q", text, got, want)
		}
		zeroed := []byte(text)
		for _, s := range modelSpans(text, words) {
			clear(zeroed[s.from:s.to])
		}
		rr := r.Reader(&chunks{text, int(chunk)%7 + 1})
		got, err := io.ReadAll(rr)
		if err != nil || !bytes.Equal(got, zeroed) || rr.Redactions() != n {
			t.Fatalf("Reader gave %q, %d, %v, want %q, %d", got, rr.Redactions(), err, zeroed, n)
		}
	})
}

type chunks struct {
	text string
	size int
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.text == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.size)], c.text)
	c.text = c.text[n:]
	return n, nil
}

func FuzzRedactorJSON(f *testing.F) {
	f.Add("secret", "token/1", `{"secret":["\u0073ecret","token\/1", 1.0],"b":"\ud83d\ude00"}`)
	f.Add("\U0001f980rabcd", "x\"y\\z\n", `["\ud83e\udd80rabcd\ud83e","x\"y\\z\n"]`)
	f.Fuzz(func(t *testing.T, one, two, raw string) {
		words := []string{one, two}
		r, err := NewRedactor(words)
		if err != nil || strings.Contains(one+two, "\ufffd") || !json.Valid([]byte(raw)) || strings.ToValidUTF8(one+two, "") != one+two {
			return
		}
		if strings.ToValidUTF8(raw, "") != raw { // the decoder would alter it
			return
		}
		out, n := r.JSON([]byte(raw))
		want, count := modelJSON(t, []byte(raw), words)
		if got, _ := modelJSON(t, out, nil); !slices.Equal(got, want) || n != count {
			t.Fatalf("JSON(%s) is %s, %d, want %q, %d", raw, out, n, want, count)
		}
		if n == 0 && string(out) != raw {
			t.Fatalf("JSON(%s) is %s without a match", raw, out)
		}
	})
}

// modelJSON lists the tokens of a JSON text, strings decoded and redacted.
func modelJSON(t *testing.T, raw []byte, words []string) (tokens []string, n int64) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for {
		tok, err := dec.Token()
		if err == io.EOF {
			return tokens, n
		}
		must(t, err)
		if s, ok := tok.(string); ok {
			text, hits := modelText(s, words)
			tok, n = text, n+hits
		}
		tokens = append(tokens, fmt.Sprintf("%s %v", reflect.TypeOf(tok), tok))
	}
}

func BenchmarkRedactor_Reader(b *testing.B) {
	r := redactor(b, "secret-one", "another-secret", "sk-0123456789")
	data := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog\n"), 100000)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, r.Reader(bytes.NewReader(data))); err != nil {
			b.Fatal(err)
		}
	}
}

func TestTextKnowsHowMessagesQuote(t *testing.T) {
	secret := "a\"b\\c\td<é\x01"
	r := redactor(t, secret)
	escaped, err := json.Marshal(secret)
	must(t, err)
	for _, said := range []string{fmt.Sprintf("%q", secret), fmt.Sprintf("%+q", secret), string(escaped), `"` + secret + `"`} {
		if got, want := r.Text("x "+said+" y"), `x "[redacted]" y`; got != want {
			t.Errorf("%s became %s, want %s", said, got, want)
		}
	}
}
