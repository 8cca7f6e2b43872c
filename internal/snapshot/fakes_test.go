package snapshot_test

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"strings"

	"sandkeep/internal/snapshot"
)

const secret = "hunter2-canary"

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// plainRedactor knows one secret and looks at whole texts only.
type plainRedactor struct{}

func (plainRedactor) Text(s string) string { return strings.ReplaceAll(s, secret, "[redacted]") }

func (plainRedactor) JSON(raw []byte) ([]byte, int64) {
	return bytes.ReplaceAll(raw, []byte(secret), []byte("[redacted]")), int64(bytes.Count(raw, []byte(secret)))
}

func (plainRedactor) Reader(r io.Reader) snapshot.RedactingReader {
	b, err := io.ReadAll(r)
	if err != nil {
		return &redacted{Reader: failing{err}}
	}
	return &redacted{Reader: bytes.NewReader(bytes.ReplaceAll(b, []byte(secret), make([]byte, len(secret))))}
}

type redacted struct{ io.Reader }

func (redacted) Redactions() int64 { return 0 }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
