package kvstore

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// waiting calls try until it is free of a conflict or the wait is over; then
// the last conflict is the error. It is woken by the removal or expiry of the
// target. Watches fall silent after a server restart, so it also looks by
// itself now and then.
func (s *Store) waiting(ctx context.Context, t target, wait time.Duration, try func(context.Context) error) error {
	err := try(ctx)
	if wait <= 0 || !errors.Is(err, t.conflictCode) {
		return err
	}
	ends := time.NewTimer(wait)
	defer ends.Stop()
	freed, stop := s.watchRemoval(ctx, t)
	defer stop()
	look := time.NewTicker(s.kv.limits.reread)
	defer look.Stop()
	for {
		// Between the first try and the watch the target may have been freed: try before waiting.
		if err = try(ctx); !errors.Is(err, t.conflictCode) {
			return err
		}
		if over := awaitRemoval(ctx, freed, look.C, ends.C); over {
			break
		}
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return err
}

// awaitRemoval returns when it is time for another try, or when the wait is over.
func awaitRemoval(ctx context.Context, freed <-chan jetstream.KeyValueEntry, look, ends <-chan time.Time) (over bool) {
	for {
		select {
		case e, open := <-freed:
			if !open {
				freed = nil // the watch is dead; the looks go on
				continue
			}
			if e == nil || e.Operation() == jetstream.KeyValuePut {
				continue // renewed, or taken by somebody else
			}
			return false
		case <-look:
			return false
		case <-ends:
			return true
		case <-ctx.Done():
			return true
		}
	}
}

// watchRemoval watches the target's key. Without a watch the channel is nil.
func (s *Store) watchRemoval(ctx context.Context, t target) (<-chan jetstream.KeyValueEntry, func()) {
	w, err := s.watch.Watch(ctx, t.key, jetstream.UpdatesOnly())
	if err != nil {
		return nil, func() {}
	}
	return w.Updates(), func() { _ = w.Stop() } // a watch that can't be stopped ends by itself
}
