package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A home directory, and what is above one, is no workspace.
func TestHomeIsNoWorkspace(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--no-agent")
	n := newNode(t, "homely")
	home := n.sandbox(t, "home")
	build(t, home).file("user/.bashrc", []byte("x"), 0o644)
	for _, home := range []string{home, filepath.Join(home, "user")} {
		args := append([]string{"serve", "--server", s.url}, n.flags(t.TempDir())...)
		w := startIn(t, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, agentProgram, args...)
		w.logged("ready")
		msg, f := s.try("instance.attach", object{"threadId": "t", "name": "home"})
		if f == nil {
			_, f = s.try("snapshot.save", object{"threadId": "t", "runId": "r"})
		}
		if f == nil || f.Code != fullCode("INVALID_WORKSPACE") {
			t.Errorf("home %s: %v %s", home, f, msg.Data)
		}
		w.stop()
	}
}

func TestStrictSaveOfAFileThatKeepsChanging(t *testing.T) {
	t.Parallel()
	s := startServer(t, configFile(t, definitions)...)
	dir := s.sandbox(t, "work")
	build(t, dir).file("app.log", make([]byte, 8<<20), 0o644)
	ok[attached](s.client, "instance.attach", object{"threadId": "t", "name": "work", "sandbox": "strict"})
	ok[attached](s.client, "instance.attach", object{"threadId": "t", "name": "work"})
	appendUntilEnd(t, filepath.Join(dir, "app.log"))
	refused(s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "sandbox": "strict"}, fullCode("WORKSPACE_CHANGED"))
	cp := ok[checkpoint](s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "include": []string{"files"}})
	if diff := cmp.Diff([]string{"app.log"}, cp.Coverage.Unstable); diff != "" {
		t.Errorf("unstable (-want +got):\n%s", diff)
	}
	if got := s.restoreTree("t", "", "out"); len(got) != 1 || *(*cp.Files)[0].Size != cp.Stats.Bytes {
		t.Errorf("restored %v, entry %v, stats %+v", got, *cp.Files, cp.Stats)
	}
}

// appendUntilEnd keeps a file changing, as a log does, until the test ends.
func appendUntilEnd(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_, _ = f.WriteString("one more line\n") // a full disk fails the test elsewhere
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done; f.Close() })
}

// Every byte that is read is checked. A worker of its own reads what another
// one wrote, so that no cache hides the damage.
func TestDamagedContentsAreNeverAnswered(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--no-agent")
	writer := s.worker(s.node)
	for _, th := range []string{"lost", "wrong"} {
		b := build(t, s.sandbox(t, th))
		b.file("file", b.noise(100_000), 0o644)
		s.attach(th, th)
		s.putArtifact(th, "art", "artifact of "+th)
		ok[checkpoint](s.client, "snapshot.save", object{"threadId": th, "runId": "r", "checkpointId": th})
	}
	writer.stop()
	artifacts := map[string]string{}
	s.worker(s.node)
	for _, th := range []string{"lost", "wrong"} {
		key := ok[artifactPage](s.client, "artifact.list", object{"threadId": th}).Artifacts[0].BlobKey
		artifacts[th] = strings.TrimPrefix(key, "sandbox-artifacts/")
	}
	s.damage("sandbox-artifacts", artifacts["lost"], nil)
	s.damage("sandbox-artifacts", artifacts["wrong"], []byte("artifact of wrongs"))
	refused(s.client, "artifact.read", object{"threadId": "lost", "checkpointId": "lost", "artifactId": "art"}, fullCode("INVALID_ARTIFACT_BYTES"))
	refused(s.client, "artifact.read", object{"threadId": "wrong", "checkpointId": "wrong", "artifactId": "art"}, fullCode("INVALID_ARTIFACT_BYTES"))
	refused(s.client, "snapshot.save", object{"threadId": "lost", "runId": "r"}, fullCode("MISSING_ARTIFACT_BLOB"))
	refused(s.client, "snapshot.save", object{"threadId": "wrong", "runId": "r"}, fullCode("INVALID_ARTIFACT_BYTES"))
	s.damagedFiles()
}

func (s *server) damagedFiles() {
	s.t.Helper()
	list, err := s.bucket("sandbox-packs").List(s.ctx())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, info := range list {
		s.damage("sandbox-packs", info.Name, []byte("not what it was"))
	}
	if f := s.unreadable("wrong"); f.Code != fullCode("INVALID_BLOB") {
		s.t.Errorf("wrong bytes: %+v", f)
	}
	for _, info := range list {
		s.damage("sandbox-packs", info.Name, nil)
	}
	if f := s.unreadable("lost"); f.Code != fullCode("MISSING_BLOB") {
		s.t.Errorf("missing bytes: %+v", f)
	}
	if heads := s.head("lost") + s.head("wrong"); heads != "lostwrong" {
		s.t.Errorf("heads are now %s", heads)
	}
	// The next save must not believe that what is gone is there.
	s.attach("again", "lost")
	cp := s.save("again", "r")
	s.readsBack(cp.ID, "file", filepath.Join(s.sandboxes, "lost", "file"))
}

// unreadable reads and restores a checkpoint, which both have to fail alike and
// leave nothing behind.
func (s *server) unreadable(id string) failure {
	s.t.Helper()
	_, read := s.try("file.read", object{"checkpointId": id, "path": "file"})
	_, restore := s.try("restore", object{"threadId": id, "path": "out-" + id})
	if read == nil || restore == nil || read.Code != restore.Code {
		s.t.Fatalf("file.read gave %+v, restore %+v", read, restore)
	}
	if left := readTree(s.t, s.restored); len(left) != 0 {
		s.t.Errorf("a failed restore left %v", left)
	}
	return *read
}

// damage replaces an object's bytes, or removes it.
func (s *server) damage(bucket, name string, data []byte) {
	s.t.Helper()
	err := s.bucket(bucket).Delete(s.ctx(), name)
	if data != nil {
		_, err = s.bucket(bucket).PutBytes(s.ctx(), name, data)
	}
	if err != nil {
		s.t.Fatalf("damage %s: %v", name, err)
	}
}

// A full store refuses saves and nothing else.
func TestFullStore(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--max-bytes", "8388608")
	b := build(t, s.sandbox(t, "work"))
	b.file("small", b.noise(100_000), 0o644)
	s.attach("t", "work")
	first := s.save("t", "r1")
	want := readTree(t, filepath.Join(s.sandboxes, "work"))
	b.file("large", b.noise(24<<20), 0o644)
	for range 2 { // what the first attempt left must not look as if it were stored
		refused(s.client, "snapshot.save", object{"threadId": "t", "runId": "r2"}, "SANDBOX_STORE_FULL")
	}
	if head := s.head("t"); head != first.ID {
		t.Errorf("head is %q, want %q", head, first.ID)
	}
	sameTree(t, "restore from a full store", want, s.restoreTree("t", "", "out"))
	b.must(b.root.Remove("large"))
	s.save("t", "r3")
	if n := len(s.chain("t")); n != 2 {
		t.Errorf("%d checkpoints", n)
	}
}
