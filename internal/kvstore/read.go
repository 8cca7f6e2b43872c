package kvstore

import (
	"context"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

const readers = 16 // slots read at a time

// State reads the thread.
func (s *Store) State(ctx context.Context, id snapshot.ThreadID) (snapshot.ThreadState, error) {
	th, err := s.readThread(ctx, id)
	if err != nil || !th.live() {
		return snapshot.ThreadState{}, err
	}
	return snapshot.ThreadState{Head: snapshot.CheckpointID(th.Head), Depth: th.Depth, Revision: th.Revision, Messages: th.Messages}, nil
}

// Get returns the visible record with the id, or nil. (§9)
func (s *Store) Get(ctx context.Context, id snapshot.CheckpointID) (*snapshot.Record, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rec, err := s.get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("get checkpoint %q: %w", id, err)
	}
	return rec, nil
}

func (s *Store) get(ctx context.Context, id snapshot.CheckpointID) (rec *snapshot.Record, err error) {
	p, err := s.readPointer(ctx, id)
	if err != nil || !p.live {
		return nil, err
	}
	err = s.repeat(ctx, nothingUnresolved, func(ctx context.Context) error {
		th, err := s.readThread(ctx, p.Thread)
		if err != nil || !th.live() || th.Depth < p.Depth {
			return err
		}
		sl, err := s.readSlot(ctx, p.Thread, p.Depth)
		switch {
		case err != nil:
			return err
		case !sl.belongsTo(th): // back to the thread
			return errMoved
		case sl.rec.ID == id:
			rec = sl.rec
		}
		return nil
	})
	return rec, err
}

// belongsTo reports whether a slot at or below the thread's depth may be
// believed: it was written before the state that was read. (§9)
func (sl slot) belongsTo(th thread) bool { return sl.rec != nil && sl.seq <= th.seq }

// foundPointer is a pointer as it was read.
type foundPointer struct {
	pointer
	seq  uint64
	live bool
}

func (s *Store) readPointer(ctx context.Context, id snapshot.CheckpointID) (foundPointer, error) {
	e, err := s.kv.get(ctx, pointerKey(id))
	if err != nil || !e.live {
		return foundPointer{seq: e.seq}, err
	}
	p := foundPointer{seq: e.seq, live: true}
	if err := decode(e, &p.pointer); err != nil {
		return p, err
	}
	if p.Depth < 1 {
		return p, snapshot.Errorf(snapshot.FormatUnsupported, "the stored value of %s is damaged; it leads to depth %d", shorten(e.key), p.Depth)
	}
	return p, nil
}

// List returns the visible records of a thread, root first. (§9)
func (s *Store) List(ctx context.Context, id snapshot.ThreadID) ([]*snapshot.Record, error) {
	return s.visible(ctx, id, math.MaxInt64)
}

// Root returns the thread's first visible record, or nil.
func (s *Store) Root(ctx context.Context, id snapshot.ThreadID) (*snapshot.Record, error) {
	recs, err := s.visible(ctx, id, 1)
	if err != nil || len(recs) == 0 {
		return nil, err
	}
	return recs[0], nil
}

// Newest returns the visible record at the thread's head, or nil.
func (s *Store) Newest(ctx context.Context, id snapshot.ThreadID) (rec *snapshot.Record, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = s.repeat(ctx, nothingUnresolved, func(ctx context.Context) error {
		rec = nil
		th, err := s.readThread(ctx, id)
		if err != nil || !th.live() || th.Depth == 0 {
			return err
		}
		sl, err := s.readSlot(ctx, id, th.Depth)
		if err == nil && !sl.belongsTo(th) {
			return errMoved
		}
		rec = sl.rec
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the head of thread %q: %w", id, err)
	}
	return rec, nil
}

// visible reads the thread and then its slots, the first ones up to most.
func (s *Store) visible(ctx context.Context, id snapshot.ThreadID, most int64) (recs []*snapshot.Record, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = s.repeat(ctx, nothingUnresolved, func(ctx context.Context) error {
		th, err := s.readThread(ctx, id)
		if err != nil || !th.live() || th.Depth == 0 {
			recs = nil
			return err
		}
		recs, err = s.readSlots(ctx, th, min(th.Depth, most))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list thread %q: %w", id, err)
	}
	return recs, nil
}

// readSlots reads the first slots; errMoved sends back to the thread.
func (s *Store) readSlots(ctx context.Context, th thread, depth int64) ([]*snapshot.Record, error) {
	recs := make([]*snapshot.Record, depth)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i := range recs {
		g.Go(func() error {
			sl, err := s.readSlot(ctx, th.id, int64(i)+1)
			if err == nil && !sl.belongsTo(th) {
				return errMoved
			}
			recs[i] = sl.rec
			return err
		})
	}
	return recs, g.Wait()
}
