package kvstore_test

import (
	"context"
	"encoding/json"
	"errors"
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

// reads reports whether a request reads a key.
func reads(m *nats.Msg, key string) bool {
	return keyOf(m) == "" && strings.Contains(string(m.Data), "."+key+`"`)
}

// beforeRead runs f once, before the nth read of a key is sent.
func beforeRead(key string, nth int, f func()) func(kvstore.Round) kvstore.Round {
	spy := &fault{kind: "read", nth: nth}
	return func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			spy.mu.Lock()
			hit := reads(m, key) && spy.hits("read")
			spy.mu.Unlock()
			if hit {
				f()
			}
			return next(ctx, m)
		}
	}
}

// An id that a dead writer could still make visible in the own thread keeps
// its pointer: the thread moved since it was read, so it is read again.
func TestAppend_OwnPointerMeanwhile(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	dyingAppend(t, w, snapshottest.Record("u", "x", ""), acquire(t, s, "u")) // a pointer of x, so that nothing is blind
	if err := errors.Join(appendOp("c1", "")(t.Context(), s, wr), appendOp("c2", "c1")(t.Context(), s, wr)); err != nil {
		t.Fatal(err)
	}
	swept := beforeRead(kvstore.ThreadKey("t"), 2, func() { // of the slot that the blind try left
		if err := s.Sweep(t.Context(), 0); err != nil {
			t.Error(err)
		}
	})
	var late *fault
	moved := beforeRead(kvstore.PointerKey("x"), 1, func() { // the thread was read, with c2 as its head
		if err := deleteHeadOp("c2")(t.Context(), s, wr); err != nil {
			t.Error(err)
		}
		late = dyingAppend(t, w, snapshottest.Record("t", "x", "c1"), wr)
	})
	through := func(next kvstore.Round) kvstore.Round { return swept(moved(next)) }
	wantCode(t, appendOp("x", "c2")(t.Context(), w.open(t, options().Through(through)), wr), snapshot.StaleHead)
	late.deliver(t, w)
	if got := chain(t, s, "t"); !slices.Equal(got, []snapshot.CheckpointID{"c1", "x"}) {
		t.Fatalf("chain is %v", got)
	}
}

// A head that goes between the looks at the thread and at the slot leaves a
// thread with another head, whatever a dead writer left in that slot.
func TestNewest_HeadGoesMeanwhile(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	if err := errors.Join(appendOp("c1", "")(t.Context(), s, wr), appendOp("c2", "c1")(t.Context(), s, wr)); err != nil {
		t.Fatal(err)
	}
	gone := beforeRead(kvstore.SlotKey("t", 2), 1, func() {
		if err := deleteHeadOp("c2")(t.Context(), s, wr); err != nil {
			t.Error(err)
		}
		dyingAppend(t, w, snapshottest.Record("t", "c2", "c1"), wr)
	})
	rec, err := w.open(t, options().Through(gone)).Newest(t.Context(), "t")
	if err != nil || rec == nil || rec.ID != "c1" {
		t.Errorf("got %+v, %v; want c1", rec, err)
	}
}

// A head that goes between the look at the thread and that at the id explains
// no refusal: the append is compared with the thread as it is then.
func TestAppend_HeadGoesMeanwhile(t *testing.T) {
	for name, op := range map[string]func(s *kvstore.Store, wr snapshot.Writer) error{
		"append": func(s *kvstore.Store, wr snapshot.Writer) error { return appendOp("c2", "c1")(t.Context(), s, wr) },
		"admit": func(s *kvstore.Store, wr snapshot.Writer) error {
			_, err := s.Admit(t.Context(), snapshottest.Record("t", "c2", "c1"), "c1", wr)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t, options())
			wr := acquire(t, s, "t")
			if err := errors.Join(appendOp("c1", "")(t.Context(), s, wr), appendOp("c2", "c1")(t.Context(), s, wr)); err != nil {
				t.Fatal(err)
			}
			gone := beforeRead(kvstore.PointerKey("c2"), 1, func() { // the thread was read, with c2 as its head
				if err := deleteHeadOp("c2")(t.Context(), s, wr); err != nil {
					t.Error(err)
				}
			})
			if err := op(w.open(t, options().Through(gone)), wr); err != nil {
				t.Fatalf("%v, but c1 is the head and c2 is free", err)
			}
		})
	}
}

