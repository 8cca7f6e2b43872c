package tests

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of its own, of so many bytes. Without the
// right to do that the test is skipped.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.Itoa(size)); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: a full disk needs the right to mount a tmpfs (run as root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// serverOn is startServer on a directory of the test's choice.
func serverOn(t *testing.T, dir string, flags ...string) *server {
	t.Helper()
	s := &server{client: client{t: t, prefix: "sandbox"}, node: newNode(t, "n1"), storeDir: dir, stateDir: t.TempDir()}
	s.flags = append([]string{"--auth", "none"}, flags...)
	s.run()
	return s
}

// hog takes all of a disk but so many bytes with something that is not the store.
func hog(t *testing.T, dir string, left uint64) (remove func()) {
	t.Helper()
	path := filepath.Join(dir, "hog")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	eventually(t, "room on the disk to stay the same for a moment", func() bool {
		var st unix.Statfs_t
		if err = unix.Statfs(dir, &st); err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail*uint64(st.Bsize)-left))
		}
		return err != unix.ENOSPC // the server took some
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// storageLimit is what the server lets its account store, -1 for any amount.
func (c client) storageLimit() int64 {
	c.t.Helper()
	info, err := c.js().AccountInfo(c.ctx())
	if err != nil {
		c.t.Fatal(err)
	}
	return info.Limits.MaxStore
}

// fullThread makes threads to read and to delete while the store is full.
func (s *server) fullThread() (b *builder, before map[string]string) {
	s.t.Helper()
	b = build(s.t, s.sandbox(s.t, "work"))
	b.file("small", b.noise(100_000), 0o644)
	for _, th := range []string{"t", "gone"} {
		s.attach(th, "work")
		s.putArtifact(th, "art", "bytes of "+th)
		ok[revision](s.client, "thread.save", object{"threadId": th, "messages": []string{"said in " + th}})
		ok[checkpoint](s.client, "snapshot.save", object{"threadId": th, "runId": "r1", "checkpointId": th + "-1"})
	}
	return b, s.state("t")
}

// worksOnAFullStore reads, restores and deletes.
func (s *server) worksOnAFullStore(path string, before map[string]string) {
	s.t.Helper()
	after := s.state("t")
	for what, was := range before {
		if !strings.HasPrefix(what, "restored") && after[what] != was {
			s.t.Errorf("on the full store %s is %.200s, was %.200s", what, after[what], was)
		}
	}
	s.readsBack("t-1", "small", filepath.Join(s.sandboxes, "work", "small"))
	ok[artifactData](s.client, "artifact.read", object{"threadId": "t", "checkpointId": "t-1", "artifactId": "art"})
	ok[restored](s.client, "restore", object{"threadId": "t", "path": path})
}

// A disk that others have filled: saves are told so, nothing is lost, and all
// goes on when there is room again, without a restart.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 64<<20)
	s := serverOn(t, disk)
	b, before := s.fullThread()
	remove := hog(t, disk, 10<<20)
	eventually(t, "the server to see its disk", func() bool { return s.storageLimit() >= 0 })
	b.file("large", b.noise(24<<20), 0o644)
	save := object{"threadId": "t", "runId": "r2", "checkpointId": "t-2"}
	for range 2 { // what the first attempt left must not look as if it were stored
		refused(s.client, "snapshot.save", save, "SANDBOX_STORE_FULL")
	}
	s.worksOnAFullStore("low", before)
	ok[empty](s.client, "artifact.delete", object{"threadId": "gone", "artifactId": "art"})
	ok[deleted](s.client, "thread.delete", object{"threadId": "gone"})
	remove()
	remove = hog(t, disk, 0)
	eventually(t, "the server to see its full disk", func() bool { return s.storageLimit() == 0 })
	for _, subject := range []string{"snapshot.save", "thread.save", "artifact.put", "lock.acquire"} {
		body := map[string]object{"snapshot.save": save, "thread.save": {"threadId": "new", "messages": []int{1}}, "artifact.put": artifactBody(nil), "lock.acquire": {"name": "l"}}[subject]
		refused(s.client, subject, body, "SANDBOX_STORE_FULL")
	}
	s.worksOnAFullStore("full", before)
	remove()
	b.must(b.root.Remove("large"))
	b.file("after", b.noise(1<<20), 0o644)
	eventually(t, "room", func() bool { return s.storageLimit() < 0 })
	ok[checkpoint](s.client, "snapshot.save", save)
	s.proc.stop()
	s.run()
	if chain := s.chain("t"); fmt.Sprint(chain) != "[t-1 t-2]" || s.head("gone") != "" {
		t.Errorf("after the restart the chain is %q, the deleted thread's head %q", chain, s.head("gone"))
	}
	sameTree(t, "the save after there was room", readTree(t, filepath.Join(s.sandboxes, "work")), s.restoreTree("t", "t-2", "out"))
}

