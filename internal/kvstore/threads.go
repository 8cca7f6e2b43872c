package kvstore

import (
	"context"
	"fmt"
	"slices"

	"sandkeep/internal/snapshot"
)

// Threads lists the ids of live threads in the order of their last change. A
// thread that changes meanwhile may be met again on a later page. A page may
// hold fewer than limit, even none, and still have a next one.
func (s *Store) Threads(ctx context.Context, after uint64, limit int) (ids []snapshot.ThreadID, next uint64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	for range scanned {
		e, err := s.kv.next(ctx, anyThreadKey, after+1)
		if err != nil {
			return nil, 0, fmt.Errorf("list threads: %w", err)
		}
		if e.seq == 0 {
			return ids, 0, nil
		}
		th, err := threadOfEntry(e)
		if err != nil {
			return nil, 0, err
		}
		if th.live() && !slices.Contains(ids, th.id) {
			if len(ids) == limit {
				return ids, after, nil
			}
			ids = append(ids, th.id)
		}
		after = e.seq
	}
	return ids, after, nil
}

// threadOfEntry is the state of the thread that an entry's key names.
func threadOfEntry(e entry) (thread, error) {
	id, err := threadOf(e.key)
	if err != nil {
		return thread{}, badKey(e.key, err)
	}
	return decodeThread(id, e)
}

func badKey(key string, cause error) error {
	return snapshot.Errorf(snapshot.FormatUnsupported, "the key %s is damaged or of a newer version; run the newest version of the agent", shorten(key)).Because(cause)
}
