package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

func TestExact_FailuresLeaveTheOldTree(t *testing.T) {
	for op, path := range map[string]string{"write": "new/f", "journal": "", "journaled": "", "move": "", "commit": ""} {
		for _, cause := range []error{unix.ENOSPC, unix.EIO, unix.ENOENT} {
			b := newBench(t)
			tree := b.crashTree()
			for n := 1; ; n++ {
				dir := b.crashOld()
				before, was := describe(t, dir), inode(t, dir)
				left := n
				b.fault = func(o, p string) error {
					if o == op && (path == "" || p == path) {
						if left--; left == 0 {
							return cause
						}
					}
					return nil
				}
				_, err := b.exact(tree, snapshot.Policy{}, "")
				b.fault = func(string, string) error { return nil }
				if err == nil {
					if n == 1 {
						t.Errorf("%s never failed", op)
					}
					break
				}
				code := snapshot.AsError(err).Code
				if cause == unix.ENOSPC && code != snapshot.StoreFull || cause == unix.ENOENT && op == "move" && code != snapshot.WorkspaceChanged {
					t.Errorf("%s %d: %v", op, n, err)
				}
				if text := snapshot.AsError(err).Message; code == snapshot.StoreFull && !strings.HasPrefix(text, `the disk of the node is full at "`) {
					t.Errorf("%s %d: %s", op, n, text)
				}
				if after := describe(t, dir); !maps.Equal(before, after) || inode(t, dir) != was {
					t.Fatalf("%s %d changed %v to %v", op, n, before, after)
				}
				b.alone()
			}
		}
	}
}

// TestExact_NotConfirmed changes nothing.
func TestExact_NotConfirmed(t *testing.T) {
	b := newBench(t)
	tree := b.crashTree()
	dir := b.crashOld()
	before := describe(t, dir)
	lost := errors.New("lost")
	to := snapshot.Target{Root: "restore", Path: "dest", Exact: true, Confirm: func(ctx context.Context) error {
		if _, err := b.Capture(ctx, dir, snapshot.Policy{}, "", newMemTree()); !errors.Is(err, snapshot.Busy) {
			t.Errorf("a save may begin: %v", err)
		}
		return lost
	}}
	if _, _, err := b.Trees.Restore(bg(), to, tree.all(), loose(tree.open)); !errors.Is(err, lost) {
		t.Errorf("error is %v", err)
	}
	b.isBack(dir, before)
}

// crashTree and crashOld have every kind of move between them.
func (b *bench) crashTree() *memTree {
	b.write("same", "1", "changed", "2", "new/f", "3", "dir-to-file", "4", "file-to-dir/x", "5", "touched", "6", "closed/new", "7", "late/x", "8")
	for _, p := range []string{"closed", "late"} {
		must(b.t, os.Chmod(filepath.Join(b.ws, p), 0o555))
	}
	must(b.t, os.Chmod(filepath.Join(b.ws, "touched"), 0o700))
	for _, p := range []string{"same", "changed", "new/f", "dir-to-file", "file-to-dir/x", "touched", "closed/new", "late/x"} {
		must(b.t, os.Chtimes(filepath.Join(b.ws, p), time.Time{}, time.Unix(1e9, 1)))
	}
	tree, _ := b.capture(snapshot.Policy{})
	return tree
}

func (b *bench) crashOld() string {
	dir := b.old("same", "1", "changed", "old", "dir-to-file/a", "x", "file-to-dir", "x", "touched", "6", "closed/gone", "x",
		"gone/x", "x", "half/x", "x", "half/.env", "x", "node_modules/x", "x")
	must(b.t, os.Chmod(filepath.Join(dir, "closed"), 0o500))
	must(b.t, os.Chmod(filepath.Join(dir, "half"), 0o500))
	must(b.t, os.Chtimes(filepath.Join(dir, "same"), time.Time{}, time.Unix(1e9, 1)))
	return dir
}

// isBack fails unless the directory is what it was, with nothing beside it.
func (b *bench) isBack(dir string, before map[string]string) {
	b.t.Helper()
	if after := describe(b.t, dir); !maps.Equal(before, after) {
		b.t.Errorf("left %v of %v", after, before)
	}
	b.alone()
}

const killVar = "SANDKEEP_TEST_KILL" // base directory, what fails, where to die, destination

