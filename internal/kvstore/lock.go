package kvstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

// Lock holds a named lock while fn runs and renews it meanwhile. When the lock
// is lost, fn's context is canceled with the cause LockLost, which is then the
// error even if fn returns none.
func (s *Store) Lock(ctx context.Context, name snapshot.LockName, wait time.Duration, fn func(context.Context) error) error {
	t := lockOf(name)
	held, err := s.hold(ctx, t, s.ttl, wait, confirmed)
	if err != nil {
		return fmt.Errorf("take lock %q: %w", name, err)
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var renewing errgroup.Group
	renewing.Go(func() error {
		err := s.keep(inner, t, held)
		cancel(err)
		return err
	})
	err = fn(inner)
	cancel(context.Canceled) // ends the renewals
	lost := renewing.Wait()

	out, done := s.cleanup(ctx)
	defer done()
	_ = s.release(out, t, held.token, held.fence()) // it expires by itself
	if lost != nil {
		return fmt.Errorf("hold lock %q: %w", name, errors.Join(lost, err))
	}
	return err
}

// AcquireLock takes a named lock, for the store's lease time if ttl is 0. (§1)
func (s *Store) AcquireLock(ctx context.Context, name snapshot.LockName, ttl, wait time.Duration) (snapshot.LockLease, error) {
	if ttl == 0 {
		ttl = s.ttl
	}
	ttl, err := leaseSeconds(ttl, s.minLease)
	if err != nil {
		return snapshot.LockLease{}, err
	}
	held, err := s.hold(ctx, lockOf(name), ttl, wait, confirmed)
	if err != nil {
		return snapshot.LockLease{}, fmt.Errorf("take lock %q: %w", name, err)
	}
	return snapshot.LockLease{Lock: snapshot.Lock{Name: name, OwnerToken: held.token, Fence: held.fence()},
		ExpiresAt: snapshot.Millis(held.ExpiresAt), RenewAfterMs: ttl.Milliseconds() / 3}, nil
}

// RenewLock extends a lock by its own duration. (§2)
func (s *Store) RenewLock(ctx context.Context, l snapshot.Lock) (snapshot.Millis, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	until, err := s.renew(ctx, lockOf(l.Name), l.OwnerToken, l.Fence)
	if err != nil {
		return 0, fmt.Errorf("renew lock %q: %w", l.Name, err)
	}
	return snapshot.Millis(until.UnixMilli()), nil
}

// ReleaseLock gives a lock up; a holder that is not current is a no-op. (§2)
func (s *Store) ReleaseLock(ctx context.Context, l snapshot.Lock) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.release(ctx, lockOf(l.Name), l.OwnerToken, l.Fence); err != nil {
		return fmt.Errorf("release lock %q: %w", l.Name, err)
	}
	return nil
}

// confirmed is for locks: they are good as soon as they are taken.
func confirmed(context.Context, lease) error { return nil }

// keep renews a lease, one renewal at a time, until the context is over (nil)
// or the lease is lost. It looks at the clock every second, because a machine
// that slept wakes with its timers late.
func (s *Store) keep(ctx context.Context, t target, held *ownLease) error {
	every := time.Duration(held.LeaseMs) * time.Millisecond / 3
	tick := time.NewTicker(min(every/4, time.Second))
	defer tick.Stop()
	until, renewed := time.UnixMilli(held.ExpiresAt), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due := until.Add(-2 * every) // by the wall clock, which a machine that slept did not stop
		if time.Since(renewed) < every && s.now().Before(due) {
			continue
		}
		now := time.Now()
		next, err := s.renewBefore(ctx, t, held, until.Add(-time.Second))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		until, renewed = next, now
	}
}

// renewBefore tries until the holder's own deadline: one renewal without an
// answer is not a lost lease.
func (s *Store) renewBefore(ctx context.Context, t target, held *ownLease, deadline time.Time) (time.Time, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for try := 0; ; try++ {
		// Half of what is left: one lost reply leaves time for another try.
		one, done := context.WithTimeout(ctx, max(time.Until(deadline), time.Second)/2)
		until, err := s.renew(one, t, held.token, held.fence())
		done()
		if err == nil || errors.Is(err, t.lostCode) {
			return until, err
		}
		if pause(ctx, try) != nil {
			return time.Time{}, t.lost("it could not be renewed in time").Because(err)
		}
	}
}
