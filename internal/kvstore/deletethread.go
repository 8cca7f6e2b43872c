package kvstore

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

// DeleteThread leaves a tombstone, which refuses every write until a sweep
// removes it, and removes the rest at once. (§7)
func (s *Store) DeleteThread(ctx context.Context, id snapshot.ThreadID) (int64, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var (
		count int64
		seen  uint64
		lost  bool
	)
	err := s.repeat(ctx, nothingUnresolved, func(ctx context.Context) error {
		artifacts, err := s.kv.get(ctx, anyArtifactKey(id)) // the newest one
		if err != nil {
			return err
		}
		th, err := s.readThread(ctx, id)
		switch {
		case err != nil:
			return err
		case th.exists && th.seq < seen:
			return errStale
		case th.Deleted:
			return nil
		case !th.exists: // it may have artifacts all the same
			return s.kv.purge(ctx, anyArtifactKey(id), artifacts.seq)
		}
		seen = th.seq
		err = s.entomb(ctx, th)
		if err == nil {
			count = th.Depth
		}
		if lost = errors.Is(err, errLost); lost {
			err = errUnknown
		}
		return err
	})
	if lost {
		err = snapshot.Errorf(snapshot.Timeout, "the store did not confirm that thread %q was deleted; read its head, or send the same request again", id).
			With("outcome", "unknown").With("threadId", id).Because(err)
	}
	if err != nil {
		return 0, fmt.Errorf("delete thread %q: %w", id, err)
	}
	return count, nil
}

// entomb deletes a live thread that nobody holds. The lease is read after the
// thread: whoever acquires it meanwhile moves the thread's sequence.
func (s *Store) entomb(ctx context.Context, th thread) error {
	t := writerOf(th.id)
	l, err := s.readLease(ctx, t)
	if err != nil {
		return err
	}
	if l.live {
		return t.conflict(l, s.now())
	}
	left, err := s.leftOf(ctx, th)
	if err != nil {
		return err
	}
	tomb, err := s.putThreadFreeing(ctx, th, threadState{Deleted: true, DeletedAt: s.now().UnixMilli(), Fence: th.seq, Gen: th.Gen + 1})
	if err != nil {
		return err
	}
	s.removeLeft(ctx, append(left, leftover{anyArtifactKey(th.id), tomb}))
	return nil
}

// leftOf are the slots and pointers of a thread with their sequences.
func (s *Store) leftOf(ctx context.Context, th thread) ([]leftover, error) {
	left := make([]leftover, 2*th.Depth, 2*th.Depth+1)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i := range th.Depth {
		g.Go(func() error {
			sl, err := s.readSlot(ctx, th.id, i+1)
			if err != nil {
				return err
			}
			if !sl.belongsTo(th) {
				return errMoved
			}
			p, err := s.kv.get(ctx, pointerKey(sl.rec.ID))
			left[2*i], left[2*i+1] = leftover{slotKey(th.id, i+1), sl.seq}, leftover{pointerKey(sl.rec.ID), p.seq}
			return err
		})
	}
	return left, g.Wait()
}
