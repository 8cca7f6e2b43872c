package objstore

import (
	"context"
	"fmt"
	"sort"

	"sandkeep/internal/snapshot"
)

const maxLevel = 6

// pathRange is the paths from lo on, below hi; "" has no bound.
type pathRange struct{ lo, hi string }

func (r pathRange) reaches(first string) bool { return r.hi == "" || first < r.hi }

func (r pathRange) has(path string) bool { return path >= r.lo && r.reaches(path) }

// maxReuse bounds the pages of a list before that are reused, in bytes of their
// references: a hundred thousand pages. Pages without names can repeat for ever.
const (
	maxReuse     = 16 << 20
	pageRefBytes = 96 // of a PageRef without its name
)

// reuse visits the pages of a list before, in order, and pages of references
// before those below them, until visit has enough.
func (s *Store) reuse(ctx context.Context, list snapshot.List, visit func(ref snapshot.PageRef, leaf bool) bool) error {
	size := 0
	return s.leaves(ctx, list, pathRange{}, func(ref snapshot.PageRef, leaf bool) (bool, error) {
		size += pageRefBytes + len(ref.First)
		return size <= maxReuse && visit(ref, leaf), ctx.Err()
	})
}

type visitPage func(ref snapshot.PageRef, leaf bool) (more bool, err error)

// leaves visits the pages of a list that may hold paths in range, in order, and
// the pages of references above them before those, once they were read. Pages
// with names come in their order, each once. It stops when visit says so.
func (s *Store) leaves(ctx context.Context, list snapshot.List, in pathRange, visit visitPage) error {
	if list.Level < 0 || list.Level > maxLevel {
		return invalid("a list", "level %d is out of range", list.Level)
	}
	if !inOrder(list.Pages) {
		return invalid("a list", "its pages are out of order")
	}
	before := ""
	_, err := s.descend(ctx, list.Pages, list.Level, in, func(ref snapshot.PageRef, leaf bool) (bool, error) {
		if leaf && before != "" && ref.First <= before {
			return false, invalid("a list", "page %s is out of order", ref.Digest)
		}
		if leaf {
			before = ref.First
		}
		return visit(ref, leaf)
	})
	return err
}

func (s *Store) descend(ctx context.Context, refs []snapshot.PageRef, level int, in pathRange, visit visitPage) (bool, error) {
	// The page before the first one that begins after lo may hold lo.
	start := max(sort.Search(len(refs), func(i int) bool { return refs[i].First > in.lo })-1, 0)
	if in == (pathRange{}) {
		start = 0
	}
	for _, ref := range refs[start:] {
		if !in.reaches(ref.First) {
			return false, nil
		}
		var below []snapshot.PageRef
		if level > 0 {
			var err error
			if below, err = s.refs(ctx, ref); err != nil {
				return false, err
			}
		}
		more, err := visit(ref, level == 0)
		if err != nil || !more {
			return false, err
		}
		if level == 0 {
			continue
		}
		if more, err := s.descend(ctx, below, level-1, in, visit); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// refs reads a page of references. Their names must be in order, beginning
// with the page's own, since searches rely on it.
func (s *Store) refs(ctx context.Context, ref snapshot.PageRef) ([]snapshot.PageRef, error) {
	page, err := s.content(ctx, ref.Piece)
	if err != nil {
		return nil, fmt.Errorf("read page %s: %w", ref.Digest, err)
	}
	refs, err := decodeRefs(page)
	if err != nil || len(refs) == 0 || refs[0].First != ref.First || !inOrder(refs) {
		return nil, s.badPack(ref.Pack, "page %s is no page of references", ref.Digest)
	}
	return refs, nil
}

// inOrder tells whether the names of pages ascend, or none has one.
func inOrder(refs []snapshot.PageRef) bool {
	for i := 1; i < len(refs); i++ {
		if refs[i].First <= refs[i-1].First && (refs[i].First != "" || refs[i-1].First != "") {
			return false
		}
	}
	return true
}

// eachPage calls visit with the bytes of the pages in range.
func (s *Store) eachPage(ctx context.Context, list snapshot.List, in pathRange, visit func(page []byte, first string) (bool, error)) error {
	if len(list.Inline) > 0 {
		_, err := visit(list.Inline, "")
		return err
	}
	return s.leaves(ctx, list, in, func(ref snapshot.PageRef, leaf bool) (bool, error) {
		if !leaf {
			return true, nil
		}
		page, err := s.content(ctx, ref.Piece)
		if err != nil {
			return false, fmt.Errorf("read page %s: %w", ref.Digest, err)
		}
		more, err := visit(page, ref.First)
		if err == errPage {
			err = s.badPack(ref.Pack, "page %s does not hold what it should", ref.Digest)
		}
		return more, err
	})
}