// exactUntilKilled is a process that dies in the middle of a restore: at the
// n-th step, or with a failing move at that step of the undoing.
func exactUntilKilled(args string) int {
	parts := strings.Split(args, "|")
	n, err := strconv.Atoi(parts[2])
	if err != nil {
		return 3
	}
	t := &testing.T{}
	b := benchIn(t, parts[0])
	b.path = parts[3]
	tree, _ := b.captureIn(bg())
	b.fault = func(op, path string) error {
		switch op {
		case "write", "journal", "journaled", "move", "commit", "ended", "undo", "undone":
			if parts[1] == "fail" && op == "commit" {
				return unix.EIO
			}
			if parts[1] == "run" && op == "ended" { // it is done
				return nil
			}
			if parts[1] == "fail" && op != "undo" && op != "undone" && op != "ended" {
				return nil
			}
			if n--; n == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		return nil
	}
	_, err = b.exact(tree, snapshot.Policy{}, "")
	if err != nil {
		return 4
	}
	return 0
}

// killed reports whether a process was killed at its n-th step of a restore.
func (b *bench) killed(how string, n int) bool {
	b.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), strings.Join([]string{killVar + "=" + b.base, how, strconv.Itoa(n), b.path}, "|"))
	out, err := cmd.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if err != nil && (!ok || exit.ExitCode() != -1 && exit.ExitCode() != 4) {
		b.t.Fatalf("the process: %v\n%s", err, out)
	}
	return ok && exit.ExitCode() == -1
}

// TestExact_Killed kills the process at each step. What comes next there finds
// the tree as it was, until the commit.
func TestExact_Killed(t *testing.T) {
	for _, how := range []string{"run", "fail"} {
		b := newBench(t)
		b.crashTree()
		for n := 1; ; n++ {
			dir := b.crashOld()
			before, was := describe(t, dir), inode(t, dir)
			if !b.killed(how, n) {
				if n < 10 {
					t.Fatalf("%s ended after %d steps", how, n)
				}
				break
			}
			var err error
			switch n % 3 { // three ways to come upon it
			case 0:
				_, err = b.Capture(bg(), dir, snapshot.Policy{}, "", newMemTree())
			case 1:
				_, err = New(b.options)
			case 2:
				_, _, err = b.Restore(bg(), "restore", "beside", newMemTree().all(), nil)
				must(t, os.Remove(b.restored("beside")))
			}
			must(t, err)
			if after := describe(t, dir); !maps.Equal(before, after) || inode(t, dir) != was {
				t.Fatalf("%s %d left %v of %v", how, n, after, before)
			}
			if n%3 == 0 {
				_, err = New(b.options) // a stage without moves is in nobody's way
				must(t, err)
			}
			b.alone()
		}
	}
}

// What is written after a restore broke off is kept by whoever takes it back.
func TestExact_WrittenSinceTheCrash(t *testing.T) {
	b := newBench(t)
	b.crashTree()
	dir := b.crashOld()
	before := describe(t, dir)
	b.killedWhen(func() bool { return isThere(filepath.Join(dir, "new/f")) })
	must(t, os.WriteFile(filepath.Join(dir, "new", "work"), []byte("of an afternoon"), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "gone"), 0o700))
	var told []Undone
	b.options.Undone = func(u Undone) { told = append(told, u) }
	_, err := New(b.options)
	must(t, err)
	after := describe(t, dir)
	kept, err := filepath.Glob(dir + keptSuffix + "*/new/work")
	if must(t, err); len(kept) != 1 {
		t.Fatalf("new/work is kept as %q; the directory has %v", kept, after)
	}
	name := filepath.Base(filepath.Dir(filepath.Dir(kept[0])))
	if len(told) != 1 || told[0].Dir != dir || told[0].Entries == 0 || !slices.Contains(told[0].Kept, name) {
		t.Errorf("told %+v, want %s with %s", told, dir, name)
	}
	if _, err = New(b.options); err != nil || len(told) != 1 {
		t.Errorf("once more: %v, told %+v", err, told)
	}
	for path, was := range before {
		if path != "gone" && !strings.HasPrefix(path, "gone/") && after[path] != was {
			t.Errorf("%s is %v, was %v", path, after[path], was)
		}
	}
}

