package workspace

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// rewrite changes a file so that only its ctime tells.
func rewrite(t *testing.T, file string) {
	t.Helper()
	ctime := func(info os.FileInfo) int64 { s, _ := sysStat(info); return s.ctime }
	before, err := os.Stat(file)
	must(t, err)
	data, err := os.ReadFile(file)
	must(t, err)
	for until := time.Now().Add(10 * time.Second); ; {
		must(t, os.WriteFile(file, []byte(strings.ToUpper(string(data))), 0o600))
		must(t, os.Chtimes(file, before.ModTime(), before.ModTime()))
		now, err := os.Stat(file)
		if must(t, err); ctime(now) != ctime(before) {
			return
		}
		if time.Now().After(until) {
			t.Skip("no ctimes on this file system")
		}
	}
}

// What is written to a file after the restore has looked at it is not lost, and
// the directory is as it was but for that.
func TestExact_WrittenMeanwhile(t *testing.T) {
	writes := map[string]func(t *testing.T, file string){
		"more": func(t *testing.T, file string) { must(t, os.WriteFile(file, []byte("mine"), 0o600)) },
		"as long and old": func(t *testing.T, file string) {
			rewrite(t, file)
		},
	}
	for _, path := range []string{"touched", "changed", "closed/gone", "file-to-dir"} {
		for how, write := range writes {
			for _, op := range []string{"journal", "move"} {
				t.Run(path+" "+how+" "+op, func(t *testing.T) {
					b := newBench(t)
					tree := b.crashTree()
					dir := b.crashOld()
					file := filepath.Join(dir, path)
					at := path
					if op == "journal" {
						at = ""
					}
					var want map[string]string
					b.at(op, at, 1, func() {
						write(t, file)
						want = describe(t, dir)
					})
					before := describe(t, dir)
					_, err := b.exact(tree, snapshot.Policy{}, "")
					wantCode(t, err, snapshot.WorkspaceChanged)
					after := describe(t, dir)
					if after[path] != want[path] {
						t.Errorf("%s is %s, was written as %s", path, after[path], want[path])
					}
					delete(before, path)
					delete(after, path)
					if !maps.Equal(before, after) {
						t.Errorf("changed %v to %v", before, after)
					}
					b.alone()
				})
			}
		}
	}
}

// A file that got another name meanwhile is not changed under that one.
func TestExact_LinkedMeanwhile(t *testing.T) {
	b := newBench(t)
	tree := b.crashTree()
	dir := b.crashOld()
	before, outside := describe(t, dir), filepath.Join(b.base, "outside")
	b.at("move", "touched", 1, func() { must(t, os.Link(filepath.Join(dir, "touched"), outside)) })
	_, err := b.exact(tree, snapshot.Policy{}, "")
	wantCode(t, err, snapshot.WorkspaceChanged)
	if after := describe(t, dir); !maps.Equal(before, after) {
		t.Errorf("changed %v to %v", before, after)
	}
}

// A file that another took the place of is closed again.
func TestExact_SwappedFile(t *testing.T) {
	open := 0
	for round := range 3 {
		b := newBench(t)
		tree := b.crashTree()
		dir := b.crashOld()
		mine := filepath.Join(b.base, "mine")
		must(t, os.WriteFile(mine, []byte("6"), 0o600))
		b.at("move", "touched", 1, func() { must(t, os.Rename(mine, filepath.Join(dir, "touched"))) })
		_, err := b.exact(tree, snapshot.Policy{}, "")
		wantCode(t, err, snapshot.WorkspaceChanged)
		now, err := os.ReadDir("/dev/fd")
		if must(t, err); round > 0 && len(now) > open {
			t.Errorf("%d descriptors are open, and were %d", len(now), open)
		}
		open = len(now)
	}
}

