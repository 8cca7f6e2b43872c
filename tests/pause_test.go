package tests

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
)

// pauseAt stops the worker in its tracks when it has sent its n-th write.
func (b *bench) pauseAt(w *process, n int64) (reply <-chan *nats.Msg, paused bool) {
	b.t.Helper()
	var once sync.Once
	hit := make(chan struct{})
	stop := b.writes(func(seen int64) {
		if seen >= n {
			once.Do(func() { _ = w.cmd.Process.Signal(syscall.SIGSTOP); close(hit) })
		}
	})
	defer stop()
	body := b.request()
	delete(body, "waitMs") // or it may begin anew when it wakes up
	replies := b.replyTo("snapshot.save", body)
	select {
	case <-hit:
		return replies, true
	case msg := <-replies:
		once.Do(func() {}) // no pause from now on
		again := make(chan *nats.Msg, 1)
		again <- msg
		select {
		case <-hit: // the reply was out already
			return again, true
		default:
			return again, false
		}
	}
}

// A worker that sleeps in the middle of a save and wakes up after its thread
// was taken over changes nothing.
func TestPauseInTheMiddleOfASave(t *testing.T) {
	t.Parallel()
	total := countWrites(t)
	atOnce(t, 6, func(t *testing.T, i int64) { pauseAndTakeOver(t, max(1, total*i/5-1)) })
}

// lateCodes are what a save may say that slept. The last two are for one that
// slept while it held its sandbox's lock, or before it knew that it held the
// thread.
var lateCodes = []string{fullCode("WRITER_LOST"), "SANDBOX_TIMEOUT", fullCode("STALE_HEAD"), "SANDBOX_BUSY", fullCode("WRITER_CONFLICT")}

func pauseAndTakeOver(t *testing.T, n int64) {
	b := newBench(startServer(t, "--no-agent"), "paused")
	sleeper := b.saver(b.thread)
	b.saver("taker")
	reply, paused := b.pauseAt(sleeper, n)
	taker := b.with("taker")
	taken := ok[checkpoint](taker, "snapshot.save", object{"threadId": b.thread, "runId": "r3", "checkpointId": "taken", "waitMs": 40_000})
	tree := readTree(t, b.dir)
	before := taker.chain(b.thread)
	if paused {
		sleeper.signal(syscall.SIGCONT)
	}
	f := decodeFailure(t, await(t, reply))
	b.client = taker
	after := b.chain(b.thread)
	if n == 1 && f == nil && slices.Equal(after, append(before, b.newID())) {
		return // it slept before it knew that it held the thread, and took it once that was free
	}
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("the late worker changed the chain from %q to %q", before, after)
	}
	committed := len(after) == 3 && after[1] == b.newID()
	switch {
	case taken.ID != after[len(after)-1]:
		t.Errorf("the head is %q, not the checkpoint of who took over", after)
	case f == nil && !committed:
		t.Errorf("a save that is not in the chain %q was acknowledged", after)
	case f != nil && committed && f.Details["outcome"] != "unknown":
		t.Errorf("a save that is in the chain was answered with %+v", f)
	case f != nil && !committed && !slices.Contains(lateCodes, f.Code):
		t.Errorf("the late save was answered with %+v", f)
	}
	sameTree(t, "the head", tree, b.restoreTree(b.thread, "", "out"))
	next := ok[checkpoint](b.with(b.thread), "snapshot.save", object{"threadId": b.thread, "runId": "r4", "waitMs": 20_000})
	if deref(next.Parent) != taken.ID {
		t.Errorf("the next save follows %q", deref(next.Parent))
	}
}

// While a worker holds a thread, others are told who it is.
func TestConflictOfWriters(t *testing.T) {
	t.Parallel()
	b := newBench(startServer(t, "--no-agent"), "held")
	w := b.saver(b.thread)
	b.saver("other")
	if _, paused := b.pauseAt(w, 4); !paused {
		t.Fatal("the save was over before it could be paused")
	}
	other := b.with("other")
	f := refused(other, "snapshot.save", object{"threadId": b.thread, "runId": "r3"}, fullCode("WRITER_CONFLICT"))
	if !f.Retryable || len(f.Details) == 0 {
		t.Errorf("%+v", f)
	}
	refused(other, "snapshot.save", object{"threadId": b.thread, "runId": "r3", "waitMs": 100, "timeoutMs": 20_000}, fullCode("WRITER_CONFLICT"))
	// Reads do not wait for writers.
	if head := other.head(b.thread); head != b.old.ID {
		t.Errorf("head is %q", head)
	}
	ok[fileData](other, "file.read", object{"checkpointId": b.old.ID, "path": "src/00/000.go"})
	ok[checkpoint](other, "fork", object{"threadId": b.thread, "destinationThreadId": "branch"})
	// A wait that no clock can count is a long one, not none.
	ok[checkpoint](other, "snapshot.save", object{"threadId": b.thread, "runId": "r4", "waitMs": int64(math.MaxInt64/1_000_000 + 1)})
}
