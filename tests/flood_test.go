package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
)

// Saves that wait take no room from reads, and those for which there is no room
// are told so at once.
func TestReadsDoNotWaitBehindSaves(t *testing.T) {
	t.Parallel()
	b := newBench(startServer(t, "--no-agent"), "held")
	holder := b.worker(b.node, "--prefix", b.thread, "--lease", "5m")
	if _, paused := b.pauseAt(holder, 4); !paused {
		t.Fatal("the save was over before it could be paused")
	}
	b.worker(b.node, "--prefix", "waiter")
	waiter := b.with("waiter")
	replies := make(chan *nats.Msg, 5000)
	inbox := nats.NewInbox()
	if _, err := b.nc.ChanSubscribe(inbox, replies); err != nil {
		t.Fatal(err)
	}
	var busy *failure
	for i := 0; busy == nil && i < cap(replies); i++ {
		body := encode(t, object{"threadId": b.thread, "runId": fmt.Sprint(i), "waitMs": 300_000, "timeoutMs": 300_000})
		if err := b.nc.PublishRequest("waiter.snapshot.save", inbox, body); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			ok[headOf](waiter, "checkpoint.head", object{"threadId": b.thread})
			ok[fileData](waiter, "file.read", object{"checkpointId": b.old.ID, "path": "src/00/000.go"})
		}
		select {
		case msg := <-replies:
			busy = decodeFailure(t, msg)
		default:
		}
	}
	if busy == nil || busy.Code != "SANDBOX_BUSY" || !busy.Retryable {
		t.Errorf("the first reply is %+v", busy)
	}
	if head := waiter.head(b.thread); head != b.old.ID {
		t.Errorf("head is %q", head)
	}
}

// Everything that is asked at once is answered.
func TestFloodOfRequests(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "work")).file("file", []byte("x"), 0o644)
	s.attach("t", "work")
	cp := s.save("t", "r")
	got := s.outcomes(2000, func(i int) (string, any) {
		switch i % 4 {
		case 0:
			return "fork", object{"threadId": "t", "destinationThreadId": fmt.Sprint("fork", i)}
		case 1:
			return "thread.save", object{"threadId": fmt.Sprint("talk", i%40), "messages": []int{i}}
		case 2:
			return "file.read", object{"checkpointId": cp.ID, "path": "file"}
		}
		return "checkpoint.list", object{"threadId": "t"}
	})
	if got[""] == 0 || got[""]+got["SANDBOX_BUSY"] != 2000 {
		t.Errorf("outcomes %v", got)
	}
	s.save("t", "afterwards")
}

// A worker that dies in the middle of a restore leaves nothing under the name
// that was asked for, and nothing in the way of the next one.
func TestCrashInTheMiddleOfARestore(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--no-agent")
	b := build(t, s.sandbox(t, "work"))
	b.code(400)
	b.file("zz-last", b.noise(24<<20), 0o644)
	w := s.worker(s.node)
	s.attach("t", "work")
	s.save("t", "r")
	want := readTree(t, filepath.Join(s.sandboxes, "work"))
	for i := range 5 {
		s.replyTo("restore", object{"threadId": "t", "path": "out"})
		eventually(t, "the restore to begin", func() bool {
			entries, err := os.ReadDir(s.restored)
			return err == nil && len(entries) > 0
		})
		w.kill()
		if left, err := os.ReadDir(filepath.Join(s.restored, "out")); err == nil && len(left) > 0 {
			sameTree(t, "what is there after a crash", want, readTree(t, filepath.Join(s.restored, "out")))
			b.must(os.RemoveAll(filepath.Join(s.restored, "out")))
		}
		w = s.worker(s.node)
		sameTree(t, "the restore after a crash", want, s.restoreTree("t", "", "out"))
		b.must(os.RemoveAll(filepath.Join(s.restored, "out")))
		if left, err := os.ReadDir(s.restored); err != nil || len(left) > 0 {
			t.Errorf("after crash %d the restore root has %v, %v", i, left, err)
		}
		b.must(os.RemoveAll(s.restored))
		b.must(os.Mkdir(s.restored, 0o755))
	}
}
