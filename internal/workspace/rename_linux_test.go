package workspace

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Where the system can't rename without replacing, moves replace nothing either.
func TestMoveSimply(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"from/dir/in", "to/full/x", "to/empty"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(dir, "from/file"), []byte("1"), 0o640))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "from/link")))
	must(t, os.WriteFile(filepath.Join(dir, "to/there"), []byte("2"), 0o600))
	root, err := os.Open(dir)
	must(t, err)
	defer root.Close()
	open := func(name string) handle {
		h, err := openDirectory(handle(root.Fd()), name)
		must(t, err)
		t.Cleanup(h.close)
		return h
	}
	from, to := open("from"), open("to")
	before := describe(t, dir)
	for _, name := range []string{"file", "link", "dir"} {
		for _, taken := range []string{"there", "full", "empty"} {
			if err := from.moveSimply(name, to, taken); !errors.Is(err, unix.EEXIST) {
				t.Errorf("%s to %s: %v", name, taken, err)
			}
		}
	}
	if err := from.moveSimply("none", to, "x"); !isAbsent(err) {
		t.Errorf("of nothing: %v", err)
	}
	if after := describe(t, dir); !maps.Equal(before, after) {
		t.Errorf("changed %v to %v", before, after)
	}
	must(t, os.Link(filepath.Join(dir, "from/file"), filepath.Join(dir, "to/file"))) // as a process does that dies
	for _, name := range []string{"file", "link", "dir"} {
		must(t, from.moveSimply(name, to, name))
		for path, what := range before {
			if rest, ok := cutWithin(path, "from/"+name); ok {
				before["to/"+name+rest] = what
				delete(before, path)
			}
		}
	}
	if after := describe(t, dir); !maps.Equal(before, after) {
		t.Errorf("made %v and not %v", after, before)
	}
}

func cutWithin(path, dir string) (rest string, ok bool) {
	if !isWithin(path, dir) {
		return "", false
	}
	return path[len(dir):], true
}
