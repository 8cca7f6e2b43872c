package objstore

import (
	"context"
	"fmt"
	"iter"
	"maps"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

// losePacks looks for the packs, which costs little beside their bytes, and
// keeps those that are gone from being reused, or not whole if chunks count.
func (s *Store) losePacks(ctx context.Context, packs iter.Seq[snapshot.Digest], chunks bool) error {
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
			}
			return err
		})
	}
	return group.Wait()
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
		err = s.losePacks(ctx, maps.Keys(packs), chunks)
	}
	if err != nil {
		return fmt.Errorf("look for the pages before: %w", err)
	}
	return nil
}
