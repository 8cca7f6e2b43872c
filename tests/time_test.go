package tests

import (
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// slowSave is a save by a worker behind a gate, and a worker for its rivals.
type slowSave struct {
	*bench
	worker *process
	reply  <-chan *nats.Msg
}

func newSlowSave(t *testing.T, lease string, decide func(message) fate) *slowSave {
	t.Helper()
	s := &slowSave{bench: newBench(startServer(t, "--no-agent"), "timed")}
	s.saver("rival")
	g := newGate(t, s.url, decide)
	s.worker = s.bench.worker(s.node, "--lease", lease, "--prefix", s.thread, "--server", g.url())
	body := s.request()
	delete(body, "waitMs")
	s.reply = s.replyTo("snapshot.save", body)
	s.client = s.with("rival")
	return s
}

// holders collects the values that the thread's lease has from now on.
func (s *slowSave) holders() (stop func() (owners []string)) {
	s.t.Helper()
	w, err := s.keys().Watch(s.t.Context(), "writer."+s.thread)
	if err != nil {
		s.t.Fatal(err)
	}
	return func() (owners []string) {
		_ = w.Stop()
		for e := range w.Updates() {
			if e == nil || e.Operation() != jetstream.KeyValuePut {
				continue
			}
			var v struct{ Owner string }
			if err := json.Unmarshal(e.Value(), &v); err != nil {
				s.t.Error(err)
			}
			owners = append(owners, v.Owner)
		}
		return owners
	}
}

// after is a time that a message takes.
func after(d time.Duration) <-chan struct{} {
	passed := make(chan struct{})
	time.AfterFunc(d, func() { close(passed) })
	return passed
}

// A lost reply to a renewal, or to the read before it, is not a lost lease, also
// if the lease is shorter than the wait for a reply would be.
func TestLostReplyToARenewal(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name, lease string
		of          func(message) bool
		loses       func(nth int) bool
	}{
		{"the first", "6s", message.renewal, func(nth int) bool { return nth == 1 }},
		{"the first and the third", "6s", message.renewal, func(nth int) bool { return nth == 1 || nth == 3 }},
		{"of a longer lease", "9s", message.renewal, func(nth int) bool { return nth == 1 }},
		{"the read before it", "6s", message.leaseRead, func(nth int) bool { return nth == 2 }}, // the first is the acquire's
	}
	atOnce(t, int64(len(rows)), func(t *testing.T, i int64) {
		row, renewed, nth := rows[i], 0, 0
		uploads, enough := make(chan struct{}), make(chan struct{})
		s := newSlowSave(t, row.lease, func(m message) fate {
			if m.upload() {
				return fate{reply: uploads}
			}
			if m.renewal() {
				if renewed++; renewed == 4 {
					close(enough)
				}
			}
			if row.of(m) {
				if nth++; row.loses(nth) {
					return fate{reply: lost}
				}
			}
			return fate{}
		})
		owners := s.holders()
		select {
		case <-enough:
			close(uploads)
		case msg := <-s.reply:
			t.Fatalf("%s: %s", row.name, msg.Data)
		}
		if f := decodeFailure(t, await(t, s.reply)); f != nil {
			t.Errorf("%s: %+v", row.name, f)
		}
		if all := owners(); len(slices.Compact(all)) != 1 || len(all) < 3 {
			t.Errorf("%s: the lease was held by %q", row.name, all)
		}
		if chain := s.chain(s.thread); len(chain) != 2 || chain[1] != s.newID() {
			t.Errorf("%s: the chain is %q", row.name, chain)
		}
	})
}

// Where no renewal gets through the save ends before anybody else can have the
// lease: from then on its worker writes nothing.
func TestAllRenewalsLost(t *testing.T) {
	t.Parallel()
	rows := map[string]fate{"replies": {reply: lost}, "requests": {request: lost}}
	for name, renewal := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var taken atomic.Bool
			var late, uploads atomic.Int64
			s := newSlowSave(t, shortLease, func(m message) fate {
				if taken.Load() && m.write() && !m.release() {
					late.Add(1)
				}
				switch {
				case m.upload():
					uploads.Add(1)
					return fate{reply: after(time.Second)} // enough of them for longer than the lease
				case m.renewal(), m.release() && renewal.request != nil:
					return renewal
				}
				return fate{}
			})
			eventually(t, "an upload", func() bool { return uploads.Load() > 0 })
			rival := ok[held](s.client, "writer.acquire", object{"threadId": s.thread, "waitMs": 30_000})
			taken.Store(true)
			f := decodeFailure(t, await(t, s.reply))
			if f == nil || f.Code != fullCode("WRITER_LOST") || f.Retryable {
				t.Errorf("the save answered %+v", f)
			}
			if n := late.Load(); n > 0 {
				t.Errorf("the worker wrote %d messages after another had the lease", n)
			}
			s.unchanged(rival)
		})
	}
}

