package workspace

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// signed is a journal as a worker with the salt writes it.
func (b *bench) signed(text string) []byte {
	mac := b.journalMAC()
	mac.Write([]byte(text))
	return mac.Sum([]byte(text))
}

// A journal that comes out of a checkpoint is not obeyed.
func TestExact_ForgedJournal(t *testing.T) {
	for _, stage := range []string{stagingPrefix + "forged", exactPrefix + "forged", exactStage("d")} {
		b := newBench(t)
		secret, victim := filepath.Join(b.base, "secret"), filepath.Join(b.base, "victim")
		must(t, os.WriteFile(secret, []byte("s"), 0o600))
		must(t, os.MkdirAll(b.restored("x/d"), 0o755)) // its inode is known
		must(t, os.WriteFile(b.restored("x/d/own"), nil, 0o644))
		text := fmt.Sprintf(`{"name":"d","inode":%d}
{"do":"out","path":"../../../../victim","inode":1,"slot":"1"}
{"do":"out","path":"planted","inode":1,"slot":"2"}
{"do":"look","path":"../../../../secret","inode":%d,"was":{"mode":511},"now":{"mode":384}}
`, inode(t, b.restored("x/d")), inode(t, secret))
		b.write("d/own", "", stage+"/journal", text, stage+"/new/a", "", stage+"/old/1", "evil", stage+"/old/2", "evil")
		tree, _ := b.capture(snapshot.Policy{})
		b.put(tree, b.ws, stage)
		b.path = "x"
		was := inode(t, b.restored("x/d"))
		_, err := b.exact(tree, snapshot.Policy{}, "")
		if must(t, err); inode(t, b.restored("x/d")) != was {
			t.Fatal("the journal is about another directory")
		}
		must(t, b.restore("x/y", newMemTree()))
		_, _ = b.Capture(bg(), b.restored("x/d"), snapshot.Policy{}, "", newMemTree())
		info, err := os.Stat(secret)
		if must(t, err); info.Mode().Perm() != 0o600 || isThere(victim) || isThere(b.restored("x/d/planted")) {
			t.Errorf("%s is obeyed: %v, %v, %v", stage, info.Mode(), isThere(victim), describe(t, b.restored("x")))
		}
	}
}

// put adds a directory and its files, whose names no save would take.
func (b *bench) put(tree *memTree, top, dir string) {
	for path, what := range describe(b.t, filepath.Join(top, dir)) {
		if strings.HasPrefix(what, "d") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(top, dir, path))
		must(b.t, err)
		d := snapshot.Digest(sha256.Sum256(data))
		tree.contents[d] = data
		tree.entries = append(tree.entries, snapshot.Entry{Path: dir + "/" + path, Kind: snapshot.KindFile, Mode: 0o600, Size: int64(len(data)), Digest: d})
	}
	tree.sort()
}

// Whatever the MAC says, no move leaves the directory or has a part missing.
func TestReadJournal(t *testing.T) {
	b := newBench(t)
	dir, err := os.Open(b.restored("."))
	must(t, err)
	defer dir.Close()
	const head = `{"name":"d","inode":1}`
	read := func(text []byte) error {
		must(t, os.WriteFile(b.restored(journalName), text, 0o600))
		_, _, err := b.readJournal(handle(dir.Fd()))
		return err
	}
	must(t, read(b.signed(head+`{"do":"in","path":"a/b","inode":2}{"do":"look","path":"","inode":1,"was":{"mode":1},"now":{"mode":2}}`)))
	for _, text := range []string{
		"", "{", `{"name":"","inode":1}`, `{"name":"..","inode":1}`, `{"name":"a/b","inode":1}`,
		head + `{"do":"in","path":"../b","inode":2}`, head + `{"do":"in","path":"a/../b","inode":2}`, head + `{"do":"in","path":"/a","inode":2}`,
		head + `{"do":"out","path":"a","inode":2}`, head + `{"do":"out","path":"a","inode":2,"slot":"../b"}`,
		head + `{"do":"look","path":"a","inode":2}`, head + `{"do":"look","path":"a","inode":2,"was":{"mode":1,"mtime":1},"now":{"mode":2}}`,
		head + `{"do":"else","path":"a","inode":2}`,
	} {
		if read(b.signed(text)) == nil {
			t.Errorf("%s is obeyed", text)
		}
	}
	good := b.signed(head)
	for i := range good {
		good[i] ^= 1
		if err := read(good); !errors.Is(err, errForeign) {
			t.Fatalf("with another byte %d: %v", i, err)
		}
		good[i] ^= 1
	}
	for n := range len(good) {
		if err := read(good[:n]); !errors.Is(err, errForeign) {
			t.Fatalf("of %d bytes: %v", n, err)
		}
	}
	for name, put := range map[string]func(string, uint32) error{"pipe": unix.Mkfifo, "directory": unix.Mkdir} {
		must(t, os.Remove(b.restored(journalName)))
		must(t, put(b.restored(journalName), 0o700))
		if _, _, err := b.readJournal(handle(dir.Fd())); !errors.Is(err, errForeign) {
			t.Errorf("a %s: %v", name, err)
		}
	}
}

