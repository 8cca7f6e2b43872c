package objstore

import (
	"bytes"
	"context"
	"errors"
	"iter"

	"sandkeep/internal/snapshot"
)

// WriteItems stores a list of byte strings, sharing the pages of prior. A
// conversation has many packs and is stored often: they are looked for, their
// chunks are not.
func (s *Store) WriteItems(ctx context.Context, items [][]byte, prior snapshot.List) (snapshot.List, error) {
	looks := newPackLooks(ctx, s, false)
	if err := looks.askPages(prior); err != nil {
		return snapshot.List{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.newListWriter(ctx, prior, looks)
	if err != nil {
		return snapshot.List{}, err
	}
	defer w.packs.memory.giveBack()
	list, err := writeItems(w, items)
	if err != nil {
		cancel()
		return snapshot.List{}, errors.Join(err, w.packs.wait())
	}
	return list, nil
}

func writeItems(w *listWriter, items [][]byte) (snapshot.List, error) {
	rows := inlineOr[[]byte]{cutter: cutter[[]byte]{kind: itemRows, out: pages(w, itemRows)}}
	for _, item := range items {
		if err := addItem(w, &rows, item); err != nil {
			return snapshot.List{}, err
		}
	}
	return rows.finish(w, int64(len(items)))
}

func addItem(w *listWriter, rows *inlineOr[[]byte], item []byte) error {
	switch {
	case len(item) > maxItem:
		return snapshot.Errorf(snapshot.PayloadTooLarge, "a message of %d bytes is too large; at most %d are allowed", len(item), maxItem)
	case len(item) <= maxWholeItem:
		return rows.add(item)
	}
	if err := errors.Join(rows.leave(), rows.close()); err != nil {
		return err
	}
	for at := 0; at < len(item); at += partSize {
		part := item[at:min(at+partSize, len(item))]
		if err := w.page(encodePart(len(item), at, part), ""); err != nil {
			return err
		}
	}
	return nil
}

// Items yields a list's byte strings in order.
func (s *Store) Items(ctx context.Context, list snapshot.List) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var r itemReader
		seen := int64(0)
		err := s.eachPage(ctx, list, pathRange{}, func(page []byte, _ string) (bool, error) {
			items, err := r.add(page)
			if err != nil {
				return false, itemFault(list)
			}
			for _, item := range items {
				seen++
				if !yield(bytes.Clone(item), nil) {
					return false, errStop
				}
			}
			return true, ctx.Err()
		})
		if err == nil && (r.total != 0 || seen != list.Count) {
			err = invalid("a list", "it has %d items instead of %d", seen, list.Count)
		}
		if err != nil && !errors.Is(err, errStop) {
			yield(nil, err)
		}
	}
}

func itemFault(list snapshot.List) error {
	if len(list.Inline) > 0 {
		return invalid("an inline list", "it is malformed")
	}
	return errPage
}
