package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// meanwhile runs fn again and again until the test ends.
func meanwhile(t *testing.T, fn func(i int)) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				fn(i)
			}
		}
	}()
	t.Cleanup(sync.OnceFunc(func() { close(stop); <-done }))
}

// try ignores errors of calls that compete with others on purpose.
func try(...any) {}

// An agent goes on working while its tree is saved. Each file of a checkpoint
// is one that was there.
func TestSaveOfABusyTree(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	build(t, dir).code(100)
	s.attach("t", "work")
	path := func(name string) string { return filepath.Join(dir, name) }
	meanwhile(t, func(i int) {
		text := strings.Repeat(fmt.Sprintf("%09d\n", i), 5000)
		try(os.WriteFile(path("new"), []byte(text), 0o644), os.Rename(path("new"), path("replaced")))
		try(os.MkdirAll(path("moving/a/b"), 0o755), os.WriteFile(path("moving/a/b/file"), []byte(text), 0o644), os.Rename(path("moving"), path("moved")))
		try(os.RemoveAll(path("moved")), os.Symlink("nowhere", path("src/link")), os.Remove(path("src/link")))
	})
	for i := range 15 {
		cp := s.save("t", fmt.Sprint(i))
		tree := s.restoreTree("t", cp.ID, fmt.Sprint("out", i))
		if len(tree) < 120 {
			t.Errorf("save %d has %d entries", i, len(tree))
		}
		text, err := os.ReadFile(filepath.Join(s.restored, fmt.Sprint("out", i), "replaced"))
		if err == nil && (len(text) != 50_000 || strings.Count(string(text), string(text[:10])) != 5000) {
			t.Errorf("save %d has a file of %d bytes that never was", i, len(text))
		}
	}
}

// A tree in which directories and files turn into links, pipes and back must
// not lead a save outside, nor hold it up.
func TestSwappedEntriesLeadNowhere(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	outside := t.TempDir()
	build(t, outside).file("private", []byte("not of this sandbox"), 0o644)
	b := build(t, dir)
	b.code(40)
	for i := range 10 {
		b.file(fmt.Sprintf("dir%d/private", i), []byte("inside"), 0o644)
		b.file(fmt.Sprintf("file%d", i), []byte("inside"), 0o644)
	}
	s.attach("t", "work")
	meanwhile(t, func(i int) {
		d, f := filepath.Join(dir, fmt.Sprintf("dir%d", i%10)), filepath.Join(dir, fmt.Sprintf("file%d", i%10))
		try(os.Rename(d, d+".away"), os.Symlink(outside, d))
		try(os.Remove(f), os.Symlink(filepath.Join(outside, "private"), f))
		try(os.Remove(f), syscall.Mkfifo(f, 0o644))
		try(os.Remove(d), os.Rename(d+".away", d))
		try(os.Remove(f), os.WriteFile(f, []byte("inside"), 0o644))
	})
	for i := range 25 {
		cp := s.save("t", fmt.Sprint(i))
		out := fmt.Sprint("out", i)
		for path, it := range s.restoreTree("t", cp.ID, out) {
			if it.Kind != "file" || strings.HasPrefix(path, "src/") {
				continue
			}
			if text, err := os.ReadFile(filepath.Join(s.restored, out, path)); err != nil || string(text) != "inside" && len(text) > 0 {
				t.Errorf("save %d kept %q as %s, %v", i, text, path, err)
			}
		}
	}
}
