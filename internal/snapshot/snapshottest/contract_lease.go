package snapshottest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandkeep/internal/snapshot"
)

// LeasesContract checks what every snapshot.Leases must do. The stores that
// open makes must have leases of two to five seconds.
func LeasesContract(t *testing.T, open func(*testing.T) Stores) {
	cases := map[string]func(*testing.T, Stores){
		"one holder":       oneHolder,
		"durations":        durations,
		"named locks":      namedLocks,
		"renew":            renewing,
		"expiry":           expiry,
		"wait for release": waitForRelease,
		"wait for expiry":  waitForExpiry,
		"wait canceled":    waitCanceled,
		"lock":             lockHeld,
		"lock renewed":     lockRenewed,
		"locks exclude":    locksExclude,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, open(t))
		})
	}
}

func oneHolder(t *testing.T, s Stores) {
	ctx := t.Context()
	l, err := s.Acquire(ctx, "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	if l.ThreadID != "t" || l.OwnerToken == "" || l.Fence == 0 || l.RenewAfterMs <= 0 || float64(l.ExpiresAt) < float64(time.Now().UnixMilli()) {
		t.Fatalf("lease %v of %v until %v, renew after %d ms", l, l.ThreadID, l.ExpiresAt, l.RenewAfterMs)
	}
	_, err = s.Acquire(ctx, "t", 0)
	d := wantCode(t, err, snapshot.WriterConflict)
	for _, name := range []string{"threadId", "holder", "since", "expiresAt"} {
		if d[name] == nil {
			t.Errorf("details %v lack %s", d, name)
		}
	}
	writer(t, s, "u") // another thread is free

	stranger := snapshot.Writer{ThreadID: "t", OwnerToken: "guess", Fence: l.Fence}
	if err := s.Release(ctx, stranger); err != nil {
		t.Fatalf("release by a stranger is a no-op, not %v", err)
	}
	_, err = s.Acquire(ctx, "t", 0)
	wantCode(t, err, snapshot.WriterConflict)
	if err := errors.Join(s.Release(ctx, l.Writer), s.Release(ctx, l.Writer)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.Holds(ctx, l.Writer), snapshot.WriterLost)
	next := writer(t, s, "t")
	wantCode(t, s.Holds(ctx, l.Writer), snapshot.WriterLost)
	wantCode(t, s.Holds(ctx, snapshot.Writer{ThreadID: "t", OwnerToken: next.OwnerToken, Fence: l.Fence}), snapshot.WriterLost)
	if err := s.Holds(ctx, next); err != nil {
		t.Fatal(err)
	}
	if next.Fence <= l.Fence || next.OwnerToken == l.OwnerToken {
		t.Fatalf("fence %d after %d, tokens equal: %t", next.Fence, l.Fence, next.OwnerToken == l.OwnerToken)
	}
}

func durations(t *testing.T, s Stores) {
	ctx := t.Context()
	for _, ttl := range []time.Duration{-time.Second, 600*time.Second + time.Millisecond, time.Hour} {
		_, err := s.AcquireFor(ctx, "t", ttl, 0)
		wantCode(t, err, snapshot.BadRequest)
		_, err = s.AcquireLock(ctx, "l", ttl, 0)
		wantCode(t, err, snapshot.BadRequest)
	}
	_, err := s.AcquireFor(ctx, "t", 0, 0)
	wantCode(t, err, snapshot.BadRequest)
	l, err := s.AcquireFor(ctx, "t", 8001*time.Millisecond, 0)
	if err != nil || l.RenewAfterMs != 3000 {
		t.Fatalf("renew after %d ms, %v", l.RenewAfterMs, err)
	}
	until, err := s.Renew(ctx, l.Writer)
	if left := float64(until) - float64(time.Now().UnixMilli()); err != nil || left < 5000 || left > 9000 {
		t.Fatalf("renewed for %v ms, %v; want its own 9000", left, err)
	}
	longest, err := s.AcquireLock(ctx, "l", 600*time.Second, 0)
	if err != nil || longest.RenewAfterMs != 200_000 {
		t.Fatalf("renew after %d ms, %v", longest.RenewAfterMs, err)
	}
}

