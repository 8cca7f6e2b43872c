package workspace

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sandkeep/internal/snapshot"
)

// old makes the directory that a restore is to change.
func (b *bench) old(pairs ...string) string {
	b.t.Helper()
	dir := b.restored(b.path)
	must(b.t, removeAll(dir))
	must(b.t, os.MkdirAll(dir, 0o755))
	at := *b
	at.ws = dir
	at.write(pairs...)
	return dir
}

func (b *bench) exact(tree *memTree, pol snapshot.Policy, prefix string) (files int64, err error) {
	files, _, err = b.Trees.Restore(bg(), snapshot.Target{Root: "restore", Path: b.path, Exact: true, Prefix: prefix, Policy: pol},
		tree.all(), loose(tree.open))
	return files, err
}

// alone fails if there is anything beside the destination.
func (b *bench) alone() {
	b.t.Helper()
	for at := b.path; at != "."; at = filepath.Dir(at) {
		names, err := os.ReadDir(filepath.Dir(b.restored(at)))
		must(b.t, err)
		for _, n := range names {
			if n.Name() != filepath.Base(at) {
				b.t.Errorf("left %s beside the destination", n.Name())
			}
		}
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestExact(t *testing.T) {
	b := newBench(t)
	b.write("same", "1", "changed", "2", "sub/new", "3", "dir-to-file", "4", "file-to-dir/x", "5", "link-to-dir/y", "6",
		"touched", "7", "closed/same", "8", "closed/new", "9", "empty/", "", "late/z", "10")
	must(t, os.Symlink("same", filepath.Join(b.ws, "file-to-link")))
	must(t, os.Chmod(filepath.Join(b.ws, "late"), 0o555))
	must(t, os.Chmod(filepath.Join(b.ws, "closed"), 0o555))
	must(t, os.Chmod(filepath.Join(b.ws, "touched"), 0o751))
	moment := time.Unix(1_000_000_000, 5)
	for _, p := range []string{"same", "closed/same"} {
		must(t, os.Chtimes(filepath.Join(b.ws, p), moment, moment))
	}
	tree, _ := b.capture(snapshot.Policy{})

	dir := b.old("same", "1", "changed", "old", "dir-to-file/a/b", "x", "dir-to-file/c", "x", "file-to-dir", "x", "file-to-link", "x",
		"touched", "7", "closed/same", "8", "closed/gone", "x", "gone/deep/x", "x", "half/gone", "x", "half/.env", "SECRET=1",
		"node_modules/m/index.js", "x", "half-closed/x", "x", "half-closed/.env", "x")
	must(t, os.Symlink("/", filepath.Join(dir, "link-to-dir")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	for _, p := range []string{"same", "closed/same"} {
		must(t, os.Chtimes(filepath.Join(dir, p), moment, moment))
	}
	must(t, os.Chmod(filepath.Join(dir, "closed"), 0o500))
	must(t, os.Chmod(filepath.Join(dir, "half-closed"), 0o500))
	stays := map[string]uint64{}
	for _, p := range []string{"", "same", "touched", "closed", "closed/same", "half/.env", "node_modules/m/index.js"} {
		stays[p] = inode(t, filepath.Join(dir, p))
	}
	files, err := b.exact(tree, snapshot.Policy{}, "")
	must(t, err)
	if files != 7 {
		t.Errorf("%d files were written", files)
	}
	must(t, os.Remove(filepath.Join(dir, "pipe"))) // no save has pipes, so it was kept
	want := describe(t, b.ws)
	maps.Copy(want, map[string]string{"half": "drwxr-xr-x", "node_modules": "drwxr-xr-x", "node_modules/m": "drwxr-xr-x", "half-closed": "dr-x------"})
	got := describe(t, dir)
	for _, kept := range []string{"half/.env", "node_modules/m/index.js", "half-closed/.env"} {
		want[kept] = got[kept]
	}
	if !maps.Equal(got, want) {
		t.Errorf("there is %v\nand should be %v", got, want)
	}
	for p, before := range stays {
		if inode(t, filepath.Join(dir, p)) != before {
			t.Errorf("%q was replaced", p)
		}
	}
	b.alone()
	if files, err := b.exact(tree, snapshot.Policy{}, ""); files != 0 || err != nil {
		t.Errorf("the second time wrote %d files: %v", files, err)
	}
}

// A directory that is excluded itself stays, also without what was saved of it.
func TestExact_EmptiedExclusion(t *testing.T) {
	b := newBench(t)
	dir := b.old("build/keep", "1", "plain/x", "1")
	_, err := b.exact(newMemTree(), snapshot.Policy{Exclude: []string{"build", "!build/keep"}}, "")
	must(t, err)
	if got := describe(t, dir); len(got) != 1 || got["build"] == "" {
		t.Errorf("left %v", got)
	}
}

// What another process puts in the place of an entry is not thrown away.
func TestExact_ReplacedMeanwhile(t *testing.T) {
	for name, act := range map[string]func(dir string) error{
		"a file for a file": func(d string) error { return os.Rename(filepath.Join(d, "mine"), filepath.Join(d, "changed")) },
		"a file for none":   func(d string) error { return os.Rename(filepath.Join(d, "mine"), filepath.Join(d, "new")) },
		"a file in a directory": func(d string) error {
			return os.Rename(filepath.Join(d, "mine"), filepath.Join(d, "dir-to-file/mine"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tree := b.crashTree()
			dir := b.crashOld()
			must(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("mine"), 0o644))
			_, err := b.Capture(bg(), dir, snapshot.Policy{}, "", newMemTree())
			must(t, err)
			b.at("journal", "", 1, func() { must(t, act(dir)) })
			before := describe(t, dir)
			_, err = b.exact(tree, snapshot.Policy{Exclude: []string{"mine"}}, "")
			if got := snapshot.AsError(err); got == nil || got.Code != snapshot.WorkspaceChanged && got.Code != snapshot.DestinationNotEmpty {
				t.Errorf("error is %v", err)
			}
			after := describe(t, dir)
			if len(after) != len(before) && name != "a file for a file" || !strings.Contains(strings.Join(slices.Collect(maps.Values(after)), " "), `"mine"`) {
				t.Errorf("left %v of %v", after, before)
			}
			b.alone()
		})
	}
}

// What is not there, or empty, is made as always.
func TestExact_New(t *testing.T) {
	b := newBench(t)
	b.write("f", "1")
	tree, _ := b.capture(snapshot.Policy{})
	for range 2 {
		if files, err := b.exact(tree, snapshot.Policy{}, ""); files != 1 || err != nil {
			t.Fatalf("%d files, %v", files, err)
		}
		must(t, os.Remove(b.restored("dest/f")))
	}
}

func TestExact_Prefix(t *testing.T) {
	b := newBench(t)
	b.write("a/b/changed", "1", "a/b/new", "2", "a/c", "3", "top", "4")
	must(t, os.Chmod(filepath.Join(b.ws, "a"), 0o700))
	must(t, os.Chmod(filepath.Join(b.ws, "a/b"), 0o750))
	tree, _ := b.capture(snapshot.Policy{})
	part := tree.next()
	for _, e := range tree.entries {
		if e.Path == "a" || isWithin(e.Path, "a/b") {
			part.entries = append(part.entries, e)
		}
	}
	dir := b.old("a/b/changed", "x", "a/b/gone", "x", "a/c", "x", "a/d", "x", "other", "x")
	before := describe(t, dir)
	reads := 0
	b.fault = func(op, path string) error {
		if op == "open" && !isWithin(path, "a/b") {
			reads++
		}
		return nil
	}
	_, err := b.exact(part, snapshot.Policy{}, "a/b")
	must(t, err)
	want := describe(t, b.ws)
	for p, d := range describe(t, dir) {
		switch {
		case isWithin(p, "a/b") && d != want[p]:
			t.Errorf("%s is %s", p, d)
		case !isWithin(p, "a/b") && d != before[p]:
			t.Errorf("%s was changed to %s", p, d)
		}
	}
	if n := len(describe(t, dir)); n != 7 || reads != 0 {
		t.Errorf("%d entries, %d reads outside of the prefix", n, reads)
	}
	for name, entry := range map[string]snapshot.Entry{"of a file": file("a/c/x", "x"), "of the prefix": link("other", "x")} {
		lone := part.next()
		entry.Digest = part.find(t, "a/b/new").Digest
		lone.entries = []snapshot.Entry{entry}
		if _, err := b.exact(lone, snapshot.Policy{}, "a/c/x"); name == "of a file" {
			wantCode(t, err, snapshot.DestinationNotEmpty)
		}
	}
}

// A save may have left out what is in the way of an entry of another kind.
func TestExact_Conflicts(t *testing.T) {
	for name, old := range map[string][]string{
		"an excluded directory":     {"node_modules/x", "1"},
		"an excluded file in it":    {"dir/a/.env", "1"},
		"an excluded file above it": {".env", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.write("node_modules", "x", "dir", "x", ".env/x", "x")
			all, _ := b.capture(snapshot.Policy{NoDefaultExcludes: true})
			dir := b.old(append(old, "gone", "x")...)
			before := describe(t, dir)
			_, err := b.exact(all, snapshot.Policy{}, "")
			wantCode(t, err, snapshot.DestinationNotEmpty)
			if after := describe(t, dir); !maps.Equal(before, after) {
				t.Errorf("changed %v to %v", before, after)
			}
			b.alone()
		})
	}
}

func TestExact_Refused(t *testing.T) {
	b := newBench(t)
	tree := newMemTree()
	must(t, os.WriteFile(b.restored("file"), nil, 0o644))
	must(t, os.Symlink(b.base, b.restored("link")))
	for path, code := range map[string]snapshot.Code{"file": snapshot.DestinationNotEmpty, "link": snapshot.InvalidPath, "link/x": snapshot.InvalidPath, "../x": snapshot.InvalidPath} {
		_, _, err := b.Trees.Restore(bg(), snapshot.Target{Root: "restore", Path: path, Exact: true}, tree.all(), loose(tree.open))
		wantCode(t, err, code)
	}
	dir := b.old("x", "1")
	t.Setenv("HOME", filepath.Join(dir, "home"))
	must(t, os.Mkdir(filepath.Join(dir, "home"), 0o755))
	_, err := b.exact(tree, snapshot.Policy{}, "")
	wantCode(t, err, snapshot.InvalidWorkspace)
}

// The worker's own directories are not changed, whatever the checkpoint has.
func TestExact_OwnDirectories(t *testing.T) {
	b := newBench(t)
	dir := b.old("store/data", "1", "x", "1")
	b.options.Forbidden = []string{filepath.Join(dir, "store")}
	_, _, err := b.Trees.Restore(bg(), snapshot.Target{Root: "restore", Path: "dest", Exact: true}, manifest(file("store/data", "x")), loose(opener("x")))
	wantCode(t, err, snapshot.DestinationNotEmpty)
	_, err = b.exact(newMemTree(), snapshot.Policy{}, "")
	must(t, err)
	if got := describe(t, dir); len(got) != 2 || !strings.Contains(got["store/data"], `"1"`) {
		t.Errorf("left %v", got)
	}
}

// A file with another name elsewhere is replaced, not changed in place.
func TestExact_HardLink(t *testing.T) {
	b := newBench(t)
	b.write("f", "1")
	must(t, os.Chmod(filepath.Join(b.ws, "f"), 0o600))
	tree, _ := b.capture(snapshot.Policy{})
	dir := b.old("f", "1")
	outside := filepath.Join(b.base, "outside")
	must(t, os.Link(filepath.Join(dir, "f"), outside))
	before, err := os.Stat(outside)
	must(t, err)
	_, err = b.exact(tree, snapshot.Policy{}, "")
	must(t, err)
	after, err := os.Stat(outside)
	if must(t, err); after.Mode() != before.Mode() || after.ModTime() != before.ModTime() {
		t.Errorf("the other name is %v %v", after.Mode(), after.ModTime())
	}
	if !maps.Equal(describe(t, dir), describe(t, b.ws)) {
		t.Errorf("there is %v", describe(t, dir))
	}
}

// A file that the stat cache knows is not read.
func TestExact_StatCache(t *testing.T) {
	b := newBench(t)
	b.write("a", "1", "b/c", "2")
	past := time.Now().Add(-time.Hour)
	var tree *memTree
	target := snapshot.Target{Root: "sandbox", Path: "ws", Exact: true, CacheKey: "key"}
	reads := 0
	b.fault = func(op, path string) error {
		if op == "open" && path == "b/c" {
			reads++
		}
		return nil
	}
	until := time.Now().Add(10 * time.Second)
	for round := 0; ; round++ { // until the clock has moved on
		tree = newMemTree()
		_, err := b.Capture(bg(), b.ws, snapshot.Policy{}, "key", tree)
		must(t, err)
		if reads = 0; round == 0 {
			continue
		}
		if _, err := b.Capture(bg(), b.ws, snapshot.Policy{}, "key", tree.next()); err != nil {
			t.Fatal(err)
		}
		if reads == 0 {
			break
		}
		if time.Now().After(until) {
			t.Skip("no stat cache on this file system")
		}
	}
	was := describe(t, b.ws)
	must(t, os.Chtimes(filepath.Join(b.ws, "a"), past, past))
	must(t, os.WriteFile(filepath.Join(b.ws, "more"), nil, 0o644))
	for range 2 {
		_, _, err := b.Trees.Restore(bg(), target, tree.all(), loose(tree.open))
		must(t, err)
	}
	if reads != 0 {
		t.Errorf("%d reads of a file that is as it was", reads)
	}
	if got := describe(t, b.ws); len(got) != 3 || !maps.Equal(got, was) {
		t.Errorf("there is %v, and was %v", got, was)
	}
}

// An old tree, a checkpoint and a policy, all random: the result is the
// checkpoint and what the policy excludes of the old tree.
func TestExact_Property(t *testing.T) {
	b := newBench(t)
	dir := b.restored("dest")
	pattern := rapid.SampledFrom([]string{"a", "**/b", "*.log", "!a/b", "A/*", "!**/z0", "é/**"})
	rapid.Check(t, func(r *rapid.T) {
		pol := snapshot.Policy{NoDefaultExcludes: rapid.Bool().Draw(r, "no defaults"), Exclude: rapid.SliceOfN(pattern, 0, 3).Draw(r, "exclude")}
		randomTree(t, r, b.ws)
		tree := newMemTree()
		wide := pol
		if rapid.Bool().Draw(r, "a checkpoint of another policy") {
			wide = snapshot.Policy{NoDefaultExcludes: true}
		}
		_, err := b.Capture(bg(), b.ws, wide, "", tree)
		must(t, err)
		must(t, removeAll(b.restored("fresh")))
		must(t, b.restore("fresh", tree))
		want := describe(t, b.restored("fresh"))
		randomTree(t, r, dir)
		before := describe(t, dir)
		clash := keepExcluded(t, b, want, before, dir, pol)
		_, err = b.exact(tree, pol, "")
		switch after := describe(t, dir); {
		case clash && (!errors.Is(err, snapshot.DestinationNotEmpty) || !maps.Equal(before, after)):
			r.Fatalf("with a clash: %v\nleft %v\nof   %v", err, after, before)
		case !clash && err != nil:
			r.Fatal(err)
		case !clash && !maps.Equal(want, after):
			r.Fatalf("made %v\nof   %v\nnot  %v", after, before, want)
		}
	})
}

// keepExcluded adds to what is wanted whatever no save of the old tree has. It
// reports whether that can't be.
func keepExcluded(t *testing.T, b *bench, want, old map[string]string, dir string, pol snapshot.Policy) (clash bool) {
	saved := newMemTree()
	_, err := b.Capture(bg(), dir, pol, "", saved)
	must(t, err)
	captured := map[string]bool{}
	for _, e := range saved.entries {
		for p := e.Path; p != "."; p = filepath.Dir(p) {
			captured[p] = true
		}
	}
	rules, err := compile(pol)
	must(t, err)
	isDir := func(d string) bool { return strings.HasPrefix(d, "d") }
	for _, p := range slices.Sorted(maps.Keys(old)) {
		if captured[p] && !(isDir(old[p]) && rules.excludes(p)) {
			continue
		}
		if now, ok := want[p]; ok {
			clash = clash || isDir(now) != isDir(old[p])
			continue
		}
		for up := filepath.Dir(p); up != "."; up = filepath.Dir(up) {
			if now, ok := want[up]; ok {
				clash = clash || !isDir(now)
				break
			}
			want[up] = old[up]
		}
		want[p] = old[p]
	}
	return clash
}
