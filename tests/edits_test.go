package tests

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// content reads a file of a checkpoint.
func (c client) content(id, path string) string {
	c.t.Helper()
	return string(ok[fileData](c, "file.read", object{"checkpointId": id, "path": path}).Data)
}

// What a worker remembers about files must not make it miss a change.
func TestEditsThatLookLikeNone(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	b := build(t, dir)
	at := filepath.Join(dir, "file")
	b.code(20)
	b.file("file", []byte("0000"), 0o644)
	old, err := os.Stat(at)
	if err != nil {
		t.Fatal(err)
	}
	s.attach("t", "work")
	s.save("t", "r")
	for i := range 40 {
		text := fmt.Sprintf("%04d", i+1)
		b.must(os.WriteFile(at, []byte(text), 0o644)) // in place, the same size
		if i%2 == 0 {
			b.must(os.Chtimes(at, old.ModTime(), old.ModTime())) // and the same time
		}
		if i%5 == 0 { // another file in its place
			b.must(os.WriteFile(at+".new", []byte(text), 0o644))
			b.must(os.Chtimes(at+".new", old.ModTime(), old.ModTime()))
			b.must(os.Rename(at+".new", at))
		}
		if got := s.content(s.save("t", "r").ID, "file"); got != text {
			t.Fatalf("save %d kept %q, the file has %q", i, got, text)
		}
	}
}

// A worker that is started anew, with what it remembers whole, damaged or gone.
func TestRememberedFilesAcrossRestarts(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	b := build(t, dir)
	b.code(50)
	s.attach("t", "work")
	s.save("t", "r")
	for i, harm := range []func(path string) error{
		func(string) error { return nil },
		func(path string) error { return os.WriteFile(path, []byte("\x00garbage\xff"), 0o600) },
		func(path string) error { return os.Truncate(path, 100) },
		os.Remove,
	} {
		s.proc.kill()
		err := filepath.WalkDir(s.stateDir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && filepath.Dir(path) != s.stateDir {
				err = harm(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		name := "src/00/000.go"
		b.must(os.WriteFile(filepath.Join(dir, name), fmt.Append(nil, "changed ", i), 0o644))
		s.run()
		eventually(t, "the lease of the dead worker to end", func() bool {
			_, f := s.try("snapshot.save", object{"threadId": "t", "runId": "r", "waitMs": 40_000})
			return f == nil
		})
		sameTree(t, fmt.Sprint("after restart ", i), readTree(t, dir), s.restoreTree("t", "", fmt.Sprint("out", i)))
	}
}

// A state directory that knows another store must not be used with this one.
func TestAnotherStoreIsRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.proc.stop()
	args := append(s.node.flags(s.stateDir), "--auth", "none", "--store-dir", t.TempDir(), "--allow-temp-store", "--listen", "127.0.0.1:0")
	code, _, stderr := run(t, embeddedProgram, args...)
	if code == 0 {
		t.Errorf("a worker began with an empty store where it had another one: %s", stderr)
	}
}

// Times are kept to the nanosecond, also odd ones; modes lose what gives rights.
func TestOddTimesAndModes(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	b := build(t, dir)
	for i, at := range []time.Time{time.Unix(0, 0), time.Unix(0, 1), time.Unix(-1, 999_999_999), time.Unix(-2_000_000_000, 7), time.Unix(1_700_000_000, 999_999_999), time.Date(2261, 1, 1, 0, 0, 0, 5, time.UTC)} {
		name := fmt.Sprint("time", i)
		b.file(name, nil, 0o644)
		b.must(os.Chtimes(filepath.Join(dir, name), at, at))
	}
	b.file("setuid", []byte("x"), 0o755)
	b.must(os.Chmod(filepath.Join(dir, "setuid"), 0o755|fs.ModeSetuid|fs.ModeSetgid))
	b.dir("sticky", 0o755)
	b.must(os.Chmod(filepath.Join(dir, "sticky"), 0o777|fs.ModeSticky))
	b.file("none", []byte("no rights"), 0o400)
	s.attach("t", "work")
	s.save("t", "r")
	out := s.restoreTree("t", "", "out")
	sameTree(t, "odd times", readTree(t, dir), out)
	for _, name := range []string{"setuid", "sticky"} {
		info, err := os.Stat(filepath.Join(s.restored, "out", name))
		if err != nil || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			t.Errorf("%s came back as %v, %v", name, info.Mode(), err)
		}
	}
}

// A time that nanoseconds since 1970 can't hold must not come back as another
// one without a word.
func TestTimeBeyondTheRange(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	build(t, dir).file("file", []byte("x"), 0o644)
	far := time.Date(2400, 1, 1, 0, 0, 0, 0, time.UTC)
	spec := unix.Timespec{Sec: far.Unix()} // os.Chtimes counts nanoseconds itself
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, "file"), []unix.Timespec{spec, spec}, 0); err != nil {
		t.Fatal(err)
	}
	s.attach("t", "work")
	cp := s.save("t", "r")
	ok[restored](s.client, "restore", object{"threadId": "t", "path": "out"})
	back, err := os.Stat(filepath.Join(s.restored, "out", "file"))
	if len(cp.Coverage.Skipped)+len(cp.Coverage.Unstable) == 0 && (err != nil || back.ModTime().Year() < 2200) {
		t.Errorf("%v came back as %v, %v", far, back.ModTime(), err)
	}
}

// A path may have thousands of parts; one that is too long is left out and
// reported, and the rest is kept.
func TestDeepTrees(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	at := openRoot(t, dir)
	for i := range 2100 { // 4,199 bytes
		if err := at.Mkdir("d", 0o755); err != nil {
			t.Fatal(err)
		}
		if i%500 == 0 {
			if err := at.WriteFile("file", fmt.Append(nil, i), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		next, err := at.OpenRoot("d")
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			at.Close()
		}
		at = next
	}
	at.Close()
	s.attach("t", "work")
	cp := s.save("t", "r")
	if cp.Stats.Files != 5 || len(cp.Coverage.Skipped) == 0 {
		t.Errorf("stats %+v, skipped %.300v", cp.Stats, cp.Coverage.Skipped)
	}
	if got := ok[restored](s.client, "restore", object{"threadId": "t", "path": "out"}); got.Files != 5 {
		t.Errorf("restored %+v", got)
	}
}
