package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func fileID(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestRestoreInPlace(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	b := build(t, dir)
	for i := range 200 {
		b.file(fmt.Sprintf("src/%02d/%03d.txt", i%10, i), fmt.Appendf(nil, "file %d", i), 0o644)
	}
	b.file("big.bin", b.noise(6<<20), 0o644)
	b.file(".env", []byte("KEY=1"), 0o600)
	b.file("node_modules/x/index.js", []byte("x"), 0o644)
	b.dir("private", 0o700)
	b.link("link", "big.bin")
	s.attach("t", "work")
	s.save("t", "r1")
	want, root := readTree(t, dir), fileID(t, dir)

	big, err := os.OpenFile(filepath.Join(dir, "big.bin"), os.O_WRONLY, 0)
	if err == nil {
		_, err = big.WriteAt([]byte("changed"), 1<<20)
	}
	b.must(err)
	b.must(big.Close())
	b.must(b.root.RemoveAll("src/03"))
	b.file("src/03", []byte("a file now"), 0o644)
	b.must(b.root.Remove("link"))
	b.file("link/below", []byte("x"), 0o644)
	b.file("more/and/more", []byte("x"), 0o644)
	b.dir("private", 0o755)
	spoiled := readTree(t, dir)

	inPlace := object{"threadId": "t", "path": "work", "into": "sandbox", "mode": "exact"}
	held := ok[object](s.client, "writer.acquire", object{"threadId": "t"})
	refused(s.client, "restore", inPlace, "SANDBOX_SNAPSHOT_WRITER_CONFLICT")
	ok[object](s.client, "writer.release", object{"threadId": "t", "ownerToken": held["ownerToken"], "fence": held["fence"]})
	ok[checkpoint](s.client, "fork", object{"threadId": "t", "destinationThreadId": "other"})
	refused(s.client, "restore", object{"threadId": "other", "path": "work", "into": "sandbox", "mode": "exact"}, "SANDBOX_SNAPSHOT_DESTINATION_NOT_EMPTY")
	sameTree(t, "after refusals", spoiled, readTree(t, dir))

	got := ok[restored](s.client, "restore", inPlace)
	sameTree(t, "in place", want, readTree(t, dir))
	if got.Files != 21 || got.Key == "" || !os.SameFile(root, fileID(t, dir)) {
		t.Errorf("reply %+v, the same directory: %v", got, os.SameFile(root, fileID(t, dir)))
	}
	if again := ok[restored](s.client, "restore", inPlace); again.Files != 0 || again.Bytes != 0 {
		t.Errorf("the second time wrote %+v", again)
	}
	if cp := s.save("t", "r2"); cp.Stats.NewBytes != 0 {
		t.Errorf("a save then stored %d bytes anew", cp.Stats.NewBytes)
	}
}

// TestRestorePrefix fetches only the packs that hold what it restores.
func TestRestorePrefix(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	for i := range 12 {
		b.file(fmt.Sprintf("a/%02d.bin", i), b.noise(2<<20), 0o644)
	}
	b.file("b/c/one", []byte("1"), 0o600)
	b.link("b/c/two", "one")
	b.file("b/other", []byte("2"), 0o644)
	b.dir("b", 0o750)
	s.attach("t", "work")
	s.save("t", "r")
	all := readTree(t, filepath.Join(s.sandboxes, "work"))

	packs := func(request object) int {
		t.Helper()
		asked, err := s.nc.SubscribeSync("$JS.API.STREAM.MSG.GET.OBJ_sandbox-packs")
		if err != nil {
			t.Fatal(err)
		}
		defer asked.Unsubscribe()
		ok[restored](s.client, "restore", request)
		if err := s.nc.FlushTimeout(patience); err != nil { // what was asked before the reply has come
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for {
			if n, _, err := asked.Pending(); n == 0 || err != nil {
				return len(seen)
			}
			msg, err := asked.NextMsg(patience)
			if err != nil {
				t.Fatal(err)
			}
			if name := string(msg.Data); strings.Contains(name, ".M.") {
				if seen[name] {
					t.Errorf("a pack was fetched twice: %s", name)
				}
				seen[name] = true
			}
		}
	}
	whole, part := packs(object{"threadId": "t", "path": "whole"}), packs(object{"threadId": "t", "path": "part", "prefix": "b/c"})
	if whole < 5 || part < 1 || part > 2 { // the manifest's, and the file's
		t.Errorf("%d packs for the whole, %d for a part", whole, part)
	}
	want := maps.Clone(all)
	maps.DeleteFunc(want, func(p string, _ item) bool { return p != "b" && p != "b/c" && !strings.HasPrefix(p, "b/c/") })
	sameTree(t, "the part", want, readTree(t, filepath.Join(s.restored, "part")))

	ok[restored](s.client, "restore", object{"threadId": "t", "path": "file", "prefix": "b/other"})
	if got := readTree(t, filepath.Join(s.restored, "file")); len(got) != 2 || got["b/other"] != all["b/other"] {
		t.Errorf("a single file: %v", got)
	}
	b.must(os.WriteFile(filepath.Join(s.restored, "part/b/c/one"), []byte("spoiled"), 0o644))
	b.must(os.WriteFile(filepath.Join(s.restored, "part/b/mine"), []byte("mine"), 0o644))
	if got := ok[restored](s.client, "restore", object{"threadId": "t", "path": "part", "prefix": "b/c", "mode": "exact"}); got.Files != 1 {
		t.Errorf("reply %+v", got)
	}
	got := readTree(t, filepath.Join(s.restored, "part"))
	delete(got, "b/mine")
	sameTree(t, "the part, exact", want, got)

	for _, c := range []struct {
		request object
		code    string
	}{
		{object{"prefix": "b/d"}, "SANDBOX_SNAPSHOT_MISSING_ENTRY"},
		{object{"prefix": "b/other/x"}, "SANDBOX_SNAPSHOT_MISSING_ENTRY"},
		{object{"prefix": "../b"}, "SANDBOX_SNAPSHOT_INVALID_PATH"},
		{object{"prefix": "b/"}, "SANDBOX_SNAPSHOT_INVALID_PATH"},
		{object{"prefix": 5}, "SANDBOX_BAD_REQUEST"},
		{object{"mode": "exactly"}, "SANDBOX_BAD_REQUEST"},
		{object{"mode": true}, "SANDBOX_BAD_REQUEST"},
	} {
		maps.Copy(c.request, object{"threadId": "t", "path": "refused"})
		refused(s.client, "restore", c.request, c.code)
	}
	if _, err := os.Stat(filepath.Join(s.restored, "refused")); err == nil {
		t.Error("a refused restore made its directory")
	}
}
