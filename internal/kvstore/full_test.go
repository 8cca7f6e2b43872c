package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// fullWorld is a store without room for another record. The thread "t" is free
// and can be deleted, "h" is held.
func fullWorld(t *testing.T) (w *world, s *kvstore.Store, h snapshot.Writer) {
	t.Helper()
	w = newWorld(t)
	replicas := mustStream(t, w).CachedInfo().Config.Replicas
	if _, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "small", MaxBytes: 64 << 10, Replicas: replicas}); err != nil {
		t.Fatal(err)
	}
	w.store = "small"
	s = w.open(t, options())
	deletable(t, s)
	h = acquire(t, s, "h")
	root := snapshot.CheckpointID(strings.Repeat("root", 20)) // the state that has it as its head is the longer one
	if err := errors.Join(s.Append(t.Context(), snapshottest.Record("h", root, ""), "", h), s.Append(t.Context(), snapshottest.Record("h", "h2", root), root, h)); err != nil {
		t.Fatal(err)
	}
	dyingAppend(t, w, snapshottest.Record("dead", "d1", ""), acquire(t, s, "dead"))
	w.fill(t, s, "k")
	return w, s, h
}

// fill writes instances until there is no room for the smallest, and then even
// smaller keys.
func (w *world) fill(t *testing.T, s *kvstore.Store, prefix string) {
	t.Helper()
	for n, size := 0, 4000; size > 0; n++ {
		rec := snapshot.Instance{Key: snapshot.InstanceKey(fmt.Sprint(prefix, n)), Provider: strings.Repeat("p", size)}
		if _, err := s.PutInstance(t.Context(), rec, -1); errors.Is(err, snapshot.StoreFull) {
			size /= 4
		} else if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for n := 0; err == nil; n++ {
		_, err = w.kv(t).Put(t.Context(), fmt.Sprint(prefix, n), nil)
	}
	var api *jetstream.APIError
	if !errors.As(err, &api) || api.ErrorCode != 10077 {
		t.Fatal(err)
	}
}

// reserve is the room that the store keeps back.
func (w *world) reserve(t *testing.T) int {
	t.Helper()
	e, err := w.kv(t).Get(t.Context(), kvstore.ReserveKey)
	if err != nil {
		return 0
	}
	return len(e.Value())
}

// deletions are operations that free room, each in need of some.
func deletions(s *kvstore.Store, h snapshot.Writer) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"thread": func(ctx context.Context) error { _, err := s.DeleteThread(ctx, "t"); return err },
		"head":   func(ctx context.Context) error { _, err := s.DeleteHead(ctx, "h", "h2", h); return err },
		"artifact of the root": func(ctx context.Context) error {
			return s.PutArtifact(ctx, "h", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "of the root"}, Deleted: true})
		},
		"instance": func(ctx context.Context) error { return s.DeleteInstance(ctx, "k0", -1) },
		"remains": func(ctx context.Context) error {
			return errors.Join(s.Sweep(ctx, 0), s.Append(ctx, snapshottest.Record("h", "h3", "h2"), "h2", h))
		},
		"lease": func(ctx context.Context) error { return s.Release(ctx, h) },
	}
}

// A full store refuses what it has no room for, and deletes.
func TestFull_Deletions(t *testing.T) {
	for name := range deletions(nil, snapshot.Writer{}) {
		t.Run(name, func(t *testing.T) {
			w, s, h := fullWorld(t)
			before := w.reserve(t)
			_, err := s.Acquire(t.Context(), "new", 0)
			wantCode(t, err, snapshot.StoreFull)
			_, err = s.SaveConversation(t.Context(), "new", snapshot.List{}, -1)
			wantCode(t, err, snapshot.StoreFull)
			wantCode(t, s.Fork(t.Context(), snapshottest.ForkRoot("new", "f1"), 0), snapshot.StoreFull)
			wantCode(t, s.Append(t.Context(), snapshottest.Record("h", "h3", "h2"), "h2", h), snapshot.StoreFull)
			if now := w.reserve(t); now != before || now != 2<<10 {
				t.Fatalf("the reserve is %d bytes, was %d", now, before)
			}
			if err := deletions(s, h)[name](t.Context()); err != nil {
				t.Fatal(err)
			}
			if now := w.reserve(t); now < before-1000 {
				t.Fatalf("the reserve is %d bytes, was %d", now, before)
			}
		})
	}
}

