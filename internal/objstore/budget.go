package objstore

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

const (
	defaultMemory = 64 << 20
	smallBuffer   = 1 << 20  // up to here a buffer is not counted: most saves need no more
	treeShare     = 32 << 20 // one pack that is filled, the cutting of a large file, packs of pages
	listShare     = 12 << 20
)

// budget bounds what a worker holds of contents: what saves take, and the cache
// of unpacked packs, which has what they leave.
type budget struct {
	limit int64
	sem   *semaphore.Weighted
	taken atomic.Int64
}

func newBudget(limit int64) *budget {
	return &budget{limit: limit, sem: semaphore.NewWeighted(limit)}
}

// spare is what nobody has taken.
func (b *budget) spare() int64 { return b.limit - b.taken.Load() }

// share is the part of the budget that one save has. It is taken in one step,
// by who holds nothing yet, so that no two saves wait for each other; more is
// only taken if it is there. It is used by one goroutine.
type share struct {
	s     *Store
	size  int64
	taken int64
}

func (s *Store) newShare(size int64) *share {
	return &share{s: s, size: min(size, s.memory.limit)}
}

// take waits for the share, once.
func (h *share) take(ctx context.Context) error {
	if h.taken > 0 {
		return nil
	}
	if err := h.s.memory.sem.Acquire(ctx, h.size); err != nil {
		return err
	}
	h.took(h.size)
	return nil
}

// more takes n further bytes unless another needs them.
func (h *share) more(n int64) bool {
	if !h.s.memory.sem.TryAcquire(n) {
		return false
	}
	h.took(n)
	return true
}

func (h *share) took(n int64) {
	h.taken += n
	h.s.memory.taken.Add(n)
	h.s.cache.shrink()
}

func (h *share) giveBack() {
	if h.taken > 0 {
		h.s.memory.taken.Add(-h.taken)
		h.s.memory.sem.Release(h.taken)
		h.taken = 0
	}
}