// TestExact_AtWork lets no other restore or save in.
func TestExact_AtWork(t *testing.T) {
	b := newBench(t)
	tree := b.crashTree()
	dir := b.crashOld()
	asked := 0
	b.fault = func(op, _ string) error {
		if op == "move" {
			asked++
			if _, err := b.Capture(bg(), dir, snapshot.Policy{}, "", newMemTree()); !errors.Is(err, snapshot.Busy) {
				t.Errorf("a save: %v", err)
			}
			if _, err := b.exact(tree, snapshot.Policy{}, ""); !errors.Is(err, snapshot.Busy) {
				t.Errorf("a restore: %v", err)
			}
			_, err := New(b.options)
			must(t, err)
		}
		return nil
	}
	_, err := b.exact(tree, snapshot.Policy{}, "")
	if must(t, err); asked == 0 {
		t.Error("nothing was moved")
	}
}

// Whatever is swapped for a link, nothing outside changes.
func TestExact_SwappedLinks(t *testing.T) {
	b := newBench(t)
	tree := b.crashTree()
	victim := filepath.Join(b.base, "victim")
	for _, op := range []string{"journal", "move"} {
		for _, name := range []string{"closed", "half", "gone", "dir-to-file", "touched", "changed", "file-to-dir", "new", "late"} {
			for n := 1; n < 25 && (op == "move" || n == 1); n += 6 {
				must(t, os.MkdirAll(victim, 0o755))
				for _, f := range []string{"a", "x", "f", "gone", "new"} {
					must(t, os.WriteFile(filepath.Join(victim, f), []byte("mine"), 0o644))
				}
				before := describe(t, victim)
				dir := b.crashOld()
				left := n
				b.fault = func(o, _ string) error {
					if o == op {
						if left--; left == 0 {
							err := os.Rename(filepath.Join(dir, name), filepath.Join(b.base, "away"))
							if err == nil || errors.Is(err, os.ErrNotExist) {
								must(t, os.Symlink(victim, filepath.Join(dir, name)))
							}
						}
					}
					return nil
				}
				_, _ = b.exact(tree, snapshot.Policy{}, "")
				b.fault = func(string, string) error { return nil }
				if after := describe(t, victim); !maps.Equal(before, after) {
					t.Fatalf("%s of %s at %d changed %v to %v", op, name, n, before, after)
				}
				must(t, removeAll(filepath.Join(b.base, "away")))
				must(t, removeAll(b.options.RestoreRoot))
				must(t, os.Mkdir(b.options.RestoreRoot, 0o755))
			}
		}
	}
}

// A stage whose directory is gone waits until that is back.
func TestExact_Orphan(t *testing.T) {
	for how, comeUpon := range map[string]func(b *bench, dir string) error{
		"start": func(b *bench, _ string) error { _, err := New(b.options); return err },
		"save": func(b *bench, dir string) error {
			_, err := b.Capture(bg(), dir, snapshot.Policy{}, "", newMemTree())
			return err
		},
		"restore": func(b *bench, _ string) error {
			_, err := b.exact(newMemTree(), snapshot.Policy{Exclude: []string{"**"}}, "")
			return err
		},
	} {
		t.Run(how, func(t *testing.T) {
			b := newBench(t)
			b.crashTree()
			dir := b.crashOld()
			before := describe(t, dir)
			if !b.killed("run", 16) {
				t.Fatal("the restore was not killed")
			}
			away := filepath.Join(b.base, "state", "away")
			must(t, os.Rename(dir, away))
			b.other(dir)
			must(t, os.RemoveAll(dir))
			must(t, os.Rename(away, dir))
			must(t, comeUpon(b, dir))
			b.isBack(dir, before)
		})
	}
}

// other makes another directory, of which nothing is undone.
func (b *bench) other(dir string) {
	b.t.Helper()
	must(b.t, os.Mkdir(dir, 0o755))
	must(b.t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o644))
	for range 2 {
		if _, err := b.Capture(bg(), dir, snapshot.Policy{}, "", newMemTree()); err != nil {
			b.t.Error(err)
		}
	}
	if after := describe(b.t, dir); len(after) != 1 {
		b.t.Errorf("another directory has %v", after)
	}
}

