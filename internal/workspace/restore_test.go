package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"sandkeep/internal/snapshot"
)

func TestRestore_RoundTrip(t *testing.T) {
	b := newBench(t)
	b.write("a/b", "1", "a.txt", "2", "empty/", "", "ro/deep/x", "3", "zero", "", "bin/run", "#!")
	must(t, os.Symlink("../..", filepath.Join(b.ws, "a", "up")))
	must(t, os.Chmod(filepath.Join(b.ws, "bin/run"), 0o751))
	must(t, os.Chtimes(filepath.Join(b.ws, "a.txt"), time.Time{}, time.Unix(-3, 123456789)))
	for _, d := range []string{"ro/deep", "ro", "empty"} {
		must(t, os.Chmod(filepath.Join(b.ws, d), 0o555))
	}
	tree, got := b.capture(snapshot.Policy{})
	old := syscall.Umask(0o077)
	files, size, err := b.Restore(t.Context(), "restore", "x/y/back", tree.all(), tree.open)
	syscall.Umask(old)
	must(t, err)
	if files != got.Stats.Files || size != got.Stats.Bytes {
		t.Errorf("%d files, %d bytes, stats %+v", files, size, got.Stats)
	}
	if was, is := describe(t, b.ws), describe(t, b.restored("x/y/back")); !maps.Equal(was, is) {
		t.Errorf("restored %v\nof       %v", is, was)
	}
	for _, p := range []string{"x", "x/y", "x/y/back"} {
		if info, _ := os.Stat(b.restored(p)); info.Mode().Perm() != 0o755 {
			t.Errorf("mode of %s is %o", p, info.Mode())
		}
	}
	if names := describe(t, b.restored("x/y")); len(names) != len(describe(t, b.ws))+1 {
		t.Errorf("something was left beside the destination: %v", names)
	}
}

// A directory that was there keeps its mode: what its owner had closed to others
// is not opened by what is restored into it.
func TestRestore_KeepsTheModeOfItsDestination(t *testing.T) {
	b := newBench(t)
	b.write("f", "1")
	tree, _ := b.capture(snapshot.Policy{})
	for name, mode := range map[string]os.FileMode{"closed": 0o700, "open": 0o775, "new": 0} {
		want := mode
		if mode == 0 {
			want = 0o755
		} else {
			must(t, os.Mkdir(b.restored(name), 0o700))
			must(t, os.Chmod(b.restored(name), mode))
		}
		must(t, b.restore(name, tree))
		if info, err := os.Stat(b.restored(name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v: %v", name, info.Mode(), want, err)
		}
	}
}

// A destination that goes away with its parents while the restore begins, which
// then begins anew, is a new one.
func TestRestore_ForgetsTheModeOfADestinationThatIsGone(t *testing.T) {
	b := newBench(t)
	b.write("f", "1")
	tree, _ := b.capture(snapshot.Policy{})
	for i := range 20 { // until the directories go at the right moment
		parent := fmt.Sprintf("p%d", i)
		if gone := restoreAsParentGoes(t, b, parent, tree); !gone {
			continue
		}
		if info, err := os.Stat(b.restored(parent + "/dest")); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("the new directory has mode %v: %v", info.Mode(), err)
		}
		return
	}
	t.Fatal("the parent never went away in time")
}

// restoreAsParentGoes restores to parent/dest, which is there at first, and says
// whether it took both away between the look at them and the making of a stage:
// while the stage of a dead restore, which is large, is being removed.
func restoreAsParentGoes(t *testing.T, b *bench, parent string, tree *memTree) (gone bool) {
	dir := b.restored(parent)
	dest, stale := filepath.Join(dir, "dest"), filepath.Join(dir, stagingPrefix+"stale")
	must(t, os.MkdirAll(dest, 0o700))
	must(t, os.Mkdir(stale, 0o700))
	for i := range 3000 {
		must(t, os.WriteFile(filepath.Join(stale, fmt.Sprint(i)), nil, 0o600))
	}
	must(t, os.Chtimes(stale, time.Time{}, time.Unix(1, 0)))
	done := make(chan error, 1)
	go func() { done <- b.restore(parent+"/dest", tree) }()
	until(t, func() bool {
		info, err := os.Stat(stale)
		return err != nil || info.ModTime().Unix() != 1
	})
	_ = os.Rename(stale, b.restored("elsewhere-"+parent))
	gone = os.Remove(dest) == nil && os.Remove(dir) == nil
	if err := <-done; gone {
		must(t, err)
	}
	return gone
}

