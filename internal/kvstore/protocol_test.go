package kvstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// before runs f once, before the nth write of a kind of key is sent.
func before(kind string, nth int, f func()) func(kvstore.Round) kvstore.Round {
	spy := &fault{kind: kind, nth: nth, mode: mode{send: true}}
	return func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			spy.mu.Lock()
			hit := spy.hits(keyOf(m))
			spy.mu.Unlock()
			if hit {
				f()
			}
			return next(ctx, m)
		}
	}
}

// dyingAppend appends with a commit that is held back, by a process that dies.
func dyingAppend(t *testing.T, w *world, rec *snapshot.Record, wr snapshot.Writer) *fault {
	t.Helper()
	return dyingAppendAt(t, w, rec, wr, 1)
}

// dyingAppendAt is one whose commit is the nth write of its thread.
func dyingAppendAt(t *testing.T, w *world, rec *snapshot.Record, wr snapshot.Writer, nth int) *fault {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &fault{kind: "thread", nth: nth, mode: mode{late: true, die: true}, cancel: cancel}
	err := w.open(t, impatient().Through(f.through)).Append(ctx, rec, rec.Parent, wr)
	if !f.fired || !errors.Is(err, snapshot.Timeout) || isDefinite(err) {
		t.Fatalf("a commit without an answer gave %v", err)
	}
	return f
}

func wantCode(t *testing.T, err error, code snapshot.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("error is %v, want %s", err, code)
	}
}

// The touch before a dead writer's slot is overwritten: its commit, still in
// flight, must not make the new record visible under the old head.
func TestAppend_LateCommitOfOverwrittenSlot(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	f := dyingAppend(t, w, snapshottest.Record("t", "dead", ""), wr)
	overwriting := before("log", 2, func() { f.deliver(t, w) }) // after the blind try and the touch
	if err := appendOp("c1", "")(t.Context(), w.open(t, options().Through(overwriting)), wr); err != nil {
		t.Fatal(err)
	}
	if got := chain(t, s, "t"); !slices.Equal(got, []snapshot.CheckpointID{"c1"}) || f.held != nil {
		t.Fatalf("chain is %v, still late: %v", got, f.held)
	}
	if rec, err := s.Get(t.Context(), "dead"); rec != nil || err != nil {
		t.Fatalf("the dead writer's record is %v, %v", rec, err)
	}
}

