package bus

import (
	"context"
	"errors"
	"time"

	"sandkeep/internal/snapshot"
)

// slot is a request's turn to run. One goroutine uses it.
type slot struct {
	pool chan struct{}
	held bool
}

type slotKey struct{}

func slotOf(ctx context.Context) *slot {
	s, _ := ctx.Value(slotKey{}).(*slot)
	return s
}

// take waits for the turn; a request outside of any pool has it.
func (s *slot) take(ctx context.Context) error {
	if s == nil || s.held {
		return nil
	}
	select {
	case s.pool <- struct{}{}:
		s.held = true
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave gives the turn to others.
func (s *slot) leave() {
	if s != nil && s.held {
		s.held = false
		<-s.pool
	}
}

// YieldLeases makes requests that wait for a lease or lock of somebody else give
// their turn to others, the holder's own requests above all. They go on when
// they have both.
func YieldLeases(l snapshot.Leases) snapshot.Leases { return yieldLeases{l} }

type yieldLeases struct{ snapshot.Leases }

func (y yieldLeases) Acquire(ctx context.Context, thread snapshot.ThreadID, wait time.Duration) (snapshot.Lease, error) {
	lease, err := y.Leases.Acquire(ctx, thread, 0)
	if wait <= 0 || !errors.Is(err, snapshot.WriterConflict) {
		return lease, err
	}
	s := slotOf(ctx)
	s.leave()
	if lease, err = y.Leases.Acquire(ctx, thread, wait); err == nil {
		err = y.takeHolding(ctx, s, &lease)
	}
	return lease, err
}

// takeHolding waits for the turn and renews the lease meanwhile. When ctx ends
// what comes next fails, and gives the lease up.
func (y yieldLeases) takeHolding(ctx context.Context, s *slot, lease *snapshot.Lease) error {
	every := time.Duration(lease.RenewAfterMs) * time.Millisecond / 2 // most of it is left to whoever goes on
	for {
		turn, cancel := context.WithTimeout(ctx, max(every, 100*time.Millisecond))
		err := s.take(turn)
		cancel()
		if err == nil || ctx.Err() != nil {
			return nil
		}
		until, err := y.Renew(ctx, lease.Writer)
		if errors.Is(err, snapshot.WriterLost) {
			return err
		}
		if err == nil {
			lease.ExpiresAt = until
		}
	}
}

func (y yieldLeases) Lock(ctx context.Context, name snapshot.LockName, wait time.Duration, fn func(context.Context) error) error {
	held := false
	err := y.Leases.Lock(ctx, name, 0, func(ctx context.Context) error {
		held = true
		return fn(ctx)
	})
	if wait <= 0 || held || !errors.Is(err, snapshot.LockConflict) {
		return err
	}
	s := slotOf(ctx)
	s.leave()
	return y.Leases.Lock(ctx, name, wait, func(ctx context.Context) error {
		if err := s.take(ctx); err != nil {
			return err
		}
		return fn(ctx)
	})
}

// YieldCheckpoints is YieldLeases for forks, which wait for the lease by
// themselves.
func YieldCheckpoints(c snapshot.Checkpoints) snapshot.Checkpoints { return yieldCheckpoints{c} }

type yieldCheckpoints struct{ snapshot.Checkpoints }

func (y yieldCheckpoints) Fork(ctx context.Context, rec *snapshot.Record, wait time.Duration) error {
	if wait > 0 {
		slotOf(ctx).leave()
	}
	err := y.Checkpoints.Fork(ctx, rec, wait)
	_ = slotOf(ctx).take(ctx) // the reply may be large; after the commit no error counts
	return err
}
