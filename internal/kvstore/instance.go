package kvstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"sandkeep/internal/snapshot"
)

const scanned = 1000 // messages that one page of a list reads at most

// Instance reads a record. A missing key is nil with revision 0.
func (s *Store) Instance(ctx context.Context, key snapshot.InstanceKey) (*snapshot.Instance, uint64, error) {
	e, err := s.kv.get(ctx, instanceKey(key))
	if err != nil || !e.live {
		return nil, 0, err
	}
	rec := new(snapshot.Instance)
	return rec, e.seq, decode(e, rec)
}

// PutInstance replaces the whole record and returns its revision.
func (s *Store) PutInstance(ctx context.Context, rec snapshot.Instance, expected int64) (uint64, error) {
	data, err := json.Marshal(rec)
	if err != nil {
		return 0, snapshot.Errorf(snapshot.BadRequest, "instance %q can't be encoded", rec.Key).Because(err)
	}
	seq, err := s.replace(ctx, change{key: instanceKey(rec.Key), value: data, check: checkRevision(rec.Key, expected)})
	if err != nil {
		return 0, fmt.Errorf("put instance %q: %w", rec.Key, err)
	}
	return seq, nil
}

// DeleteInstance removes a record; a missing key is a no-op.
func (s *Store) DeleteInstance(ctx context.Context, key snapshot.InstanceKey, expected int64) error {
	if _, err := s.replace(ctx, change{key: instanceKey(key), remove: true, check: checkRevision(key, expected)}); err != nil {
		return fmt.Errorf("delete instance %q: %w", key, err)
	}
	return nil
}

func checkRevision(key snapshot.InstanceKey, expected int64) func(uint64) error {
	return func(actual uint64) error {
		if expected < 0 || uint64(expected) == actual {
			return nil
		}
		return snapshot.Errorf(snapshot.StaleRevision, "instance %q has revision %d, not %d; read it again", key, actual, expected).
			With("key", key).With("actualRevision", actual)
	}
}

// Instances lists records in order of revision. A page may hold fewer than
// limit, even none, and still have a next one.
func (s *Store) Instances(ctx context.Context, thread snapshot.ThreadID, after uint64, limit int) (recs []snapshot.Instance, next uint64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	for range scanned {
		e, err := s.kv.next(ctx, anyInstanceKey, after+1)
		if err != nil {
			return nil, 0, fmt.Errorf("list instances: %w", err)
		}
		if e.seq == 0 {
			return recs, 0, nil
		}
		if e.live {
			var rec snapshot.Instance
			if err := decode(e, &rec); err != nil {
				return nil, 0, err
			}
			matches := thread == "" || rec.ThreadID == thread
			if matches && len(recs) == limit {
				return recs, after, nil
			}
			if matches {
				recs = append(recs, rec)
			}
		}
		after = e.seq
	}
	return recs, after, nil
}

// change replaces or removes the value of a key that is one record by itself.
type change struct {
	key    string
	value  []byte
	remove bool
	frees  bool                        // it removes something, if not the key
	check  func(revision uint64) error // of what is there; 0 for nothing

	lost *entry // what was there before a write whose reply was lost
}

// replace makes the change by compare-and-set, so that a write that is late
// can't wipe a newer one. After a lost reply it finds out by the stored bytes.
func (s *Store) replace(ctx context.Context, c change) (revision uint64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = s.repeat(ctx, func() bool { return c.lost != nil }, func(ctx context.Context) (err error) {
		revision, err = s.tryChange(ctx, &c)
		return err
	})
	switch {
	case errors.Is(err, errThere):
		return 0, nil
	case err != nil && c.lost != nil:
		err = snapshot.Errorf(snapshot.Timeout, "the store did not confirm the change; read the record and compare").
			With("outcome", "unknown").Because(err)
	}
	return revision, err
}

func (s *Store) tryChange(ctx context.Context, c *change) (uint64, error) {
	before, err := s.kv.get(ctx, c.key)
	switch {
	case err != nil:
		return 0, err
	case c.lost == nil:
		err = c.admit(before)
	case before.seq != 0 && before.seq < c.lost.seq:
		err = errStale
	case before.seq != c.lost.seq:
		return c.outcome(before)
	}
	if err != nil {
		return 0, err
	}
	put := s.kv.put
	if c.remove || c.frees {
		put = s.putFreeing
	}
	seq, err := put(ctx, write{key: c.key, value: c.value, expect: before.seq, remove: c.remove})
	if errors.Is(err, errLost) {
		c.lost = &before
	}
	return seq, err
}

func (c change) admit(before entry) error {
	revision := before.seq
	if !before.live {
		revision = 0
	}
	if c.remove && !before.live {
		return errThere
	}
	return c.check(revision)
}

// outcome judges by what is there after a lost reply.
func (c change) outcome(now entry) (uint64, error) {
	if c.remove && !now.live {
		return 0, nil
	}
	if !c.remove && now.live && bytes.Equal(now.value, c.value) {
		return now.seq, nil
	}
	return 0, errUnknown
}