// Files with several names in the directory, whose moves change the others' times.
func TestExact_HardLinksWithin(t *testing.T) {
	b := newBench(t)
	b.write("a", "new", "b", "other")
	tree, _ := b.capture(snapshot.Policy{})
	dir := b.old("a", "old")
	for _, name := range []string{"b", "c", "d"} {
		must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, name)))
	}
	_, err := b.exact(tree, snapshot.Policy{}, "")
	must(t, err)
	if got := describe(t, dir); !maps.Equal(got, describe(t, b.ws)) {
		t.Errorf("there is %v", got)
	}
}

// undone makes a restore fail at the last moment, after act.
func (b *bench) undone(tree *memTree, act func()) {
	b.t.Helper()
	b.fault = func(op, _ string) error {
		if op == "commit" {
			act()
			return unix.EIO
		}
		return nil
	}
	_, err := b.exact(tree, snapshot.Policy{}, "")
	if !errors.Is(err, unix.EIO) {
		b.t.Errorf("error is %v", err)
	}
	b.fault = func(string, string) error { return nil }
}

// What is written while a restore is at work is kept when it takes itself back.
func TestExact_WrittenBeforeTheUndo(t *testing.T) {
	old := time.Unix(1_000_000_000, 0)
	for name, write := range map[string]func(t *testing.T, dir string) (file string){
		"a new file": func(t *testing.T, dir string) string {
			must(t, os.WriteFile(filepath.Join(dir, "new", "work"), []byte("mine"), 0o600))
			return "new/work"
		},
		"an old file that came": func(t *testing.T, dir string) string {
			from, to := filepath.Join(dir, "work"), filepath.Join(dir, "new", "work")
			must(t, os.WriteFile(from, []byte("mine"), 0o600))
			must(t, os.Chtimes(from, old, old))
			journal, err := os.Stat(filepath.Join(filepath.Dir(dir), exactStage("dest"), journalName))
			must(t, err)
			for until := time.Now().Add(10 * time.Second); time.Now().Before(until); { // until the clock has moved on
				must(t, os.Rename(from, to))
				into, err := os.Stat(filepath.Dir(to))
				if must(t, err); into.ModTime().After(journal.ModTime()) {
					break
				}
				must(t, os.Rename(to, from))
			}
			return "new/work"
		},
		"a file that the restore brought": func(t *testing.T, dir string) string {
			must(t, os.WriteFile(filepath.Join(dir, "changed"), []byte("mine"), 0o600))
			return "changed"
		},
		"a file in a directory that it brought": func(t *testing.T, dir string) string {
			must(t, os.WriteFile(filepath.Join(dir, "new", "f"), []byte("mine"), 0o600))
			return "new/f"
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tree := b.crashTree()
			dir := b.crashOld()
			before, path := describe(t, dir), ""
			b.undone(tree, func() { path = write(t, dir) })
			if after := describe(t, dir); !maps.Equal(before, after) {
				t.Errorf("changed %v to %v", before, after)
			}
			kept, err := filepath.Glob(dir + keptSuffix + "*/" + path)
			if must(t, err); len(kept) != 1 {
				t.Fatalf("%s is kept as %q", path, kept)
			}
			if data, err := os.ReadFile(kept[0]); string(data) != "mine" {
				t.Errorf("%s has %q, %v", path, data, err)
			}
		})
	}
}

// What the undo finds changed in place stays so.
func TestExact_TouchedBeforeTheUndo(t *testing.T) {
	b := newBench(t)
	tree := b.crashTree()
	dir := b.crashOld()
	before := describe(t, dir)
	var want os.FileInfo
	b.undone(tree, func() {
		file := filepath.Join(dir, "touched")
		must(t, os.WriteFile(file, []byte("mine"), 0o600))
		var err error
		want, err = os.Stat(file)
		must(t, err)
	})
	got, err := os.Stat(filepath.Join(dir, "touched"))
	if must(t, err); !got.ModTime().Equal(want.ModTime()) || got.Mode() != 0o644 {
		t.Errorf("the file has the time %v and not %v, the mode %v", got.ModTime(), want.ModTime(), got.Mode())
	}
	after := describe(t, dir)
	delete(before, "touched")
	delete(after, "touched")
	if !maps.Equal(before, after) {
		t.Errorf("changed %v to %v", before, after)
	}
	b.alone()
}

