package tests

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A restore writes into a new or empty directory under its root, whatever
// somebody has put there.
func TestHostileDestinations(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	b.file("dir/file", []byte("content"), 0o644)
	b.link("escape", "/tmp")
	s.attach("t", "work")
	s.save("t", "r")

	victim := t.TempDir()
	build(t, victim).file("untouched", []byte("victim"), 0o644)
	if err := os.Mkdir(filepath.Join(victim, "hollow"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := build(t, s.restored)
	out.link("link", victim)
	out.link("hollow-link", filepath.Join(victim, "hollow"))
	out.link("dangling", filepath.Join(victim, "made"))
	out.link("inside", "empty")
	out.dir("empty", 0o755)
	out.file("file", []byte("a file"), 0o644)
	out.file("full/.hidden", nil, 0o644)
	out.must(syscall.Mkfifo(filepath.Join(s.restored, "pipe"), 0o644))
	before, outside := readTree(t, s.restored), readTree(t, victim)
	for _, path := range []string{"link", "hollow-link", "dangling", "inside", "link/new", "hollow-link/new", "dangling/new", "inside/new",
		"file", "file/new", "full", "pipe", "pipe/new"} {
		_, f := s.try("restore", object{"threadId": "t", "path": path})
		if f == nil || f.Code != fullCode("DESTINATION_NOT_EMPTY") && f.Code != fullCode("INVALID_PATH") {
			t.Errorf("restore into %s: %+v", path, f)
		}
		sameTree(t, "the restore root after "+path, before, readTree(t, s.restored))
		sameTree(t, "what a link leads to, after "+path, outside, readTree(t, victim))
	}
	ok[restored](s.client, "restore", object{"threadId": "t", "path": "empty"})
	ok[restored](s.client, "restore", object{"threadId": "t", "path": "full/a/b/new"})
	refused(s.client, "restore", object{"threadId": "t", "path": "empty"}, fullCode("DESTINATION_NOT_EMPTY"))
	if got := readTree(t, filepath.Join(s.restored, "empty")); got["escape"].Bytes != "/tmp" || len(got) != 3 {
		t.Errorf("restored %v", got)
	}
}

// A directory of the sandbox that becomes a link while nobody looks must not
// lead a save out of the sandbox.
func TestSandboxThatIsALink(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	build(t, dir).file("file", []byte("x"), 0o644)
	s.attach("t", "work")
	s.save("t", "r1")
	outside := t.TempDir()
	build(t, outside).file("private", []byte("not for keeping"), 0o644)
	if err := os.Rename(dir, dir+"-old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, dir); err != nil {
		t.Fatal(err)
	}
	refused(s.client, "snapshot.save", object{"threadId": "t", "runId": "r2"}, fullCode("MISSING_REUSABLE_SANDBOX"))
	if n := len(s.chain("t")); n != 1 {
		t.Errorf("%d checkpoints", n)
	}
}