type deleted struct {
	Checkpoints int64 `json:"checkpoints"`
}

// A bucket at its limit refuses what it has no room for and nothing else: it is
// read, restored from and deleted in, also with less room than a tombstone takes.
func TestFullBuckets(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--max-bytes", "4194304")
	_, before := s.fullThread()
	ok[checkpoint](s.client, "fork", object{"threadId": "t", "destinationThreadId": "branch"})
	s.fillState("k")
	for _, row := range []errorRow{
		{"snapshot.save", object{"threadId": "t", "runId": "r2"}, ""}, {"fork", object{"threadId": "t", "destinationThreadId": "f"}, ""},
		{"lock.acquire", object{"name": "l"}, ""}, {"thread.save", object{"threadId": "new", "messages": []int{}}, ""},
	} {
		refused(s.client, row.subject, row.body, "SANDBOX_STORE_FULL")
	}
	s.worksOnAFullStore("full", before)
	ok[empty](s.client, "artifact.delete", object{"threadId": "branch", "artifactId": "art"}) // of its root: hidden by a record more
	if n := len(ok[artifactPage](s.client, "artifact.list", object{"threadId": "branch"}).Artifacts); n != 0 {
		t.Errorf("%d artifacts after the deletion", n)
	}
	s.fillState("l")
	if d := ok[deleted](s.client, "thread.delete", object{"threadId": "gone"}); d.Checkpoints != 1 || s.head("gone") != "" {
		t.Errorf("deleted %d checkpoints, the head is %q", d.Checkpoints, s.head("gone"))
	}
	s.fillState("m")
	for {
		page := ok[instancePage](s.client, "instance.list", object{"threadId": "filler"})
		if len(page.Records) == 0 {
			break
		}
		for _, rec := range page.Records {
			ok[empty](s.client, "instance.delete", object{"key": rec.Key})
		}
	}
	s.save("t", "r3")
	if n := len(s.chain("t")); n != 2 {
		t.Errorf("%d checkpoints", n)
	}
	s.fullArtifacts()
}

// fillState fills the bucket of the state, at last with the smallest of keys.
func (s *server) fillState(prefix string) {
	s.t.Helper()
	for n, size := 0, 30_000; size > 10; n++ {
		_, f := s.try("instance.upsert", object{"record": object{"key": fmt.Sprint(prefix, n), "provider": strings.Repeat("p", size), "providerSandboxId": "n/b", "threadId": "filler", "updatedAt": 1}})
		if f == nil {
			continue
		}
		if size /= 4; f.Code != "SANDBOX_STORE_FULL" {
			s.t.Fatalf("the full state bucket: %+v", f)
		}
	}
	kv, err := s.js().KeyValue(s.ctx(), "sandbox-state")
	for n := 0; err == nil; n++ {
		_, err = kv.Put(s.ctx(), fmt.Sprint("small-", prefix, n), nil)
	}
	if api := new(jetstream.APIError); !errors.As(err, &api) || api.ErrorCode != 10077 {
		s.t.Fatal(err)
	}
}

// fullArtifacts fills the bucket of artifacts. What was refused is nowhere.
func (s *server) fullArtifacts() {
	s.t.Helper()
	stored := 0
	for i := 0; ; i++ {
		data := bytes.Repeat([]byte{byte(i)}, 600_000)
		_, f := s.try("artifact.put", artifactBody(object{"threadId": "arts", "artifactId": fmt.Sprint("a", i), "data": data}))
		if f == nil && i < 20 {
			stored++
			continue
		}
		if f == nil || f.Code != "SANDBOX_STORE_FULL" {
			s.t.Fatalf("the full bucket of artifacts: %+v", f)
		}
		break
	}
	if n := len(ok[artifactPage](s.client, "artifact.list", object{"threadId": "arts"}).Artifacts); n != stored {
		s.t.Errorf("%d artifacts are listed, %d were stored", n, stored)
	}
	ok[artifactData](s.client, "artifact.read", object{"threadId": "t", "checkpointId": "t-1", "artifactId": "art"})
	ok[empty](s.client, "artifact.delete", object{"threadId": "arts", "artifactId": "a0"})
	s.save("t", "r4")
}
