package objstore

import (
	"context"
	"errors"
	"io"
	"iter"

	"sandkeep/internal/snapshot"
)

var errStop = errors.New("the caller has enough")

// Entries yields the entries with a path greater than after that lie at or
// under prefix ("" for all), in order.
func (s *Store) Entries(ctx context.Context, files snapshot.List, prefix, after string) iter.Seq2[snapshot.Entry, error] {
	return func(yield func(snapshot.Entry, error) bool) {
		seen := int64(0)
		for _, in := range pathRanges(prefix, after) {
			err := s.scan(ctx, files, in, func(e snapshot.Entry) bool { seen++; return yield(e, nil) })
			if errors.Is(err, errStop) {
				return
			}
			if err != nil {
				yield(snapshot.Entry{}, err)
				return
			}
		}
		if prefix == "" && after == "" && seen != files.Count {
			yield(snapshot.Entry{}, invalid("a manifest", "it has %d entries instead of %d", seen, files.Count))
		}
	}
}

// pathRanges are the ranges of what lies at or under prefix and after after.
// They are two, since "a.txt" sorts between "a" and "a/b".
func pathRanges(prefix, after string) []pathRange {
	low := ""
	if after != "" {
		low = after + "\x00" // the first path greater than after
	}
	if prefix == "" {
		return []pathRange{{lo: low}}
	}
	var ranges []pathRange
	for _, in := range []pathRange{{prefix, prefix + "\x00"}, {prefix + "/", prefix + "0"}} { // '0' follows '/'
		if in.lo = max(in.lo, low); in.lo < in.hi {
			ranges = append(ranges, in)
		}
	}
	return ranges
}

// scan calls visit with the entries in range; errStop if visit has enough.
func (s *Store) scan(ctx context.Context, files snapshot.List, in pathRange, visit func(snapshot.Entry) bool) error {
	before := ""
	return s.eachPage(ctx, files, in, func(page []byte, first string) (bool, error) {
		entries, err := decodeEntries(page)
		if err != nil || len(entries) == 0 || first != "" && entries[0].Path != first || entries[0].Path <= before {
			return false, inlineFault(first)
		}
		before = entries[len(entries)-1].Path
		for _, e := range entries {
			if !in.reaches(e.Path) {
				return false, nil
			}
			if in.has(e.Path) && !visit(e) {
				return false, errStop
			}
		}
		return true, ctx.Err()
	})
}

// inlineFault is errPage for a stored page; eachPage knows which one it was.
func inlineFault(first string) error {
	if first == "" {
		return invalid("an inline manifest", "it is malformed")
	}
	return errPage
}

// OpenFile streams length bytes of a file's content from offset; -1 is to its
// end. Each piece is checked before its first byte is handed out.
func (s *Store) OpenFile(ctx context.Context, e snapshot.Entry, offset, length int64) (io.ReadCloser, error) {
	if e.Kind != snapshot.KindFile {
		return nil, snapshot.Errorf(snapshot.BadRequest, "entry %q is a %s; only files can be read", e.Path, e.Kind)
	}
	if offset < 0 || length < -1 {
		return nil, snapshot.Errorf(snapshot.BadRequest, "offset %d and length %d are no range of a file", offset, length)
	}
	if fault := fileFault(e); fault != "" {
		return nil, invalid("a manifest", "entry %q %s", e.Path, fault)
	}
	offset = min(offset, e.Size)
	if length == -1 || length > e.Size-offset {
		length = e.Size - offset
	}
	if len(e.Pieces) == 0 && length > 0 {
		return s.openLoose(ctx, e, offset, length)
	}
	return &fileReader{ctx: ctx, s: s, pieces: e.Pieces, skip: offset, left: length}, nil
}

// fileReader hands out the pieces of a file. It holds the pack that it reads,
// which other readers may have pushed out of the cache by its next piece.
type fileReader struct {
	ctx    context.Context
	s      *Store
	pieces []snapshot.Piece
	name   snapshot.Digest // of the pack
	pack   []byte
	skip   int64 // bytes to pass over first
	left   int64
	data   []byte
	err    error
}

func (r *fileReader) Read(p []byte) (int, error) {
	for len(r.data) == 0 {
		if r.err == nil {
			r.err = r.advance()
		}
		if r.err != nil {
			return 0, r.err
		}
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

func (r *fileReader) Close() error {
	r.data, r.pack, r.err = nil, nil, errors.New("read of a closed file")
	return nil
}

func (r *fileReader) advance() error {
	for len(r.pieces) > 0 && r.skip >= r.pieces[0].Length {
		r.skip -= r.pieces[0].Length
		r.pieces = r.pieces[1:]
	}
	if r.left == 0 || len(r.pieces) == 0 {
		return io.EOF
	}
	piece := r.pieces[0]
	if r.pack == nil || r.name != piece.Pack {
		pack, err := r.s.cache.get(r.ctx, piece.Pack)
		if err != nil {
			return err
		}
		r.name, r.pack = piece.Pack, pack
	}
	data, err := r.s.part(r.pack, piece)
	if err != nil {
		return err
	}
	r.data = data[r.skip:]
	r.data = r.data[:min(int64(len(r.data)), r.left)]
	r.left -= int64(len(r.data))
	r.skip, r.pieces = 0, r.pieces[1:]
	return nil
}
