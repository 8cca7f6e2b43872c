package tests

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// attach makes the directory the thread's sandbox.
func (c client) attach(thread, name string) attached {
	c.t.Helper()
	return ok[attached](c, "instance.attach", object{"threadId": thread, "name": name})
}

func (c client) save(thread, run string) checkpoint {
	c.t.Helper()
	return ok[checkpoint](c, "snapshot.save", object{"threadId": thread, "runId": run})
}

func (c client) head(thread string) string {
	c.t.Helper()
	if id := ok[headOf](c, "checkpoint.head", object{"threadId": thread}).CheckpointID; id != nil {
		return *id
	}
	return ""
}

// chain is the thread's checkpoints; it fails the test unless each is the
// child of the one before and the last one is the head.
func (c client) chain(thread string) []string {
	c.t.Helper()
	var ids []string
	parent := ""
	for after := ""; ; {
		page := ok[checkpointPage](c, "checkpoint.list", object{"threadId": thread, "after": after})
		for _, cp := range page.Checkpoints {
			if got := deref(cp.Parent); got != parent {
				c.t.Errorf("checkpoint %q of %q has parent %q, want %q", cp.ID, thread, got, parent)
			}
			parent, ids = cp.ID, append(ids, cp.ID)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if head := c.head(thread); head != parent {
		c.t.Errorf("head of %q is %q, the last checkpoint is %q", thread, head, parent)
	}
	return ids
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// restoreTree restores a checkpoint into a new directory and reads it.
func (s *server) restoreTree(thread, id, path string) map[string]item {
	s.t.Helper()
	req := object{"threadId": thread, "path": path}
	if id != "" {
		req["checkpointId"] = id
	}
	ok[restored](s.client, "restore", req)
	return readTree(s.t, filepath.Join(s.restored, path))
}

// sameTree compares without printing thousands of rows.
func sameTree(t *testing.T, what string, want, got map[string]item) {
	t.Helper()
	shown := 0
	for _, path := range slices.Sorted(maps.Keys(merged(want, got))) {
		if want[path] == got[path] {
			continue
		}
		if shown++; shown <= 10 {
			t.Errorf("%s: %.200q is %+v, want %+v", what, path, got[path], want[path])
		}
	}
	if shown > 10 {
		t.Errorf("%s: %d paths differ", what, shown)
	}
}

func merged(a, b map[string]item) map[string]item {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func TestForkOfAnEarlierCheckpointRestoresEveryEntry(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	b.source()
	dir := filepath.Join(s.sandboxes, "work")
	before := readTree(t, dir)
	for _, name := range []string{"pipe", "sub/socket"} {
		b.dir("sub", 0o755)
		b.must(unix.Mknod(filepath.Join(dir, name), map[string]uint32{"pipe": unix.S_IFIFO, "sub/socket": unix.S_IFSOCK}[name]|0o644, 0))
	}
	before["sub"] = item{Kind: "dir", Mode: 0o755}

	s.attach("t", "work")
	first := s.save("t", "r1")
	checkFirst(t, first, before)
	b.change()
	second := s.save("t", "r2")
	if second.Stats.NewBytes >= second.Stats.Bytes/2 {
		t.Errorf("the second save stored %d of %d bytes anew", second.Stats.NewBytes, second.Stats.Bytes)
	}
	fork := ok[checkpoint](s.client, "fork", object{"threadId": "t", "checkpointId": first.ID, "destinationThreadId": "branch"})
	if fork.Reason != "fork-root" || fork.Parent != nil || fork.Label != nil || fork.SourceRunID != nil {
		t.Errorf("fork root is %+v", fork)
	}
	sameTree(t, "the fork", before, s.restoreTree("branch", "", "fork"))

	after := readTree(t, dir)
	delete(after, "pipe")
	delete(after, "sub/socket")
	sameTree(t, "the second checkpoint", after, s.restoreTree("t", second.ID, "deep/er/second"))
	s.readsBack(second.ID, "big.bin", filepath.Join(dir, "big.bin"))
}

func checkFirst(t *testing.T, cp checkpoint, tree map[string]item) {
	t.Helper()
	counts := map[string]int64{}
	for _, it := range tree {
		counts[it.Kind]++
	}
	if cp.Stats.Files != counts["file"] || cp.Stats.Symlinks != counts["symlink"] {
		t.Errorf("stats are %+v, the tree has %v", cp.Stats, counts)
	}
	var paths []string
	for _, s := range cp.Coverage.Skipped {
		paths = append(paths, s.Path)
	}
	if diff := cmp.Diff([]string{"pipe", "sub/socket"}, paths); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if cp.Reason != "automatic" || cp.Parent != nil || deref(cp.SourceRunID) != "r1" || len(cp.Coverage.Phases) == 0 {
		t.Errorf("first checkpoint is %+v", cp)
	}
}

// readsBack reads a file of a checkpoint in as many requests as it takes.
func (s *server) readsBack(id, path, local string) {
	s.t.Helper()
	want, err := os.ReadFile(local)
	if err != nil {
		s.t.Fatal(err)
	}
	var got []byte
	for eof := false; !eof; {
		part := ok[fileData](s.client, "file.read", object{"checkpointId": id, "path": path, "offset": len(got)})
		if len(part.Data) == 0 && !part.EOF {
			s.t.Fatalf("file.read at %d gave nothing", len(got))
		}
		got, eof = append(got, part.Data...), part.EOF
	}
	if !bytes.Equal(want, got) {
		s.t.Errorf("file.read of %s gave %d bytes that are not those of the file", path, len(got))
	}
	part := ok[fileData](s.client, "file.read", object{"checkpointId": id, "path": path, "offset": len(want) - 7, "length": 5})
	if !bytes.Equal(part.Data, want[len(want)-7:len(want)-2]) || part.EOF {
		s.t.Errorf("a range near the end gave %q, eof %v", part.Data, part.EOF)
	}
}

func TestPathsInPages(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	for _, p := range []string{"a/b/1", "a/b/2", "a/b-x", "a/b.x", "ab", "z"} {
		b.file(p, []byte(p), 0o644)
	}
	b.dir("a/b/private", 0o700)
	s.attach("t", "work")
	cp := s.save("t", "r")
	for _, row := range []struct {
		prefix string
		want   []string
	}{
		{"", []string{"a/b-x", "a/b.x", "a/b/1", "a/b/2", "a/b/private", "ab", "z"}},
		{"a/b", []string{"a/b/1", "a/b/2", "a/b/private"}},
		{"a/b/1", []string{"a/b/1"}},
		{"a/b/", []string{"a/b/1", "a/b/2", "a/b/private"}},
		{"nothing", nil},
	} {
		for _, limit := range []int{1, 2, 1000} {
			var got []string
			for after := ""; ; {
				page := ok[entryPage](s.client, "checkpoint.files", object{"checkpointId": cp.ID, "prefix": row.prefix, "limit": limit, "after": after})
				for _, e := range page.Entries {
					got = append(got, e.Path)
				}
				if len(page.Entries) > limit {
					t.Errorf("a page of at most %d has %d entries", limit, len(page.Entries))
				}
				if after = page.Next; after == "" {
					break
				}
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("prefix %q by %d (-want +got):\n%s", row.prefix, limit, diff)
			}
		}
	}
}

func TestEntriesOnTheWire(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	b.file("plain", []byte("x"), 0o644)
	b.file("tool", []byte("x"), 0o755)
	b.dir("private", 0o700)
	b.dir("hollow", 0o755)
	b.link("link", "plain")
	s.attach("t", "work")
	cp := ok[checkpoint](s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "label": "kept", "include": []string{"files", "conversation"}})
	if cp.Reason != "named" || deref(cp.Label) != "kept" || cp.Files == nil || cp.Conversation == nil {
		t.Fatalf("save with include gave %+v", cp)
	}
	var got []string
	for _, e := range *cp.Files {
		mode := "-"
		if e.Mode != nil {
			mode = string(rune('0'+*e.Mode>>6)) + string(rune('0'+*e.Mode>>3&7)) + string(rune('0'+*e.Mode&7))
		}
		got = append(got, strings.Join([]string{e.Path, e.Kind, mode, e.Target}, " "))
		if wantFile := e.Kind == "file"; wantFile != strings.HasPrefix(e.BlobKey, "sandbox-files/sha256/") || wantFile != (e.Size != nil) || wantFile != (e.Mtime != "") {
			t.Errorf("entry %+v", e)
		}
	}
	want := []string{"hollow dir - ", "link symlink - plain", "plain file - ", "private dir 700 ", "tool file 755 "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if n := len(ok[checkpointOrNull](s.client, "checkpoint.get", object{"checkpointId": cp.ID}).Checkpoint.Conversation); n != 0 {
		t.Errorf("a conversation of %d came unasked", n)
	}
}

func TestDefaultExclusions(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	kept := map[string]string{
		"app.js": "code", ".git/HEAD": "ref: refs/heads/main\n", ".git/objects/ab/cd": "blob",
		".gitignore": "node_modules\n", "environment.md": "text", "docs/ssh.md": "text",
	}
	left := []string{"node_modules/a/index.js", "packages/x/node_modules/b.js", ".env", ".env.local", "api/.env.production",
		".npmrc", "home/.netrc", "home/.aws/credentials", ".ssh/config", "keys/id_rsa", "keys/id_rsa.pub", "keys/server.pem"}
	for path, text := range kept {
		b.file(path, []byte(text), 0o644)
	}
	for _, path := range left {
		b.file(path, []byte("kept out "+path), 0o644)
	}
	git := "[remote \"origin\"]\n\turl = https://bob:hunter2-hunter2@example.org/x.git\n[http]\n\textraHeader = Authorization: Basic c2VjcmV0LXNlY3JldA==\n"
	b.file(".git/config", []byte(git), 0o644)
	b.file("vendor/lib/.git/config", []byte(git), 0o644)
	s.attach("t", "work")
	cp := ok[checkpoint](s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "include": []string{"files"}})
	checkExcluded(t, cp, left)
	if cp.Coverage.Redactions == 0 || len(cp.Coverage.Excluded) == 0 {
		t.Errorf("coverage is %+v", cp.Coverage)
	}
	tree := s.restoreTree("t", "", "out")
	for path := range kept {
		if tree[path].Kind != "file" {
			t.Errorf("%s was not kept", path)
		}
	}
	for _, path := range []string{".git/config", "vendor/lib/.git/config"} {
		got := ok[fileData](s.client, "file.read", object{"checkpointId": cp.ID, "path": path})
		if bytes.Contains(got.Data, []byte("hunter2")) || bytes.Contains(got.Data, []byte("c2VjcmV0")) || !bytes.Contains(got.Data, []byte("example.org/x.git")) {
			t.Errorf("%s was kept as %q", path, got.Data)
		}
	}
}

func checkExcluded(t *testing.T, cp checkpoint, left []string) {
	t.Helper()
	for _, e := range *cp.Files {
		for _, path := range left {
			if e.Path == path || strings.HasPrefix(path, e.Path+"/") && e.Kind != "dir" {
				t.Errorf("%s was stored", e.Path)
			}
		}
	}
}

func TestPolicyOfTheCommandLine(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--exclude", "*.log", "--include-credentials", "--no-default-excludes")
	b := build(t, s.sandbox(t, "work"))
	for _, path := range []string{"a.log", "sub/b.log", "node_modules/x.js", ".npmrc", "main.go"} {
		b.file(path, []byte(path), 0o644)
	}
	s.attach("t", "work")
	cp := ok[checkpoint](s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "include": []string{"files"}})
	var got []string
	for _, e := range *cp.Files {
		got = append(got, e.Path)
	}
	// A pattern of this dialect without a slash matches at the top only.
	want := []string{".npmrc", "main.go", "node_modules/x.js", "sub/b.log"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

func TestNamesThatCannotBeKept(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := s.sandbox(t, "work")
	b := build(t, dir)
	odd := []string{"\xff", "\xfe\xff", `back\slash`, "c:"}
	for _, name := range odd {
		b.file(name, []byte("odd"), 0o644)
	}
	b.file("fine", []byte("fine"), 0o644)
	s.attach("t", "work")
	cp := s.save("t", "r")
	if cp.Stats.Files != 1 || len(cp.Coverage.Skipped) != len(odd) {
		t.Errorf("stats %+v, skipped %+v", cp.Stats, cp.Coverage.Skipped)
	}
	for _, sk := range cp.Coverage.Skipped {
		if strings.ContainsRune(sk.Path, '\ufffd') || sk.Reason == "" {
			t.Errorf("skipped %+q because %q", sk.Path, sk.Reason)
		}
	}
	if tree := readTree(t, dir); len(tree) != len(odd)+1 {
		t.Errorf("the save altered the sandbox: %v", tree)
	}
}
