package kvstore_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// machine drives the store and the in-memory one with the same operations.
type machine struct {
	real, model snapshottest.Stores
	writers     [][2]snapshot.Writer // of the same lease, real and model
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

// Check compares all that can be read.
func (m *machine) Check(t *rapid.T) {
	ctx := context.Background()
	for _, id := range []snapshot.ThreadID{"t0", "t1", "t.2"} {
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
		if _, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: store}); err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = w.js.DeleteStream(context.Background(), "KV_"+kvstore.BucketName(store)) }()
		m := &machine{real: w.open(t, kvstore.Options{Store: store}), model: snapshottest.NewMemory(time.Minute, nil)}
		actions := rapid.StateMachineActions(m)
		delete(actions, "Check")
		actions[""] = m.Check
		rt.Repeat(actions)
	})
}
