package objstore

import (
	"container/list"
	"context"
	"sync"

	"sandkeep/internal/snapshot"
)

// maxLoads bounds the packs being loaded at a time; each holds up to 32 MiB.
const maxLoads = 2

// packCache keeps unpacked packs, least recently used out first, and loads a
// pack once however many ask for it.
type packCache struct {
	load  func(context.Context, snapshot.Digest) ([]byte, error)
	room  func() int64 // how many bytes it may have now
	slots chan struct{}

	mu      sync.Mutex // guards what follows
	used    int64
	order   *list.List // of *cachedPack, newest first
	packs   map[snapshot.Digest]*list.Element
	flights map[snapshot.Digest]*flight
}

type cachedPack struct {
	name snapshot.Digest
	data []byte
}

// flight is a load that others may wait for; data and err are set when done closes.
type flight struct {
	done chan struct{}
	data []byte
	err  error
}

func newPackCache(room func() int64, load func(context.Context, snapshot.Digest) ([]byte, error)) *packCache {
	return &packCache{
		load: load, slots: make(chan struct{}, maxLoads), room: room, order: list.New(),
		packs: map[snapshot.Digest]*list.Element{}, flights: map[snapshot.Digest]*flight{},
	}
}

func (c *packCache) get(ctx context.Context, name snapshot.Digest) ([]byte, error) {
	for {
		data, f, leads := c.find(name)
		if f == nil {
			return data, nil
		}
		if leads {
			c.fly(ctx, name, f)
			return f.data, f.err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-f.done:
		}
		// Another's failure may be its own cancellation; only success is shared.
		if f.err == nil {
			return f.data, nil
		}
	}
}

// find returns the pack, or the flight that brings it; leads if it is the caller's.
func (c *packCache) find(name snapshot.Digest) (data []byte, f *flight, leads bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.packs[name]; ok {
		c.order.MoveToFront(el)
		return el.Value.(*cachedPack).data, nil, false
	}
	if f, ok := c.flights[name]; ok {
		return nil, f, false
	}
	f = &flight{done: make(chan struct{})}
	c.flights[name] = f
	return nil, f, true
}

func (c *packCache) fly(ctx context.Context, name snapshot.Digest, f *flight) {
	defer close(f.done)
	select {
	case c.slots <- struct{}{}:
		f.data, f.err = c.load(ctx, name)
		<-c.slots
	case <-ctx.Done():
		f.err = ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, name)
	if f.err == nil {
		c.packs[name] = c.order.PushFront(&cachedPack{name, f.data})
		c.used += int64(len(f.data))
	}
	c.fit()
}

// shrink makes the cache fit into its room again.
func (c *packCache) shrink() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fit()
}

// fit drops the oldest packs, never the newest: whoever loaded it goes on
// reading in it, and would load it anew for each page.
func (c *packCache) fit() {
	for room := c.room(); c.used > room && c.order.Len() > 1; {
		c.removeOldest()
	}
}

func (c *packCache) removeOldest() {
	oldest := c.order.Back()
	p := c.order.Remove(oldest).(*cachedPack)
	delete(c.packs, p.name)
	c.used -= int64(len(p.data))
}

// drop forgets a pack, so that it is loaded anew.
func (c *packCache) drop(name snapshot.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.packs[name]; ok {
		delete(c.packs, name)
		c.used -= int64(len(c.order.Remove(el).(*cachedPack).data))
	}
}
