package objstore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

const (
	defaultMemory = 64 << 20
	smallBuffer   = 1 << 20  // up to here a buffer is not counted: most saves need no more
	keptShare     = 16 << 20 // the cutting of a large file, packs of pages
	listShare     = 12 << 20
)

// budget bounds what a worker holds of contents: what saves and reads take, and
// the cache of unpacked packs, which has what they leave.
//
// Nobody waits for ever, and who came first is served first. A save takes what it
// keeps to its end before anything else, all saves at most half of the budget.
// For the packs that it fills it takes turns, as reads and lists do; whoever has
// a turn waits for no memory, so turns come back, and all that is not kept does.
type budget struct {
	limit int64
	all   *semaphore.Weighted
	kept  *semaphore.Weighted
	taken atomic.Int64

	mu    sync.Mutex // guards what follows
	saves int        // that keep something
	idle  []*wholeBuffer
}

// wholeBuffer has room for any pack.
type wholeBuffer [packRoom + maxPack]byte

func newBudget(limit int64) *budget {
	limit = max(limit, 2) // a save and its turn
	return &budget{limit: limit, all: semaphore.NewWeighted(limit), kept: semaphore.NewWeighted(limit / 2)}
}

// spare is what nobody has taken.
func (b *budget) spare() int64 { return b.limit - b.taken.Load() }

// share is a part of the budget, taken in one step. It is used by one goroutine
// at a time.
type share struct {
	s    *Store
	size int64
	kept *semaphore.Weighted // what is kept to the end of a save, only
	have bool

	whole bool         // it is for a buffer that has room for any pack
	buf   *wholeBuffer // with whatever bytes in it
}

// newShare is a turn: whoever has it must wait for no other share.
func (s *Store) newShare(size int64) *share {
	return &share{s: s, size: min(size, s.memory.limit-s.memory.limit/2)}
}

// newTurn is a share for a buffer that has room for any pack.
func (s *Store) newTurn() *share {
	h := s.newShare(maxPack)
	h.whole = true
	return h
}

// newKept is what a save keeps to its end.
func (s *Store) newKept() *share {
	return &share{s: s, size: min(keptShare, s.memory.limit/2), kept: s.memory.kept}
}

// take waits for the share, once.
func (h *share) take(ctx context.Context) error {
	if h.have {
		return nil
	}
	if h.kept != nil {
		if err := h.kept.Acquire(ctx, h.size); err != nil {
			return err
		}
	}
	if err := h.s.memory.all.Acquire(ctx, h.size); err != nil {
		h.release()
		return err
	}
	h.have = true
	h.s.memory.change(h, 1)
	h.s.cache.shrink()
	return nil
}

func (h *share) giveBack() {
	if !h.have {
		return
	}
	h.have = false
	h.s.memory.change(h, -1)
	h.s.memory.all.Release(h.size)
	h.release()
}

func (h *share) release() {
	if h.kept != nil {
		h.kept.Release(h.size)
	}
}

// change counts a share that was taken, or with -1 given back. Buffers that
// nobody uses stay while there are saves, in what nobody has taken.
func (b *budget) change(h *share, by int) {
	taken := b.taken.Add(int64(by) * h.size)
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.kept != nil {
		b.saves += by
	}
	n := len(b.idle)
	switch {
	case !h.whole:
	case by < 0:
		b.idle, h.buf = append(b.idle, h.buf), nil
	case n > 0:
		h.buf = b.idle[n-1]
		b.idle = slices.Delete(b.idle, n-1, n)
	default:
		h.buf = new(wholeBuffer)
	}
	for len(b.idle) > 0 && (b.saves == 0 || taken+int64(len(b.idle))*maxPack > b.limit) {
		b.idle = slices.Delete(b.idle, 0, 1)
	}
}
