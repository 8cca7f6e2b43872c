package kvstore

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandkeep/internal/snapshot"
)

// holder is the value of a lease or lock. The first value of a lease has no
// fence: its own sequence is the fence, which renewals keep.
type holder struct {
	Owner     string            `json:"owner"` // SHA-256 of the token
	Fence     uint64            `json:"fence,omitempty"`
	Node      snapshot.NodeName `json:"node"`
	Operation string            `json:"operation,omitempty"`
	Since     int64             `json:"since"`     // epoch milliseconds
	ExpiresAt int64             `json:"expiresAt"` // by the clock of its holder; the server decides
	LeaseMs   int64             `json:"leaseMs"`
}

// lease is a holder as it was read.
type lease struct {
	holder
	seq  uint64
	live bool
}

func (l lease) fence() uint64 {
	if l.Fence != 0 {
		return l.Fence
	}
	return l.seq
}

func (l lease) isOf(token string, fence uint64) bool {
	return l.live && l.Owner == hashToken(token) && l.fence() == fence
}

// target is what can be held: a thread or a named lock.
type target struct {
	key, kind, name string
	detail          string // name of the detail that says which
	conflictCode    snapshot.Code
	lostCode        snapshot.Code
}

func writerOf(id snapshot.ThreadID) target {
	return target{key: writerKey(id), kind: "thread", name: string(id), detail: "threadId", conflictCode: snapshot.WriterConflict, lostCode: snapshot.WriterLost}
}

func lockOf(name snapshot.LockName) target {
	return target{key: lockKey(name), kind: "lock", name: string(name), detail: "name", conflictCode: snapshot.LockConflict, lostCode: snapshot.LockLost}
}

func (t target) conflict(l lease, now time.Time) error {
	if !l.live {
		return snapshot.Errorf(t.conflictCode, "%s %q went to another holder at the same time; try again", t.kind, t.name).With(t.detail, t.name)
	}
	until := time.UnixMilli(l.ExpiresAt)
	held := fmt.Sprintf("is held by node %q until %s; wait for it or try again then", l.Node, until.UTC().Format(time.RFC3339))
	if until.Before(now) {
		held = fmt.Sprintf("still has a lease of node %q that is over; try again, and if it stays, give the NATS servers more storage: full ones end no lease", l.Node)
	}
	return snapshot.Errorf(t.conflictCode, "%s %q %s", t.kind, t.name, held).
		With(t.detail, t.name).With("holder", l.Node).With("since", l.Since).With("expiresAt", l.ExpiresAt)
}

func (t target) lost(why string) *snapshot.Error {
	return snapshot.Errorf(t.lostCode, "%s %q is no longer yours: %s; acquire it again", t.kind, t.name, why).With(t.detail, t.name)
}

func newToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// leaseSeconds checks a lease duration and rounds it up to whole seconds.
func leaseSeconds(d, least time.Duration) (time.Duration, error) {
	if d < least || d > MaxLease {
		return 0, snapshot.Errorf(snapshot.BadRequest, "a lease of %v is not between %v and %v", d.Truncate(time.Millisecond), least, MaxLease)
	}
	return (d + time.Second - 1).Truncate(time.Second), nil
}

func (s *Store) readLease(ctx context.Context, t target) (lease, error) {
	e, err := s.kv.get(ctx, t.key)
	if err != nil || !e.live {
		return lease{seq: e.seq}, err
	}
	l := lease{seq: e.seq, live: true}
	return l, decode(e, &l.holder)
}

// holds fails if the token does not hold the target now.
func (s *Store) holds(ctx context.Context, t target, token string, fence uint64) error {
	l, err := s.readLease(ctx, t)
	if err == nil && !l.isOf(token, fence) {
		err = t.lost("its lease ended or went to another")
	}
	return err
}

// Holds fails unless w is the thread's current writer.
func (s *Store) Holds(ctx context.Context, w snapshot.Writer) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err := s.holds(ctx, writerOf(w.ThreadID), w.OwnerToken, w.Fence)
	if errors.Is(err, snapshot.WriterLost) { // that the thread is gone tells more
		if th, readErr := s.readThread(ctx, w.ThreadID); readErr == nil && th.Deleted {
			err = threadDeleted(w.ThreadID)
		}
	}
	return err
}

