package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The largest number that a request can have is a long time, not a short one.
func TestLargeNumbers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	b.file("file", []byte("0123456789"), 0o644)
	s.attach("t", "work")
	const most = 1<<53 - 1
	cp := ok[checkpoint](s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "waitMs": most})
	for _, row := range []struct {
		offset, length string
		want           string
		eof            bool
	}{
		{"0", fmt.Sprint(most), "0123456789", true}, {fmt.Sprint(most), "1", "", true}, {"10", "0", "", true}, {"9", "1", "9", true},
		{"3", "0", "", false}, {"2.0", "3e0", "234", false}, {"20e-1", "30e-1", "234", false}, {"9", fmt.Sprint(most), "9", true},
	} {
		got := ok[fileData](s.client, "file.read", fmt.Sprintf(`{"checkpointId":%q,"path":"file","offset":%s,"length":%s}`, cp.ID, row.offset, row.length))
		if string(got.Data) != row.want || got.EOF != row.eof {
			t.Errorf("offset %s, length %s: %q, eof %v", row.offset, row.length, got.Data, got.EOF)
		}
	}
	for _, number := range []string{"9007199254740992", "1e400", "1e999999999999", "-1", "0.5", "NaN", "0x10", "01"} {
		refused(s.client, "file.read", fmt.Sprintf(`{"checkpointId":%q,"path":"file","offset":%s}`, cp.ID, number), badRequest)
	}
	for i, at := range []string{"1.5", "-1", "1e21", "0", "1e-7", "1.7976931348623157e308"} {
		got := ok[checkpoint](s.client, "fork", fmt.Sprintf(`{"threadId":"t","destinationThreadId":"t%d","createdAt":%s}`, i, at))
		if fmt.Sprint(got.CreatedAt) != fmt.Sprint(number64(at)) {
			t.Errorf("createdAt %s came back as %v", at, got.CreatedAt)
		}
		list := ok[checkpointPage](s.client, "checkpoint.list", object{"threadId": fmt.Sprint("t", i)})
		if list.Checkpoints[0].CreatedAt != got.CreatedAt {
			t.Errorf("createdAt %s is listed as %v", at, list.Checkpoints[0].CreatedAt)
		}
	}
	refused(s.client, "fork", `{"threadId":"t","destinationThreadId":"x","createdAt":1e999}`, badRequest)
}

func number64(text string) (f float64) {
	_ = json.Unmarshal([]byte(text), &f) // texts of the table above
	return f
}

// Nesting without end is an error, not the end of the worker.
func TestDeeplyNestedRequests(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	ok[revision](s.client, "thread.save", `{"threadId":"t","messages":[`+deep(5000)+`]}`)
	if got := ok[thread](s.client, "thread.load", object{"threadId": "t"}).Messages; string(got[0]) != deep(5000) {
		t.Error("a deep message came back as another one")
	}
	for _, body := range []string{deep(400_000), `{"threadId":` + deep(100_000) + `}`, strings.Repeat(`{"threadId":`, 50_000), `{"threadId":"t","messages":[` + deep(400_000) + `]}`} {
		if _, f := s.try("thread.save", body); f == nil || numbers[f.Code] != 400 {
			t.Errorf("a request of %d bytes: %+v", len(body), f)
		}
	}
	s.head("t")
}

