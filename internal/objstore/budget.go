package objstore

import (
	"context"
	"slices"
	"sync"

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
// A pack may stay open for as long as its save runs: such packs and what is kept
// leave room for a read, so that reads wait for packs on their way only.
type budget struct {
	limit int64
	reads int64 // of it, that kept shares and open packs leave
	all   *semaphore.Weighted
	held  *semaphore.Weighted // what is kept, and open packs
	kept  *semaphore.Weighted

	mu    sync.Mutex // guards what follows
	taken int64
	saves int // that keep something
	idle  []*wholeBuffer
}

// wholeBuffer has room for any pack.
type wholeBuffer [packRoom + maxPack]byte

func newBudget(limit int64) *budget {
	limit = max(limit, 4) // a save, its turn, and a read
	reads := min(streamShare, limit/4)
	return &budget{
		limit: limit, reads: reads, all: semaphore.NewWeighted(limit),
		held: semaphore.NewWeighted(limit - reads), kept: semaphore.NewWeighted(limit / 2),
	}
}

// spare is what nobody has taken and no buffer keeps.
func (b *budget) spare() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit - b.taken - int64(len(b.idle))*maxPack
}

// share is a part of the budget, taken in one step. It is used by one goroutine
// at a time.
type share struct {
	s    *Store
	size int64
	of   []*semaphore.Weighted // in the order in which they are taken
	keep bool                  // to the end of a save
	have bool

	whole bool         // it is for a buffer that has room for any pack
	buf   *wholeBuffer // with whatever bytes in it
}

// newShare is a turn of a read or list: whoever has it must wait for no other share.
func (s *Store) newShare(size int64) *share {
	b := s.memory
	return &share{s: s, size: min(size, b.reads), of: []*semaphore.Weighted{b.all}}
}

// newTurn is a turn for a buffer that has room for any pack.
func (s *Store) newTurn() *share {
	b := s.memory
	return &share{s: s, size: min(maxPack, b.limit-b.reads-b.limit/2), of: []*semaphore.Weighted{b.held, b.all}, whole: true}
}

// newKept is what a save keeps to its end.
func (s *Store) newKept() *share {
	b := s.memory
	return &share{s: s, size: min(keptShare, b.limit/2), of: []*semaphore.Weighted{b.kept, b.held, b.all}, keep: true}
}

// take waits for the share, once.
func (h *share) take(ctx context.Context) error {
	if h.have {
		return nil
	}
	for i, sem := range h.of {
		if err := sem.Acquire(ctx, h.size); err != nil {
			h.release(i)
			return err
		}
	}
	h.have = true
	h.s.memory.change(h, 1)
	h.s.cache.shrink()
	return nil
}

// leave says that the pack of the turn is closed: it will come back by itself.
func (h *share) leave() {
	h.release(1)
	h.of = h.of[1:]
}

func (h *share) giveBack() {
	if !h.have {
		return
	}
	h.have = false
	h.s.memory.change(h, -1)
	h.release(len(h.of))
}

func (h *share) release(n int) {
	for _, sem := range h.of[:n] {
		sem.Release(h.size)
	}
}

// change counts a share that was taken, or with -1 given back. Buffers that
// nobody uses stay while there are saves, in what nobody has taken.
func (b *budget) change(h *share, by int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken += int64(by) * h.size
	if h.keep {
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
	for len(b.idle) > 0 && (b.saves == 0 || b.taken+int64(len(b.idle))*maxPack > b.limit) {
		b.idle = slices.Delete(b.idle, 0, 1)
	}
}
