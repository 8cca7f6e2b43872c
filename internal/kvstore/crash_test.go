package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

type step struct {
	kind string
	nth  int
}

// crashCase is an operation and the writes that it consists of.
type crashCase struct {
	name    string
	prepare func(*testing.T, *world, *kvstore.Store) snapshot.Writer
	run     func(context.Context, *kvstore.Store, snapshot.Writer) error
	adds    []snapshot.CheckpointID // what it appends when it succeeds
	steps   []step
	drops   int  // how many it takes off when it succeeds
	unknown bool // a lost reply may leave it unknown
}

func appendOp(id, parent snapshot.CheckpointID) func(context.Context, *kvstore.Store, snapshot.Writer) error {
	return func(ctx context.Context, s *kvstore.Store, w snapshot.Writer) error {
		return s.Append(ctx, snapshottest.Record("t", id, parent), parent, w)
	}
}

func deleteHeadOp(id snapshot.CheckpointID) func(context.Context, *kvstore.Store, snapshot.Writer) error {
	return func(ctx context.Context, s *kvstore.Store, w snapshot.Writer) error {
		_, err := s.DeleteHead(ctx, "t", id, w)
		return err
	}
}

// oneCheckpoint leaves the thread held with one checkpoint, and a dead writer's
// pointer and slot above it if dead is set.
func oneCheckpoint(dead bool) func(*testing.T, *world, *kvstore.Store) snapshot.Writer {
	return func(t *testing.T, w *world, s *kvstore.Store) snapshot.Writer {
		wr := acquire(t, s, "t")
		if err := appendOp("c1", "")(t.Context(), s, wr); err != nil {
			t.Fatal(err)
		}
		if dead {
			ctx, cancel := context.WithCancel(t.Context())
			f := &fault{kind: "thread", nth: 1, mode: modes[0], cancel: cancel}
			if err := appendOp("c2", "c1")(ctx, w.open(t, impatient().Through(f.through)), wr); err == nil || !f.fired {
				t.Fatal("the writer should have died")
			}
		}
		return wr
	}
}

func crashCases() []crashCase {
	return []crashCase{
		{name: "delete head", prepare: oneCheckpoint(false), run: deleteHeadOp("c1"), drops: 1, unknown: true,
			steps: []step{{"thread", 1}, {"purge-log", 1}, {"purge-checkpoint", 1}}},
		{name: "held fork", prepare: func(t *testing.T, _ *world, s *kvstore.Store) snapshot.Writer { return acquire(t, s, "t") },
			run: func(ctx context.Context, s *kvstore.Store, w snapshot.Writer) error {
				return s.ForkHeld(ctx, snapshottest.ForkRoot("t", "c2"), w)
			}, adds: []snapshot.CheckpointID{"c2"}, steps: []step{{"checkpoint", 1}, {"log", 1}, {"thread", 1}}},
		{name: "append", prepare: oneCheckpoint(false), run: appendOp("c2", "c1"), adds: []snapshot.CheckpointID{"c2"},
			steps: []step{{"checkpoint", 1}, {"log", 1}, {"thread", 1}}},
		{name: "append over a dead writer's", prepare: oneCheckpoint(true), run: appendOp("c2", "c1"), adds: []snapshot.CheckpointID{"c2"},
			steps: []step{{"checkpoint", 1}, {"log", 1}, {"thread", 1}, {"checkpoint", 2}, {"log", 2}, {"thread", 2}}},
		{name: "fork", run: func(ctx context.Context, s *kvstore.Store, _ snapshot.Writer) error {
			return s.Fork(ctx, snapshottest.ForkRoot("t", "c2"), 0)
		}, adds: []snapshot.CheckpointID{"c2"}, steps: []step{{"thread", 1}, {"checkpoint", 1}, {"log", 1}, {"thread", 2}}},
		{name: "fork in full", prepare: func(t *testing.T, w *world, s *kvstore.Store) snapshot.Writer {
			if err := s.Release(t.Context(), acquire(t, s, "t")); err != nil {
				t.Fatal(err)
			}
			return snapshot.Writer{}
		}, run: func(ctx context.Context, s *kvstore.Store, _ snapshot.Writer) error {
			return s.Fork(ctx, snapshottest.ForkRoot("t", "c2"), 0)
		}, adds: []snapshot.CheckpointID{"c2"}, steps: []step{{"writer", 1}, {"thread", 1}, {"checkpoint", 1}, {"log", 1}, {"thread", 2}, {"writer", 2}}},
		{name: "acquire", run: func(ctx context.Context, s *kvstore.Store, _ snapshot.Writer) error {
			_, err := s.Acquire(ctx, "t", 0)
			return err
		}, steps: []step{{"writer", 1}, {"thread", 1}}},
		{name: "renew", prepare: oneCheckpoint(false), run: func(ctx context.Context, s *kvstore.Store, w snapshot.Writer) error {
			_, err := s.Renew(ctx, w)
			return err
		}, steps: []step{{"writer", 1}}},
		{name: "release", prepare: oneCheckpoint(false), run: func(ctx context.Context, s *kvstore.Store, w snapshot.Writer) error {
			return s.Release(ctx, w)
		}, steps: []step{{"writer", 1}}},
	}
}

