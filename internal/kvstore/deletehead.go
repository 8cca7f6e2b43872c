package kvstore

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

// beheading is one delete-head from its first step to its answer.
type beheading struct {
	s     *Store
	id    snapshot.CheckpointID
	fence uint64

	seen    uint64      // highest sequence of the thread that was read
	pending *unresolved // a commit whose reply was lost
	left    []leftover  // what the commit leaves behind
	next    snapshot.CheckpointID
}

// leftover is a key with the sequence that it had before the commit. What was
// written since is not removed with it.
type leftover struct {
	key string
	seq uint64
}

// DeleteHead takes the head off its thread and returns its parent. (§4)
func (s *Store) DeleteHead(ctx context.Context, id snapshot.ThreadID, head snapshot.CheckpointID, w snapshot.Writer) (snapshot.CheckpointID, error) {
	if w.ThreadID != id {
		return "", writerOf(id).lost("the writer is of another thread")
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	th, err := s.heldThread(ctx, w)
	if err != nil {
		return "", fmt.Errorf("delete head %q: %w", head, err)
	}
	b := &beheading{s: s, id: head, fence: w.Fence}
	first := true
	err = s.repeat(ctx, b.unresolved, func(ctx context.Context) (err error) {
		if !first {
			if th, err = s.readThread(ctx, id); err != nil {
				return err
			}
		}
		first = false
		return b.attempt(ctx, th)
	})
	switch {
	case err == nil:
		s.removeLeft(ctx, b.left)
		return b.next, nil
	case b.unresolved(): // then no failure is definite
		return "", snapshot.Errorf(snapshot.Timeout, "the store did not confirm that checkpoint %q of thread %q was deleted; read the head and compare", head, id).
			With("outcome", "unknown").With("checkpointId", head).With("threadId", id).Because(err)
	}
	return "", fmt.Errorf("delete head %q: %w", head, err)
}

func (b *beheading) unresolved() bool { return b.pending != nil }

// attempt goes from a fresh read of the thread (step 1) to the commit.
func (b *beheading) attempt(ctx context.Context, th thread) error {
	if th.exists && th.seq < b.seen {
		return errStale
	}
	b.seen = th.seq
	if b.pending != nil {
		if !th.live() || th.Fence != b.fence || th.Gen != b.pending.gen {
			return errUnknown // an id that is gone proves nothing
		}
		if th.seq > b.pending.seq { // it never landed and never can
			b.pending = nil
		}
	}
	switch {
	case th.Deleted:
		return threadDeleted(th.id)
	case !th.exists || th.Fence != b.fence:
		return writerOf(th.id).lost("another writer took the thread over")
	case th.Depth == 0 || snapshot.CheckpointID(th.Head) != b.id:
		return snapshot.Errorf(snapshot.NotHead, "checkpoint %q is not the head of thread %q, %s is; only the head can be deleted", b.id, th.id, snapshot.CheckpointID(th.Head).Shown()).
			With("threadId", th.id).With("actualHead", th.Head)
	}
	if err := b.prepare(ctx, th); err != nil { // step 2
		return err
	}
	return b.commit(ctx, th) // step 3
}

// prepare reads the parent, and the sequences of what is to be removed: read
// after the commit they could be those of the next append.
func (b *beheading) prepare(ctx context.Context, th thread) error {
	var (
		sl slot
		p  entry
	)
	err := inParallel(
		func() (err error) { sl, err = b.s.readSlot(ctx, th.id, th.Depth); return err },
		func() (err error) { p, err = b.s.kv.get(ctx, pointerKey(b.id)); return err })
	switch {
	case err != nil:
		return err
	case !sl.belongsTo(th) || sl.rec.ID != b.id:
		return errMoved
	}
	b.next = sl.rec.Parent
	b.left = []leftover{{slotKey(th.id, th.Depth), sl.seq}, {pointerKey(b.id), p.seq}}
	return nil
}

func (b *beheading) commit(ctx context.Context, th thread) error {
	next := th.threadState
	next.Head, next.Depth, next.Gen = headID(b.next), th.Depth-1, th.Gen+1
	_, err := b.s.putThreadFreeing(ctx, th, next)
	if errors.Is(err, errLost) {
		b.pending = &unresolved{seq: th.seq, gen: th.Gen}
	}
	return err
}

// removeLeft removes what a commit made invisible, also when the caller gave
// up. What it can't remove is left to the sweep.
func (s *Store) removeLeft(ctx context.Context, left []leftover) {
	ctx, cancel := s.cleanup(ctx)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(readers)
	for _, l := range left {
		g.Go(func() error { return s.kv.purge(ctx, l.key, l.seq) })
	}
	_ = g.Wait()
}
