package kvstore_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// machine drives the store and the in-memory one with the same operations.
type machine struct {
	real, model snapshottest.Stores
	writers     [][2]snapshot.Writer // of the same lease, real and model
	locks       [][2]snapshot.Lock
	op          int
}

func (m *machine) thread(t *rapid.T) snapshot.ThreadID {
	return rapid.SampledFrom([]snapshot.ThreadID{"t0", "t1", "t.2"}).Draw(t, "thread")
}

func (m *machine) id(t *rapid.T) snapshot.CheckpointID {
	return rapid.SampledFrom([]snapshot.CheckpointID{"c0", "c1", "c2", "c3", "c4", "c*5"}).Draw(t, "id")
}

func (m *machine) writer(t *rapid.T) [2]snapshot.Writer {
	if len(m.writers) == 0 {
		t.Skip("nobody ever held a lease")
	}
	return rapid.SampledFrom(m.writers).Draw(t, "writer")
}

// code is what a client is told of an error.
func code(err error) snapshot.Code {
	if err == nil {
		return ""
	}
	if e := snapshot.AsError(err); e != nil {
		return e.Code
	}
	return snapshot.Code(err.Error())
}

func (m *machine) same(t *rapid.T, what string, real, model error) {
	if code(real) != code(model) {
		t.Fatalf("%s: store says %v, memory says %v", what, real, model)
	}
}

func (m *machine) Acquire(t *rapid.T) {
	id := m.thread(t)
	a, errA := m.real.Acquire(context.Background(), id, 0)
	b, errB := m.model.Acquire(context.Background(), id, 0)
	m.same(t, "acquire", errA, errB)
	if errA == nil {
		m.writers = append(m.writers, [2]snapshot.Writer{a.Writer, b.Writer})
	}
}

func (m *machine) Renew(t *rapid.T) {
	w := m.writer(t)
	_, errA := m.real.Renew(context.Background(), w[0])
	_, errB := m.model.Renew(context.Background(), w[1])
	m.same(t, "renew", errA, errB)
}

func (m *machine) Release(t *rapid.T) {
	w := m.writer(t)
	m.same(t, "release", m.real.Release(context.Background(), w[0]), m.model.Release(context.Background(), w[1]))
}

func (m *machine) record(id snapshot.CheckpointID, thread snapshot.ThreadID, parent snapshot.CheckpointID) *snapshot.Record {
	m.op++
	rec := snapshottest.Record(thread, id, parent)
	rec.Nonce = fmt.Sprint("op ", m.op)
	return rec
}

func (m *machine) Append(t *rapid.T) {
	w, thread, id := m.writer(t), snapshot.ThreadID(""), m.id(t)
	thread = w[0].ThreadID
	if rapid.IntRange(0, 9).Draw(t, "foreign") == 0 {
		thread = m.thread(t)
	}
	st, err := m.model.State(context.Background(), thread)
	if err != nil {
		t.Fatal(err)
	}
	parent := st.Head
	if rapid.IntRange(0, 3).Draw(t, "stale") == 0 {
		parent = rapid.SampledFrom([]snapshot.CheckpointID{"", "c0", "c1", "c9"}).Draw(t, "parent")
	}
	rec := m.record(id, thread, parent)
	m.same(t, "append", m.real.Append(context.Background(), rec, parent, w[0]), m.model.Append(context.Background(), rec, parent, w[1]))
}

func (m *machine) Fork(t *rapid.T) {
	rec := m.record(m.id(t), m.thread(t), "")
	m.same(t, "fork", m.real.Fork(context.Background(), rec, 0), m.model.Fork(context.Background(), rec, 0))
}

func (m *machine) SaveConversation(t *rapid.T) {
	id, expected := m.thread(t), rapid.Int64Range(-1, 3).Draw(t, "expected")
	m.op++
	words := snapshot.List{Count: 1, Inline: fmt.Append(nil, m.op)}
	a, errA := m.real.SaveConversation(context.Background(), id, words, expected)
	b, errB := m.model.SaveConversation(context.Background(), id, words, expected)
	if m.same(t, "save", errA, errB); a != b {
		t.Fatalf("revision %d, in memory %d", a, b)
	}
}

func (m *machine) Holds(t *rapid.T) {
	w := m.writer(t)
	m.same(t, "holds", m.real.Holds(context.Background(), w[0]), m.model.Holds(context.Background(), w[1]))
}

func (m *machine) ForkHeld(t *rapid.T) {
	w, id := m.writer(t), m.id(t)
	rec := m.record(id, w[0].ThreadID, "")
	m.same(t, "held fork", m.real.ForkHeld(context.Background(), rec, w[0]), m.model.ForkHeld(context.Background(), rec, w[1]))
}

func (m *machine) DeleteHead(t *rapid.T) {
	w := m.writer(t)
	st, err := m.model.State(context.Background(), w[0].ThreadID)
	if err != nil {
		t.Fatal(err)
	}
	id := st.Head
	if rapid.IntRange(0, 3).Draw(t, "other") == 0 {
		id = m.id(t)
	}
	a, errA := m.real.DeleteHead(context.Background(), w[0].ThreadID, id, w[0])
	b, errB := m.model.DeleteHead(context.Background(), w[0].ThreadID, id, w[1])
	if m.same(t, "delete head", errA, errB); a != b {
		t.Fatalf("head %q, in memory %q", a, b)
	}
}