// A directory that is made in the place of another may get its inode.
func TestExact_InodeAgain(t *testing.T) {
	b := newBench(t)
	b.crashTree()
	dir := b.crashOld()
	if !b.killed("run", 16) {
		t.Fatal("the restore was not killed")
	}
	was := inode(t, dir)
	must(t, os.Rename(dir, filepath.Join(b.base, "state", "away")))
	must(t, os.Mkdir(dir, 0o755))
	journal := filepath.Join(b.restored(exactStage("dest")), journalName)
	text, err := os.ReadFile(journal)
	must(t, err)
	again := strings.Replace(string(text[:len(text)-sha256.Size]), strconv.FormatUint(was, 10), strconv.FormatUint(inode(t, dir), 10), 1)
	must(t, os.WriteFile(journal, b.signed(again), 0o600))
	_, err = New(b.options)
	must(t, err)
	if after := describe(t, dir); len(after) != 0 {
		t.Errorf("another directory has %v", after)
	}
}

// What a restore further down left half done is undone by the next worker.
func TestExact_KilledBelow(t *testing.T) {
	b := newBench(t)
	b.path = "a/b/dest"
	must(t, os.MkdirAll(b.restored("a/b"), 0o755))
	b.crashTree()
	for n := 1; ; n++ {
		dir := b.crashOld()
		before := describe(t, dir)
		if !b.killed("run", n) {
			if n < 10 {
				t.Fatalf("it ended after %d steps", n)
			}
			b.alone()
			break
		}
		_, err := New(b.options)
		must(t, err)
		if b.isBack(dir, before); t.Failed() {
			t.Fatalf("after %d steps", n)
		}
	}
}

// What was put in the place of the directory is neither compared nor changed.
func TestExact_SwappedDirectory(t *testing.T) {
	b := newBench(t)
	tree := b.crashTree()
	dir := b.crashOld()
	before, away := describe(t, dir), filepath.Join(b.base, "state", "away")
	entries := func(yield func(snapshot.Entry, error) bool) {
		must(t, os.Rename(dir, away))
		must(t, os.Mkdir(dir, 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "same"), []byte("other"), 0o644))
		tree.all()(yield)
	}
	_, _, err := b.Trees.Restore(bg(), snapshot.Target{Root: "restore", Path: "dest", Exact: true}, entries, loose(tree.open))
	wantCode(t, err, snapshot.WorkspaceChanged)
	if after := describe(t, away); !maps.Equal(before, after) {
		t.Errorf("changed %v to %v", before, after)
	}
	if other := describe(t, dir); len(other) != 1 {
		t.Errorf("another directory has %v", other)
	}
}

