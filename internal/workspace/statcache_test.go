package workspace

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeep/internal/snapshot"
)

func FuzzStatCache(f *testing.F) {
	row := appendRow(nil, "a/b", stat{size: 1, mtime: -2, ctime: 3, inode: 4}, content{snapshot.Digest{5}, 1, 6})
	f.Add([]byte(row))
	f.Add([]byte(append(row, row...)))
	f.Fuzz(func(t *testing.T, data []byte) {
		for in := bufio.NewReaderSize(bytes.NewReader(data), 64<<10); ; {
			row, err := peekRow(in)
			if err != nil {
				return
			}
			s := stat{row.number(rowSize), row.number(rowMtime), row.number(rowCtime), uint64(row.number(rowInode)), 0}
			again := appendRow(nil, string(row.path()), s, content{row.digest(), s.size, row.redactions()})
			if !bytes.Equal(row, again) || !row.is(s) {
				t.Fatalf("row %q became %q", row, again)
			}
			_, _ = in.Discard(len(row))
		}
	})
}

func TestCapture_StatCache(t *testing.T) {
	b := newBench(t, "s3cr3t-value")
	b.write("a", "1", "d/b", "has s3cr3t-value", "z", "26")
	tree := newMemTree()
	run := func(pol snapshot.Policy) (*memTree, snapshot.Captured) {
		t.Helper()
		tree = tree.next()
		got, err := b.Capture(t.Context(), b.ws, pol, "box", tree)
		must(t, err)
		return tree, got
	}
	if tree, _ = run(snapshot.Policy{}); tree.puts != 3 {
		t.Fatalf("%d files read", tree.puts)
	}
	// Files become old enough to be trusted after one tick of the clock.
	until(t, func() bool { tree, _ = run(snapshot.Policy{}); return tree.puts == 0 })
	tree, got := run(snapshot.Policy{})
	if tree.paths() != "a d/b z" || got.Coverage.Redactions != 1 || got.Coverage.Phases["read"].Count != 0 {
		t.Errorf("paths are %q, coverage %+v", tree.paths(), got.Coverage)
	}

	info, err := os.Stat(filepath.Join(b.ws, "a"))
	must(t, err)
	b.write("a", "2")
	must(t, os.Chtimes(filepath.Join(b.ws, "a"), info.ModTime(), info.ModTime())) // the same size and mtime
	if tree, _ = run(snapshot.Policy{}); tree.puts != 1 || string(tree.contents[tree.find(t, "a").Digest]) != "2" {
		t.Errorf("%d files read after a change", tree.puts)
	}
	until(t, func() bool { tree, _ = run(snapshot.Policy{}); return tree.puts == 0 })

	d := tree.find(t, "z").Digest
	delete(tree.contents, d)
	if tree, _ = run(snapshot.Policy{}); tree.puts != 1 || string(tree.contents[d]) != "26" {
		t.Errorf("%d files read whose content the writer does not know", tree.puts)
	}
	if tree, _ = run(snapshot.Policy{Exclude: []string{"q"}}); tree.puts != 3 {
		t.Errorf("%d files read with another policy", tree.puts)
	}
	until(t, func() bool { tree, _ = run(snapshot.Policy{}); return tree.puts == 0 })
	other := benchIn(t, b.base, "s3cr3t-value", "another secret")
	tree = tree.next()
	_, err = other.Capture(t.Context(), b.ws, snapshot.Policy{}, "box", tree)
	if must(t, err); tree.puts != 3 {
		t.Errorf("%d files read with other secrets", tree.puts)
	}
}

func until(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to pass")
		}
	}
}

func TestCapture_DamagedStatCache(t *testing.T) {
	b := newBench(t)
	b.write("a", "1", "b", "2", "c", "3")
	tree := newMemTree()
	run := func() int {
		tree = tree.next()
		_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{}, "box", tree)
		must(t, err)
		if tree.paths() != "a b c" {
			t.Fatalf("paths are %q", tree.paths())
		}
		return tree.puts
	}
	until(t, func() bool { return run() == 0 })
	files, err := filepath.Glob(filepath.Join(b.cacheDir(), strings.Repeat("?", 64)))
	if must(t, err); len(files) != 1 {
		t.Fatalf("caches are %v", files)
	}
	whole, err := os.ReadFile(files[0])
	must(t, err)
	for i := range whole {
		damaged := append([]byte(nil), whole...)
		damaged[i] ^= 0x10
		must(t, os.WriteFile(files[0], damaged, 0o600))
		if run() == 0 {
			t.Errorf("byte %d damaged, and nothing was read", i)
		}
	}
	must(t, os.WriteFile(files[0], whole[:len(whole)-1], 0o600))
	if n := run(); n != 1 {
		t.Errorf("%d files read with a cut cache", n)
	}
	info, err := os.Stat(filepath.Join(b.cacheDir(), "salt"))
	if must(t, err); info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the salt is %o", info.Mode())
	}
}

func TestStat_Settled(t *testing.T) {
	start := time.Unix(1000, 0)
	ns := func(s float64) int64 { return int64(s * 1e9) }
	for _, c := range []struct {
		mtime, ctime float64
		want         bool
	}{
		{500, 500.5, true}, {500, 999.95, false}, {500, 1000.5, false}, {2000, 500.5, false},
		{500, 999, false}, {500, 998, false}, {500, 997, true}, {999.95, 500.5, false}, {999.5, 999.5, true},
	} {
		if got := (stat{mtime: ns(c.mtime), ctime: ns(c.ctime)}).settled(start); got != c.want {
			t.Errorf("mtime %v, ctime %v: %v", c.mtime, c.ctime, got)
		}
	}
}

func TestCapture_SameCacheAtOnce(t *testing.T) {
	b := newBench(t)
	for i := range 50 {
		b.write(fmt.Sprintf("f%02d", i), fmt.Sprint(i))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			tree := newMemTree()
			for range 5 {
				tree = tree.next()
				got, err := b.Capture(bg(), b.ws, snapshot.Policy{}, "box", tree)
				if err != nil || got.Stats.Files != 50 {
					t.Errorf("%v, stats %+v", err, got.Stats)
				}
			}
		})
	}
	wg.Wait()
}

func TestNew_PrunesOldCaches(t *testing.T) {
	b := newBench(t)
	b.write("a", "1")
	_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{}, "box", newMemTree())
	must(t, err)
	long := time.Now().Add(-2 * cacheLife)
	files, err := filepath.Glob(filepath.Join(b.cacheDir(), "*"))
	must(t, err)
	for _, f := range files {
		must(t, os.Chtimes(f, long, long))
	}
	benchIn(t, b.base)
	if left, _ := filepath.Glob(filepath.Join(b.cacheDir(), "*")); len(files) != 2 || len(left) != 1 || filepath.Base(left[0]) != saltName {
		t.Errorf("%v became %v", files, left)
	}
}
