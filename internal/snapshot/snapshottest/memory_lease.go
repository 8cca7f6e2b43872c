package snapshottest

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"sandkeep/internal/snapshot"
)

// lease is the live lease of a name, or nil.
func (m *Memory) lease(name string) *memLease {
	l := m.leases[name]
	if l == nil || !m.now().Before(l.expires) {
		return nil
	}
	return l
}

func (m *Memory) holds(name, token string, fence uint64) bool {
	l := m.lease(name)
	return l != nil && l.token == token && l.fence == fence
}

// take takes a free lease, or returns the channel that tells of the next
// release and the time until the expiry.
func (m *Memory) take(name string, ttl time.Duration, busy *snapshot.Error) (l memLease, freed <-chan struct{}, left time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if held := m.lease(name); held != nil {
		err := busy.With("holder", "memory").With("since", held.since.UnixMilli()).With("expiresAt", held.expires.UnixMilli())
		return memLease{}, m.freed, held.expires.Sub(now), err
	}
	l = memLease{token: rand.Text(), fence: m.nextSeq(), since: now, ttl: ttl, expires: now.Add(ttl)}
	stored := l
	m.leases[name] = &stored
	return l, nil, 0, nil
}

func (m *Memory) acquire(ctx context.Context, name string, ttl, wait time.Duration, busy *snapshot.Error) (memLease, error) {
	ends := time.NewTimer(max(wait, 0))
	defer ends.Stop()
	for {
		l, freed, left, err := m.take(name, ttl, busy)
		if err == nil || wait <= 0 {
			return l, err
		}
		expiry := time.NewTimer(left)
		select {
		case <-freed:
		case <-expiry.C:
		case <-ends.C:
			wait = 0
		case <-ctx.Done():
			return memLease{}, ctx.Err()
		}
		expiry.Stop()
	}
}

func (m *Memory) renew(name, token string, fence uint64, gone *snapshot.Error) (time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if !m.holds(name, token, fence) || m.leases[name].expires.Sub(now) <= time.Second {
		return time.Time{}, gone
	}
	m.leases[name].expires = now.Add(m.leases[name].ttl)
	return m.leases[name].expires, nil
}

func (m *Memory) release(name, token string, fence uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holds(name, token, fence) {
		delete(m.leases, name)
		close(m.freed)
		m.freed = make(chan struct{})
	}
}

// leaseSeconds checks a lease duration and rounds it up to whole seconds.
func leaseSeconds(d time.Duration) (time.Duration, error) {
	if d < 3*time.Second || d > 600*time.Second {
		return 0, snapshot.Errorf(snapshot.BadRequest, "a lease of %v is not between 3s and 10m", d)
	}
	return (d + time.Second - 1).Truncate(time.Second), nil
}

func (m *Memory) Acquire(ctx context.Context, id snapshot.ThreadID, wait time.Duration) (snapshot.Lease, error) {
	return m.acquireThread(ctx, id, m.ttl, wait)
}

func (m *Memory) AcquireFor(ctx context.Context, id snapshot.ThreadID, ttl, wait time.Duration) (snapshot.Lease, error) {
	ttl, err := leaseSeconds(ttl)
	if err != nil {
		return snapshot.Lease{}, err
	}
	return m.acquireThread(ctx, id, ttl, wait)
}

func (m *Memory) acquireThread(ctx context.Context, id snapshot.ThreadID, ttl, wait time.Duration) (snapshot.Lease, error) {
	busy := snapshot.Errorf(snapshot.WriterConflict, "thread %q is held", id).With("threadId", string(id))
	l, err := m.acquire(ctx, writerName(id), ttl, wait, busy)
	if err != nil {
		return snapshot.Lease{}, err
	}
	m.mu.Lock()
	err = m.refuse(id)
	if err == nil {
		m.thread(id)
	}
	m.mu.Unlock()
	if err != nil {
		m.release(writerName(id), l.token, l.fence)
		return snapshot.Lease{}, err
	}
	return snapshot.Lease{Writer: snapshot.Writer{ThreadID: id, OwnerToken: l.token, Fence: l.fence},
		ExpiresAt: snapshot.Millis(l.expires.UnixMilli()), RenewAfterMs: l.ttl.Milliseconds() / 3}, nil
}

func (m *Memory) Holds(ctx context.Context, w snapshot.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.admit(w.ThreadID, w)
}

func (m *Memory) Renew(ctx context.Context, w snapshot.Writer) (snapshot.Millis, error) {
	gone := snapshot.Errorf(snapshot.WriterLost, "thread %q is no longer yours", w.ThreadID).With("threadId", string(w.ThreadID))
	until, err := m.renew(writerName(w.ThreadID), w.OwnerToken, w.Fence, gone)
	if err != nil {
		return 0, err
	}
	return snapshot.Millis(until.UnixMilli()), nil
}

func (m *Memory) Release(ctx context.Context, w snapshot.Writer) error {
	m.release(writerName(w.ThreadID), w.OwnerToken, w.Fence)
	return nil
}

func lockBusy(name snapshot.LockName) *snapshot.Error {
	return snapshot.Errorf(snapshot.LockConflict, "lock %q is held", name).With("name", string(name))
}

func lockGone(name snapshot.LockName) *snapshot.Error {
	return snapshot.Errorf(snapshot.LockLost, "lock %q is no longer yours", name).With("name", string(name))
}

func (m *Memory) AcquireLock(ctx context.Context, name snapshot.LockName, ttl, wait time.Duration) (snapshot.LockLease, error) {
	var err error
	if ttl == 0 {
		ttl = m.ttl
	} else if ttl, err = leaseSeconds(ttl); err != nil {
		return snapshot.LockLease{}, err
	}
	l, err := m.acquire(ctx, lockName(name), ttl, wait, lockBusy(name))
	if err != nil {
		return snapshot.LockLease{}, err
	}
	return snapshot.LockLease{Lock: snapshot.Lock{Name: name, OwnerToken: l.token, Fence: l.fence},
		ExpiresAt: snapshot.Millis(l.expires.UnixMilli()), RenewAfterMs: l.ttl.Milliseconds() / 3}, nil
}

func (m *Memory) RenewLock(ctx context.Context, l snapshot.Lock) (snapshot.Millis, error) {
	until, err := m.renew(lockName(l.Name), l.OwnerToken, l.Fence, lockGone(l.Name))
	if err != nil {
		return 0, err
	}
	return snapshot.Millis(until.UnixMilli()), nil
}

func (m *Memory) ReleaseLock(ctx context.Context, l snapshot.Lock) error {
	m.release(lockName(l.Name), l.OwnerToken, l.Fence)
	return nil
}

func (m *Memory) Lock(ctx context.Context, name snapshot.LockName, wait time.Duration, fn func(context.Context) error) error {
	busy, gone := lockBusy(name), lockGone(name)
	l, err := m.acquire(ctx, lockName(name), m.ttl, wait, busy)
	if err != nil {
		return err
	}
	defer m.release(lockName(name), l.token, l.fence)
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	kept := make(chan error, 1)
	go func() { kept <- m.keep(inner, cancel, lockName(name), l, gone) }()
	err = fn(inner)
	cancel(context.Canceled)
	if lost := <-kept; lost != nil {
		return errors.Join(lost, err)
	}
	return err
}

func (m *Memory) keep(ctx context.Context, cancel context.CancelCauseFunc, name string, l memLease, gone *snapshot.Error) error {
	tick := time.NewTicker(l.ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := m.renew(name, l.token, l.fence, gone); err != nil {
				cancel(err)
				return err
			}
		}
	}
}