func TestWay_OneNameAtATime(t *testing.T) {
	b := newBench(t)
	dir, err := os.Open(b.ws)
	must(t, err)
	defer dir.Close()
	b.write("a/b/", "")
	w := way{top: handle(dir.Fd())}
	defer w.leave()
	for _, path := range []string{"..", ".", "a/..", "a//b", "/a", "a/./b"} {
		if _, err := w.enter(path, openDirectory); err == nil {
			t.Errorf("%q is entered", path)
		}
	}
}

// Without the salt that it was written with, a journal is left alone.
func TestExact_SaltLost(t *testing.T) {
	b := newBench(t)
	b.crashTree()
	dir := b.crashOld()
	before := describe(t, dir)
	b.killedWhen(func() bool { return isThere(filepath.Join(dir, "new/f")) })
	half := describe(t, dir)
	salt, kept := filepath.Join(b.cacheDir(), saltName), filepath.Join(b.base, "salt")
	must(t, os.Rename(salt, kept))
	other, err := New(b.options)
	must(t, err)
	_, err = other.Capture(bg(), dir, snapshot.Policy{}, "", newMemTree())
	if wantCode(t, err, snapshot.Internal); !strings.Contains(err.Error(), exactStage("dest")) {
		t.Errorf("error is %v", err)
	}
	if after := describe(t, dir); !maps.Equal(half, after) {
		t.Errorf("changed %v to %v", half, after)
	}
	must(t, os.Rename(kept, salt))
	_, err = New(b.options)
	must(t, err)
	b.isBack(dir, before)
}

// A file called journal in what was to be a new directory is only a file.
func TestRestore_RemovesStaleJournals(t *testing.T) {
	b := newBench(t)
	stale := b.restored(stagingPrefix + "stale")
	must(t, os.Mkdir(stale, 0o700))
	must(t, os.WriteFile(filepath.Join(stale, journalName), []byte("Dear diary"), 0o600))
	must(t, b.restore("dest", newMemTree()))
	b.alone()
}

// A sign that leads to itself, or lies where no worker makes one, is not followed.
func TestExact_ForgedSigns(t *testing.T) {
	b := newBench(t)
	tree := newMemTree()
	for _, target := range []string{"./b", "../x", "d/e"} {
		tree.entries = append(tree.entries, link(exactStage(target), target))
	}
	tree.sort()
	must(t, b.restore("x", tree))
	must(t, b.restore("x/y", newMemTree()))
	for _, e := range tree.entries {
		if !isThere(b.restored("x/" + e.Path)) {
			t.Errorf("the sign of %s is gone", e.Target)
		}
	}
	must(t, os.Symlink("./b", b.restored(exactStage("./b"))))
	_, err := New(b.options)
	if must(t, err); !isThere(b.restored(exactStage("./b"))) {
		t.Error("a sign that leads to itself is followed")
	}
}
