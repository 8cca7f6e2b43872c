package snapshot_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"sandkeep/internal/snapshot"
)

func TestToken(t *testing.T) {
	for s, want := range map[string]string{"a-B_9": "a-B_9", "": "", "a.b": "a=2Eb", "=": "=3D", "é*>": "=C3=A9=2A=3E", "\x00 ": "=00=20"} {
		if got := snapshot.EscapeToken(s); got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	}
	for _, bad := range []string{"=", "=2", "=2e", "=41", "a.b", "=GG", "é"} {
		if s, err := snapshot.UnescapeToken(bad); err == nil {
			t.Errorf("%q was taken as %q", bad, s)
		}
	}
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", "a", "a.b", "*", ">", "é", "=2A", " \x00\xff", "😀"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token := snapshot.EscapeToken(s)
		if back, err := snapshot.UnescapeToken(token); err != nil || back != s {
			t.Fatalf("%q became %q, then %q, %v", s, token, back, err)
		}
		if strings.ContainsAny(token, ".*> \t\r\n") || !utf8.ValidString(token) {
			t.Fatalf("%q is no subject token", token)
		}
		if id, err := snapshot.UnescapeToken(s); err == nil && snapshot.EscapeToken(id) != s { // one token per id
			t.Fatalf("%q and %q both stand for %q", s, snapshot.EscapeToken(id), id)
		}
	})
}
