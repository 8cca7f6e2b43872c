package objstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"sandkeep/internal/snapshot"
)

// streamShare is what the reading of a pack holds: chunks on their way, the
// decompressor's window and one content.
const streamShare = batchBytes + maxContent + 4*packWindow

// decoders are those that are idle.
var decoders sync.Pool

// ReadPack reads a pack once, as far as needed, and hands out the checked bytes
// of pieces of it, which come sorted by offset. use must not keep the bytes.
func (s *Store) ReadPack(ctx context.Context, pieces []snapshot.Piece, use func(i int, data []byte) error) error {
	memory := s.newShare(streamShare)
	if err := memory.take(ctx); err != nil {
		return err
	}
	defer memory.giveBack()
	name := pieces[0].Pack
	object, err := s.openPack(ctx, name)
	if err != nil {
		return err
	}
	defer object.Close()
	r, err := s.newPackReader(name, object)
	if err != nil {
		return err
	}
	defer r.close()
	for i, p := range pieces {
		if err := r.seek(p); err != nil {
			return err
		}
		if err := use(i, r.data); err != nil {
			return err
		}
	}
	return nil
}

// packReader decompresses a pack from its beginning on.
type packReader struct {
	s     *Store
	name  snapshot.Digest
	src   *source
	dec   *zstd.Decoder
	at    int64 // bytes that were decompressed
	piece snapshot.Piece
	data  []byte // of the piece
}

// source tells an error of reading from one of decompressing.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func (s *Store) newPackReader(name snapshot.Digest, object io.Reader) (*packReader, error) {
	dec, _ := decoders.Get().(*zstd.Decoder)
	if dec == nil {
		var err error
		if dec, err = newDecoder(); err != nil {
			return nil, err
		}
	}
	r := &packReader{s: s, name: name, src: &source{r: object}, dec: dec}
	if err := dec.Reset(r.src); err != nil {
		return nil, r.fault(err)
	}
	return r, nil
}

func (r *packReader) close() {
	if r.dec.Reset(nil) == nil {
		decoders.Put(r.dec)
	}
}

// seek reads the bytes of a piece, which is the same as the last one or behind it.
func (r *packReader) seek(p snapshot.Piece) error {
	if p == r.piece {
		return nil
	}
	if p.Pack != r.name || p.Offset < r.at || p.Length < 0 || p.Length > maxContent || p.Offset > maxPack {
		return invalid("a manifest", "the piece of %d bytes at byte %d of pack %s overlaps another or is out of range", p.Length, p.Offset, p.Pack)
	}
	if _, err := io.CopyN(io.Discard, r.dec, p.Offset-r.at); err != nil {
		return r.fault(err)
	}
	r.data = slices.Grow(r.data[:0], int(p.Length))[:p.Length]
	if _, err := io.ReadFull(r.dec, r.data); err != nil {
		return r.fault(err)
	}
	if sha256.Sum256(r.data) != p.Digest {
		return r.fault(fmt.Errorf("content %s at byte %d has other bytes", p.Digest, p.Offset))
	}
	r.at, r.piece = p.Offset+p.Length, p
	return nil
}

// fault tells what is wrong with the pack, or with its object: that is read to
// its end, where a lack of chunks shows.
func (r *packReader) fault(err error) error {
	if r.src.err == nil {
		_, _ = io.Copy(io.Discard, r.src)
	}
	switch {
	case r.src.err != nil:
		return fmt.Errorf("read pack %s: %w", r.name, r.src.err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return r.s.badPack(r.name, "it ends too early")
	}
	return r.s.badPack(r.name, "%v", err)
}
