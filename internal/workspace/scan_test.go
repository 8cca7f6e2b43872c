package workspace

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sandkeep/internal/snapshot"
)

// The order is that of the paths, whatever was scanned first.
func TestScan_PathOrder(t *testing.T) {
	b := newBench(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "a!", "a-", "a--", "a-.d", "a.txt", "a0", "b", "é", "Z"}
	var want []string
	var fill func(path string, depth int)
	fill = func(path string, depth int) {
		for _, n := range names {
			switch at := path + n; {
			case rnd.IntN(3) == 0:
			case depth > 0 && rnd.IntN(2) == 0:
				b.write(at+"/f", "1")
				want = append(want, at+"/f")
				fill(at+"/", depth-1)
			default:
				b.write(at, "1")
				want = append(want, at)
			}
		}
	}
	fill("", 3)
	for i := range 3 * partNames { // more than one part, with directories in each
		at := fmt.Sprintf("wide/%03d", i)
		if i%7 == 0 {
			at += "/x"
		}
		b.write(at, "1")
		want = append(want, at)
	}
	slices.Sort(want)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, n := range []int{1, 2, 8} {
		runtime.GOMAXPROCS(n)
		tree, _ := b.capture(snapshot.Policy{})
		if tree.paths() != strings.Join(want, " ") {
			t.Errorf("with %d processors %d paths differ from %d", n, len(tree.entries), len(want))
		}
	}
}

// slowly takes as long as a read from a slow disk.
func slowly() {
	for start := time.Now(); time.Since(start) <= slowRead; {
		runtime.Gosched()
	}
}

// When reads are slow, small files are read ahead of the walk, as far as the bound.
func TestScan_ReadsAhead(t *testing.T) {
	b := newBench(t, "secret42")
	var want []string
	for i := range 4 * maxEarly / earlyRoom {
		at := fmt.Sprintf("d%d/f%03d", i%10, i)
		b.write(at, at)
		want = append(want, at)
	}
	large := strings.Repeat("x", maxEarlyFile+1)
	b.write("a", large, "b", large, "d0/f000", strings.Repeat("secret42", 7), "d0/empty", "")
	want = append(want, "a", "b", "d0/empty")
	slices.Sort(want)
	var read atomic.Int64
	b.fault = func(op, path string) error {
		switch {
		case op == "read" && path == "a":
			slowly()
		case op == "read" && path == "b":
			until(t, func() bool { return read.Load() >= maxEarly/earlyRoom })
			if n := read.Load(); n > maxEarly/earlyRoom+maxScanners {
				t.Errorf("%d files were read ahead", n)
			}
		case op == "read":
			read.Add(1)
		}
		return nil
	}
	tree, got := b.capture(snapshot.Policy{})
	if tree.paths() != strings.Join(want, " ") || got.Coverage.Redactions != 7 || got.Coverage.Phases["read"].Count != int64(len(want)) {
		t.Errorf("%d of %d entries, coverage %+v", len(tree.entries), len(want), got.Coverage)
	}
	for _, e := range tree.entries {
		if data := string(tree.contents[e.Digest]); strings.HasPrefix(e.Path, "d") && e.Path != "d0/empty" && e.Path != "d0/f000" && data != e.Path {
			t.Errorf("%s has %q", e.Path, data)
		}
	}
}

// What was read ahead stands, whatever comes then; what could not be is read by
// the walk.
func TestScan_WrittenAfterReadAhead(t *testing.T) {
	b := newBench(t)
	large := strings.Repeat("x", maxEarlyFile+1)
	b.write("a", large, "a2", large, "b", "old", "c", "old", "d", "old")
	var opened, failed atomic.Int64
	b.fault = func(op, path string) error {
		switch {
		case op == "open" && path == "c" && failed.Add(1) == 1:
			opened.Add(1)
			return syscall.EIO
		case op == "open" && path == "d":
			opened.Add(1)
		case op == "read" && path == "a":
			slowly()
		case op == "read" && path == "a2":
			until(t, func() bool { return opened.Load() >= 2 })
			b.write("b", "newer", "c", "newer")
		}
		return nil
	}
	tree, got := b.capture(snapshot.Policy{})
	for path, want := range map[string]string{"b": "old", "c": "newer", "d": "old"} {
		if e := tree.find(t, path); string(tree.contents[e.Digest]) != want || e.Size != int64(len(want)) {
			t.Errorf("%s has %q", path, tree.contents[e.Digest])
		}
	}
	if len(got.Coverage.Unstable) != 0 {
		t.Errorf("unstable: %v", got.Coverage.Unstable)
	}
}