func (m *machine) DeleteThread(t *rapid.T) {
	id := m.thread(t)
	a, errA := m.real.DeleteThread(context.Background(), id)
	b, errB := m.model.DeleteThread(context.Background(), id)
	if m.same(t, "delete thread", errA, errB); a != b {
		t.Fatalf("counted %d, in memory %d", a, b)
	}
}

func (m *machine) PutArtifact(t *rapid.T) {
	id, a := m.thread(t), snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: snapshot.ArtifactID(m.id(t))}}
	a.Deleted = rapid.Bool().Draw(t, "deleted")
	m.same(t, "put artifact", m.real.PutArtifact(context.Background(), id, a), m.model.PutArtifact(context.Background(), id, a))
}

// Sweep lets go of tombstones half of the time. The first of two sweeps may
// find what a refused fork left.
func (m *machine) Sweep(t *rapid.T) {
	grace := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "grace")
	m.same(t, "sweep", m.real.Sweep(context.Background(), grace), m.model.Sweep(context.Background(), grace))
	m.same(t, "sweep again", m.real.Sweep(context.Background(), grace), nil)
}

func (m *machine) AcquireLock(t *rapid.T) {
	name := rapid.SampledFrom([]snapshot.LockName{"l0", "l.1"}).Draw(t, "name")
	ttl := rapid.SampledFrom([]time.Duration{0, 2 * time.Second, kvstore.MaxLease, kvstore.MaxLease + time.Second}).Draw(t, "ttl")
	a, errA := m.real.AcquireLock(context.Background(), name, ttl, 0)
	b, errB := m.model.AcquireLock(context.Background(), name, ttl, 0)
	m.same(t, "acquire lock", errA, errB)
	if errA == nil {
		m.locks = append(m.locks, [2]snapshot.Lock{a.Lock, b.Lock})
	}
}

func (m *machine) lock(t *rapid.T) [2]snapshot.Lock {
	if len(m.locks) == 0 {
		t.Skip("nobody ever held a lock")
	}
	return rapid.SampledFrom(m.locks).Draw(t, "lock")
}

func (m *machine) RenewLock(t *rapid.T) {
	l := m.lock(t)
	_, errA := m.real.RenewLock(context.Background(), l[0])
	_, errB := m.model.RenewLock(context.Background(), l[1])
	m.same(t, "renew lock", errA, errB)
}

func (m *machine) ReleaseLock(t *rapid.T) {
	l := m.lock(t)
	m.same(t, "release lock", m.real.ReleaseLock(context.Background(), l[0]), m.model.ReleaseLock(context.Background(), l[1]))
}

// Check compares all that can be read.
func (m *machine) Check(t *rapid.T) {
	ctx := context.Background()
	idsA, _, errA := m.real.Threads(ctx, 0, 10)
	idsB, _, errB := m.model.Threads(ctx, 0, 10)
	slices.Sort(idsA)
	slices.Sort(idsB)
	if m.same(t, "threads", errA, errB); !slices.Equal(idsA, idsB) {
		t.Fatalf("threads %v, in memory %v", idsA, idsB)
	}
	for _, id := range []snapshot.ThreadID{"t0", "t1", "t.2"} {
		artsA, errA := m.real.Artifacts(ctx, id)
		artsB, errB := m.model.Artifacts(ctx, id)
		if m.same(t, "artifacts", errA, errB); !cmp.Equal(artsA, artsB, cmpopts.EquateEmpty()) {
			t.Fatalf("artifacts of %q:\n%s", id, cmp.Diff(artsB, artsA))
		}
		a, errA := m.real.State(ctx, id)
		b, errB := m.model.State(ctx, id)
		if m.same(t, "state", errA, errB); !cmp.Equal(a, b) {
			t.Fatalf("state of %q:\n%s", id, cmp.Diff(b, a))
		}
		listA, errA := m.real.List(ctx, id)
		listB, errB := m.model.List(ctx, id)
		if m.same(t, "list", errA, errB); !cmp.Equal(listA, listB) {
			t.Fatalf("list of %q:\n%s", id, cmp.Diff(listB, listA))
		}
	}
	for _, id := range []snapshot.CheckpointID{"c0", "c1", "c2", "c3", "c4", "c*5"} {
		a, errA := m.real.Get(ctx, id)
		b, errB := m.model.Get(ctx, id)
		if m.same(t, "get", errA, errB); !cmp.Equal(a, b) {
			t.Fatalf("checkpoint %q:\n%s", id, cmp.Diff(b, a))
		}
	}
}

func TestMachine(t *testing.T) {
	t.Parallel()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("10"); err != nil { // each one is some hundred round trips
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		store := fmt.Sprint("s", round)
		if _, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: store, Replicas: clustertest.Replicas}); err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = w.js.DeleteStream(context.Background(), kvstore.EventsName(store)) }()
		defer func() { _ = w.js.DeleteStream(context.Background(), "KV_"+kvstore.BucketName(store)) }()
		m := &machine{real: w.open(t, kvstore.Options{Store: store, LeaseTTL: kvstore.MaxLease}), model: snapshottest.NewMemory(kvstore.MaxLease, nil)} // no lease ends by itself, also on a slow machine
		actions := rapid.StateMachineActions(m)
		delete(actions, "Check")
		actions[""] = m.Check
		rt.Repeat(actions)
	})
}
