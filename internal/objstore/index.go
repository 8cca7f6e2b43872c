package objstore

import (
	"context"
	"encoding/binary"
	"hash/maphash"

	"sandkeep/internal/snapshot"
)

// maxKnown bounds the contents that a tree writer remembers, of its own and of
// the parent, to a page: some ten MiB for each.
const maxKnown = 128 << 10

// index finds contents that this save has stored, by digest. It forgets the
// oldest when it is full.
type index struct {
	seed   maphash.Seed      // so that no tree can be made whose digests collide
	places map[uint64]uint32 // in ring, by the hash of the digest
	ring   []span
	oldest int

	large  map[snapshot.Digest][]span // of several pieces
	pieces int                        // of all of them
}

func newIndex() *index {
	return &index{seed: maphash.MakeSeed(), places: map[uint64]uint32{}, large: map[snapshot.Digest][]span{}}
}

func (x *index) hash(d snapshot.Digest) uint64 { return maphash.Bytes(x.seed, d[:]) }

func (x *index) find(d snapshot.Digest, size int64) ([]span, bool) {
	if at, ok := x.places[x.hash(d)]; ok && x.ring[at].digest == d {
		return []span{x.ring[at]}, int64(x.ring[at].length) == size
	}
	spans, ok := x.large[d]
	left := size
	for _, sp := range spans {
		left -= int64(sp.length)
	}
	return spans, ok && left == 0
}

func (x *index) add(sp span) {
	at := len(x.ring)
	if at < maxKnown {
		x.ring = append(x.ring, sp)
	} else {
		at = x.oldest
		delete(x.places, x.hash(x.ring[at].digest))
		x.ring[at] = sp
		x.oldest = (at + 1) % maxKnown
	}
	x.places[x.hash(sp.digest)] = uint32(at)
}

// addLarge adds a content of several pieces.
func (x *index) addLarge(d snapshot.Digest, spans []span) {
	if x.pieces += len(spans); x.pieces > maxKnown {
		clear(x.large)
		x.pieces = len(spans)
	}
	x.large[d] = spans
}

// parentIndex finds contents of the parent that are not at their path any more:
// by the first bytes of their digest, the row that has them. It keeps no entry,
// and is made when the first such content is asked for.
type parentIndex struct {
	pages manifestPages
	looks *packLooks
	made  bool
	rows  map[uint64]rowPlace

	page int // that was looked at last
	read rowReader
}

type rowPlace struct{ page, body uint32 }

func shortDigest(d []byte) uint64 { return binary.BigEndian.Uint64(d) }

// make reads the parent up to a page that can't be read: those behind it may
// be broken too.
func (x *parentIndex) make(ctx context.Context) error {
	x.made, x.page = true, -1
	x.rows = make(map[uint64]rowPlace, min(128*x.pages.count(), maxKnown))
	for n := 0; n < x.pages.count() && len(x.rows) < maxKnown; n++ {
		if err := x.open(ctx, n); err != nil || x.read.err != nil {
			return err
		}
		for x.read.next() {
			x.add(n)
		}
	}
	return nil
}

func (x *parentIndex) add(page int) {
	r := &x.read.row
	if r.pieces == 0 {
		return
	}
	at := rowPlace{uint32(page), uint32(r.body)}
	note := func(d []byte) {
		if _, ok := x.rows[shortDigest(d)]; !ok {
			x.rows[shortDigest(d)] = at
		}
	}
	note(r.digest)
	if r.pieces > 1 {
		x.read.eachPiece(func(p rowPiece) { note(p.digest) })
	}
}

// open makes a page the one that is looked at. One that can't be read has no rows.
func (x *parentIndex) open(ctx context.Context, page int) error {
	if x.page == page {
		return nil
	}
	x.page, x.read = page, rowReader{}
	raw, _, err := x.pages.read(ctx, page)
	if err != nil {
		x.page, x.read.err = -1, err
		if unreadable(err) {
			err = nil
		}
		return err
	}
	x.read = readRows(raw)
	return nil
}

// find returns the place of a content, or of a piece of a large one, unless its
// packs are lost.
func (x *parentIndex) find(ctx context.Context, d snapshot.Digest, size int64) ([]span, error) {
	if !x.made {
		if err := x.make(ctx); err != nil {
			return nil, err
		}
	}
	at, ok := x.rows[shortDigest(d[:])]
	if !ok {
		return nil, nil
	}
	if err := x.open(ctx, int(at.page)); err != nil || x.read.page == nil || !x.read.at(int(at.body)) {
		return nil, err
	}
	if x.read.row.holds(d, size) {
		return x.looks.spans(&x.read, func(rowPiece) bool { return true }), nil
	}
	found := false
	return x.looks.spans(&x.read, func(p rowPiece) bool {
		this := !found && string(p.digest) == string(d[:]) && p.length == size
		found = found || this
		return this
	}), nil
}
