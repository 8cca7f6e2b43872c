package bus

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Limits bounds a pool: so many requests run, so many more wait their turn.
type Limits struct{ Running, Waiting int }

// pool runs admitted requests. It owns their goroutines: close and wait end it.
type pool struct {
	group errgroup.Group
	slots chan struct{} // held by what runs

	mu     sync.Mutex // guards closed, and group against an admission during wait
	closed bool
}

func newPool(l Limits) *pool {
	p := &pool{slots: make(chan struct{}, l.Running)}
	p.group.SetLimit(l.Running + l.Waiting)
	return p
}

// admit starts fn, or says at once that there is no room.
func (p *pool) admit(fn func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed && p.group.TryGo(func() error { fn(); return nil })
}

// run gives fn a turn to run. fn may yield it meanwhile.
func (p *pool) run(ctx context.Context, fn func(context.Context) (any, error)) (any, error) {
	s := &slot{pool: p.slots}
	defer s.leave()
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	return fn(context.WithValue(ctx, slotKey{}, s))
}

// close admits no more.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// wait returns when everything that was admitted is done. Call it after close.
func (p *pool) wait() { _ = p.group.Wait() }
