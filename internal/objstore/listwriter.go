package objstore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"sandkeep/internal/snapshot"
)

const (
	inlineLimit = 4 << 10
	rootLimit   = 16 << 10 // of an encoded root that names its pages
	fewRefs     = 4        // so few references are not paged again, however long
)

// listWriter stores the pages of one list in packs of their own.
type listWriter struct {
	packs *packer
	known map[snapshot.Digest]span // pages of the list before that may be reused, and of this one
	refs  []pageSpan
}

// pageSpan is a PageRef whose pack may still be open.
type pageSpan struct {
	span
	first string
}

func (s *Store) newPages(ctx context.Context, memory *share, atOnce int) *listWriter {
	return &listWriter{packs: newPacker(ctx, s, memory, maxPagePack, atOnce), known: map[snapshot.Digest]span{}}
}

// newListWriter reuses the pages of prior, whose packs were asked for. Pages of
// prior that can't be read are not reused; they are written anew.
func (s *Store) newListWriter(ctx context.Context, prior snapshot.List, looks *packLooks) (*listWriter, error) {
	w := s.newPages(ctx, s.newShare(listShare), packsAtOnce)
	err := s.reuse(ctx, prior, func(r snapshot.PageRef, _ bool) bool {
		if looks.holds(r.Piece) {
			w.known[r.Digest] = closedSpan(r.Piece)
		}
		return true
	})
	if err != nil && !unreadable(err) {
		return nil, fmt.Errorf("read the pages before: %w", err)
	}
	return w, nil
}

// reusable refuses what lies in a pack of which it is known that it proved unreadable.
func (s *Store) reusable(p snapshot.Piece) bool {
	return p.Offset >= 0 && p.Offset <= maxPack && p.Length >= 0 && p.Length <= maxContent &&
		!s.suspects.has(s.packs(), objectName(p.Pack))
}

func closedSpan(p snapshot.Piece) span {
	return span{
		digest: p.Digest, pack: &packRef{name: p.Pack, closed: true},
		offset: uint32(p.Offset), length: uint32(p.Length),
	}
}

// page adds the next page of the list.
func (w *listWriter) page(page []byte, first string) error {
	d := snapshot.Digest(sha256.Sum256(page))
	sp, ok := w.known[d]
	if !ok {
		var err error
		if sp, err = w.packs.add(page, d); err != nil {
			return err
		}
		w.known[d] = sp
	}
	w.refs = append(w.refs, pageSpan{sp, first})
	return nil
}

// take adds a page that is stored already.
func (w *listWriter) take(ref snapshot.PageRef) {
	w.refs = append(w.refs, pageSpan{closedSpan(ref.Piece), ref.First})
}

// finish returns the root once all pages are stored. References of a list with
// too many pages are paged themselves, level by level.
func (w *listWriter) finish(count int64) (snapshot.List, error) {
	root := snapshot.List{Count: count}
	for {
		if err := w.packs.close(); err != nil { // now each reference knows its pack
			return snapshot.List{}, err
		}
		root.Pages = w.resolve()
		encoded, err := json.Marshal(root)
		if err != nil {
			return snapshot.List{}, fmt.Errorf("encode list: %w", err)
		}
		if len(encoded) <= rootLimit || len(root.Pages) <= fewRefs {
			return root, w.packs.wait()
		}
		if err := w.pageRefs(root.Pages); err != nil {
			return snapshot.List{}, err
		}
		root.Level++
	}
}

func (w *listWriter) resolve() []snapshot.PageRef {
	refs := make([]snapshot.PageRef, len(w.refs))
	for i, r := range w.refs {
		refs[i] = snapshot.PageRef{Piece: r.piece(), First: r.first}
	}
	return refs
}

func (w *listWriter) pageRefs(refs []snapshot.PageRef) error {
	w.refs = nil
	cut := cutter[snapshot.PageRef]{kind: refRows, out: pages(w, refRows)}
	for _, r := range refs {
		if err := cut.add(r); err != nil {
			return err
		}
	}
	return cut.close()
}

// inlineOr collects the rows of a list that may stay small enough to stand in
// its root, and cuts them into pages once it does not.
type inlineOr[T any] struct {
	cutter[T]
	held  []T
	size  int
	paged bool
}

func (l *inlineOr[T]) add(row T) error {
	if l.paged {
		return l.cutter.add(row)
	}
	l.held = append(l.held, row)
	if l.size += l.kind.weight(row); l.size <= inlineLimit-64 {
		return nil
	}
	return l.leave()
}

// leave turns the rows held back into pages.
func (l *inlineOr[T]) leave() error {
	l.paged = true
	for _, row := range l.held {
		if err := l.cutter.add(row); err != nil {
			return err
		}
	}
	l.held = nil
	return nil
}

// atPage reports whether the next row begins a page, whatever comes after it.
func (l *inlineOr[T]) atPage() bool { return l.paged && len(l.rows) == 0 }

// finish returns the list's root.
func (l *inlineOr[T]) finish(w *listWriter, count int64) (snapshot.List, error) {
	if count == 0 {
		return snapshot.List{}, nil
	}
	if !l.paged {
		return snapshot.List{Count: count, Inline: l.kind.encode(l.held)}, nil
	}
	if err := l.close(); err != nil {
		return snapshot.List{}, err
	}
	return w.finish(count)
}
