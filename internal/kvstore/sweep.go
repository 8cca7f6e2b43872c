package kvstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sandkeep/internal/snapshot"
)

// Sweep removes what dead writers and deleted threads left behind: slots and
// pointers that are not visible and older than grace, whatever leads to a
// deleted thread, and tombstones that are older than grace once nothing was
// found that leads to them. An hour is a good grace, and an interval.
//
// It may run on any number of workers at once, beside all other operations,
// and may be stopped at any point: each removal is conditional, and touches
// the thread first, so that a commit in flight that still needs what is
// removed starts anew. What changes meanwhile it leaves for the next time. Its
// error says only that it did not get through. Objects are not its business.
func (s *Store) Sweep(ctx context.Context, grace time.Duration) error {
	newest, err := s.kv.get(ctx, anyKey)
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	w := &sweep{s: s, until: newest.seq, before: s.now().Add(-grace), threads: map[snapshot.ThreadID]thread{},
		heads: map[string]snapshot.CheckpointID{}, met: map[snapshot.ThreadID]bool{}}
	for _, pass := range []struct {
		pattern string
		visit   func(context.Context, entry) error
	}{{anyThreadKey, w.thread}, {anySlotKey, w.slot}, {anyPointerKey, w.pointer}} {
		if err := w.each(ctx, pass.pattern, pass.visit); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	for _, th := range w.threads {
		if !th.Deleted {
			continue
		}
		if err := w.tombstone(ctx, th); err != nil && !isAgain(err) {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	s.kv.fillReserve(ctx, s.reserve)
	return nil
}

// sweep is one run. What it remembers of threads and slots only ever spares a
// removal: each removal starts from fresh reads.
type sweep struct {
	s       *Store
	until   uint64    // what is newer is not looked at
	before  time.Time // what is younger is left alone
	threads map[snapshot.ThreadID]thread
	heads   map[string]snapshot.CheckpointID // the ids that slots hold
	met     map[snapshot.ThreadID]bool       // something led to the thread
}

// each visits the values of the keys that match the pattern.
func (w *sweep) each(ctx context.Context, pattern string, visit func(context.Context, entry) error) error {
	for from := uint64(firstSequence); ; {
		e, err := w.s.nextLive(ctx, pattern, from)
		if err != nil || e.seq == 0 || e.seq > w.until {
			return err
		}
		if err := visit(ctx, e); err != nil && !isAgain(err) {
			return err
		}
		from = e.seq + 1
	}
}

func (w *sweep) thread(_ context.Context, e entry) error {
	th, err := threadOfEntry(e)
	w.threads[th.id] = th
	return err
}

// slot is the first half of §8: the slot was read (e), then its thread.
func (w *sweep) slot(ctx context.Context, e entry) error {
	id, err := threadOf(e.key)
	depth, err2 := strconv.ParseInt(e.key[strings.LastIndexByte(e.key, '.')+1:], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return badKey(e.key, err)
	}
	if th := w.threads[id]; th.live() && th.Depth >= depth {
		var rec struct{ ID snapshot.CheckpointID }
		err := decodeSome(e, &rec)
		w.heads[e.key] = rec.ID
		return err
	}
	w.met[id] = true
	th, err := w.s.readThread(ctx, id)
	if err != nil || th.live() && th.Depth >= depth {
		return err
	}
	return w.remove(ctx, th, e)
}

// pointer is the second half of §8: the pointer was read (e), then its thread,
// then the slot that it leads to. With the slot read before the thread, a
// visible checkpoint would lose its pointer.
func (w *sweep) pointer(ctx context.Context, e entry) error {
	var p pointer
	if err := decode(e, &p); err != nil {
		return err
	}
	id := strings.TrimPrefix(e.key, pointerKey(""))
	if held, ok := w.heads[slotKey(p.Thread, p.Depth)]; ok && token(held) == id {
		return nil
	}
	w.met[p.Thread] = true
	th, err := w.s.readThread(ctx, p.Thread)
	if err != nil {
		return err
	}
	sl, err := w.s.readSlot(ctx, p.Thread, p.Depth)
	if err != nil || th.live() && th.Depth >= p.Depth && sl.rec != nil && token(sl.rec.ID) == id {
		return err
	}
	return w.remove(ctx, th, e)
}

// remove removes a slot or pointer as it was read, after a touch of its thread.
func (w *sweep) remove(ctx context.Context, th thread, e entry) error {
	if !th.Deleted && e.at.After(w.before) {
		return nil
	}
	if th.live() {
		if _, err := w.s.putThreadFreeing(ctx, th, th.threadState); err != nil {
			return err
		}
	}
	return w.s.kv.purge(ctx, e.key, e.seq)
}

// tombstone is the last step of §7. The artifacts are read before the thread:
// those of a deleted thread can't be of one that was made anew.
func (w *sweep) tombstone(ctx context.Context, th thread) error {
	artifact, err := w.s.kv.get(ctx, anyArtifactKey(th.id))
	if err != nil {
		return err
	}
	now, err := w.s.readThread(ctx, th.id)
	switch {
	case err != nil:
		return err
	case now.seq != th.seq:
		return nil
	case artifact.live:
		return w.s.kv.purge(ctx, anyArtifactKey(th.id), artifact.seq)
	case w.met[th.id] || time.UnixMilli(th.DeletedAt).After(w.before):
		return nil
	}
	return w.s.kv.purge(ctx, threadKey(th.id), th.seq)
}
