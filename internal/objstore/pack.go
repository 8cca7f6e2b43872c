package objstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"

	"sandkeep/internal/snapshot"
)

// Constants of the pack format: other values make other packs, which share
// nothing with those that are stored.
const (
	maxContent  = 4 << 20  // larger contents are cut
	packAim     = 4 << 20  // average size of a pack
	maxPack     = 16 << 20 // uncompressed
	maxPagePack = 4 << 20  // a metadata pack is smaller: whoever reads a directory fetches one
	maxContents = 32 << 10 // in a pack
	// contentWeight is added to each length, so that tiny contents end a pack too.
	contentWeight = 256

	packWindow    = 1 << 20
	maxStoredPack = maxPack + maxPack/64 + 64<<10 // incompressible bytes grow a little
)

var emptyDigest = snapshot.Digest(sha256.Sum256(nil))

// packNamer makes the name of a pack: the SHA-256 over the digests and lengths
// of its contents.
type packNamer struct {
	sum hash.Hash
	row [40]byte
}

func (n *packNamer) reset() {
	n.sum = sha256.New()
	io.WriteString(n.sum, "pack 1\n")
}

func (n *packNamer) add(d snapshot.Digest, length int) {
	copy(n.row[:], d[:])
	binary.BigEndian.PutUint64(n.row[len(d):], uint64(length))
	n.sum.Write(n.row[:])
}

func (n *packNamer) name() snapshot.Digest { return snapshot.Digest(n.sum.Sum(nil)) }

// endsHere decides by a hash whether something ends after an item of the given
// weight, so that on average one end comes in aim.
func endsHere(hash uint64, weight, aim int) bool {
	return weight >= aim || hash < uint64(weight)*(math.MaxUint64/uint64(aim))
}

func digestHash(d snapshot.Digest) uint64 { return binary.BigEndian.Uint64(d[:]) }

func (s *Store) openCodecs() error {
	s.encoders = make(chan *zstd.Encoder, packsAtOnce)
	for range packsAtOnce {
		s.encoders <- nil
	}
	var err error
	s.dec, err = newDecoder()
	return err
}

func newDecoder() (*zstd.Decoder, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(maxPack), zstd.WithDecoderMaxWindow(maxPack))
	if err != nil {
		return nil, fmt.Errorf("make decompressor: %w", err)
	}
	return dec, nil
}

// unpack never makes more than maxPack bytes, whatever stored claims.
func unpack(dec *zstd.Decoder, stored []byte) ([]byte, error) {
	data, err := dec.DecodeAll(stored, nil)
	if err != nil {
		return nil, err
	}
	if len(data) > maxPack {
		return nil, zstd.ErrDecoderSizeExceeded
	}
	return data, nil
}

func objectName(d snapshot.Digest) string { return "sha256/" + d.String() }

// packObject is a pack as an object; stored are its compressed bytes. It is
// exact, or other bytes under its name, which it is to replace, could pass for it.
func (s *Store) packObject(name snapshot.Digest, stored []byte) object {
	sum := snapshot.Digest(sha256.Sum256(stored))
	return object{
		bucket: s.packs(), name: objectName(name), nuid: sum.String(), digest: sum,
		size: int64(len(stored)), exact: true, open: readerOf(stored),
	}
}

// openPack finds a pack and streams its compressed bytes.
func (s *Store) openPack(ctx context.Context, name snapshot.Digest) (*objectReader, error) {
	r, err := s.openObject(ctx, s.packs(), objectName(name))
	if err != nil {
		if unreadable(err) { // a manifest has it: nothing in it may be reused
			s.suspects.add(s.packs(), objectName(name))
		}
		return nil, err
	}
	r.sum = nil // each content has its own digest
	if r.info.Size > maxStoredPack {
		_ = r.Close()
		return nil, s.badPack(name, "it has %d bytes, more than a pack can have", r.info.Size)
	}
	return r, nil
}

// loadPack fetches a pack and unpacks it.
func (s *Store) loadPack(ctx context.Context, name snapshot.Digest) ([]byte, error) {
	r, err := s.openPack(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	stored, err := r.all()
	if err != nil {
		return nil, fmt.Errorf("read pack %s: %w", name, err)
	}
	data, err := unpack(s.dec, stored)
	if err != nil {
		return nil, s.badPack(name, "it can't be decompressed: %v", err)
	}
	return data, nil
}

func (s *Store) badPack(name snapshot.Digest, format string, args ...any) error {
	s.suspects.add(s.packs(), objectName(name))
	return invalid("pack "+name.String(), format, args...)
}

// content returns the checked bytes of a piece. They belong to the cache and
// must not be changed.
func (s *Store) content(ctx context.Context, p snapshot.Piece) ([]byte, error) {
	data, err := s.cache.get(ctx, p.Pack)
	if err != nil {
		return nil, err
	}
	return s.part(data, p)
}

// part returns the checked bytes of a piece of an unpacked pack.
func (s *Store) part(data []byte, p snapshot.Piece) ([]byte, error) {
	if p.Offset < 0 || p.Length < 0 || p.Offset > int64(len(data)) || p.Length > int64(len(data))-p.Offset {
		s.cache.drop(p.Pack)
		return nil, s.badPack(p.Pack, "it ends before byte %d", p.Offset+p.Length)
	}
	part := data[p.Offset : p.Offset+p.Length]
	if snapshot.Digest(sha256.Sum256(part)) != p.Digest {
		s.cache.drop(p.Pack)
		return nil, s.badPack(p.Pack, "content %s at byte %d has other bytes", p.Digest, p.Offset)
	}
	return part, nil
}
