package workspace

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"sandkeep/internal/snapshot"
)

const (
	minSecretBytes = 6
	// maxSecretBytes bounds the automaton, which has a row for each byte.
	maxSecretBytes = 256 << 10
	redacted       = "[redacted]"
)

// Redactor takes secrets out of texts and streams, all of them in one pass. It
// is safe for concurrent use; without secrets it hands everything through.
type Redactor struct {
	words [][]byte
	a     *automaton // nil: no secrets
	said  *automaton // the secrets as they are and as messages quote them
}

var _ snapshot.Redactor = (*Redactor)(nil)

// NewRedactor refuses values that would hit innocent text (under 6 bytes) or
// that the replacement itself could spell.
func NewRedactor(secrets []string) (*Redactor, error) {
	r := &Redactor{}
	total := 0
	for i, s := range secrets {
		switch {
		case len(s) < minSecretBytes:
			return nil, fmt.Errorf("secret %d of %d has %d bytes; give at least %d", i+1, len(secrets), len(s), minSecretBytes)
		case strings.Contains(s, "\x00") || strings.Contains(redacted, s):
			return nil, fmt.Errorf("secret %d of %d has a NUL or is a part of %q", i+1, len(secrets), redacted)
		}
		r.words = append(r.words, []byte(s))
		total += len(s)
	}
	if total > maxSecretBytes {
		return nil, fmt.Errorf("the secrets have %d bytes together; at most %d are allowed", total, maxSecretBytes)
	}
	if len(r.words) > 0 {
		r.a = newAutomaton(r.words)
		r.said = newAutomaton(spellings(r.words))
	}
	return r, nil
}

// spellings adds how %q, %+q and JSON escape the words within their quotes.
func spellings(words [][]byte) [][]byte {
	all := slices.Clone(words)
	for _, w := range words {
		escaped, _ := json.Marshal(string(w)) // a string always encodes
		for _, q := range []string{strconv.Quote(string(w)), strconv.QuoteToASCII(string(w)), string(escaped)} {
			if q = q[1 : len(q)-1]; q != string(w) {
				all = append(all, []byte(q))
			}
		}
	}
	return all
}

// String and GoString keep the secrets out of every log.
func (r *Redactor) String() string   { return fmt.Sprintf("redactor of %d secrets", len(r.words)) }
func (r *Redactor) GoString() string { return r.String() }

// Text replaces secrets by "[redacted]", also where a message quotes them.
func (r *Redactor) Text(s string) string {
	if r.a == nil {
		return s
	}
	spans := r.said.find([]byte(s))
	if len(spans) == 0 {
		return s
	}
	return string(replace([]byte(s), spans, redacted))
}

// fingerprint tells sets of secrets apart and, without the salt, nothing more.
func (r *Redactor) fingerprint(salt []byte) []byte {
	words := slices.Clone(r.words)
	slices.SortFunc(words, slices.Compare)
	mac := hmac.New(sha256.New, salt)
	for _, w := range words {
		mac.Write(binary.AppendUvarint(nil, uint64(len(w))))
		mac.Write(w)
	}
	return mac.Sum(nil)
}

// Reader overwrites secrets with zero bytes, also across reads.
func (r *Redactor) Reader(src io.Reader) snapshot.RedactingReader {
	if r.a == nil {
		return plainReader{src}
	}
	return &redactingReader{src: src, m: matcher{a: r.a}}
}

type plainReader struct{ io.Reader }

func (plainReader) Redactions() int64 { return 0 }

// redactingReader holds bytes back while they may be the beginning of a secret.
type redactingReader struct {
	src    io.Reader
	m      matcher
	buf    *[]byte // nil before the first read and after the last
	lo, hi int     // what is in buf
	ready  int     // bytes from lo that may go out
	count  int64   // spans that are out
	err    error
}

func (r *redactingReader) Redactions() int64 { return r.count + int64(len(r.m.spans)) }

func (r *redactingReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for r.ready == 0 {
		if r.err != nil {
			r.m.a.release(r.buf)
			r.buf = nil
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, (*r.buf)[r.lo:r.lo+r.ready])
	r.lo, r.ready = r.lo+n, r.ready-n
	return n, nil
}

func (r *redactingReader) fill() {
	if r.buf == nil {
		r.buf = r.m.a.buffer()
	}
	buf := *r.buf
	r.hi = copy(buf, buf[r.lo:r.hi])
	n, err := r.src.Read(buf[r.hi:])
	r.m.scan(buf[r.hi : r.hi+n])
	r.lo, r.hi, r.err = 0, r.hi+n, err
	start := r.m.pos - int64(r.hi)
	for _, s := range r.m.spans {
		clear(buf[max(s.from-start, 0):max(s.to-start, 0)])
	}
	out := r.m.settled()
	if err != nil {
		out = r.m.pos
	}
	r.ready = int(out - start)
	done := 0
	for done < len(r.m.spans) && r.m.spans[done].to <= out {
		done++
	}
	r.m.spans = slices.Delete(r.m.spans, 0, done)
	r.count += int64(done)
}
