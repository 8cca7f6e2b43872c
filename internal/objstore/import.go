package objstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

const lookups = 32 // for loose blobs, at a time

// Import stores a manifest that a client captured itself. Entries come in path
// order and carry digests and sizes. With require each content must be a loose
// blob of that size or have a place in parent, which is taken over; MissingBlob
// names the first that has neither. Without it an unknown content counts as a
// loose blob that is kept elsewhere.
func (s *Store) Import(ctx context.Context, entries []snapshot.Entry, parent snapshot.List, require bool) (snapshot.List, error) {
	last := ""
	for _, e := range entries {
		e.Pieces = nil
		if err := checkNext(e, last); err != nil {
			return snapshot.List{}, err
		}
		last = e.Path
	}
	looks := newPackLooks(ctx, s, true)
	defer func() { _ = looks.group.Wait() }() // its functions return none
	in, err := looks.placesIn(parent, entries)
	if err != nil {
		return snapshot.List{}, fmt.Errorf("read parent manifest: %w", err)
	}
	if require {
		if err := s.requireBlobs(ctx, entries, in); err != nil {
			return snapshot.List{}, err
		}
	}
	return s.writeEntries(ctx, entries, in, parent, looks)
}

// places are where contents lie in packs, by their digest.
type places map[snapshot.Digest]place

type place struct {
	size   int64
	pieces []snapshot.Piece
}

func (in places) pieces(e snapshot.Entry) []snapshot.Piece {
	if p := in[e.Digest]; p.size == e.Size {
		return p.pieces
	}
	return nil
}

// placesIn finds the contents of entries in the manifest before. What lies in a
// pack that is gone or proved unreadable is not found, nor is anything behind a
// page that can't be read.
func (l *packLooks) placesIn(parent snapshot.List, entries []snapshot.Entry) (places, error) {
	in := places{}
	for _, e := range entries {
		if e.Kind == snapshot.KindFile {
			in[e.Digest] = place{}
		}
	}
	if err := l.askPages(parent); err != nil {
		return nil, err
	}
	for e, err := range l.s.Entries(l.ctx, parent, "", "") {
		if unreadable(err) {
			break
		}
		if err != nil {
			return nil, err
		}
		if known, wanted := in[e.Digest]; wanted && known.pieces == nil && all(e.Pieces, l.s.reusable) {
			in[e.Digest] = place{e.Size, e.Pieces}
			for _, p := range e.Pieces {
				l.ask(p.Pack)
			}
		}
	}
	maps.DeleteFunc(in, func(_ snapshot.Digest, p place) bool { return !all(p.pieces, l.holds) })
	return in, l.failure()
}

func all(pieces []snapshot.Piece, can func(snapshot.Piece) bool) bool {
	return !slices.ContainsFunc(pieces, func(p snapshot.Piece) bool { return !can(p) })
}

// requireBlobs looks for the contents without a place, for each one once.
func (s *Store) requireBlobs(ctx context.Context, entries []snapshot.Entry, in places) error {
	var loose []snapshot.Entry // those without a place, in path order
	sizes := map[snapshot.Digest]*int64{}
	group, look := errgroup.WithContext(ctx)
	group.SetLimit(lookups)
	for _, e := range entries {
		if e.Size == 0 || in.pieces(e) != nil {
			continue
		}
		loose = append(loose, e)
		if sizes[e.Digest] != nil {
			continue
		}
		size := new(int64)
		sizes[e.Digest] = size
		group.Go(func() (err error) {
			*size, _, err = s.BlobSize(look, e.Digest, false)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, e := range loose {
		if *sizes[e.Digest] != e.Size {
			key := snapshot.FileBlobPrefix + e.Digest.String()
			return snapshot.Errorf(snapshot.MissingBlob,
				"the %d bytes of %q, blob %q, are not in the store; put them first, then send this again", e.Size, e.Path, key).With("key", key)
		}
	}
	return nil
}

func (s *Store) writeEntries(ctx context.Context, entries []snapshot.Entry, in places, prior snapshot.List, looks *packLooks) (snapshot.List, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.newListWriter(ctx, prior, looks)
	if err != nil {
		return snapshot.List{}, err
	}
	defer w.packs.memory.giveBack()
	rows := inlineOr[snapshot.Entry]{cutter: cutter[snapshot.Entry]{kind: entryRows, out: pages(w, entryRows)}}
	for _, e := range entries {
		e.Pieces = in.pieces(e)
		if err = rows.add(e); err != nil {
			break
		}
	}
	var list snapshot.List
	if err == nil {
		list, err = rows.finish(w, int64(len(entries)))
	}
	if err != nil {
		cancel()
		return snapshot.List{}, errors.Join(err, w.packs.wait())
	}
	return list, nil
}
