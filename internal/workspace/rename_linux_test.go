package workspace

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
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

// What comes into the place of a file just before it is displaced is displaced,
// not lost.
func TestTake_LosesNothing(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "old"), 0o755))
	top, err := os.Open(dir)
	must(t, err)
	defer top.Close()
	old, err := openDirectory(handle(top.Fd()), "old")
	must(t, err)
	defer old.close()
	file, tmp := filepath.Join(dir, "f"), filepath.Join(dir, "tmp")
	for i := range 1000 {
		must(t, os.WriteFile(file, []byte("before"), 0o600))
		must(t, os.WriteFile(tmp, []byte("mine"), 0o600))
		mine, saved := inode(t, tmp), make(chan error)
		go func() { saved <- os.Rename(tmp, file) }()
		slot := strconv.Itoa(i)
		must(t, handle(top.Fd()).take("f", old, slot))
		must(t, <-saved)
		there, err := os.Stat(file)
		if kept := inode(t, filepath.Join(dir, "old", slot)) == mine; (err != nil || there.Size() != 4) && !kept {
			t.Fatalf("the file is lost in round %d: %v", i, err)
		}
		_ = os.Remove(file)
	}
}

// Who may not give a file a second name can move it all the same.
func TestMoveSimply_NoLinks(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"from", "to"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
		must(t, os.Chmod(filepath.Join(dir, d), 0o777))
	}
	must(t, os.WriteFile(filepath.Join(dir, "from/f"), []byte("1"), 0o600))
	top, err := os.Open(dir)
	must(t, err)
	defer top.Close()
	open := func(name string) handle {
		h, err := openDirectory(handle(top.Fd()), name)
		must(t, err)
		t.Cleanup(h.close)
		return h
	}
	from, to := open("from"), open("to")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if now, _ := unix.SetfsuidRetUid(65534); now != os.Geteuid() {
		t.Skip("no other user can be tried")
	}
	defer func() { _, _ = unix.SetfsuidRetUid(os.Geteuid()) }()
	if unix.Linkat(int(from), "f", int(to), "g", 0) != unix.EPERM {
		t.Skip("files of others may be linked")
	}
	must(t, from.moveSimply("f", to, "f"))
	if isThere(filepath.Join(dir, "from/f")) {
		t.Error("it has both names")
	}
}

func cutWithin(path, dir string) (rest string, ok bool) {
	if !isWithin(path, dir) {
		return "", false
	}
	return path[len(dir):], true
}