// unchanged wants the thread as it was before the save, and lets the holder go
// on with it.
func (s *slowSave) unchanged(holder held) {
	s.t.Helper()
	if chain := s.chain(s.thread); !slices.Equal(chain, []string{s.old.ID}) {
		s.t.Errorf("the lost save left the chain %q", chain)
	}
	ok[object](s.client, "checkpoint.append", appendBy(holder.Writer, "rival", s.old.ID))
	ok[empty](s.client, "writer.release", holder.Writer)
	s.goesOn("rival")
}

// goesOn sends the request again, which now has to succeed.
func (s *slowSave) goesOn(parent string) {
	s.t.Helper()
	again := ok[checkpoint](s.client, "snapshot.save", s.request())
	if again.ID != s.newID() || deref(again.Parent) != parent {
		s.t.Errorf("the retry gave %q after %q, want a child of %q", again.ID, deref(again.Parent), parent)
	}
	sameTree(s.t, "the retry", readTree(s.t, s.dir), s.restoreTree(s.thread, again.ID, "retry"))
}

// appendBy is an append of an empty checkpoint.
func appendBy(w Writer, id, parent string) object {
	return object{"writer": w, "expectedHeadId": nullable(parent), "checkpoint": object{"id": id, "threadId": w.ThreadID, "parentCheckpointId": nullable(parent),
		"createdAt": 1, "reason": "automatic", "files": []any{}, "conversation": []any{}, "artifacts": []any{}}}
}

// A worker that is stopped past the end of its lease has lost it, with a rival
// or without one. Only if it had asked for the last time whether the lease is
// its own does it still commit, and only if nobody has acquired the thread.
func TestStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	type row struct{ at, rival, code string }
	lostCode := fullCode("WRITER_LOST")
	rows := []row{{"capture", "", lostCode}, {"capture", "holds", lostCode}, {"capture", "saved", lostCode},
		{"commit", "", ""}, {"commit", "holds", lostCode}, {"commit", "saved", lostCode}}
	atOnce(t, int64(len(rows)), func(t *testing.T, i int64) {
		r := rows[i]
		stopHere, awake := make(chan struct{}, 1000), make(chan struct{})
		s := newSlowSave(t, shortLease, func(m message) fate {
			if r.at == "capture" && m.upload() || r.at == "commit" && m.slot() {
				stopHere <- struct{}{}
				return fate{reply: awake}
			}
			return fate{}
		})
		<-stopHere
		s.worker.signal(syscall.SIGSTOP)
		s.leaseEnds()
		want, parent, holder := []string{s.old.ID}, s.old.ID, held{}
		switch r.rival {
		case "holds":
			holder = ok[held](s.client, "writer.acquire", object{"threadId": s.thread})
		case "saved":
			taken := ok[checkpoint](s.client, "snapshot.save", object{"threadId": s.thread, "runId": "r3", "checkpointId": "taken"})
			want, parent = append(want, taken.ID), taken.ID
		}
		s.worker.signal(syscall.SIGCONT)
		close(awake)
		f := decodeFailure(t, await(t, s.reply))
		if r.code == "" {
			want = append(want, s.newID())
		}
		if (f == nil) != (r.code == "") || f != nil && f.Code != r.code {
			t.Errorf("%+v: the save answered %+v", r, f)
		}
		if chain := s.chain(s.thread); !slices.Equal(chain, want) {
			t.Errorf("%+v: the chain is %q, want %q", r, chain, want)
		}
		if holder.OwnerToken != "" {
			s.unchanged(holder)
		} else {
			s.goesOn(parent)
		}
	})
}

// leaseEnds waits until the server has ended the thread's lease.
func (s *slowSave) leaseEnds() {
	s.t.Helper()
	keys := s.keys()
	eventually(s.t, "the end of the lease", func() bool {
		_, err := keys.Get(s.ctx(), "writer."+s.thread)
		return errors.Is(err, jetstream.ErrKeyNotFound)
	})
}