func handles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("the system does not list the handles of a process")
	}
	return len(list)
}

// The scan goes ahead of a walk that is held up, as far as its bounds.
func TestScan_AheadIsBounded(t *testing.T) {
	b := newBench(t)
	b.write("a", "1")
	for i := range 4 * maxOpenAhead {
		b.write(fmt.Sprintf("d%d/e/f", i), "1")
	}
	base := handles(t)
	var most, entered atomic.Int64
	b.fault = func(op, path string) error {
		switch {
		case op == "enter":
			entered.Add(1)
			for n := int64(handles(t)); ; {
				if was := most.Load(); n <= was || most.CompareAndSwap(was, n) {
					break
				}
			}
		case op == "read" && path == "a":
			until(t, func() bool { return entered.Load() >= maxOpenAhead-1 })
		}
		return nil
	}
	tree, _ := b.capture(snapshot.Policy{})
	if len(tree.entries) != 4*maxOpenAhead+1 {
		t.Errorf("%d entries", len(tree.entries))
	}
	// The listing of the handles is one itself.
	if limit := base + maxOpenAhead + 3*maxScanners + 8; int(most.Load()) > limit {
		t.Errorf("%d handles, more than %d", most.Load(), limit)
	}
	if left := handles(t); left > base {
		t.Errorf("%d handles became %d", base, left)
	}
}

func TestScan_NoHandlesAhead(t *testing.T) {
	b := newBench(t)
	b.write("a", "1", "d/e/f", "1", "g/h", "1")
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		var refused atomic.Int64
		b.fault = func(op, path string) error {
			switch {
			case op == "enter" && path == "d" && refused.Add(1) == 1:
				return errno
			case op == "read" && path == "a":
				until(t, func() bool { return refused.Load() > 0 })
			}
			return nil
		}
		if tree, _ := b.capture(snapshot.Policy{}); tree.paths() != "a d/e/f g/h" || refused.Load() != 2 {
			t.Errorf("%v: paths are %q after %d tries", errno, tree.paths(), refused.Load())
		}
	}
}

// What is only walked is looked at ahead of its order, and nothing of that stays open.
func TestScan_LooksFarAhead(t *testing.T) {
	b := newBench(t)
	for i := range 50 {
		b.write(fmt.Sprintf("top/d%02d/e/f/g", i), "1")
	}
	b.write("top/d49/e/f/keep", "1", "none/d/e", "1")
	for _, dir := range []string{"top", "none", "none/d"} {
		must(t, os.Chmod(filepath.Join(b.ws, dir), 0o700))
	}
	base := handles(t)
	tree, got := b.capture(snapshot.Policy{Exclude: []string{"**", "!**/keep"}})
	if tree.paths() != "top top/d49/e/f/keep" || len(got.Coverage.Unstable) != 0 {
		t.Errorf("paths are %q, coverage %+v", tree.paths(), got.Coverage)
	}
	if left := handles(t); left > base {
		t.Errorf("%d handles became %d", base, left)
	}
}

// churn changes the tree until it is told to stop: files and directories come,
// go, and are links to the outside at times.
func (b *bench) churn(outside string, stop <-chan struct{}) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for {
		select {
		case <-stop:
			return
		default:
		}
		at := filepath.Join(b.ws, fmt.Sprintf("d%d", rnd.IntN(8)))
		file := filepath.Join(at, fmt.Sprintf("f%d", rnd.IntN(4)))
		switch rnd.IntN(6) { // what fails meets what was there before
		case 0:
			_ = os.RemoveAll(at)
		case 1:
			_ = os.RemoveAll(at)
			_ = os.Symlink(outside, at)
		case 2:
			_ = os.Remove(file)
			_ = os.Symlink(filepath.Join(outside, "f0"), file)
		case 3:
			_ = os.Rename(at, at+"x")
		default:
			if info, err := os.Lstat(at); err == nil && !info.IsDir() {
				_ = os.Remove(at)
			}
			_ = os.Mkdir(at, 0o755)
			if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
				_ = os.Remove(file)
			}
			_ = os.WriteFile(file+".new", []byte("inside"), 0o644)
			_ = os.Rename(file+".new", file)
		}
	}
}