// TestCrash lets each write of each operation go wrong in each way. Whatever
// happens, the thread is as before or as after, the next writer goes on, and
// what arrives late changes nothing any more.
func TestCrash(t *testing.T) {
	t.Parallel()
	server, n := newWorld(t), 0
	for _, c := range crashCases() {
		for _, st := range c.steps {
			for _, m := range modes {
				for _, late := range []string{"before", "after"} {
					if late == "after" && !m.late {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s %d/%s/%s the next writer", c.name, st.kind, st.nth, m.name, late), func(t *testing.T) {
						n++
						crash(t, server.another(t, fmt.Sprint("s", n)), c, st, m, late == "before")
					})
				}
			}
		}
	}
}

func crash(t *testing.T, w *world, c crashCase, st step, m mode, lateBefore bool) {
	healthy := w.open(t, options())
	var wr snapshot.Writer
	if c.prepare != nil {
		wr = c.prepare(t, w, healthy)
	}
	old := chain(t, healthy, "t")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &fault{kind: st.kind, nth: st.nth, mode: m, cancel: cancel}
	err := c.run(ctx, w.open(t, impatient().Through(f.through)), wr)
	if !f.fired {
		t.Fatalf("the operation has no write %d of %s", st.nth, st.kind)
	}
	if lateBefore {
		f.deliver(t, w)
	}
	now := chain(t, healthy, "t")
	applied := slices.Concat(old[:len(old)-c.drops], c.adds)
	switch {
	case !slices.Equal(now, old) && !slices.Equal(now, applied):
		t.Fatalf("chain is %v, neither %v nor %v", now, old, applied)
	case err == nil && !slices.Equal(now, applied):
		t.Fatalf("chain is %v after success", now)
	case err != nil && isDefinite(err) && !slices.Equal(now, old):
		t.Fatalf("chain is %v after %v", now, err)
	case err != nil && !m.die && !(c.unknown && m.send):
		t.Fatalf("a lost message was not resolved: %v", err)
	}
	now = goOn(t, w, healthy, now, "n1")
	f.deliver(t, w)
	if got := chain(t, healthy, "t"); !slices.Equal(got, now) {
		t.Fatalf("what came late made %v of %v", got, now)
	}
	now = goOn(t, w, healthy, now, "n2")
	wantSwept(t, w, healthy, now...)
	if got := chain(t, healthy, "t"); len(slices.Compact(slices.Sorted(slices.Values(got)))) != len(got) {
		t.Fatalf("chain %v has an id twice", got)
	}
}

// goOn is the next writer, after the lease of the one before has ended.
func goOn(t *testing.T, w *world, s *kvstore.Store, now []snapshot.CheckpointID, id snapshot.CheckpointID) []snapshot.CheckpointID {
	t.Helper()
	w.free(t, "t")
	parent := snapshot.CheckpointID("")
	if len(now) > 0 {
		parent = now[len(now)-1]
	}
	if err := appendOp(id, parent)(t.Context(), s, acquire(t, s, "t")); err != nil {
		t.Fatalf("the next writer can't go on: %v", err)
	}
	now = append(slices.Clone(now), id)
	if got := chain(t, s, "t"); !slices.Equal(got, now) {
		t.Fatalf("chain is %v, want %v", got, now)
	}
	return now
}

// wantSwept sweeps and checks that the store has the keys of the chain of
// thread "t" and no other slots, pointers and tombstones.
func wantSwept(t *testing.T, w *world, s *kvstore.Store, ids ...snapshot.CheckpointID) {
	t.Helper()
	for range 2 { // a tombstone goes when nothing was found that leads to it
		if err := s.Sweep(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if got := chain(t, s, "t"); !slices.Equal(got, ids) {
		t.Fatalf("the sweep made %v of %v", got, ids)
	}
	want := []string{}
	for i, id := range ids {
		want = append(want, kvstore.PointerKey(id), kvstore.SlotKey("t", int64(i)+1))
	}
	slices.Sort(want)
	got := w.keys(t, "log", "checkpoint", "artifact")
	for end := time.Now().Add(snapshottest.Soon); !slices.Equal(got, want) && time.Now().Before(end); { // a replica lists them, perhaps late
		got = w.keys(t, "log", "checkpoint", "artifact")
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the sweep left %v, want %v", got, want)
	}
}

// keys are the live keys of some kinds.
func (w *world) keys(t *testing.T, kinds ...string) []string {
	t.Helper()
	list, err := w.kv(t).ListKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for key := range list.Keys() {
		if slices.Contains(kinds, kindOf(key)) {
			got = append(got, key)
		}
	}
	slices.Sort(got)
	return got
}

// isDefinite reports whether an error says that nothing happened.
func isDefinite(err error) bool {
	if e := snapshot.AsError(err); e != nil && e.Details["outcome"] == "unknown" {
		return false
	}
	return true
}

// A canceled request that never sent its commit is definitely not done.
func TestCrash_CanceledIsDefinite(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := appendOp("c1", "")(ctx, s, wr); !errors.Is(err, context.Canceled) || !isDefinite(err) {
		t.Fatal(err)
	}
}