func namedLocks(t *testing.T, s Stores) {
	ctx := t.Context()
	l, err := s.AcquireLock(ctx, "l", 0, 0)
	if err != nil || l.Name != "l" || l.OwnerToken == "" || l.Fence == 0 || l.RenewAfterMs <= 0 || float64(l.ExpiresAt) < float64(time.Now().UnixMilli()) {
		t.Fatalf("lock %v until %v, renew after %d ms, %v", l, l.ExpiresAt, l.RenewAfterMs, err)
	}
	_, err = s.AcquireLock(ctx, "l", 0, 0)
	d := wantCode(t, err, snapshot.LockConflict)
	for _, name := range []string{"name", "holder", "since", "expiresAt"} {
		if d[name] == nil {
			t.Errorf("details %v lack %s", d, name)
		}
	}
	wantCode(t, s.Lock(ctx, "l", 0, func(context.Context) error { t.Error("entered"); return nil }), snapshot.LockConflict)
	writer(t, s, "l") // a thread of the same name is another thing
	if until, err := s.RenewLock(ctx, l.Lock); err != nil || until < l.ExpiresAt {
		t.Fatalf("renewed until %v, %v; before %v", until, err, l.ExpiresAt)
	}
	forged, oldFence := l.Lock, l.Lock
	forged.OwnerToken = "guess"
	oldFence.Fence++
	for _, bad := range []snapshot.Lock{forged, oldFence, {Name: "l"}, {Name: "never", OwnerToken: "x"}} {
		_, err = s.RenewLock(ctx, bad)
		wantCode(t, err, snapshot.LockLost)
		if err := s.ReleaseLock(ctx, bad); err != nil {
			t.Fatalf("release by a stranger is a no-op, not %v", err)
		}
	}
	got := make(chan error, 1)
	go func() {
		next, err := s.AcquireLock(ctx, "l", 0, Soon)
		if err == nil && next.Fence <= l.Fence {
			err = fmt.Errorf("fence %d after %d", next.Fence, l.Fence)
		}
		got <- err
	}()
	if err := s.ReleaseLock(ctx, l.Lock); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	_, err = s.RenewLock(ctx, l.Lock)
	wantCode(t, err, snapshot.LockLost)
}