func TestRestore_Destinations(t *testing.T) {
	b := newBench(t)
	b.write("f", "1")
	tree, _ := b.capture(snapshot.Policy{})
	outside := filepath.Join(b.base, "outside")
	must(t, os.MkdirAll(outside, 0o755))
	must(t, os.MkdirAll(b.restored("full/x"), 0o755))
	must(t, os.MkdirAll(b.restored("free"), 0o700))
	must(t, os.WriteFile(b.restored("file"), nil, 0o644))
	must(t, os.Symlink(outside, b.restored("out")))
	must(t, os.Symlink("free", b.restored("in")))
	must(t, syscall.Mkfifo(b.restored("pipe"), 0o644))
	before := describeKinds(t, b.options.RestoreRoot)
	for path, code := range map[string]snapshot.Code{
		"full": snapshot.DestinationNotEmpty, "file": snapshot.DestinationNotEmpty, "pipe": snapshot.DestinationNotEmpty,
		"out": snapshot.InvalidPath, "in": snapshot.InvalidPath, "out/x": snapshot.InvalidPath, "in/x": snapshot.InvalidPath, "file/x": snapshot.InvalidPath,
		"..": snapshot.InvalidPath, "/abs": snapshot.InvalidPath, "a/../b": snapshot.InvalidPath, "": snapshot.InvalidPath,
		".sandkeep-restore-x": snapshot.InvalidPath, "new/full/../x": snapshot.InvalidPath,
	} {
		err := b.restore(path, tree)
		if wantCode(t, err, code); strings.Contains(snapshot.AsError(err).Message, b.base) {
			t.Errorf("message has a host path: %v", err)
		}
	}
	if after := describeKinds(t, b.options.RestoreRoot); !maps.Equal(before, after) {
		t.Errorf("refused restores changed %v to %v", before, after)
	}
	_, _, err := b.Restore(t.Context(), "elsewhere", "x", tree.all(), tree.open)
	wantCode(t, err, snapshot.BadRequest)
	must(t, b.restore("free", tree))
	must(t, b.restore("full/y", tree))
	_, _, err = b.Restore(t.Context(), "sandbox", "other", tree.all(), tree.open)
	must(t, err)
	if _, err := os.Stat(filepath.Join(b.options.SandboxRoot, "other", "f")); err != nil {
		t.Error(err)
	}
}

// describeKinds is describe for directories that have pipes.
func describeKinds(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil {
			var info os.FileInfo
			info, err = d.Info()
			out[p] = info.Mode().String()
		}
		return err
	}))
	return out
}

func file(path, content string) snapshot.Entry {
	return snapshot.Entry{Path: path, Kind: snapshot.KindFile, Mode: 0o644, Size: int64(len(content))}
}

func link(path, target string) snapshot.Entry {
	return snapshot.Entry{Path: path, Kind: snapshot.KindSymlink, Target: target}
}

func opener(content string) Open {
	return func(context.Context, snapshot.Entry) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(content)), nil
	}
}

func manifest(entries ...snapshot.Entry) iter.Seq2[snapshot.Entry, error] {
	m := &memTree{entries: entries}
	return m.all()
}

