package kvstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// atRequest calls f once, before the nth request of the store, and reports
// whether there was one. The first is the look at the store's identity.
func atRequest(nth int, f func()) (through func(kvstore.Round) kvstore.Round, happened func() bool) {
	var n atomic.Int64
	return func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			if n.Add(1) == int64(nth) {
				f()
			}
			return next(ctx, m)
		}
	}, func() bool { return n.Load() >= int64(nth) }
}

// deletable is a free thread with two checkpoints and an artifact.
func deletable(t *testing.T, s *kvstore.Store) snapshot.Writer {
	t.Helper()
	wr := acquire(t, s, "t")
	err := errors.Join(appendOp("c1", "")(t.Context(), s, wr), appendOp("c2", "c1")(t.Context(), s, wr),
		s.PutArtifact(t.Context(), "t", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "a"}}), s.Release(t.Context(), wr))
	if err != nil {
		t.Fatal(err)
	}
	return wr
}

// TestDeleteThread_Crash lets each write of a deletion go wrong in each way.
// The thread is as before, or it is gone and refuses; after the sweep it is
// new, and what comes late changes nothing.
func TestDeleteThread_Crash(t *testing.T) {
	t.Parallel()
	server, n := newWorld(t), 0
	for _, st := range []step{{"thread", 1}, {"purge-log", 1}, {"purge-log", 2}, {"purge-checkpoint", 1}, {"purge-artifact", 1}} {
		for _, m := range modes {
			for _, late := range []string{"before the sweep", "after the sweep", "into the new thread"} {
				if late != "before the sweep" && !m.late {
					continue
				}
				t.Run(fmt.Sprintf("%s %d/%s/%s", st.kind, st.nth, m.name, late), func(t *testing.T) {
					n++
					crashDeletion(t, server.another(t, fmt.Sprint("s", n)), st, m, late)
				})
			}
		}
	}
}