// A slot that was written after its thread was read is not visible yet: the id
// is still free, and its writer fails.
func TestAppend_NewerSlotOfItsID(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "u")
	dyingAppend(t, w, snapshottest.Record("u", "x", ""), wr) // the pointer stays, the slot goes to y
	if err := s.Append(t.Context(), snapshottest.Record("u", "y", ""), "", wr); err != nil {
		t.Fatal(err)
	}
	var late *fault
	through := beforeRead(kvstore.SlotKey("u", 1), 1, func() { // the thread was read, with y in the slot
		if _, err := s.DeleteHead(t.Context(), "u", "y", wr); err != nil {
			t.Error(err)
		}
		late = dyingAppendAt(t, w, snapshottest.Record("u", "x", ""), wr, 2) // its first write of the thread is a touch
	})
	if err := appendOp("x", "")(t.Context(), w.open(t, options().Through(through)), acquire(t, s, "t")); err != nil {
		t.Fatal(err)
	}
	late.deliver(t, w)
	if a, b := chain(t, s, "t"), chain(t, s, "u"); len(a) != 1 || len(b) != 0 {
		t.Fatalf("chains are %v and %v", a, b)
	}
}

// deposed is a store whose first write of a key meets a failing leader: it is
// lost, or comes after meanwhile. The next read of the key is answered by a
// leader that was deposed, with the value that was there when old was called.
func (w *world) deposed(t *testing.T, key string, meanwhile func() error) (s *kvstore.Store, old func()) {
	t.Helper()
	stale := &oldReads{key: key}
	f := &fault{kind: kindOf(key), nth: 1, then: func() { stale.again = true }}
	through := f.through
	if meanwhile != nil {
		through = before(kindOf(key), 1, func() {
			if err := meanwhile(); err != nil {
				t.Error(err)
			}
			stale.again = true
		})
	}
	s = w.open(t, options().Through(func(next kvstore.Round) kvstore.Round { return stale.through(through(next)) }))
	return s, func() {
		_, err := s.State(t.Context(), "t")
		if _, _, err2 := s.Instance(t.Context(), "k"); errors.Join(err, err2) != nil {
			t.Error(err, err2)
		}
	}
}