func TestRestore_HostileManifests(t *testing.T) {
	b := newBench(t)
	victim := filepath.Join(b.base, "victim")
	must(t, os.Mkdir(victim, 0o755))
	dir := func(p string) snapshot.Entry { return snapshot.Entry{Path: p, Kind: snapshot.KindDir, Mode: 0o755} }
	negative := file("a", "")
	negative.Size = -1
	for name, entries := range map[string][]snapshot.Entry{
		"through a link":           {link("a", victim), file("a/passwd", "x")},
		"through a link, later":    {link("a", victim), file("a.txt", "x"), file("a/passwd", "x")},
		"a directory under a link": {link("a", victim), dir("a/b")},
		"under a file":             {file("a", "x"), file("a-", "x"), file("a.b", "x"), file("a/b", "x")},
		"twice":                    {file("a", "x"), file("a", "x")},
		"a link over a file":       {file("a", "x"), link("a", victim)},
		"unsorted":                 {file("b", "x"), file("a", "x")},
		"outwards":                 {file("../victim/x", "x")},
		"absolute":                 {file("/etc/x", "x")},
		"backslash":                {file(`a\b`, "x")},
		"no name":                  {file("", "x")},
		"negative":                 {negative},
		"no kind":                  {{Path: "a"}},
		"no target":                {link("a", "")},
		"NUL in target":            {link("a", "a\x00b")},
		"long name":                {file(strings.Repeat("n", 300), "x")},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := b.Restore(t.Context(), "restore", "p/dest", manifest(entries...), opener("x"))
			wantCode(t, err, snapshot.InvalidEntry)
			if left, _ := os.ReadDir(b.options.RestoreRoot); len(left) != 0 {
				t.Errorf("left %v", left)
			}
			if left, _ := os.ReadDir(victim); len(left) != 0 {
				t.Errorf("wrote %v", left)
			}
		})
	}
}

func TestRestore_OnlyPermissionBits(t *testing.T) {
	b := newBench(t)
	f := file("f", "x")
	f.Mode = 0o4755
	d := snapshot.Entry{Path: "d", Kind: snapshot.KindDir, Mode: 0o7777}
	_, _, err := b.Restore(t.Context(), "restore", "r", manifest(d, f), opener("x"))
	must(t, err)
	for p, want := range map[string]os.FileMode{"r/f": 0o755, "r/d": 0o777 | os.ModeDir} {
		if info, err := os.Stat(b.restored(p)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v", p, info.Mode(), err)
		}
	}
}