// killedWhen kills processes at one step after another until the tree is as it
// is to be; what the others left is undone.
func (b *bench) killedWhen(is func() bool) {
	b.t.Helper()
	for n := 1; ; n++ {
		if !b.killed("run", n) {
			b.t.Fatal("no process was killed at that step")
		}
		if is() {
			return
		}
		_, err := New(b.options)
		must(b.t, err)
	}
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Once the journal has gone the restore is done: it could not be taken back.
func TestExact_EndNotSynced(t *testing.T) {
	b := newBench(t)
	tree := b.crashTree()
	b.crashOld()
	b.fault = func(op, _ string) error {
		if op == "ended" {
			return unix.EIO
		}
		return nil
	}
	_, err := b.exact(tree, snapshot.Policy{}, "")
	must(t, err)
	if files, err := b.exact(tree, snapshot.Policy{}, ""); files != 0 || err != nil {
		t.Errorf("%d files were still to be written: %v", files, err)
	}
	b.alone()
}

// A journal that may not be on the disk is removed before what it is about.
func TestExact_JournalNotSynced(t *testing.T) {
	b := newBench(t)
	b.crashOld()
	dest, err := b.destination("restore", "dest")
	must(t, err)
	defer dest.close()
	x := &exact{t: b.Trees, dest: dest, top: noHandle, fresh: noHandle, old: noHandle}
	defer x.close()
	x.stage, err = b.newExactStage(dest.parent(), dest.base())
	must(t, err)
	must(t, x.open())
	b.fault = func(op, _ string) error {
		if op == "journaled" {
			return unix.EIO
		}
		return nil
	}
	if err := x.writeJournal(nil); !errors.Is(err, unix.EIO) {
		t.Errorf("error is %v", err)
	}
	if isThere(filepath.Join(b.restored(exactStage("dest")), journalName)) {
		t.Error("the journal is left")
	}
}

// Without its key on the disk no journal is written, and nothing moved.
func TestExact_KeyNotSynced(t *testing.T) {
	b := newBench(t)
	tree := b.crashTree()
	dir := b.crashOld()
	before := describe(t, dir)
	must(t, os.Remove(filepath.Join(b.cacheDir(), saltName)))
	_, err := b.exact(tree, snapshot.Policy{}, "")
	wantCode(t, err, snapshot.Internal)
	b.isBack(dir, before)
}

// A stage whose removal broke off, but has its journal, is in nobody's way.
func TestExact_HalfRemoved(t *testing.T) {
	b := newBench(t)
	b.crashTree()
	dir := b.crashOld()
	before, stage := describe(t, dir), b.restored(exactStage("dest"))
	b.killedWhen(func() bool { return isThere(filepath.Join(stage, journalName)) }) // and nothing was moved
	must(t, os.RemoveAll(filepath.Join(stage, oldName)))
	_, err := b.Capture(bg(), dir, snapshot.Policy{}, "", newMemTree())
	must(t, err)
	b.isBack(dir, before)
}

// A parent that is away when a worker starts may be back when the next one does.
func TestExact_ParentAway(t *testing.T) {
	b := newBench(t)
	b.path = "a/b/dest"
	must(t, os.MkdirAll(b.restored("a/b"), 0o755))
	b.crashTree()
	dir := b.crashOld()
	before, away := describe(t, dir), filepath.Join(b.base, "state", "away")
	if !b.killed("run", 16) {
		t.Fatal("the restore was not killed")
	}
	must(t, os.Rename(b.restored("a"), away))
	_, err := New(b.options)
	must(t, err)
	must(t, os.Rename(away, b.restored("a")))
	_, err = New(b.options)
	must(t, err)
	b.isBack(dir, before)
}

// A stage that waits for its directory is found again, whatever is restored meanwhile.
func TestExact_OrphanBelow(t *testing.T) {
	b := newBench(t)
	b.path = "a/b/dest"
	must(t, os.MkdirAll(b.restored("a/b"), 0o755))
	tree := b.crashTree()
	dir := b.crashOld()
	before, away := describe(t, dir), filepath.Join(b.base, "state", "away")
	if !b.killed("run", 16) {
		t.Fatal("the restore was not killed")
	}
	must(t, os.Rename(dir, away))
	b.crashOld()
	_, err := b.exact(tree, snapshot.Policy{}, "")
	must(t, err)
	must(t, removeAll(dir))
	must(t, os.Rename(away, dir))
	_, err = New(b.options)
	must(t, err)
	b.isBack(dir, before)
}

// A restore that begins while a worker removes the sign of the one before has its sign.
func TestExact_SignInUse(t *testing.T) {
	b := newBench(t)
	b.path = "a/b/dest"
	must(t, os.MkdirAll(b.restored("a/b"), 0o755))
	tree := b.crashTree()
	b.crashOld()
	must(t, os.Symlink(b.path, b.restored(exactStage(b.path)))) // of a dead one
	moves, ended, goOn := make(chan bool), make(chan error, 1), make(chan bool)
	moved := false
	b.fault = func(op, _ string) error {
		switch {
		case op == "sign":
			go func() {
				_, err := b.exact(tree, snapshot.Policy{}, "")
				ended <- err
				close(ended)
			}()
			select {
			case <-moves:
			case err := <-ended:
				wantCode(t, err, snapshot.Busy)
			}
		case op == "move" && !moved:
			moved = true
			moves <- true
			<-goOn
		}
		return nil
	}
	root, err := os.OpenRoot(b.options.RestoreRoot)
	must(t, err)
	defer root.Close()
	b.followSigns(root)
	if moved && !isThere(b.restored(exactStage(b.path))) {
		t.Error("the restore has no sign")
	}
	close(goOn)
	for range ended {
	}
	b.fault = func(string, string) error { return nil }
	_, err = b.exact(tree, snapshot.Policy{}, "")
	must(t, err)
	b.alone()
}
