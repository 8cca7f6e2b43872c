package objstore

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

// maxKnown bounds the contents that a tree writer remembers.
const maxKnown = 256 << 10

// index finds contents that are stored already, or on their way, by digest. It
// forgets the oldest when it is full: those of the parent come first, in the
// order in which the new tree asks for them.
type index struct {
	contents map[snapshot.Digest]known
	order    []snapshot.Digest // a ring, once it is full
	oldest   int
}

// known is a content: one span, or several of a large one.
type known struct {
	size  int64
	spans []span
}

func newIndex() *index { return &index{contents: map[snapshot.Digest]known{}} }

func (x *index) find(d snapshot.Digest, size int64) ([]span, bool) {
	k, ok := x.contents[d]
	return k.spans, ok && k.size == size
}

func (x *index) add(d snapshot.Digest, size int64, spans []span) {
	if _, ok := x.contents[d]; ok {
		return
	}
	x.contents[d] = known{size, spans}
	if len(x.order) < maxKnown {
		x.order = append(x.order, d)
		return
	}
	delete(x.contents, x.order[x.oldest])
	x.order[x.oldest] = d
	x.oldest = (x.oldest + 1) % maxKnown
}

// addParent makes the contents of a manifest known. One that can't be read is
// no parent: the tree is stored anew, and so healed; as are contents whose packs
// are gone from the store.
func (x *index) addParent(ctx context.Context, s *Store, parent snapshot.List) (whole bool, err error) {
	if err := s.losePages(ctx, parent, true); err != nil {
		return false, err
	}
	for range 2 {
		packs := map[snapshot.Digest]*packRef{}
		if whole, err := x.addEntries(ctx, s, parent, packs); err != nil || !whole {
			return false, err
		}
		lost, err := s.losePacks(ctx, maps.Keys(packs), true)
		if err != nil || !lost {
			return err == nil, err
		}
		*x = *newIndex() // and again, without what lies in those
	}
	return true, nil
}

func (x *index) addEntries(ctx context.Context, s *Store, parent snapshot.List, packs map[snapshot.Digest]*packRef) (whole bool, err error) {
	for e, err := range s.Entries(ctx, parent, "", "") {
		if unreadable(err) {
			*x = *newIndex()
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if len(x.order) == maxKnown {
			return true, nil
		}
		x.addEntry(s, e, packs)
	}
	return true, nil
}

// losePacks looks for the packs, which costs little beside their bytes, and
// keeps those that are gone from being reused, or not whole if chunks count.
func (s *Store) losePacks(ctx context.Context, packs iter.Seq[snapshot.Digest], chunks bool) (lost bool, err error) {
	var missing atomic.Bool
	group, look := errgroup.WithContext(ctx)
	group.SetLimit(lookups)
	for name := range packs {
		group.Go(func() error {
			info, _, err := s.info(look, s.packs(), objectName(name))
			there := info != nil
			if there && chunks {
				there, err = s.whole(look, s.packs(), info, false)
			}
			if err == nil && !there {
				s.suspects.add(s.packs(), objectName(name))
				missing.Store(true)
			}
			return err
		})
	}
	err = group.Wait()
	return missing.Load(), err
}

// losePages is losePacks for the pages of a list, which may be in the cache
// while the store has lost them.
func (s *Store) losePages(ctx context.Context, list snapshot.List, chunks bool) error {
	packs := map[snapshot.Digest]bool{}
	err := s.walk(ctx, list, pathRange{}, func(r snapshot.PageRef) bool {
		if s.reusable(r.Piece) { // others are doubted already, and stay so
			packs[r.Pack] = true
		}
		return true
	})
	if err == nil || unreadable(err) {
		_, err = s.losePacks(ctx, maps.Keys(packs), chunks)
	}
	if err != nil {
		return fmt.Errorf("look for the pages before: %w", err)
	}
	return nil
}

func (x *index) addEntry(s *Store, e snapshot.Entry, packs map[snapshot.Digest]*packRef) {
	spans := make([]span, 0, len(e.Pieces))
	for _, p := range e.Pieces {
		if !s.reusable(p) {
			return
		}
		sp := closedSpan(p)
		if ref, ok := packs[p.Pack]; ok {
			sp.pack = ref
		} else {
			packs[p.Pack] = sp.pack
		}
		spans = append(spans, sp)
	}
	if len(spans) == 0 {
		return
	}
	x.add(e.Digest, e.Size, spans)
	for i, sp := range spans[:len(spans):len(spans)] {
		x.add(sp.digest, int64(sp.length), spans[i:i+1:i+1])
	}
}