// An acquire that is late, behind a later holder's, must not move the fence
// back: it would evict that holder.
func TestAcquire_BehindALaterHolder(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	var holder snapshot.Writer
	slept := before("thread", 1, func() { w.free(t, "t"); holder = acquire(t, s, "t") })
	_, err := w.open(t, options().Through(slept)).Acquire(t.Context(), "t", 0)
	wantCode(t, err, snapshot.WriterConflict)
	if err := appendOp("c1", "")(t.Context(), s, holder); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Renew(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
}

// A writer that was taken over while it slept changes nothing, whatever it had
// checked before.
func TestAppend_TakenOverBeforeCommit(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	slept := before("checkpoint", 1, func() { w.free(t, "t"); acquire(t, s, "t") })
	wantCode(t, appendOp("c1", "")(t.Context(), w.open(t, options().Through(slept)), wr), snapshot.WriterLost)
	if got := chain(t, s, "t"); len(got) != 0 {
		t.Fatalf("chain is %v", got)
	}
}

// The request of a commit is lost and the head moves under the same lease:
// not to be known.
func TestAppend_UnknownAfterOwnAppend(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	f := &fault{kind: "thread", nth: 1, mode: mode{late: true}, then: func() {
		if err := appendOp("c2", "")(t.Context(), s, wr); err != nil {
			t.Error(err)
		}
	}}
	err := appendOp("c1", "")(t.Context(), w.open(t, options().Through(f.through)), wr)
	if wantCode(t, err, snapshot.Timeout); isDefinite(err) {
		t.Fatal(err)
	}
	f.deliver(t, w)
	if got := chain(t, s, "t"); !slices.Equal(got, []snapshot.CheckpointID{"c2"}) {
		t.Fatalf("chain is %v", got)
	}
}

// The touch of the thread that a pointer leads to: a commit in flight there
// must not make an id visible whose pointer leads elsewhere.
func TestAppend_LateCommitInForeignThread(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	f := dyingAppend(t, w, snapshottest.Record("other", "c1", ""), acquire(t, s, "other"))
	late := before("checkpoint", 2, func() { f.deliver(t, w) }) // after the blind try and the touch
	if err := appendOp("c1", "")(t.Context(), w.open(t, options().Through(late)), acquire(t, s, "t")); err != nil {
		t.Fatal(err)
	}
	if a, b := chain(t, s, "t"), chain(t, s, "other"); len(a) != 1 || len(b) != 0 {
		t.Fatalf("chains are %v and %v", a, b)
	}
}

// Without the touch the id would be visible in both threads; when the foreign
// commit lands first, the id is taken.
func TestAppend_ForeignCommitLandsFirst(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	f := dyingAppend(t, w, snapshottest.Record("other", "c1", ""), acquire(t, s, "other"))
	early := before("thread", 1, func() { f.deliver(t, w) }) // before the touch
	err := appendOp("c1", "")(t.Context(), w.open(t, options().Through(early)), acquire(t, s, "t"))
	wantCode(t, err, snapshot.DuplicateID)
	if a, b := chain(t, s, "t"), chain(t, s, "other"); len(a) != 0 || len(b) != 1 {
		t.Fatalf("chains are %v and %v", a, b)
	}
}

// A commit that was paused over a takeover changes nothing.
func TestAppend_LateCommitAfterTakeover(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	f := dyingAppend(t, w, snapshottest.Record("t", "c1", ""), acquire(t, s, "t"))
	w.free(t, "t")
	next := acquire(t, s, "t")
	f.deliver(t, w)
	if got := chain(t, s, "t"); len(got) != 0 {
		t.Fatalf("the old holder appended %v", got)
	}
	if err := appendOp("c2", "")(t.Context(), s, next); err != nil {
		t.Fatal(err)
	}
}

// The reply of a commit is lost and the thread goes on: the own record is
// found under the new head.
func TestAppend_OwnRecordBelowHead(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	f := &fault{kind: "thread", nth: 1, mode: mode{send: true}, then: func() {
		w.free(t, "t")
		if err := appendOp("c2", "c1")(t.Context(), s, acquire(t, s, "t")); err != nil {
			t.Error(err)
		}
	}}
	if err := appendOp("c1", "")(t.Context(), w.open(t, options().Through(f.through)), wr); err != nil {
		t.Fatal(err)
	}
	if got := chain(t, s, "t"); len(got) != 2 {
		t.Fatalf("chain is %v", got)
	}
}

// The request of a commit is lost and the thread is taken over: not to be known.
func TestAppend_UnknownAfterTakeover(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	f := &fault{kind: "thread", nth: 1, mode: mode{late: true}, then: func() { w.free(t, "t"); acquire(t, s, "t") }}
	err := appendOp("c1", "")(t.Context(), w.open(t, options().Through(f.through)), wr)
	wantCode(t, err, snapshot.Timeout)
	if d := snapshot.AsError(err).Details; d["outcome"] != "unknown" || d["checkpointId"] != snapshot.CheckpointID("c1") {
		t.Fatalf("details are %v", d)
	}
	f.deliver(t, w)
	if got := chain(t, s, "t"); len(got) != 0 {
		t.Fatalf("chain is %v", got)
	}
}

// The request of a commit is lost, the thread is taken over, and its new holder
// appends a record of the same id: that is not the own one.
func TestAppend_UnknownAfterForeignAppendOfItsID(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	f := &fault{kind: "thread", nth: 1, mode: mode{}, then: func() {
		w.free(t, "t")
		rec := snapshottest.Record("t", "c1", "")
		rec.Nonce = "of another operation"
		if err := s.Append(t.Context(), rec, "", acquire(t, s, "t")); err != nil {
			t.Error(err)
		}
	}}
	err := appendOp("c1", "")(t.Context(), w.open(t, options().Through(f.through)), wr)
	if wantCode(t, err, snapshot.Timeout); isDefinite(err) {
		t.Fatal(err)
	}
}

// The commit landed without a reply, the thread was taken over, and the next
// read is answered by a leader that was deposed: it shows the thread before a
// touch, with the same head changes, which looks as if nothing had landed.
func TestAppend_DeposedLeaderWhileUnresolved(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := oneCheckpoint(true)(t, w, s)
	stale := &oldReads{key: kvstore.ThreadKey("t")}
	f := &fault{kind: "thread", nth: 2, mode: mode{send: true}, then: func() { // the touch is the first
		w.free(t, "t")
		acquire(t, s, "t")
		stale.again = true
	}}
	through := func(next kvstore.Round) kvstore.Round { return stale.through(f.through(next)) }
	if err := appendOp("c2", "c1")(t.Context(), w.open(t, options().Through(through)), wr); err != nil {
		t.Fatal(err)
	}
	if got := chain(t, s, "t"); len(got) != 2 || stale.again {
		t.Fatalf("chain is %v, an old reply was given: %v", got, !stale.again)
	}
}

// oldReads answers one read of a key with the first reply that it got.
type oldReads struct {
	key   string
	first *nats.Msg
	again bool
}

func (o *oldReads) through(next kvstore.Round) kvstore.Round {
	return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
		if keyOf(m) != "" || !strings.Contains(string(m.Data), "."+o.key+`"`) {
			return next(ctx, m)
		}
		if o.again {
			o.again = false
			return o.first, nil
		}
		r, err := next(ctx, m)
		if o.first == nil {
			o.first = r
		}
		return r, err
	}
}