func TestScan_ChangingTree(t *testing.T) {
	b := newBench(t)
	outside := filepath.Join(b.base, "outside")
	must(t, os.MkdirAll(outside, 0o755))
	for i := range 4 {
		must(t, os.WriteFile(filepath.Join(outside, fmt.Sprintf("f%d", i)), []byte("outside"), 0o644))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { b.churn(outside, stop) })
	defer wg.Wait()
	defer close(stop)
	tree := newMemTree()
	for range 60 {
		tree = tree.next()
		_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{}, "box", tree)
		must(t, err)
		for _, e := range tree.entries {
			if e.Kind == snapshot.KindFile && strings.Contains(string(tree.contents[e.Digest]), "outside") {
				t.Fatalf("captured %+v from outside", e)
			}
		}
	}
}

// A writer that fails, or a walk that is cancelled, stops the workers.
func TestScan_StopsWithTheWalk(t *testing.T) {
	b := newBench(t)
	for i := range 300 {
		b.write(fmt.Sprintf("d%03d/f", i), fmt.Sprint(i))
	}
	base := handles(t)
	for range 20 {
		tree := newMemTree()
		tree.putErr = io.ErrClosedPipe
		if _, err := b.Capture(t.Context(), b.ws, snapshot.Policy{}, "box", tree); err == nil {
			t.Fatal("no error")
		}
	}
	if left := handles(t); left > base {
		t.Errorf("%d handles became %d", base, left)
	}
}

func TestPathChecks_AllocateNothing(t *testing.T) {
	b := newBench(t, "s3cr3t-value")
	rules, err := compile(snapshot.Policy{})
	must(t, err)
	s := &scan{policy: rules, redactor: b.redactor}
	d := newDir(nil, "node/packages/with/a/path/of/some/length/", &matches{})
	path := d.path + "config.json"
	if n := testing.AllocsPerRun(100, func() {
		if v, reason := s.sift(d, path, false); v.rule != "" || reason != "" {
			t.Errorf("%+v, %q", v, reason)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestStatCache_IsWrittenWhenNeeded(t *testing.T) {
	b := newBench(t)
	b.write("a", "1", "d/b", "2", "d/c", "3", "z", "4")
	tree := newMemTree()
	run := func(key string) int {
		t.Helper()
		tree = tree.next()
		_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{}, key, tree)
		must(t, err)
		return tree.puts
	}
	cache := func(key string) (string, os.FileInfo) {
		t.Helper()
		for _, f := range mustGlob(t, filepath.Join(b.cacheDir(), strings.Repeat("?", 64))) {
			if strings.HasSuffix(f, cacheName(key)) {
				data, err := os.ReadFile(f)
				must(t, err)
				info, err := os.Stat(f)
				must(t, err)
				return string(data), info
			}
		}
		t.Fatal("no cache")
		return "", nil
	}
	settle := func(key string) { t.Helper(); until(t, func() bool { return run(key) == 0 }); run(key) }

	settle("box")
	_, before := cache("box")
	long := time.Now().Add(-cacheLife / 2)
	must(t, os.Chtimes(filepath.Join(b.cacheDir(), cacheName("box")), long, long))
	run("box")
	_, after := cache("box")
	if !os.SameFile(before, after) {
		t.Error("written though nothing changed")
	}
	if time.Since(after.ModTime()) > cacheLife/4 {
		t.Error("the cache looks unused")
	}
	n := 0
	for name, change := range map[string]func(){
		"removed first":  func() { must(t, os.Remove(filepath.Join(b.ws, "a"))) },
		"removed last":   func() { must(t, os.Remove(filepath.Join(b.ws, "z"))) },
		"removed middle": func() { must(t, os.Remove(filepath.Join(b.ws, "d/b"))) },
		"added":          func() { b.write("d/b!", "5", "zz", "6", "0", "7") },
		"changed":        func() { b.write("d/c", "8") },
	} {
		b.write("a", "1", "d/b", "2", "d/c", "3", "z", "4")
		settle("box")
		change()
		settle("box")
		n++
		fresh := fmt.Sprint("fresh", n)
		settle(fresh)
		got, _ := cache("box")
		if want, _ := cache(fresh); got != want {
			t.Errorf("%s: the cache is not as if it were new: %q, want %q", name, got, want)
		}
	}
}

func mustGlob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	must(t, err)
	return files
}