// A request that nobody waits for is done all the same.
func TestRequestWithoutReply(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "work")).file("file", []byte("x"), 0o644)
	s.attach("t", "work")
	for _, body := range []string{`{"threadId":"t","runId":"r"}`, `{`, ``} {
		if err := s.nc.Publish("sandbox.snapshot.save", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the save", func() bool { return s.head("t") != "" })
}

// Entries without bytes read as nothing.
func TestReadsOfOtherEntries(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	b.link("link", "target")
	b.dir("dir", 0o755)
	b.file("zero", nil, 0o644)
	s.attach("t", "work")
	cp := s.save("t", "r")
	for path, kind := range map[string]string{"link": "symlink", "dir": "dir", "zero": "file"} {
		got := ok[fileData](s.client, "file.read", object{"checkpointId": cp.ID, "path": path})
		if got.Entry.Kind != kind || len(got.Data) != 0 || got.Data == nil || !got.EOF {
			t.Errorf("%s reads as %+v", path, got)
		}
	}
}

// The store of the server is never captured, wherever it lies.
func TestStoreInsideASandbox(t *testing.T) {
	t.Parallel()
	n := newNode(t, "n1")
	dir := n.sandbox(t, "work")
	build(t, dir).file("file", []byte("x"), 0o644)
	s := &server{client: client{t: t, prefix: "sandbox"}, node: n, storeDir: filepath.Join(dir, "deep", "store"), stateDir: t.TempDir(), flags: []string{"--auth", "none"}}
	if err := os.MkdirAll(s.storeDir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.run()
	if _, f := s.try("instance.attach", object{"threadId": "t", "name": "work"}); f != nil {
		if f.Code != fullCode("INVALID_WORKSPACE") {
			t.Errorf("%+v", f)
		}
		return
	}
	for i := range 3 {
		cp := ok[checkpoint](s.client, "snapshot.save", object{"threadId": "t", "runId": fmt.Sprint(i), "include": []string{"files"}})
		for _, e := range *cp.Files {
			if strings.HasPrefix(e.Path, "deep/store/") {
				t.Fatalf("the store is in the checkpoint: %s", e.Path)
			}
		}
	}
}

// What the worker may not read is left out and reported, or fails a strict save
// with all of it. The worker runs as nobody, since root may read everything.
func TestUnreadableEntries(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Log("not run by root: the worker is the test's own user")
	}
	s := startServer(t, append(configFile(t, definitions), "--no-agent")...)
	dir := s.sandbox(t, "work")
	b := build(t, dir)
	b.file("open/file", []byte("x"), 0o644)
	b.file("open/closed", []byte("x"), 0o000)
	b.file("shut/file", []byte("x"), 0o644)
	b.file("readonly/file", []byte("x"), 0o444)
	b.dir("shut", 0o000)
	b.dir("readonly", 0o555)
	w := s.workerOfNobody(s.flags[2:4]...)
	defer w.stop()
	s.attach("t", "work")
	cp := s.save("t", "r")
	var got []string
	for _, sk := range cp.Coverage.Skipped {
		got = append(got, sk.Path)
	}
	if strings.Join(got, " ") != "open/closed shut" {
		t.Errorf("skipped %+v", cp.Coverage.Skipped)
	}
	ok[restored](s.client, "restore", object{"threadId": "t", "path": "out"})
	if tree := readTree(t, filepath.Join(s.restored, "out")); tree["readonly/file"].Mode != 0o444 || tree["readonly"].Mode != 0o555 {
		t.Errorf("restored %v", tree)
	}
	ok[attached](s.client, "instance.attach", object{"threadId": "t", "name": "work", "sandbox": "strict"})
	f := refused(s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "sandbox": "strict"}, fullCode("UNREADABLE_ENTRY"))
	if all := fmt.Sprint(f); !strings.Contains(all, "open/closed") || !strings.Contains(all, "shut") {
		t.Errorf("the error does not name all paths: %s", all)
	}
}

// workerOfNobody runs a worker without any rights of its own; flags name its
// configuration.
func (s *server) workerOfNobody(flags ...string) *process {
	s.t.Helper()
	state := s.t.TempDir()
	program := filepath.Join(state, "agent")
	raw, err := os.ReadFile(agentProgram)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(program, raw, 0o755); err != nil {
		s.t.Fatal(err)
	}
	args := append([]string{"serve", "--server", s.url}, s.node.flags(state)...)
	var attr *syscall.SysProcAttr
	if os.Getuid() == 0 {
		const nobody = 65534
		attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		for _, dir := range []string{flags[1], filepath.Dir(state), state, filepath.Dir(filepath.Dir(s.sandboxes)), filepath.Dir(s.sandboxes), s.sandboxes, s.restored, filepath.Join(s.sandboxes, "work")} {
			if err := os.Chmod(dir, 0o777); err != nil {
				s.t.Fatal(err)
			}
		}
		giveTo(s.t, nobody, filepath.Join(s.sandboxes, "work"))
	}
	p := startAs(s.t, attr, environment(s.t), program, append(args, flags...)...)
	p.logged("ready")
	return p
}

// giveTo makes a tree somebody's own.
func giveTo(t *testing.T, uid int, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Reading a large artifact back gives the bytes that were put, in one object.
func TestUploadOfManyMegabytes(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	data := build(t, t.TempDir()).noise(48 << 20)
	put := ok[artifact](s.client, "artifact.put", artifactBody(object{"data": nil, "object": s.upload("big", data)}))
	obj, err := s.bucket("sandbox-artifacts").Get(s.ctx(), strings.TrimPrefix(put.BlobKey, "sandbox-artifacts/"))
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Close()
	got, err := io.ReadAll(obj)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(data), err)
	}
}