func renewing(t *testing.T, s Stores) {
	ctx := t.Context()
	l, err := s.Acquire(ctx, "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	until, err := s.Renew(ctx, l.Writer)
	if err != nil || until < l.ExpiresAt {
		t.Fatalf("renewed until %v, %v; before %v", until, err, l.ExpiresAt)
	}
	// The fence and the token stay good.
	mustAppend(t, s, l.Writer, "c1", "")
	stranger := snapshot.Writer{ThreadID: "t", OwnerToken: "guess", Fence: l.Fence}
	for _, w := range []snapshot.Writer{stranger, {ThreadID: "never", OwnerToken: "x"}} {
		_, err = s.Renew(ctx, w)
		wantCode(t, err, snapshot.WriterLost)
	}
	if err := s.Release(ctx, l.Writer); err != nil {
		t.Fatal(err)
	}
	_, err = s.Renew(ctx, l.Writer)
	wantCode(t, err, snapshot.WriterLost)
}

// expiry: a lease ends after its holder is gone, also one that was renewed,
// and its marker does not stand in the way of the next.
func expiry(t *testing.T, s Stores) {
	old := writer(t, s, "t")
	first := mustAppend(t, s, old, "c1", "")
	if _, err := s.Renew(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	next := eventuallyAcquire(t, s, "t")
	if next.Fence <= old.Fence {
		t.Fatalf("fence %d after %d", next.Fence, old.Fence)
	}
	// The old holder wakes up.
	wantCode(t, s.Append(t.Context(), Record("t", "late", "c1"), "c1", old), snapshot.WriterLost)
	_, err := s.Renew(t.Context(), old)
	wantCode(t, err, snapshot.WriterLost)
	if err := s.Release(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	wantChain(t, s, "t", first, mustAppend(t, s, next, "c2", "c1"))
}

// eventuallyAcquire tries until the lease is free.
func eventuallyAcquire(t *testing.T, s Stores, id snapshot.ThreadID) snapshot.Writer {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(Soon); time.Now().Before(end); <-tick.C {
		l, err := s.Acquire(t.Context(), id, 0)
		if err == nil {
			return l.Writer
		}
		wantCode(t, err, snapshot.WriterConflict)
	}
	t.Fatalf("thread %q is still held", id)
	return snapshot.Writer{}
}

func waitForRelease(t *testing.T, s Stores) {
	ctx := t.Context()
	w := writer(t, s, "t")
	got := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, "t", Soon)
		got <- err
	}()
	if err := s.Release(ctx, w); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	_, err := s.Acquire(ctx, "t", time.Millisecond) // held by the waiter now
	wantCode(t, err, snapshot.WriterConflict)
}

func waitForExpiry(t *testing.T, s Stores) {
	old := writer(t, s, "t")
	l, err := s.Acquire(t.Context(), "t", Soon)
	if err != nil || l.Fence <= old.Fence {
		t.Fatalf("fence %d after %d, %v", l.Fence, old.Fence, err)
	}
}

func waitCanceled(t *testing.T, s Stores) {
	w := writer(t, s, "t")
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, "t", Soon)
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatalf("error is %v, want canceled", err)
	}
	if err := s.Release(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	writer(t, s, "t") // the canceled one left no lease
}

func lockHeld(t *testing.T, s Stores) {
	ctx := t.Context()
	fault := errors.New("fault")
	err := s.Lock(ctx, "l", 0, func(inner context.Context) error {
		if inner.Err() != nil {
			t.Error("the context of a held lock is over")
		}
		d := wantCode(t, s.Lock(ctx, "l", 0, func(context.Context) error { t.Error("entered"); return nil }), snapshot.LockConflict)
		if d["holder"] == nil || d["expiresAt"] == nil {
			t.Errorf("details %v lack the holder", d)
		}
		return errors.Join(fault, s.Lock(ctx, "other", 0, func(context.Context) error { return nil }))
	})
	if !errors.Is(err, fault) {
		t.Fatalf("error is %v, want that of the function", err)
	}
	if err := s.Lock(ctx, "l", 0, func(context.Context) error { return nil }); err != nil {
		t.Fatalf("the lock was not released: %v", err)
	}
	writer(t, s, "l") // a thread of the same name is another thing
}

// lockRenewed: a lock outlives its lease time while its function runs. A second
// one with the same duration, taken before, marks the time.
func lockRenewed(t *testing.T, s Stores) {
	ctx := t.Context()
	err := s.Lock(ctx, "l", 0, func(inner context.Context) error {
		for i := range 2 {
			writer(t, s, snapshot.ThreadID(fmt.Sprint("clock", i)))
			eventuallyAcquire(t, s, snapshot.ThreadID(fmt.Sprint("clock", i)))
		}
		wantCode(t, s.Lock(ctx, "l", 0, func(context.Context) error { return nil }), snapshot.LockConflict)
		return inner.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func locksExclude(t *testing.T, s Stores) {
	var inside, entered atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			err := s.Lock(t.Context(), "l", 2*Soon, func(context.Context) error {
				if inside.Add(1) != 1 {
					t.Error("two holders at once")
				}
				entered.Add(1)
				inside.Add(-1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if entered.Load() != 8 {
		t.Fatalf("%d of 8 entered", entered.Load())
	}
}