// What is older than what was read before is read again.
func TestDeposedLeader(t *testing.T) {
	for name, run := range map[string]func(*testing.T, *world, *kvstore.Store) error{
		"append": func(t *testing.T, w *world, s *kvstore.Store) error {
			return underDeposed(t, w, s, appendOp("c2", "c1"))
		},
		"delete head": func(t *testing.T, w *world, s *kvstore.Store) error { return underDeposed(t, w, s, deleteHeadOp("c1")) },
		"delete thread": func(t *testing.T, w *world, s *kvstore.Store) error {
			d, old := w.deposed(t, kvstore.ThreadKey("t"), func() error { return saveWords(s) })
			err := saveWords(s)
			if err == nil {
				_, err = s.DeleteThread(t.Context(), "t")
			}
			old() // a tombstone
			wantSwept(t, w, s)
			err = errors.Join(err, saveWords(s)) // a new thread
			_, err2 := d.DeleteThread(t.Context(), "t")
			if err3 := saveWords(s); !errors.Is(err3, snapshot.ThreadDeleted) {
				t.Fatalf("saving in the deleted thread gave %v", err3)
			}
			return errors.Join(err, err2)
		},
		"fork": func(t *testing.T, w *world, s *kvstore.Store) error {
			stale := &oldReads{key: kvstore.ThreadKey("t")}
			f := &fault{kind: "thread", nth: 2, mode: mode{send: true}, then: func() { stale.again = true }} // its commit
			d := w.open(t, options().Through(func(next kvstore.Round) kvstore.Round { return stale.through(f.through(next)) }))
			err := saveWords(s)
			_, err2 := s.DeleteThread(t.Context(), "t")
			_, err3 := d.State(t.Context(), "t") // a tombstone
			wantSwept(t, w, s)
			err = errors.Join(err, err2, err3, d.Fork(t.Context(), snapshottest.ForkRoot("t", "f1"), 0))
			if got := chain(t, s, "t"); len(got) != 1 || !f.fired || stale.again {
				t.Fatalf("chain is %v", got)
			}
			return err
		},
		"save conversation": func(t *testing.T, w *world, s *kvstore.Store) error {
			d, old := w.deposed(t, kvstore.ThreadKey("t"), nil)
			err := saveWords(s)
			old()
			return errors.Join(err, saveWords(s), saveWords(d))
		},
		"put instance": func(t *testing.T, w *world, s *kvstore.Store) error {
			d, old := w.deposed(t, kvstore.InstanceKey("k"), nil)
			put := func(s *kvstore.Store, at snapshot.Millis) error {
				_, err := s.PutInstance(t.Context(), snapshot.Instance{Key: "k", UpdatedAt: at}, -1)
				return err
			}
			err := put(s, 1)
			old()
			return errors.Join(err, put(s, 2), put(d, 3))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if err := run(t, w, w.open(t, options())); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func saveWords(s *kvstore.Store) error {
	_, err := s.SaveConversation(context.Background(), "t", snapshot.List{}, -1)
	return err
}

// underDeposed runs an operation of a holder; the old value is of the one before.
func underDeposed(t *testing.T, w *world, s *kvstore.Store, run func(context.Context, *kvstore.Store, snapshot.Writer) error) error {
	d, old := w.deposed(t, kvstore.ThreadKey("t"), func() error { return saveWords(s) })
	err := s.Release(t.Context(), oneCheckpoint(false)(t, w, s))
	old()
	return errors.Join(err, run(t.Context(), d, acquire(t, s, "t")))
}

// The look at the lease is for early stops: with an old answer to it the fence
// in the thread still tells.
func TestFenced_OldLease(t *testing.T) {
	for name, run := range map[string]func(context.Context, *kvstore.Store, snapshot.Writer) error{
		"append":      appendOp("c2", "c1"),
		"delete head": deleteHeadOp("c1"),
		"held fork": func(ctx context.Context, s *kvstore.Store, wr snapshot.Writer) error {
			return s.ForkHeld(ctx, snapshottest.ForkRoot("t", "f1"), wr)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t, options())
			var wr snapshot.Writer
			want := 1
			if name == "held fork" {
				wr, want = acquire(t, s, "t"), 0
			} else {
				wr = oneCheckpoint(false)(t, w, s)
			}
			stale := &oldReads{key: kvstore.WriterKey("t")}
			old := w.open(t, options().Through(stale.through))
			if err := old.Holds(t.Context(), wr); err != nil {
				t.Fatal(err)
			}
			w.free(t, "t")
			acquire(t, s, "t")
			stale.again = true
			wantCode(t, run(t.Context(), old, wr), snapshot.WriterLost)
			if got := chain(t, s, "t"); len(got) != want || stale.again {
				t.Fatalf("chain is %v", got)
			}
		})
	}
}

// Every request has the form that the protocol rests on: reads go to the
// leader, writes and removals are conditional, and only leases and locks end.
func TestRequests(t *testing.T) {
	w := newWorld(t)
	kinds := map[string]int{}
	var mu sync.Mutex
	through := func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			mu.Lock()
			defer mu.Unlock()
			key := keyOf(m)
			kind := kindOf(key)
			kinds[kind]++
			_, ends := m.Header["Nats-TTL"]
			var purge struct{ Seq uint64 }
			switch {
			case key == "":
				if !strings.HasPrefix(m.Subject, "$JS.API.STREAM.MSG.GET.") {
					t.Errorf("a read by %s", m.Subject)
				}
			case strings.HasPrefix(kind, "purge-"):
				if err := json.Unmarshal(m.Data, &purge); err != nil || purge.Seq < 2 {
					t.Errorf("removal of %s without a sequence: %s", key, m.Data)
				}
			case m.Header.Get("Nats-Expected-Last-Subject-Sequence") == "":
				t.Errorf("unconditional write of %s", key)
			case ends != (kind == "writer" || kind == "lock"):
				t.Errorf("the TTL of %s is %q", key, m.Header.Get("Nats-TTL"))
			}
			return next(ctx, m)
		}
	}
	s, ctx := w.open(t, options().Through(through)), t.Context()
	wr := oneCheckpoint(false)(t, w, s)
	_, err := s.Renew(ctx, wr)
	err = errors.Join(err, appendOp("c2", "c1")(ctx, s, wr), deleteHeadOp("c2")(ctx, s, wr), saveWords(s), s.Release(ctx, wr),
		s.Lock(ctx, "l", 0, func(context.Context) error { return nil }), s.Fork(ctx, snapshottest.ForkRoot("u", "f1"), 0),
		s.PutArtifact(ctx, "t", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "a"}}))
	_, err2 := s.PutInstance(ctx, snapshot.Instance{Key: "k"}, -1)
	chain(t, s, "t")
	_, err3 := s.DeleteThread(ctx, "t")
	if err := errors.Join(err, err2, err3, s.DeleteInstance(ctx, "k", -1), s.Sweep(ctx, 0), s.Sweep(ctx, 0)); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"", "thread", "log", "checkpoint", "writer", "lock", "instance", "artifact", "purge-log", "purge-checkpoint", "purge-artifact", "purge-thread"} {
		if kinds[kind] == 0 {
			t.Errorf("no request of kind %q", kind)
		}
	}
}