func crashDeletion(t *testing.T, w *world, st step, m mode, late string) {
	s := w.open(t, options())
	deletable(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &fault{kind: st.kind, nth: st.nth, mode: m, cancel: cancel}
	count, err := w.open(t, impatient().Through(f.through)).DeleteThread(ctx, "t")
	switch {
	case !f.fired:
		t.Fatalf("the deletion has no write %d of %s", st.nth, st.kind)
	case st.kind == "thread" && (err == nil || isDefinite(err)):
		t.Fatalf("a lost reply of the commit gave %v", err)
	case st.kind != "thread" && (err != nil || count != 2):
		t.Fatalf("counted %d, %v after the commit", count, err)
	}
	if late == "before the sweep" {
		f.deliver(t, w)
	}
	if got := chain(t, s, "t"); len(got) == 2 { // it never landed
		if n, err := s.DeleteThread(t.Context(), "t"); n != 2 || err != nil {
			t.Fatal(n, err)
		}
	}
	_, err = s.Acquire(t.Context(), "t", 0)
	wantCode(t, err, snapshot.ThreadDeleted)
	if arts, err := s.Artifacts(t.Context(), "t"); err != nil || len(arts) > 0 {
		t.Fatal(arts, err)
	}
	wantSwept(t, w, s)
	if late == "after the sweep" {
		f.deliver(t, w)
	}
	now := goOn(t, w, s, nil, "c1")
	now = goOn(t, w, s, now, "c2")
	f.deliver(t, w)
	wantSwept(t, w, s, now...)
}

// TestDeleteThread_Interleaved lets a writer come in before each request of a
// deletion: either it holds the thread and nothing is deleted under it, or it
// is refused. (The lease is read after the thread.)
func TestDeleteThread_Interleaved(t *testing.T) {
	t.Parallel()
	server, refused, conflicts := newWorld(t), 0, 0
	for nth, more := 2, true; more; nth++ {
		w := server.another(t, fmt.Sprint("s", nth))
		s := w.open(t, options())
		deletable(t, s)
		var acquired error
		through, happened := atRequest(nth, func() {
			var l snapshot.Lease
			if l, acquired = s.Acquire(t.Context(), "t", 0); acquired == nil {
				acquired = appendOp("c3", "c2")(t.Context(), s, l.Writer)
			}
		})
		count, err := w.open(t, options().Through(through)).DeleteThread(t.Context(), "t")
		if more = happened(); !more {
			break
		}
		got := chain(t, s, "t")
		switch {
		case acquired == nil && errors.Is(err, snapshot.WriterConflict) && len(got) == 3:
			conflicts++
		case errors.Is(acquired, snapshot.ThreadDeleted) && err == nil && count == 2 && len(got) == 0:
			refused++
		default:
			t.Fatalf("request %d: acquire and append %v, deletion %d, %v, chain %v", nth, acquired, count, err, got)
		}
	}
	if refused == 0 || conflicts < 4 {
		t.Fatalf("%d refused, %d conflicts", refused, conflicts)
	}
}

// The tombstone fences off every writer before, and tells its time.
func TestDeleteThread_Tombstone(t *testing.T) {
	w := newWorld(t)
	now := time.UnixMilli(1764436800123)
	s := w.open(t, options().Clock(func() time.Time { return now }))
	deletable(t, s)
	read := func() (seq uint64, v map[string]any) {
		e, err := w.kv(t).Get(t.Context(), kvstore.ThreadKey("t"))
		if err == nil {
			err = json.Unmarshal(e.Value(), &v)
		}
		if err != nil {
			t.Fatal(err)
		}
		return e.Revision(), v
	}
	q, before := read()
	if _, there := before["deletedAt"]; there {
		t.Fatalf("a live thread has %v", before)
	}
	if n, err := s.DeleteThread(t.Context(), "t"); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	_, tomb := read()
	if tomb["fence"] != float64(q) || tomb["gen"] != before["gen"].(float64)+1 || tomb["deleted"] != true ||
		tomb["depth"] != 0.0 || tomb["head"] != nil || tomb["deletedAt"] != float64(now.UnixMilli()) {
		t.Fatalf("tombstone %v of %v at %d", tomb, before, q)
	}
	if left := w.keys(t, "log", "checkpoint", "artifact"); len(left) > 0 {
		t.Fatalf("the deletion left %v", left)
	}
	now = now.Add(59 * time.Minute)
	sweep := func() {
		if err := s.Sweep(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if sweep(); len(w.keys(t, "thread")) != 1 {
		t.Fatal("the tombstone went before its time")
	}
	now = now.Add(time.Minute)
	if sweep(); len(w.keys(t, "thread")) != 0 {
		t.Fatal("the tombstone stays")
	}
	m, err := mustStream(t, w).GetLastMsgForSubject(t.Context(), "$KV.sandbox-state."+kvstore.ThreadKey("t"))
	if err == nil {
		t.Fatalf("a marker stands at %d", m.Sequence)
	}
}

// A head that is deleted, appended anew and lost sight of: the number of head
// changes tells, the id does not. A request that was lost must not delete the
// checkpoint of the same id that came after.
func TestDeleteHead_UnknownAfterSameHead(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	if err := errors.Join(appendOp("c1", "")(t.Context(), s, wr), appendOp("c2", "c1")(t.Context(), s, wr)); err != nil {
		t.Fatal(err)
	}
	f := &fault{kind: "thread", nth: 1, mode: mode{late: true}, then: func() {
		if err := errors.Join(deleteHeadOp("c2")(t.Context(), s, wr), appendOp("c2", "c1")(t.Context(), s, wr)); err != nil {
			t.Error(err)
		}
	}}
	err := deleteHeadOp("c2")(t.Context(), w.open(t, options().Through(f.through)), wr)
	if wantCode(t, err, snapshot.Timeout); isDefinite(err) {
		t.Fatal(err)
	}
	f.deliver(t, w)
	wantSwept(t, w, s, "c1", "c2")
}

// An append whose reply is lost and that is deleted meanwhile is not done again.
func TestAppend_UnknownAfterDeleteHead(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	f := &fault{kind: "thread", nth: 1, mode: mode{send: true}, then: func() {
		if err := deleteHeadOp("c1")(t.Context(), s, wr); err != nil {
			t.Error(err)
		}
	}}
	err := appendOp("c1", "")(t.Context(), w.open(t, options().Through(f.through)), wr)
	if wantCode(t, err, snapshot.Timeout); isDefinite(err) {
		t.Fatal(err)
	}
	wantSwept(t, w, s)
}

// An append before each request of a delete-head, with the id that is being
// deleted once it is free: clean-up removes what was read before the commit
// and nothing else.
func TestDeleteHead_Interleaved(t *testing.T) {
	t.Parallel()
	server := newWorld(t)
	for nth, more := 2, true; more; nth++ {
		w := server.another(t, fmt.Sprint("s", nth))
		s := w.open(t, options())
		wr := acquire(t, s, "t")
		if err := errors.Join(appendOp("c1", "")(t.Context(), s, wr), appendOp("c2", "c1")(t.Context(), s, wr)); err != nil {
			t.Fatal(err)
		}
		added := snapshot.CheckpointID("")
		through, happened := atRequest(nth, func() {
			st, err := s.State(t.Context(), "t")
			if added = "c2"; st.Head == "c2" {
				added = "c3"
			}
			if err := errors.Join(err, appendOp(added, st.Head)(t.Context(), s, wr)); err != nil {
				t.Error(err)
			}
		})
		err := deleteHeadOp("c2")(t.Context(), w.open(t, options().Through(through)), wr)
		if more = happened(); !more {
			break
		}
		want := []snapshot.CheckpointID{"c1", "c2"} // the c2 that came after
		if added == "c3" {
			wantCode(t, err, snapshot.NotHead)
			want = append(want, "c3")
		} else if err != nil {
			t.Fatal(err)
		}
		if got := chain(t, s, "t"); !slices.Equal(got, want) {
			t.Fatalf("request %d: chain is %v, want %v", nth, got, want)
		}
		wantSwept(t, w, s, want...)
	}
}

// A holder that is taken over before its commit deletes nothing.
func TestDeleteHead_TakenOverBeforeCommit(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	if err := appendOp("c1", "")(t.Context(), s, wr); err != nil {
		t.Fatal(err)
	}
	slept := before("thread", 1, func() { w.free(t, "t"); acquire(t, s, "t") })
	wantCode(t, deleteHeadOp("c1")(t.Context(), w.open(t, options().Through(slept)), wr), snapshot.WriterLost)
	if got := chain(t, s, "t"); len(got) != 1 {
		t.Fatalf("chain is %v", got)
	}
}

// The held fork: a conversation that is saved before its commit stays.
func TestForkHeld_ConversationMeanwhile(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	save := before("thread", 1, func() {
		if _, err := s.SaveConversation(t.Context(), "t", snapshot.List{Count: 1, Inline: []byte("hi")}, -1); err != nil {
			t.Error(err)
		}
	})
	err := w.open(t, options().Through(save)).ForkHeld(t.Context(), snapshottest.ForkRoot("t", "f1"), wr)
	wantCode(t, err, snapshot.ForkDestinationNotEmpty)
	if st, err := s.State(t.Context(), "t"); err != nil || st.Revision != 1 || st.Head != "" {
		t.Fatalf("state %+v, %v", st, err)
	}
}

// A deletion removes what it read before its commit: an id that it freed and
// that is appended elsewhere at once keeps its pointer.
func TestDeleteThread_IDReused(t *testing.T) {
	t.Parallel()
	server, reused := newWorld(t), 0
	for nth, more := 2, true; more; nth++ {
		w := server.another(t, fmt.Sprint("s", nth))
		s := w.open(t, options())
		deletable(t, s)
		wr := acquire(t, s, "u")
		var appended error
		through, happened := atRequest(nth, func() {
			appended = s.Append(t.Context(), snapshottest.Record("u", "c1", ""), "", wr)
		})
		if _, err := w.open(t, options().Through(through)).DeleteThread(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		if more = happened(); !more {
			break
		}
		if appended == nil {
			reused++
		} else {
			wantCode(t, appended, snapshot.DuplicateID)
		}
		if got := chain(t, s, "u"); len(got) == 1 != (appended == nil) {
			t.Fatalf("request %d: append %v, chain %v", nth, appended, got)
		}
	}
	if reused < 3 {
		t.Fatalf("the id was appended elsewhere %d times", reused)
	}
}

// What a delete-head removes late is not what was appended since under the same
// id: an append writes its pointer and slot also where they look right already.
func TestDeleteHead_LateCleanUp(t *testing.T) {
	for _, kind := range []string{"purge-log", "purge-checkpoint"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t, options())
			wr := oneCheckpoint(false)(t, w, s)
			var late []*fault
			through := func(next kvstore.Round) kvstore.Round { // both stay, and one is removed later
				for _, k := range []string{"purge-log", "purge-checkpoint"} {
					f := &fault{kind: k, nth: 1, mode: mode{late: k == kind}}
					late, next = append(late, f), f.through(next)
				}
				return next
			}
			if err := errors.Join(deleteHeadOp("c1")(t.Context(), w.open(t, options().Through(through)), wr), appendOp("c1", "")(t.Context(), s, wr)); err != nil {
				t.Fatal(err)
			}
			for _, f := range late {
				if !f.fired {
					t.Fatal("there was no clean-up")
				}
				f.deliver(t, w)
			}
			wantSwept(t, w, s, "c1")
		})
	}
}

// The request of a delete-head is lost and the thread is taken over: not to be
// known.
func TestDeleteHead_UnknownAfterTakeover(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := oneCheckpoint(false)(t, w, s)
	f := &fault{kind: "thread", nth: 1, mode: mode{late: true}, then: func() { w.free(t, "t"); acquire(t, s, "t") }}
	err := deleteHeadOp("c1")(t.Context(), w.open(t, options().Through(f.through)), wr)
	if wantCode(t, err, snapshot.Timeout); isDefinite(err) {
		t.Fatal(err)
	}
	f.deliver(t, w)
	if got := chain(t, s, "t"); len(got) != 1 {
		t.Fatalf("chain is %v", got)
	}
}
