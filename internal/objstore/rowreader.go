package objstore

import (
	"encoding/binary"

	"sandkeep/internal/snapshot"
)

// row is an entry as its page spells it, valid until the next one is read. What
// it says about contents and places is checked; its path and target are not,
// but for the order.
type row struct {
	path        []byte
	body        int // where in the page it goes on behind its path
	kind        snapshot.EntryKind
	mode        uint16
	mtime, size int64
	digest      []byte // of a file that is not empty
	target      []byte // of a symlink
	pieces      int
	places      []byte // the pieces, as spelled
}

// rowPiece is a piece of a row; pack is a number in the table of its page.
type rowPiece struct {
	digest         []byte
	pack           int
	offset, length int64
}

// rowReader reads the rows of a manifest page, which may come from anywhere,
// and leaves no garbage. In all it accepts exactly what encodeEntries writes: a
// page has one spelling.
type rowReader struct {
	decoder
	page  []byte
	packs []snapshot.Digest
	left  int // rows that are still to come
	named int // packs that were named so far, in the order of the table
	row   row
	// weight is that of the rows so far: shared paths cost little to write.
	weight int
}

// readRows begins a page. A fault of its head shows at the first row.
func readRows(page []byte) rowReader {
	r := rowReader{decoder: decoder{buf: page}, page: page}
	r.packs, r.left = r.table(entryPage)
	if twice(r.packs) || r.left == 0 && (len(r.packs) > 0 || len(r.buf) > 0) {
		r.fail()
	}
	return r
}

func twice(packs []snapshot.Digest) bool {
	if len(packs) > 16 {
		seen := make(map[snapshot.Digest]bool, len(packs))
		for _, p := range packs {
			seen[p] = true
		}
		return len(seen) < len(packs)
	}
	for i := range packs {
		for j := range i {
			if packs[i] == packs[j] {
				return true
			}
		}
	}
	return false
}

// next reads the next row; false at the end, or at a fault, which is in err.
func (r *rowReader) next() bool {
	if r.left == 0 || r.err != nil {
		return false
	}
	r.left--
	first := r.weight == 0
	r.path()
	r.rest()
	r.weight += entryWeight(len(r.row.path), len(r.row.target), r.row.pieces)
	if r.weight > pageLimit && !(first && r.left == 0) {
		r.fail()
	}
	if r.left == 0 && (len(r.buf) > 0 || r.named != len(r.packs)) {
		r.fail()
	}
	return r.err == nil
}

// at reads a row again from behind its path on.
func (r *rowReader) at(body int) bool {
	r.err, r.buf, r.named = nil, r.page[body:], len(r.packs)
	r.rest()
	return r.err == nil
}

// path reads a path. Its first own byte is greater than the one in that place
// before: so it follows, and it can share no more.
func (r *rowReader) path() {
	before := r.row.path
	shared := int(r.uvarint(uint64(len(before))))
	own := r.take(int(r.uvarint(snapshot.MaxPathBytes)))
	if len(own) == 0 || shared+len(own) > snapshot.MaxPathBytes || shared < len(before) && own[0] <= before[shared] {
		r.fail()
		return
	}
	r.row.path = append(before[:shared], own...)
}

func (r *rowReader) rest() {
	r.row = row{path: r.row.path, body: len(r.page) - len(r.buf)}
	switch r.row.kind = snapshot.EntryKind(r.byte()); r.row.kind {
	case snapshot.KindFile:
		r.file()
	case snapshot.KindDir:
		r.row.mode = uint16(r.uvarint(0o777))
	case snapshot.KindSymlink:
		r.uvarint(0) // bytes that are shared with another text
		r.row.target = r.take(int(r.uvarint(snapshot.MaxPathBytes)))
	default:
		r.fail()
	}
}

func (r *rowReader) file() {
	r.row.mode = uint16(r.uvarint(0o777))
	if b := r.take(8); b != nil {
		r.row.mtime = int64(binary.BigEndian.Uint64(b))
	}
	if r.row.size = r.size(); r.row.size == 0 {
		return
	}
	r.row.digest = r.take(len(snapshot.Digest{}))
	r.row.pieces = r.count(2)
	places, left := r.buf, r.row.size
	for range r.row.pieces {
		p := r.piece(&r.row)
		if p.pack >= len(r.packs) || p.pack > r.named || p.length <= 0 || p.length > min(maxContent, left) || p.offset > maxPack-p.length {
			r.fail()
			return
		}
		r.named = max(r.named, p.pack+1)
		left -= p.length
	}
	if r.row.pieces > 0 && left > 0 {
		r.fail()
	}
	r.row.places = places[:len(places)-len(r.buf)]
}

// piece reads one of the pieces of a row.
func (d *decoder) piece(of *row) (p rowPiece) {
	p.pack = int(d.uvarint(1 << 30))
	p.offset = int64(d.uvarint(maxPack))
	if of.pieces == 1 { // its digest and length are those of the file
		p.digest, p.length = of.digest, of.size
		return p
	}
	p.length = int64(d.uvarint(maxContent))
	p.digest = d.take(len(snapshot.Digest{}))
	return p
}

// eachPiece visits the pieces of the row.
func (r *rowReader) eachPiece(visit func(rowPiece)) {
	d := decoder{buf: r.row.places}
	for range r.row.pieces {
		visit(d.piece(&r.row))
	}
}

// entry is the row without its pieces.
func (r *row) entry() snapshot.Entry {
	e := snapshot.Entry{Path: string(r.path), Kind: r.kind, Mode: r.mode, Mtime: r.mtime, Size: r.size, Target: string(r.target)}
	if r.kind == snapshot.KindFile && r.size == 0 {
		e.Digest = emptyDigest
	}
	copy(e.Digest[:], r.digest)
	return e
}

// is reports whether the row is that entry, wherever its content lies.
func (r *row) is(e *snapshot.Entry) bool {
	return r.kind == e.Kind && r.mode == e.Mode && r.mtime == e.Mtime && r.holds(e.Digest, e.Size) &&
		string(r.target) == e.Target && string(r.path) == e.Path
}

// holds reports whether that is the content of the row, if it is a file.
func (r *row) holds(d snapshot.Digest, size int64) bool {
	return r.size == size && (size == 0 || string(r.digest) == string(d[:]))
}
