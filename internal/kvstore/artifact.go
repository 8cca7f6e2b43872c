package kvstore

import (
	"context"
	"encoding/json"
	"fmt"

	"sandkeep/internal/snapshot"
)

// PutArtifact replaces the thread's record of an artifact. One that lands after
// the thread was deleted stays unseen and is swept.
func (s *Store) PutArtifact(ctx context.Context, thread snapshot.ThreadID, a snapshot.ThreadArtifact) error {
	data, err := json.Marshal(a)
	if err != nil {
		return snapshot.Errorf(snapshot.BadRequest, "artifact %q can't be encoded", a.ID).Because(err)
	}
	th, err := s.readThread(ctx, thread)
	if err == nil && th.Deleted {
		err = threadDeleted(thread)
	}
	if err != nil {
		return fmt.Errorf("put artifact %q of thread %q: %w", a.ID, thread, err)
	}
	c := change{key: artifactKey(thread, a.ID), value: data, frees: a.Deleted, check: func(uint64) error { return nil }}
	if _, err := s.replace(ctx, c); err != nil {
		return fmt.Errorf("put artifact %q of thread %q: %w", a.ID, thread, err)
	}
	return nil
}

// Artifacts returns all records of the thread, tombstones included, in the
// order in which they were written last.
func (s *Store) Artifacts(ctx context.Context, thread snapshot.ThreadID) ([]snapshot.ThreadArtifact, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var (
		recs  []snapshot.ThreadArtifact
		index = map[snapshot.ArtifactID]int{} // one that is replaced meanwhile is met twice
	)
	for after := uint64(0); ; {
		e, err := s.nextLive(ctx, anyArtifactKey(thread), after+1)
		if err != nil {
			return nil, fmt.Errorf("list artifacts of thread %q: %w", thread, err)
		}
		if e.seq == 0 {
			// Read last: while a deletion is at work the list is not whole.
			if th, err := s.readThread(ctx, thread); err != nil || th.Deleted {
				return nil, err
			}
			return recs, nil
		}
		var a snapshot.ThreadArtifact
		if err := decode(e, &a); err != nil {
			return nil, err
		}
		if i, met := index[a.ID]; met {
			recs[i] = a
		} else {
			index[a.ID] = len(recs)
			recs = append(recs, a)
		}
		after = e.seq
	}
}

// nextLive is the first value at or after the sequence, past all markers; its
// sequence is 0 if there is none.
func (s *Store) nextLive(ctx context.Context, pattern string, from uint64) (entry, error) {
	for {
		e, err := s.kv.next(ctx, pattern, from)
		if err != nil || e.seq == 0 || e.live {
			return e, err
		}
		from = e.seq + 1
	}
}