func TestRestore_FailuresLeaveNothing(t *testing.T) {
	entries := []snapshot.Entry{{Path: "0", Kind: snapshot.KindDir, Mode: 0o555}, file("a", "x"), file("b", "x"), file("b/c.", "x")}
	entries[3].Path = "c/d"
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		open   Open
		source iter.Seq2[snapshot.Entry, error]
		fault  error
		code   snapshot.Code
		is     error
	}{
		"open fails": {open: func(context.Context, snapshot.Entry) (io.ReadCloser, error) { return nil, broken }, is: broken},
		"read fails": {open: func(context.Context, snapshot.Entry) (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(errReader{broken})), nil
		}, is: broken},
		"short":     {open: opener(""), code: snapshot.InvalidBlob},
		"long":      {open: opener("xy"), code: snapshot.InvalidBlob},
		"disk full": {open: opener("x"), fault: syscall.ENOSPC, code: snapshot.StoreFull},
		"disk bad":  {open: opener("x"), fault: syscall.EIO, code: snapshot.Internal},
		"manifest fails": {open: opener("x"), source: func(yield func(snapshot.Entry, error) bool) {
			_ = yield(entries[1], nil) && yield(snapshot.Entry{}, broken)
		}, is: broken},
	} {
		for _, exists := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t)
				if exists {
					must(t, os.MkdirAll(b.restored("p/dest"), 0o700))
				}
				before := describe(t, b.options.RestoreRoot)
				b.fault = func(op, path string) error {
					if op == "write" && path == "c/d" {
						return c.fault
					}
					return nil
				}
				source := c.source
				if source == nil {
					source = manifest(entries...)
				}
				_, _, err := b.Restore(t.Context(), "restore", "p/dest", source, c.open)
				if err == nil || c.is != nil && !errors.Is(err, c.is) {
					t.Fatalf("error is %v", err)
				}
				if c.code != "" {
					wantCode(t, err, c.code)
				}
				if after := describe(t, b.options.RestoreRoot); !maps.Equal(before, after) {
					t.Errorf("changed %v to %v", before, after)
				}
			})
		}
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestRestore_Canceled(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err := b.Restore(ctx, "restore", "x", manifest(file("a", "x"), file("b", "x")), func(ctx context.Context, _ snapshot.Entry) (io.ReadCloser, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	})
	wantCode(t, err, snapshot.Canceled)
	if left, _ := os.ReadDir(b.options.RestoreRoot); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// What comes to the destination while the restore runs stays as it is.
func TestRestore_DestinationFillsMeanwhile(t *testing.T) {
	for name, fill := range map[string]func(dest string) error{
		"a file":           func(d string) error { return os.WriteFile(d, []byte("mine"), 0o644) },
		"a link":           func(d string) error { return os.Symlink("elsewhere", d) },
		"a full directory": func(d string) error { return os.MkdirAll(filepath.Join(d, "mine"), 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.at("write", "a", 1, func() { must(t, fill(b.restored("dest"))) })
			_, _, err := b.Restore(t.Context(), "restore", "dest", manifest(file("a", "x")), opener("x"))
			wantCode(t, err, snapshot.DestinationNotEmpty)
			if left := describe(t, b.options.RestoreRoot); len(left) == 0 || left["dest/a"] != "" {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestRestore_TwoAtOnce(t *testing.T) {
	b := newBench(t)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			_, _, errs[i] = b.Restore(bg(), "restore", "p/dest", manifest(file("a", "x"), file("b/c", "x")), opener("x"))
		})
	}
	wg.Wait()
	done := 0
	for _, err := range errs {
		if err == nil {
			done++
		} else {
			wantCode(t, err, snapshot.DestinationNotEmpty)
		}
	}
	if left := describe(t, b.options.RestoreRoot); done != 1 || len(left) != 5 {
		t.Errorf("%d done, left %v", done, left)
	}
}

// A failed restore takes its parents away, but not from under another.
func TestRestore_SharedParents(t *testing.T) {
	b := newBench(t)
	b.write("f", "content")
	tree, _ := b.capture(snapshot.Policy{})
	broken := func(context.Context, snapshot.Entry) (io.ReadCloser, error) { return nil, errors.New("broken") }
	for i := range 100 {
		parents := fmt.Sprintf("p%d/q/", i)
		var others sync.WaitGroup
		for _, name := range []string{"x", "y"} {
			others.Go(func() {
				if _, _, err := b.Restore(t.Context(), "restore", parents+name, tree.all(), broken); err == nil {
					t.Error("a broken restore succeeded")
				}
			})
		}
		if err := b.restore(parents+"good", tree); err != nil {
			t.Fatal(err)
		}
		others.Wait()
		if got := slices.Sorted(maps.Keys(describe(t, b.restored(parents)))); !slices.Equal(got, []string{"good", "good/f"}) {
			t.Fatalf("there is %q", got)
		}
	}
}

func TestRestore_RemovesStaleStages(t *testing.T) {
	b := newBench(t)
	stale, live := b.restored(stagingPrefix+"stale"), b.restored(stagingPrefix+"live")
	must(t, os.MkdirAll(filepath.Join(stale, "d"), 0o755))
	must(t, os.MkdirAll(live, 0o700))
	held, err := os.Open(live)
	must(t, err)
	defer held.Close()
	must(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	_, _, err = b.Restore(t.Context(), "restore", "dest", manifest(file("a", "x")), opener("x"))
	must(t, err)
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Error("the stage of a dead process is still there")
	}
	if _, err := os.Stat(live); err != nil {
		t.Error("the stage of a living process was removed")
	}
}

// A random tree comes back as it was.
func TestRoundTrip_Property(t *testing.T) {
	b := newBench(t)
	rapid.Check(t, func(r *rapid.T) {
		randomTree(t, r, b.ws)
		tree := newMemTree()
		pol := snapshot.Policy{NoDefaultExcludes: true, Strict: os.Geteuid() == 0}
		_, err := b.Capture(bg(), b.ws, pol, "", tree)
		must(t, err)
		must(t, removeAll(b.restored("back")))
		must(t, b.restore("back", tree))
		if was, is := describe(t, b.ws), describe(t, b.restored("back")); !reflect.DeepEqual(was, is) {
			r.Fatalf("restored %v\nof       %v", is, was)
		}
	})
}

// randomTree makes a directory anew.
func randomTree(t *testing.T, r *rapid.T, dir string) {
	name := rapid.SampledFrom([]string{"a", "b", "a.txt", "a-b", "a!", "A", "é", "e\u0301", "new\nline", " ", "🦀", "z0", ".env", "node_modules", "x.log"})
	must(t, removeAll(dir))
	must(t, os.Mkdir(dir, 0o755))
	dirs, readable := []string{"."}, os.FileMode(0)
	if os.Geteuid() != 0 {
		readable = 0o400
	}
	for range rapid.IntRange(0, 25).Draw(r, "entries") {
		p := filepath.Join(dir, rapid.SampledFrom(dirs).Draw(r, "dir"), name.Draw(r, "name"))
		if _, err := os.Lstat(p); err == nil {
			continue
		}
		switch rapid.IntRange(0, 2).Draw(r, "kind") {
		case 0:
			must(t, os.Mkdir(p, 0o755))
			rel, _ := filepath.Rel(dir, p)
			dirs = append(dirs, rel)
		case 1:
			must(t, os.WriteFile(p, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(r, "bytes"), 0o600))
			must(t, os.Chmod(p, readable|os.FileMode(rapid.Uint16Range(0, 0o777).Draw(r, "mode"))))
			mtime := time.Unix(0, rapid.Int64Range(-1e18, 4e18).Draw(r, "mtime"))
			must(t, os.Chtimes(p, mtime, mtime))
		case 2:
			must(t, os.Symlink(rapid.StringMatching(`(\.\./)?[a-z./é]{1,8}`).Draw(r, "target"), p))
		}
	}
	for i := len(dirs) - 1; i > 0; i-- {
		mode := rapid.SampledFrom([]os.FileMode{0o755, 0o755, 0o555, 0o700, 0o777}).Draw(r, "dir mode")
		must(t, os.Chmod(filepath.Join(dir, dirs[i]), mode))
	}
}

func removeAll(dir string) error {
	root, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	removeTree(root, filepath.Base(dir))
	return nil
}

func FuzzManifest(f *testing.F) {
	f.Add("a", "a.b", "a/b", uint8(1))
	f.Add("a/b", "a/c", "b", uint8(7))
	f.Fuzz(func(t *testing.T, one, two, three string, kinds uint8) {
		var m manifestCheck
		var leaves []string
		for i, p := range []string{one, two, three} {
			e := snapshot.Entry{Path: p, Kind: snapshot.KindFile}
			if kinds>>i&1 != 0 {
				e.Kind = snapshot.KindDir
			}
			if m.next(e) != nil {
				return
			}
			for _, leaf := range leaves {
				if p <= leaf || strings.HasPrefix(p, leaf+"/") {
					t.Fatalf("%q was let through after %q", p, leaf)
				}
			}
			if e.Kind == snapshot.KindFile {
				leaves = append(leaves, p)
			}
		}
	})
}

func TestDiscard(t *testing.T) {
	b := newBench(t)
	outside := filepath.Join(b.base, "outside")
	must(t, os.MkdirAll(filepath.Join(outside, "x"), 0o755))
	must(t, os.Symlink(outside, b.restored("link")))
	closed := snapshot.Entry{Path: "d", Kind: snapshot.KindDir, Mode: 0o555}
	_, _, err := b.Restore(t.Context(), "restore", "p/dest", manifest(closed, file("d/a", "x"), link("l", outside)), opener("x"))
	must(t, err)
	must(t, os.WriteFile(b.restored("p/other"), nil, 0o644))
	must(t, b.Discard("restore", "p/dest"))
	must(t, b.Discard("restore", "p/dest"))
	must(t, b.Discard("restore", "q/none"))
	for _, path := range []string{"link", "link/x"} {
		wantCode(t, b.Discard("restore", path), snapshot.Internal)
	}
	wantCode(t, b.Discard("restore", "../outside"), snapshot.InvalidPath)
	if left := describe(t, b.options.RestoreRoot); len(left) != 3 || left["p/other"] == "" {
		t.Errorf("left %v", left)
	}
	if _, err := os.Stat(filepath.Join(outside, "x")); err != nil {
		t.Error(err)
	}
}