// A lost commit that never landed, since the thread moved on without a change
// of its head, is forgotten: what stops the next attempt is definite.
func TestUnresolved_NeverLanded(t *testing.T) {
	for name, run := range map[string]func(context.Context, *kvstore.Store, snapshot.Writer) error{
		"append": appendOp("c2", "c1"), "delete head": deleteHeadOp("c1"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t, options())
			wr := oneCheckpoint(false)(t, w, s)
			f := &fault{kind: "thread", nth: 1, then: func() {
				if err := saveWords(s); err != nil {
					t.Error(err)
				}
			}}
			taken := before("thread", 2, func() { w.free(t, "t"); acquire(t, s, "t") })
			through := func(next kvstore.Round) kvstore.Round { return taken(f.through(next)) }
			wantCode(t, run(t.Context(), w.open(t, options().Through(through)), wr), snapshot.WriterLost)
			if got := chain(t, s, "t"); len(got) != 1 {
				t.Fatalf("chain is %v", got)
			}
		})
	}
}

// A fence that no lease of this bucket can reach, as in a thread that was
// copied from another store: nobody acquires it, and no lease is left.
func TestAcquire_FenceOutOfReach(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	state := `{"head":null,"depth":0,"fence":1000000,"gen":0,"messages":{"count":0},"revision":0}`
	if _, err := w.kv(t).Put(t.Context(), kvstore.ThreadKey("t"), []byte(state)); err != nil {
		t.Fatal(err)
	}
	_, err := s.Acquire(t.Context(), "t", 0)
	wantCode(t, err, snapshot.WriterConflict)
	if left := w.keys(t, "writer"); len(left) > 0 {
		t.Fatalf("the refused acquire left %v", left)
	}
}

// A renewal whose reply is read when the lease was about to end proves nothing,
// as after a stop of the process: the lease may have gone to another since.
func TestRenew_ReplyReadTooLate(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	clock := &ticker{now: time.Now()}
	taken := func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			reply, err := next(ctx, m)
			if kindOf(keyOf(m)) == "writer" && clock.advance(time.Hour) {
				if err := s.Release(t.Context(), wr); err != nil {
					t.Error(err)
				}
				acquire(t, s, "t")
			}
			return reply, err
		}
	}
	_, err := w.open(t, options().Through(taken).Clock(clock.read)).Renew(t.Context(), wr)
	wantCode(t, err, snapshot.WriterLost)
}

// ticker is a clock that is set ahead once.
type ticker struct {
	mu    sync.Mutex
	now   time.Time
	ahead bool
}

func (c *ticker) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *ticker) advance(by time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := !c.ahead
	if first {
		c.now, c.ahead = c.now.Add(by), true
	}
	return first
}