// Acquire takes the thread's lease for the store's lease time.
func (s *Store) Acquire(ctx context.Context, id snapshot.ThreadID, wait time.Duration) (snapshot.Lease, error) {
	return s.AcquireFor(ctx, id, s.ttl, wait)
}

// AcquireFor takes the thread's lease for a time of the caller's choice, in
// whole seconds, rounded up. (§1)
func (s *Store) AcquireFor(ctx context.Context, id snapshot.ThreadID, ttl, wait time.Duration) (snapshot.Lease, error) {
	ttl, err := leaseSeconds(ttl, s.minLease)
	if err != nil {
		return snapshot.Lease{}, err
	}
	held, err := s.hold(ctx, writerOf(id), ttl, wait, func(ctx context.Context, l lease) error { return s.moveFence(ctx, id, l) })
	if err != nil {
		return snapshot.Lease{}, fmt.Errorf("acquire thread %q: %w", id, err)
	}
	return snapshot.Lease{Writer: snapshot.Writer{ThreadID: id, OwnerToken: held.token, Fence: held.fence()},
		ExpiresAt: snapshot.Millis(held.ExpiresAt), RenewAfterMs: ttl.Milliseconds() / 3}, nil
}

// ownLease is a lease with the token that it was taken with.
type ownLease struct {
	lease
	token string
	sent  bool // something may have to be given up
	lost  bool // a reply to it: it may land yet
}

// hold takes a target, waiting for it if it is held, and then does what makes
// the lease good. If that fails it leaves no lease behind.
func (s *Store) hold(ctx context.Context, t target, ttl, wait time.Duration, confirm func(context.Context, lease) error) (*ownLease, error) {
	own := &ownLease{token: newToken()}
	err := s.waiting(ctx, t, wait, func(ctx context.Context) error {
		ctx, cancel := s.bounded(ctx)
		defer cancel()
		err := s.repeat(ctx, nothingUnresolved, func(ctx context.Context) error { return s.take(ctx, t, own, ttl) })
		if err != nil {
			return err
		}
		return s.repeat(ctx, nothingUnresolved, func(ctx context.Context) error { return confirm(ctx, own.lease) })
	})
	if err != nil && own.sent && !errors.Is(err, t.conflictCode) {
		s.abandon(ctx, t, own)
	}
	return own, err
}

// take is steps 1 and 2 of §1.
func (s *Store) take(ctx context.Context, t target, own *ownLease, ttl time.Duration) error {
	l, err := s.readLease(ctx, t)
	owner := hashToken(own.token)
	switch {
	case err != nil:
		return err
	case l.live && l.Owner == owner: // an earlier reply was lost
		own.lease = l
		return nil
	case l.live:
		return t.conflict(l, s.now())
	}
	now := s.now()
	mine := lease{live: true, holder: holder{Owner: owner, Node: s.node, Since: now.UnixMilli(), ExpiresAt: now.Add(ttl).UnixMilli(), LeaseMs: ttl.Milliseconds()}}
	own.sent = true
	mine.seq, err = s.putLease(ctx, t, mine.holder, l.seq)
	own.lost = own.lost || errors.Is(err, errLost)
	if err == nil {
		own.lease = mine
	}
	return err
}

// putLease writes a lease with its TTL and the expected sequence: a plain
// update would drop the TTL and make the lease immortal.
func (s *Store) putLease(ctx context.Context, t target, h holder, expect uint64) (uint64, error) {
	data, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	return s.kv.put(ctx, write{key: t.key, value: data, expect: expect, ttl: time.Duration(h.LeaseMs) * time.Millisecond})
}

// moveFence is steps 3 and 4 of §1. It fences off every holder before.
func (s *Store) moveFence(ctx context.Context, id snapshot.ThreadID, l lease) error {
	t := writerOf(id)
	th, err := s.readThread(ctx, id)
	switch {
	case err != nil:
		return err
	case th.Deleted: // hold gives the lease up
		return threadDeleted(id)
	case th.Fence == l.seq:
		return nil
	case th.Fence > l.seq: // a later holder was here
		_ = s.vacate(ctx, t, l.seq) // or it expires
		rival, err := s.readLease(ctx, t)
		if err != nil {
			return err
		}
		return t.conflict(rival, s.now())
	}
	next := th.threadState // an absent thread becomes an empty state
	next.Fence = l.seq
	_, err = s.putThread(ctx, th, next)
	return err
}

