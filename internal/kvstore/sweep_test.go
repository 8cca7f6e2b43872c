package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// remains are what dead writers left in threads "t" and "u": slots and pointers
// that are not visible, and commits that are still on the way.
type remains struct {
	s    *kvstore.Store
	t, u snapshot.Writer
	late []*fault
}

func leaveRemains(t *testing.T, w *world) *remains {
	t.Helper()
	s := w.open(t, options())
	r := &remains{s: s, t: acquire(t, s, "t"), u: acquire(t, s, "u")}
	if err := appendOp("c1", "")(t.Context(), s, r.t); err != nil {
		t.Fatal(err)
	}
	r.late = append(r.late, dyingAppend(t, w, snapshottest.Record("t", "dead", "c1"), r.t), dyingAppend(t, w, snapshottest.Record("u", "lost", ""), r.u))
	return r
}

// TestSweep_Interleaved lets things happen before each request of a sweep. What
// is visible stays visible, and what comes late finds nothing to make visible.
func TestSweep_Interleaved(t *testing.T) {
	t.Parallel()
	happenings := map[string]func(*testing.T, *world, *remains) error{
		"late commits": func(t *testing.T, w *world, r *remains) error {
			for _, f := range r.late {
				f.deliver(t, w)
			}
			return nil
		},
		"same id appended": func(t *testing.T, _ *world, r *remains) error { return appendOp("dead", "c1")(t.Context(), r.s, r.t) },
		"id appended elsewhere": func(t *testing.T, _ *world, r *remains) error {
			return r.s.Append(t.Context(), snapshottest.Record("u", "dead", ""), "", r.u)
		},
		"thread deleted": func(t *testing.T, _ *world, r *remains) error {
			err := r.s.Release(t.Context(), r.t)
			_, err2 := r.s.DeleteThread(t.Context(), "t")
			return errors.Join(err, err2)
		},
		"another sweep": func(t *testing.T, _ *world, r *remains) error { return r.s.Sweep(t.Context(), 0) },
	}
	server, n := newWorld(t), 0
	for name, happening := range happenings {
		t.Run(name, func(t *testing.T) {
			for nth, more := 5, true; more; nth++ { // the pass over the threads ends with the fifth
				n++
				w := server.another(t, fmt.Sprint("s", n))
				r := leaveRemains(t, w)
				through, happened := atRequest(nth, func() {
					if err := happening(t, w, r); err != nil {
						t.Error(err)
					}
				})
				if err := w.open(t, options().Through(through)).Sweep(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				more = happened()
				r.check(t, w)
			}
		})
	}
}

// TestSweep_PausedAppend lets an append that has written only its pointer, or
// only its slot, or both, go on before each request of a sweep.
func TestSweep_PausedAppend(t *testing.T) {
	t.Parallel()
	server, n := newWorld(t), 0
	for _, missing := range []string{"log", "checkpoint", "thread"} {
		for nth, more := 2, true; more; nth++ {
			n++
			w := server.another(t, fmt.Sprint("s", n))
			more = pausedAppend(t, w, missing, nth)
		}
	}
}

func pausedAppend(t *testing.T, w *world, missing string, nth int) (more bool) {
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	resume, done := make(chan struct{}), make(chan error, 1)
	slow := w.open(t, options().Through(before(missing, 1, func() { <-resume })))
	go func() { done <- appendOp("c1", "")(t.Context(), slow, wr) }()
	written := map[string][]string{"log": {"checkpoint"}, "checkpoint": {"log"}, "thread": {"checkpoint", "log"}}[missing]
	for end := time.Now().Add(snapshottest.Soon); len(w.keys(t, written...)) < len(written); {
		if time.Now().After(end) {
			t.Fatal("the append writes nothing")
		}
	}
	var appended error
	goOn := sync.OnceFunc(func() { close(resume); appended = <-done })
	through, happened := atRequest(nth, goOn)
	err := w.open(t, options().Through(through)).Sweep(t.Context(), 0)
	more = happened()
	if goOn(); err != nil || appended != nil {
		t.Fatalf("request %d: sweep %v, append %v", nth, err, appended)
	}
	if got := chain(t, s, "t"); len(got) != 1 {
		t.Fatalf("chain is %v", got)
	}
	return more
}

// check delivers what is late and looks at both threads.
func (r *remains) check(t *testing.T, w *world) {
	t.Helper()
	now := chain(t, r.s, "t")
	also := chain(t, r.s, "u")
	for _, f := range r.late {
		f.deliver(t, w)
	}
	if got := chain(t, r.s, "t"); !slices.Equal(got, now) {
		t.Fatalf("what came late made %v of %v", got, now)
	}
	if got := chain(t, r.s, "u"); !slices.Equal(got, also) {
		t.Fatalf("what came late made %v of %v", got, also)
	}
}

// Without anything in between a sweep leaves what is visible and nothing else.
func TestSweep(t *testing.T) {
	w := newWorld(t)
	r := leaveRemains(t, w)
	keys := w.keys(t, "log", "checkpoint", "thread")
	if err := r.s.Sweep(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if got := w.keys(t, "log", "checkpoint", "thread"); !slices.Equal(got, keys) {
		t.Fatalf("a sweep removed what is young: %v of %v", got, keys)
	}
	if _, err := r.s.SaveConversation(t.Context(), "t", snapshot.List{Count: 1, Inline: []byte("hi")}, -1); err != nil {
		t.Fatal(err)
	}
	wantSwept(t, w, r.s, "c1")
	r.check(t, w)
	if st, err := r.s.State(t.Context(), "t"); err != nil || st.Revision != 1 {
		t.Fatalf("state %+v, %v", st, err)
	}
	if err := appendOp("dead", "c1")(t.Context(), r.s, r.t); err != nil { // the lease still holds
		t.Fatal(err)
	}
	wantSwept(t, w, r.s, "c1", "dead")
}

// A deletion that died after its commit is ended by the sweep, and its
// tombstone goes only after what leads to it.
func TestSweep_EndsDeletion(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	deletable(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &fault{kind: "thread", nth: 1, mode: mode{send: true, die: true}, cancel: cancel}
	_, err := w.open(t, impatient().Through(f.through)).DeleteThread(ctx, "t")
	wantCode(t, err, snapshot.Timeout)
	if left := w.keys(t, "log", "checkpoint", "artifact"); len(left) != 5 {
		t.Fatalf("the dead worker left %v", left)
	}
	if err := s.Sweep(t.Context(), time.Hour); err != nil { // grace is for the tombstone only
		t.Fatal(err)
	}
	if left := w.keys(t, "log", "checkpoint", "artifact", "thread"); len(left) != 1 {
		t.Fatalf("the sweep left %v", left)
	}
	if err := s.Sweep(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if left := w.keys(t, "thread"); len(left) > 0 {
		t.Fatalf("the sweep left %v", left)
	}
}

// The commit of a fork that is late by more than the life of a tombstone.
func TestSweep_LateForkOfSweptThread(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &fault{kind: "thread", nth: 2, mode: mode{late: true, die: true}, cancel: cancel}
	err := w.open(t, impatient().Through(f.through)).Fork(ctx, snapshottest.ForkRoot("t", "f1"), 0)
	wantCode(t, err, snapshot.Timeout)
	if _, err := s.DeleteThread(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	wantSwept(t, w, s)
	f.deliver(t, w)
	wantSwept(t, w, s)
	root := snapshottest.ForkRoot("t", "f1")
	if err := s.Fork(t.Context(), root, 0); err != nil {
		t.Fatal(err)
	}
	wantSwept(t, w, s, "f1")
}

// Sweeps on several workers beside appends, deletions and forks harm nobody.
func TestSweep_Concurrent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var sweepers, writers sync.WaitGroup
	for range 2 {
		s := w.open(t, options())
		sweepers.Go(func() {
			for ctx.Err() == nil {
				if err := s.Sweep(ctx, 0); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	s := w.open(t, options())
	for i := range 4 {
		writers.Go(func() { buildUp(t, s, snapshot.ThreadID(fmt.Sprint("t", i))) })
	}
	writers.Wait()
	stop()
	sweepers.Wait()
	for i := range 4 {
		id := snapshot.ThreadID(fmt.Sprint("t", i))
		if got := chain(t, s, id); len(got) != 11 {
			t.Errorf("chain of %q is %v", id, got)
		}
	}
}

// buildUp appends and deletes until there are eleven checkpoints.
func buildUp(t *testing.T, s *kvstore.Store, id snapshot.ThreadID) {
	l, err := s.Acquire(t.Context(), id, 0)
	head := snapshot.CheckpointID("")
	for i := 0; i < 10 && err == nil; i++ {
		next := snapshot.CheckpointID(fmt.Sprint(id, "-", i))
		err = s.Append(t.Context(), snapshottest.Record(id, next, head), head, l.Writer)
		if err == nil && i%3 == 0 {
			if _, err = s.DeleteHead(t.Context(), id, next, l.Writer); err == nil {
				err = s.Append(t.Context(), snapshottest.Record(id, next, head), head, l.Writer)
			}
		}
		head = next
	}
	if err == nil {
		err = s.Append(t.Context(), snapshottest.Record(id, snapshot.CheckpointID(id+"-last"), head), head, l.Writer)
	}
	if err != nil {
		t.Error(err)
	}
}

// A store that is away ends a sweep with an error that says so.
func TestSweep_StoreAway(t *testing.T) {
	w := newWorld(t)
	leaveRemains(t, w)
	away := func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			if kindOf(keyOf(m)) == "purge-log" {
				return nil, nats.ErrNoResponders
			}
			return next(ctx, m)
		}
	}
	wantCode(t, w.open(t, options().Through(away)).Sweep(t.Context(), 0), snapshot.StoreUnavailable)
}

// A tombstone goes when nothing was found that leads to the thread, not with
// the sweep that still found something, which it may have failed to remove.
func TestSweep_TombstoneWaits(t *testing.T) {
	for _, kind := range []string{"purge-log", "purge-checkpoint", "purge-artifact"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t, options())
			if kind == "purge-artifact" {
				deletable(t, s)
			} else {
				oneCheckpoint(false)(t, w, s)
			}
			if err := s.MarkDeleted(t.Context(), "t"); err != nil {
				t.Fatal(err)
			}
			f := &fault{kind: kind, nth: 1}
			_ = w.open(t, options().Through(f.through)).Sweep(t.Context(), 0) // whether it got through does not matter
			if left := w.keys(t, "thread", strings.TrimPrefix(kind, "purge-")); len(left) < 2 || !f.fired {
				t.Fatalf("the sweep left %v", left)
			}
			wantSwept(t, w, s)
			if left := w.keys(t, "thread"); len(left) > 0 {
				t.Fatalf("the sweep left %v", left)
			}
		})
	}
}

// A thread that is made anew under a sweep keeps its artifacts.
func TestSweep_ThreadMadeAnew(t *testing.T) {
	t.Parallel()
	server := newWorld(t)
	for nth, more := 2, true; more; nth++ {
		w := server.another(t, fmt.Sprint("s", nth))
		s := w.open(t, options())
		deletable(t, s)
		if _, err := s.DeleteThread(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		through, happened := atRequest(nth, func() {
			err := errors.Join(s.Sweep(t.Context(), 0), s.PutArtifact(t.Context(), "t", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "new"}}))
			if err != nil {
				t.Error(err)
			}
		})
		if err := w.open(t, options().Through(through)).Sweep(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if more = happened(); !more {
			break
		}
		if arts, err := s.Artifacts(t.Context(), "t"); err != nil || len(arts) != 1 {
			t.Fatalf("request %d: artifacts %v, %v", nth, arts, err)
		}
	}
}

// A fork without a lease makes its thread first: what is swept before any of
// its writes is not what it commits.
func TestFork_SweptMeanwhile(t *testing.T) {
	for _, st := range []step{{"thread", 1}, {"checkpoint", 1}, {"log", 1}, {"thread", 2}} {
		t.Run(fmt.Sprint(st.kind, " ", st.nth), func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t, options())
			swept := false
			through := before(st.kind, st.nth, func() {
				if swept = true; s.Sweep(t.Context(), 0) != nil {
					t.Error("the sweep did not get through")
				}
			})
			if err := w.open(t, options().Through(through)).Fork(t.Context(), snapshottest.ForkRoot("t", "f1"), 0); err != nil || !swept {
				t.Fatal(err)
			}
			wantSwept(t, w, s, "f1")
		})
	}
}