// A full store can be emptied, and keeps its reserve for the next time.
func TestFull_Emptied(t *testing.T) {
	w, s, h := fullWorld(t)
	for range 3 {
		for name, del := range deletions(s, h) {
			if name == "lease" || name == "remains" {
				continue
			}
			if err := del(t.Context()); err != nil && !errors.Is(err, snapshot.NotHead) {
				t.Fatal(name, err)
			}
		}
		w.fill(t, s, "m")
		if err := s.Sweep(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	recs, _, err := s.Instances(t.Context(), "", 0, 100)
	for _, rec := range recs {
		if err := s.DeleteInstance(t.Context(), rec.Key, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(err, s.Sweep(t.Context(), 0)); err != nil || w.reserve(t) != 2<<10 {
		t.Fatalf("the reserve is %d bytes, %v", w.reserve(t), err)
	}
	if err := s.Append(t.Context(), snapshottest.Record("h", "h3", snapshot.CheckpointID(strings.Repeat("root", 20))), snapshot.CheckpointID(strings.Repeat("root", 20)), h); err != nil {
		t.Fatal(err)
	}
}

// TestFull_Crash lets each write of a deletion on a full store go wrong in each
// way: it is done or not, and the next one is.
func TestFull_Crash(t *testing.T) {
	for _, st := range []step{{"thread", 1}, {"purge-reserve", 1}, {"thread", 2}, {"reserve", 1}} {
		for _, m := range modes {
			t.Run(fmt.Sprintf("%s %d/%s", st.kind, st.nth, m.name), func(t *testing.T) {
				w, s, _ := fullWorld(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				f := &fault{kind: st.kind, nth: st.nth, mode: m, cancel: cancel}
				patient := options().Impatient(5*time.Second, 5*time.Second, 20*time.Second, time.Second)
				_, err := w.open(t, patient.Through(f.through)).DeleteThread(ctx, "t")
				got := chain(t, s, "t")
				switch {
				case !f.fired:
					t.Fatal("there is no such write")
				case err == nil && len(got) > 0, err != nil && isDefinite(err) && len(got) == 0:
					t.Fatalf("chain is %v after %v", got, err)
				case st.kind == "purge-reserve" && !m.die && m.send && err != nil:
					t.Fatal(err) // it was given up all the same
				}
				if _, err := s.DeleteThread(t.Context(), "t"); err != nil {
					t.Fatal(err)
				}
				f.deliver(t, w)
				if err := s.Sweep(t.Context(), time.Hour); err != nil {
					t.Fatal(err)
				}
				if left := w.keys(t, "log", "checkpoint", "artifact", "reserve"); !slices.Contains(left, kvstore.ReserveKey) || len(chain(t, s, "t")) > 0 {
					t.Fatalf("left are %v", left)
				}
			})
		}
	}
}

// Two deletions at once: one takes the reserve, the other finds it gone.
func TestFull_Together(t *testing.T) {
	w, s, h := fullWorld(t)
	through := before("purge-reserve", 1, func() {
		if _, err := s.DeleteThread(t.Context(), "t"); err != nil {
			t.Error(err)
		}
		w.fill(t, s, "m")
	})
	if err := deletions(w.open(t, options().Through(through)), h)["artifact of the root"](t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.reserve(t) == 0 {
		t.Fatal("the reserve is gone")
	}
}

// One deletion finds no reserve while another has it, and has no room when it is
// back: it takes it then.
func TestFull_BackMeanwhile(t *testing.T) {
	w, s, h := fullWorld(t)
	taken, release, done := make(chan bool), make(chan bool), make(chan error, 1)
	other := w.open(t, options().Through(before("reserve", 1, func() { close(taken); <-release })))
	looks := beforeRead(kvstore.ReserveKey, 1, func() {
		go func() { _, err := other.DeleteThread(context.WithoutCancel(t.Context()), "t"); done <- err }()
		select {
		case <-taken:
		case err := <-done:
			t.Fatal("the other deletion made no reserve", err)
		}
	})
	writes := before("artifact", 2, func() {
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.fill(t, s, "m")
	})
	through := func(next kvstore.Round) kvstore.Round { return looks(writes(next)) }
	if err := deletions(w.open(t, options().Through(through)), h)["artifact of the root"](t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.reserve(t) == 0 {
		t.Fatal("the reserve is gone")
	}
}

// A deletion that has no room whatever it gives up leaves the reserve as it was,
// also if others make it again and again.
func TestFull_Stays(t *testing.T) {
	const most = 50
	for name, again := range map[string]bool{"alone": false, "reserve made again": true} {
		t.Run(name, func(t *testing.T) {
			w, s, _ := fullWorld(t)
			held, purges := w.reserve(t), 0
			through := func(next kvstore.Round) kvstore.Round {
				return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
					if kindOf(keyOf(m)) == "thread" {
						return &nats.Msg{Data: []byte(`{"error":{"code":503,"err_code":10047,"description":"insufficient resources"}}`)}, nil
					}
					r, err := next(ctx, m)
					if keyOf(m) == "purge-"+kvstore.ReserveKey {
						if purges++; again && purges < most {
							_, err2 := w.kv(t).Put(ctx, kvstore.ReserveKey, make([]byte, held))
							err = errors.Join(err, err2)
						}
					}
					return r, err
				}
			}
			_, err := w.open(t, options().Through(through)).DeleteThread(t.Context(), "t")
			wantCode(t, err, snapshot.StoreFull)
			if now := w.reserve(t); now != held || purges == 0 || purges == most || len(chain(t, s, "t")) != 2 {
				t.Fatalf("the reserve is %d bytes, was %d, after it was given up %d times", now, held, purges)
			}
		})
	}
}