// vacate is the conditional removal of an own lease. A full server has no room
// for its marker, nor for the one of the expiry: the lease is purged then, which
// is as if the marker were gone at once. Those who wait see it at their next look.
func (s *Store) vacate(ctx context.Context, t target, seq uint64) error {
	_, err := s.kv.put(ctx, removal(t, seq))
	if errors.Is(err, snapshot.StoreFull) {
		err = s.kv.purge(ctx, t.key, seq)
	}
	return err
}

// removal leaves a marker, so that those who wait are woken.
func removal(t target, expect uint64) write {
	return write{key: t.key, expect: expect, ttl: markerTTL, remove: true}
}

// abandon gives up what an acquire that failed may have taken. A write that is
// still on its way expects the key as it is: a marker keeps it from landing.
func (s *Store) abandon(ctx context.Context, t target, own *ownLease) {
	ctx, cancel := s.cleanup(ctx)
	defer cancel()
	_ = s.repeat(ctx, nothingUnresolved, func(ctx context.Context) error { // or the lease expires
		l, err := s.readLease(ctx, t)
		switch {
		case err != nil:
			return err
		case l.live && l.Owner == hashToken(own.token):
			err = s.vacate(ctx, t, l.seq)
		case !l.live && own.lost:
			_, err = s.kv.put(ctx, removal(t, l.seq))
		}
		return err
	})
}

// Renew extends the lease by its own duration. (§2)
func (s *Store) Renew(ctx context.Context, w snapshot.Writer) (snapshot.Millis, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	until, err := s.renew(ctx, writerOf(w.ThreadID), w.OwnerToken, w.Fence)
	if err != nil {
		return 0, fmt.Errorf("renew lease of thread %q: %w", w.ThreadID, err)
	}
	return snapshot.Millis(until.UnixMilli()), nil
}

func (s *Store) renew(ctx context.Context, t target, token string, fence uint64) (until time.Time, err error) {
	err = s.repeat(ctx, nothingUnresolved, func(ctx context.Context) (err error) {
		until, err = s.tryRenew(ctx, t, token, fence)
		return err
	})
	return until, err
}

func (s *Store) tryRenew(ctx context.Context, t target, token string, fence uint64) (time.Time, error) {
	l, err := s.readLease(ctx, t)
	if err != nil {
		return time.Time{}, err
	}
	if !l.isOf(token, fence) {
		return time.Time{}, t.lost("its lease ended or went to another")
	}
	now := s.now()
	ends := time.UnixMilli(l.ExpiresAt).Add(-time.Second) // from then on the expiry could still wipe an acknowledged renewal
	if !now.Before(ends) {
		return time.Time{}, t.lost("its lease is in its last second")
	}
	until := now.Add(time.Duration(l.LeaseMs) * time.Millisecond)
	next := l.holder
	next.Fence, next.ExpiresAt = fence, until.UnixMilli()
	inTime, cancel := context.WithTimeout(ctx, ends.Sub(now))
	defer cancel()
	_, err = s.putLease(inTime, t, next, l.seq)
	// A process that was stopped may read at last a reply that came in time.
	if late := inTime.Err() != nil || !s.now().Before(ends); late && ctx.Err() == nil {
		err = errLost // the next look says what became of it
	}
	return until, err
}

// Release gives the lease up; a writer that is not current is a no-op. (§2)
func (s *Store) Release(ctx context.Context, w snapshot.Writer) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.release(ctx, writerOf(w.ThreadID), w.OwnerToken, w.Fence); err != nil {
		return fmt.Errorf("release lease of thread %q: %w", w.ThreadID, err)
	}
	return nil
}

func (s *Store) release(ctx context.Context, t target, token string, fence uint64) error {
	return s.repeat(ctx, nothingUnresolved, func(ctx context.Context) error {
		l, err := s.readLease(ctx, t)
		if err != nil || !l.isOf(token, fence) {
			return err
		}
		return s.vacate(ctx, t, l.seq)
	})
}
