package kvstore

import (
	"context"
	"errors"
	"fmt"

	"sandkeep/internal/snapshot"
)

// saving is one save of a conversation.
type saving struct {
	s        *Store
	id       snapshot.ThreadID
	messages snapshot.List
	expected int64

	lost    bool   // some reply was lost: nothing is definite any more
	pending bool   // the newest reply was lost
	seq     uint64 // what that write expected
}

// SaveConversation replaces the thread's conversation. (§6)
func (s *Store) SaveConversation(ctx context.Context, id snapshot.ThreadID, messages snapshot.List, expected int64) (int64, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	c := &saving{s: s, id: id, messages: messages, expected: expected}
	var revision int64
	err := s.repeat(ctx, func() bool { return c.lost }, func(ctx context.Context) (err error) {
		revision, err = c.attempt(ctx)
		return err
	})
	if err != nil && c.lost {
		err = snapshot.Errorf(snapshot.Timeout, "the store did not confirm the conversation of thread %q; load it and compare", id).
			With("outcome", "unknown").With("threadId", id).Because(err)
	}
	if err != nil {
		return 0, fmt.Errorf("save conversation of thread %q: %w", id, err)
	}
	return revision, nil
}

func (c *saving) attempt(ctx context.Context) (int64, error) {
	th, err := c.s.readThread(ctx, c.id)
	if err != nil {
		return 0, err
	}
	if c.pending {
		if th.exists && th.seq < c.seq {
			return 0, errStale
		}
		// Sequence 0 comes back after a delete, so the same write could count twice.
		if th.seq != c.seq || c.seq == absent {
			return 0, errUnknown
		}
		c.pending = false
	}
	if th.Deleted {
		return 0, threadDeleted(c.id)
	}
	if c.expected >= 0 && th.Revision != c.expected {
		return 0, snapshot.Errorf(snapshot.StaleRevision, "the conversation of thread %q has revision %d, not %d; load it again", c.id, th.Revision, c.expected).
			With("threadId", c.id).With("actualRevision", th.Revision)
	}
	next := th.threadState
	next.Messages, next.Revision = c.messages, th.Revision+1
	_, err = c.s.putThread(ctx, th, next)
	switch {
	case errors.Is(err, errLost):
		c.lost, c.pending, c.seq = true, true, th.seq
	case errors.Is(err, errMoved) && c.lost:
		err = errUnknown
	}
	return next.Revision, err
}