// A caller that gives up while its commit is on the way still learns the truth.
func TestAppend_CanceledInCommit(t *testing.T) {
	for _, m := range []mode{{name: "applied", send: true}, {name: "not applied"}} {
		t.Run(m.name, func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t, options())
			wr := acquire(t, s, "t")
			ctx, cancel := context.WithCancel(t.Context())
			f := &fault{kind: "thread", nth: 1, mode: m, then: cancel}
			if err := appendOp("c1", "")(ctx, w.open(t, options().Through(f.through)), wr); err != nil {
				t.Fatal(err)
			}
			if got := chain(t, s, "t"); len(got) != 1 {
				t.Fatalf("chain is %v", got)
			}
		})
	}
}

// A conversation that is saved while a fork is under way stays.
func TestFork_ConversationMeanwhile(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	words := snapshot.List{Count: 1, Inline: []byte("hi")}
	save := before("thread", 2, func() { // between the creation of the thread and the commit
		if rev, err := s.SaveConversation(t.Context(), "t", words, -1); err != nil || rev != 1 {
			t.Error(rev, err)
		}
	})
	err := w.open(t, options().Through(save)).Fork(t.Context(), snapshottest.ForkRoot("t", "f1"), 0)
	wantCode(t, err, snapshot.ForkDestinationNotEmpty)
	st, err := s.State(t.Context(), "t")
	if err != nil || st.Revision != 1 || string(st.Messages.Inline) != "hi" || st.Head != "" {
		t.Fatalf("state %+v, %v", st, err)
	}
	if err := s.Release(t.Context(), acquire(t, s, "t")); err != nil { // the fork left no lease
		t.Fatal(err)
	}
}

// A fork whose commit got lost while the thread moved on can't be known, and
// is never tried again.
func TestFork_UnknownAfterSave(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	f := &fault{kind: "thread", nth: 2, mode: mode{late: true}, then: func() {
		if _, err := s.SaveConversation(t.Context(), "t", snapshot.List{}, -1); err != nil {
			t.Error(err)
		}
	}}
	err := w.open(t, options().Through(f.through)).Fork(t.Context(), snapshottest.ForkRoot("t", "f1"), 0)
	if wantCode(t, err, snapshot.Timeout); isDefinite(err) {
		t.Fatal(err)
	}
	f.deliver(t, w)
	if got := chain(t, s, "t"); len(got) != 0 {
		t.Fatalf("chain is %v", got)
	}
}

// The first write lands when it is sent again: the conversation is saved once,
// and the operation can't tell whose save it was.
func TestSaveConversation_LandsBeforeItIsRepeated(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	if _, err := s.SaveConversation(t.Context(), "t", snapshot.List{}, -1); err != nil {
		t.Fatal(err)
	}
	f := &fault{kind: "thread", nth: 1, mode: mode{late: true}}
	repeated := before("thread", 2, func() { f.deliver(t, w) })
	through := func(next kvstore.Round) kvstore.Round { return repeated(f.through(next)) }
	_, err := w.open(t, options().Through(through)).SaveConversation(t.Context(), "t", snapshot.List{Count: 1, Inline: []byte("x")}, -1)
	if wantCode(t, err, snapshot.Timeout); isDefinite(err) {
		t.Fatal(err)
	}
	if st, err := s.State(t.Context(), "t"); err != nil || st.Revision != 2 {
		t.Fatalf("revision %d, %v; want one more than before", st.Revision, err)
	}
}

