package kvstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandkeep/internal/snapshot"
)

// errInFull sends the first try of a fork to the lease and the full steps.
var errInFull = errors.New("the thread is in use; take its lease")

// Fork makes rec the root of an empty thread. It needs no lease if nobody else
// touches that thread meanwhile. (§5)
func (s *Store) Fork(ctx context.Context, rec *snapshot.Record, wait time.Duration) error {
	data, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	a := &appending{s: s, rec: rec, data: data, fork: true} // of a thread without a head
	err = s.forkFree(ctx, a)
	if errors.Is(err, errInFull) {
		err = s.forkInFull(ctx, a, wait)
	}
	if err != nil {
		return fmt.Errorf("fork into thread %q: %w", rec.Thread, err)
	}
	return nil
}

// forkFree is the first try, without a lease.
func (s *Store) forkFree(ctx context.Context, a *appending) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.lookAtDestination(ctx, a.rec); err != nil { // step 1
		return err
	}
	th, err := s.createThread(ctx, a) // step 2
	if err != nil {
		return err
	}
	switch err := a.commit(ctx, th); { // step 3
	case err == nil:
		return nil
	case a.unresolved():
		return a.resolveFree(ctx, th)
	case errors.Is(err, errMoved):
		return errInFull
	default:
		return err
	}
}

// lookAtDestination is step 1 of the first try, and the one look at the
// destination's artifacts. That at the lease is courtesy: safety does not rest
// on it.
func (s *Store) lookAtDestination(ctx context.Context, rec *snapshot.Record) error {
	var (
		lease, artifact entry
		th              thread
	)
	err := inParallel(
		func() (err error) { lease, err = s.kv.get(ctx, writerKey(rec.Thread)); return err },
		func() (err error) { th, err = s.readThread(ctx, rec.Thread); return err },
		func() (err error) {
			artifact, err = s.nextLive(ctx, anyArtifactKey(rec.Thread), firstSequence)
			return err
		})
	switch {
	case err != nil:
		return err
	case th.Deleted:
		return threadDeleted(th.id)
	case artifact.live:
		return destinationNotEmpty(rec, "it has artifacts")
	case lease.live || th.exists:
		return errInFull
	}
	return nil
}

// createThread is step 2 of the first try: an empty thread, then its pointer
// and slot 1, each as the first value of its key. A pointer or slot that is
// older than the thread could be removed under the commit, so the thread is
// acknowledged first.
func (s *Store) createThread(ctx context.Context, a *appending) (thread, error) {
	th := thread{id: a.rec.Thread}
	seq, err := s.putThread(ctx, th, threadState{})
	if err == nil {
		th.seq, th.exists = seq, true
		err = a.place(ctx, 1, absent, absent)
	}
	if isAgain(err) {
		err = errInFull
	}
	return th, err
}

// resolveFree is R for the first try. It never makes a new attempt: fence 0
// and gen 0 also belong to a thread that was deleted and made anew.
func (a *appending) resolveFree(ctx context.Context, created thread) error {
	err := a.s.repeat(ctx, a.unresolved, func(ctx context.Context) error {
		th, err := a.s.readThread(ctx, a.rec.Thread)
		switch {
		case err != nil:
			return err
		case th.seq == created.seq:
			return a.commit(ctx, created) // the same again; it stays unresolved until it is answered
		case th.exists && th.seq < created.seq: // of an earlier life of the thread
			return errStale
		}
		return a.lookFree(ctx, th)
	})
	if err != nil {
		return unknownOutcome(a.rec, err)
	}
	return nil
}

func (a *appending) lookFree(ctx context.Context, th thread) error {
	visible, err := a.s.ownVisible(ctx, th, a.rec, 1)
	if err == nil && !visible {
		err = errUnknown
	}
	return err
}

// forkInFull takes the lease and appends from step 2 of §3. The record keeps
// its nonce.
func (s *Store) forkInFull(ctx context.Context, a *appending, wait time.Duration) error {
	lease, err := s.Acquire(ctx, a.rec.Thread, wait)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := s.cleanup(ctx)
		defer cancel()
		_ = s.Release(ctx, lease.Writer) // it expires by itself
	}()
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	th, err := s.readThread(ctx, a.rec.Thread)
	if err != nil {
		return err
	}
	a.fence = lease.Fence
	return a.run(ctx, th, false)
}

// ForkHeld is a fork by a writer that holds the destination's lease: the full
// steps, without the acquire. (§5)
func (s *Store) ForkHeld(ctx context.Context, rec *snapshot.Record, w snapshot.Writer) error {
	if w.ThreadID != rec.Thread {
		return writerOf(rec.Thread).lost("the writer is of another thread")
	}
	data, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	th, err := s.heldThread(ctx, w)
	var artifact entry
	if err == nil {
		artifact, err = s.nextLive(ctx, anyArtifactKey(rec.Thread), firstSequence)
	}
	if err == nil && artifact.live {
		err = destinationNotEmpty(rec, "it has artifacts")
	}
	if err == nil {
		a := &appending{s: s, rec: rec, data: data, fence: w.Fence, fork: true}
		err = a.run(ctx, th, false)
	}
	if err != nil {
		return fmt.Errorf("fork into thread %q: %w", rec.Thread, err)
	}
	return nil
}
