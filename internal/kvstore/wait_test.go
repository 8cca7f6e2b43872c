package kvstore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot/snapshottest"
)

// A waiter that hears nothing looks by itself.
func TestAcquire_DeafWatch(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	waiter := w.open(t, options().Impatient(5*time.Second, 5*time.Second, time.Minute, time.Second))
	waiter.WatchElsewhere(w.another(t, "silent").kv(t))
	got := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(t.Context(), "t", snapshottest.Soon)
		got <- err
	}()
	if err := s.Release(t.Context(), wr); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// A lease that is released between the first try and the watch is not waited for.
func TestAcquire_FreedBeforeTheWatch(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	looked := false
	through := func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			r, err := next(ctx, m)
			if !looked && reads(m, kvstore.WriterKey("t")) {
				looked = true
				if err := s.Release(t.Context(), wr); err != nil {
					t.Error(err)
				}
			}
			return r, err
		}
	}
	if _, err := w.open(t, options().Through(through).RarelyLooking()).Acquire(t.Context(), "t", snapshottest.Soon); err != nil || !looked {
		t.Fatal(err)
	}
}

// A machine that slept renews by the wall clock, long before its timers would;
// one whose clock was set back renews by its timers.
func TestLock_Clocks(t *testing.T) {
	for name, c := range map[string]struct{ ttl, jump time.Duration }{
		"slept": {kvstore.MaxLease, kvstore.MaxLease / 2}, "set back": {9 * time.Second, -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var jumped atomic.Int64
			o := options().Clock(func() time.Time { return time.Now().Add(time.Duration(jumped.Load())) })
			o.LeaseTTL = c.ttl
			err := w.open(t, o).Lock(t.Context(), "l", 0, func(ctx context.Context) error {
				jumped.Store(int64(c.jump))
				return w.renewed(t, kvstore.LockKey("l"))
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// renewed waits for the next write of a lease.
func (w *world) renewed(t *testing.T, key string) error {
	kv := w.kv(t)
	before, err := kv.Get(t.Context(), key)
	for end := time.Now().Add(snapshottest.Soon); err == nil; {
		var now jetstream.KeyValueEntry
		if now, err = kv.Get(t.Context(), key); err == nil && now.Revision() > before.Revision() {
			return nil
		}
		if time.Now().After(end) {
			err = errors.New("the lease is not renewed")
		}
	}
	return err
}

// A renewal that is acknowledged in the last second of the lease could still be
// wiped by the expiry: it counts as lost, and is made again.
func TestRenew_AcknowledgedTooLate(t *testing.T) {
	w := newWorld(t)
	var slept, puts atomic.Int64
	through := func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			if kindOf(keyOf(m)) != "writer" || slept.Load() == 0 {
				return next(ctx, m)
			}
			r, err := next(ctx, m)
			if puts.Add(1) == 1 {
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(3 * time.Second): // the reply comes, but too late
				}
			}
			return r, err
		}
	}
	now := time.Now()
	s := w.open(t, options().Clock(func() time.Time { return now.Add(time.Duration(slept.Load())) }).Through(through))
	wr := acquire(t, s, "t")
	slept.Store(int64(kvstore.DefaultLease - 1500*time.Millisecond))
	if _, err := s.Renew(t.Context(), wr); err != nil || puts.Load() < 2 {
		t.Fatalf("%d renewals, %v", puts.Load(), err)
	}
}