// A file whose time in the checkpoint is still to come was not written for that.
func TestExact_TimesToCome(t *testing.T) {
	ahead := time.Now().Add(time.Hour).Truncate(time.Second)
	for _, written := range []bool{false, true} {
		b := newBench(t)
		b.crashTree()
		for _, p := range []string{"new/f", "changed"} {
			must(t, os.Chtimes(filepath.Join(b.ws, p), ahead, ahead))
		}
		tree, _ := b.capture(snapshot.Policy{})
		dir := b.crashOld()
		act := func() {
			if written {
				must(t, os.WriteFile(filepath.Join(dir, "new/f"), []byte("mine"), 0o600))
			}
		}
		b.undone(tree, act)
		if kept, err := filepath.Glob(dir + keptSuffix + "*/new/f"); err != nil || len(kept) == 1 != written {
			t.Errorf("written %v, kept %q, %v", written, kept, err)
		}
		if written {
			continue
		}
		dir = b.crashOld()
		b.killedWhen(func() bool { return isThere(filepath.Join(dir, "new/f")) })
		_, err := New(b.options)
		must(t, err)
		b.alone()
	}
}

// What was displaced and has no place any more is kept beside the directory.
func TestExact_PlaceGone(t *testing.T) {
	long := strings.Repeat("n", 240)
	for name, act := range map[string]func(dir string) error{
		"removed": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "build")) },
		"a file": func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "build")), os.WriteFile(filepath.Join(dir, "build"), nil, 0o600))
		},
		"taken": func(dir string) error { return os.WriteFile(filepath.Join(dir, "build", long), []byte("mine"), 0o600) },
	} {
		for _, how := range []string{"fails", "killed"} {
			t.Run(name+" "+how, func(t *testing.T) {
				b := newBench(t)
				b.write("keep", "1")
				tree, _ := b.capture(snapshot.Policy{})
				dir := b.old("keep", "1", "build/"+long, "x", "build/z", "x")
				b.at("move", "build/z", 1, func() { must(t, act(dir)) })
				if how == "fails" {
					fault := b.fault
					b.fault = func(op, path string) error {
						return errors.Join(fault(op, path), map[bool]error{true: unix.EIO}[op == "move" && path == "build/z"])
					}
					_, err := b.exact(tree, snapshot.Policy{}, "")
					if !errors.Is(err, unix.EIO) || errors.Is(err, snapshot.ErrHalfRestored) {
						t.Errorf("error is %v", err)
					}
					b.fault = func(string, string) error { return nil }
				} else {
					b.killedWhen(func() bool { return !isThere(filepath.Join(dir, "build", long)) })
					must(t, act(dir))
				}
				for range 2 {
					_, err := b.Capture(bg(), dir, snapshot.Policy{}, "", newMemTree())
					must(t, err)
				}
				kept, err := filepath.Glob(dir + keptSuffix + "*")
				if must(t, err); len(kept) != 1 {
					t.Fatalf("kept %q", kept)
				}
				if data, err := os.ReadFile(filepath.Join(kept[0], "build", long)); string(data) != "x" {
					t.Errorf("kept %q, %v", data, err)
				}
				if info, err := os.Stat(kept[0]); err != nil || info.Mode().Perm() != 0o700 {
					t.Errorf("it is kept in %v, %v", info.Mode(), err)
				}
				must(t, os.RemoveAll(kept[0]))
				b.alone()
			})
		}
	}
}

// A directory whose name is as long as can be has something kept, too.
func TestExact_LongName(t *testing.T) {
	b := newBench(t)
	b.path = strings.Repeat("n", 99) + strings.Repeat("é", 78)
	tree := b.crashTree()
	dir := b.crashOld()
	b.undone(tree, func() { must(t, os.WriteFile(filepath.Join(dir, "changed"), []byte("mine"), 0o600)) })
	if kept, err := filepath.Glob(b.restored(strings.Repeat("n", 99)+keptSuffix) + "*/changed"); err != nil || len(kept) != 1 {
		t.Errorf("kept %q, %v", kept, err)
	}
}