func TestSaveConversation_LostReplies(t *testing.T) {
	words := snapshot.List{Count: 1, Inline: []byte("hi")}
	for _, m := range modes[3:] {
		t.Run(m.name, func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t, options())
			f := &fault{kind: "thread", nth: 1, mode: m}
			// Of a thread that does not exist nothing can be known.
			_, err := w.open(t, options().Through(f.through)).SaveConversation(t.Context(), "new", words, -1)
			wantCode(t, err, snapshot.Timeout)

			if _, err := s.SaveConversation(t.Context(), "t", words, 0); err != nil {
				t.Fatal(err)
			}
			f = &fault{kind: "thread", nth: 1, mode: m}
			rev, err := w.open(t, options().Through(f.through)).SaveConversation(t.Context(), "t", words, 1)
			if m.send { // it was applied, and looks like anybody's
				wantCode(t, err, snapshot.Timeout)
			} else if err != nil || rev != 2 {
				t.Fatalf("revision %d, %v", rev, err)
			}
			f.deliver(t, w)
			if st, err := s.State(t.Context(), "t"); err != nil || st.Revision != 2 {
				t.Fatalf("state %+v, %v", st, err)
			}
		})
	}
}

// A deleted thread stays deleted, whatever comes late.
func TestDeletedThread(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	ctx := t.Context()
	wr := acquire(t, s, "t")
	if err := appendOp("c1", "")(ctx, s, wr); err != nil {
		t.Fatal(err)
	}
	f := dyingAppend(t, w, snapshottest.Record("t", "c2", "c1"), wr)
	if err := s.MarkDeleted(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	f.deliver(t, w)
	wantCode(t, appendOp("c2", "c1")(ctx, s, wr), snapshot.ThreadDeleted)
	w.free(t, "t")
	_, err := s.Acquire(ctx, "t", 0)
	wantCode(t, err, snapshot.ThreadDeleted)
	if _, err := w.kv(t).Get(ctx, kvstore.WriterKey("t")); err == nil {
		t.Fatal("the refused acquire left its lease")
	}
	wantCode(t, s.Fork(ctx, snapshottest.ForkRoot("t", "f1"), 0), snapshot.ThreadDeleted)
	_, err = s.SaveConversation(ctx, "t", snapshot.List{}, -1)
	wantCode(t, err, snapshot.ThreadDeleted)
	if got := chain(t, s, "t"); len(got) != 0 {
		t.Fatalf("chain is %v", got)
	}
	if rec, err := s.Get(ctx, "c1"); rec != nil || err != nil {
		t.Fatal(rec, err)
	}
}

// A slot that is newer than the thread that was read is not believed.
func TestGet_NewerSlot(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	if err := appendOp("c1", "")(t.Context(), s, acquire(t, s, "t")); err != nil {
		t.Fatal(err)
	}
	kv := w.kv(t)
	rewrite := func(key string) {
		e, err := kv.Get(t.Context(), key)
		if err == nil {
			_, err = kv.Put(t.Context(), key, e.Value())
		}
		if err != nil {
			t.Error(err)
		}
	}
	reads := 0
	spy := func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			if reads++; reads == 4 { // store, pointer and thread were read
				rewrite(kvstore.SlotKey("t", 1))
			}
			if reads == 5 {
				rewrite(kvstore.ThreadKey("t"))
			}
			return next(ctx, m)
		}
	}
	rec, err := w.open(t, options().Through(spy)).Get(t.Context(), "c1")
	if err != nil || rec == nil || rec.ID != "c1" || reads != 6 {
		t.Fatalf("record %v, %v after %d reads", rec, err, reads)
	}
}

// Nobody answers for a moment: nothing fails. For longer: the store is away.
func TestNoResponders(t *testing.T) {
	w := newWorld(t)
	away := 0
	flaky := func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			if away > 0 {
				away--
				return nil, nats.ErrNoResponders
			}
			return next(ctx, m)
		}
	}
	o := options().Impatient(time.Second, 300*time.Millisecond, time.Minute, time.Second)
	s := w.open(t, o.Through(flaky))
	away = 3
	wr := acquire(t, s, "t")
	serial := snapshottest.Record("t", "c1", "")
	if err := s.Append(t.Context(), serial, "", wr); err != nil {
		t.Fatal(err)
	}
	away = 1 << 30
	_, err := s.State(t.Context(), "t")
	wantCode(t, err, snapshot.StoreUnavailable)
	_, err = s.Acquire(t.Context(), "u", 0)
	wantCode(t, err, snapshot.StoreUnavailable)
}
