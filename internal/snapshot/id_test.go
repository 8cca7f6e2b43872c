package snapshot_test

import (
	"errors"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"sandkeep/internal/snapshot"
)

func TestValidateID(t *testing.T) {
	for _, id := range []string{"a", " ", "a.b", "*", ">", "a/b", "\n", "é", "🦀", strings.Repeat("x", 500)} {
		if err := snapshot.ThreadID(id).Validate(); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"", strings.Repeat("x", 501), strings.Repeat("é", 251), "\xff", "a\xed\xa0\x80"} {
		if err := snapshot.ThreadID(id).Validate(); !errors.Is(err, snapshot.InvalidID) {
			t.Errorf("%q: got %v, want %v", id, err, snapshot.InvalidID)
		}
	}
}

func TestValidatePath(t *testing.T) {
	for _, p := range []string{"a", "a/b", " ", "a\nb", ".a", "..a", "a..", "...", "cc:/x", "é", "1:", "c:x", "a/c:", strings.Repeat("x", 4096)} {
		if err := snapshot.ValidatePath(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	for _, p := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "./a", "a/.", "a/../b", "a\x00", `a\b`, "c:", "C:/x", "\xff", strings.Repeat("x", 4097)} {
		if err := snapshot.ValidatePath(p); !errors.Is(err, snapshot.InvalidPath) {
			t.Errorf("%q: got %v, want %v", p, err, snapshot.InvalidPath)
		}
	}
}

func FuzzValidatePath(f *testing.F) {
	for _, p := range []string{"a/b", "../a", "/a", "a//b", "c:/x", "a\\b", "\xff", "a/./b"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if snapshot.ValidatePath(p) != nil {
			return
		}
		if path.Clean(p) != p || path.IsAbs(p) || p == "." || p == ".." || strings.HasPrefix(p, "../") || !utf8.ValidString(p) || strings.ContainsAny(p, "\x00\\") {
			t.Errorf("accepted %q", p)
		}
	})
}

func TestCheckpointID_Shown(t *testing.T) {
	for id, want := range map[snapshot.CheckpointID]string{"": "none", "none": `"none"`, "a\"b\n": `"a\"b\n"`} {
		if got := id.Shown(); got != want {
			t.Errorf("%q is shown as %s, want %s", string(id), got, want)
		}
	}
}