// A link that was staged just before is nobody's work.
func TestExact_NothingWritten(t *testing.T) {
	b := newBench(t)
	b.crashTree()
	must(t, os.Symlink("same", filepath.Join(b.ws, "link")))
	must(t, os.Mkdir(filepath.Join(b.ws, "empty"), 0o700))
	must(t, os.Symlink("f", filepath.Join(b.ws, "new", "link")))
	tree, _ := b.capture(snapshot.Policy{})
	dir := b.crashOld()
	before := describe(t, dir)
	b.undone(tree, func() {})
	b.isBack(dir, before)
}

// The bits that no checkpoint has stay on what stays.
func TestExact_SpecialBits(t *testing.T) {
	const setgid, sticky, setuid = syscall.S_ISGID, syscall.S_ISVTX, syscall.S_ISUID
	b := newBench(t)
	b.write("shared/new", "1", "closed/new", "2", "wider/x", "3", "tool", "4", "kept/x", "5")
	must(t, os.Chmod(filepath.Join(b.ws, "closed"), 0o555))
	must(t, os.Chmod(filepath.Join(b.ws, "wider"), 0o775))
	must(t, os.Chmod(filepath.Join(b.ws, "tool"), 0o755))
	tree, _ := b.capture(snapshot.Policy{})
	dir := b.old("shared/x", "", "closed/x", "", "wider/x", "3", "tool", "4", "kept/x", "5")
	modes := map[string]uint32{"": 0o1755, "shared": 0o755 | setgid, "closed": 0o555 | setgid | sticky, "wider": 0o750 | setgid, "tool": 0o755 | setuid, "kept": 0o755 | setgid}
	for path, mode := range modes {
		must(t, syscall.Chmod(filepath.Join(dir, path), mode))
	}
	check := func(when string, want map[string]uint32) {
		t.Helper()
		for path, mode := range want {
			var s syscall.Stat_t
			if must(t, syscall.Lstat(filepath.Join(dir, path), &s)); uint32(s.Mode)&0o7777 != mode {
				t.Errorf("%s: %q has the mode %o, not %o", when, path, s.Mode&0o7777, mode)
			}
		}
	}
	b.undone(tree, func() {})
	check("undone", modes)
	_, err := b.exact(tree, snapshot.Policy{}, "")
	must(t, err)
	modes["wider"] = 0o775 | setgid
	check("restored", modes)
}

// A file that its owner may not open then is replaced, so that it can come back.
func TestExact_Unreadable(t *testing.T) {
	b := newBench(t)
	b.write("f", "1")
	tree, _ := b.capture(snapshot.Policy{})
	tree.entries[0].Mode = 0o200
	dir := b.old("f", "1")
	before, was := describe(t, dir), inode(t, filepath.Join(dir, "f"))
	b.undone(tree, func() {
		if inode(t, filepath.Join(dir, "f")) == was {
			t.Error("the file was changed in place")
		}
	})
	if after := describe(t, dir); !maps.Equal(before, after) {
		t.Errorf("changed %v to %v", before, after)
	}
}

// An undo that fails says so, and what comes next there goes on with it.
func TestExact_UndoFails(t *testing.T) {
	for _, op := range []string{"undo", "undone"} {
		b := newBench(t)
		tree := b.crashTree()
		dir := b.crashOld()
		before := describe(t, dir)
		b.fault = func(o, _ string) error {
			if o == "commit" || o == op {
				return unix.EIO
			}
			return nil
		}
		_, err := b.exact(tree, snapshot.Policy{}, "")
		if wantCode(t, err, snapshot.Internal); !errors.Is(err, snapshot.ErrHalfRestored) || !strings.Contains(err.Error(), "save there again") {
			t.Errorf("error is %v", err)
		}
		b.fault = func(string, string) error { return nil }
		if _, err = b.Capture(bg(), dir, snapshot.Policy{}, "", newMemTree()); err != nil {
			t.Error(err)
		}
		b.isBack(dir, before)
	}
}
