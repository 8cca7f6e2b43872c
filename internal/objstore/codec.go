package objstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"

	"sandkeep/internal/snapshot"
)

// First byte of a page: its kind and version.
const (
	entryPage = 0x11
	refPage   = 0x21
	itemPage  = 0x31
	partPage  = 0x41
)

var errPage = errors.New("malformed page")

// decoder reads a page. After the first fault it only returns zeros; err says
// that there was one.
type decoder struct {
	buf []byte
	err error
}

func (d *decoder) fail() {
	d.err, d.buf = errPage, nil
}

// uvarint reads a number of at most limit, in its shortest spelling.
func (d *decoder) uvarint(limit uint64) uint64 {
	if len(d.buf) > 0 && d.buf[0] < 0x80 && uint64(d.buf[0]) <= limit {
		v := d.buf[0]
		d.buf = d.buf[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(d.buf)
	if n <= 0 || v > limit || n > 1 && d.buf[n-1] == 0 {
		d.fail()
		return 0
	}
	d.buf = d.buf[n:]
	return v
}

func (d *decoder) size() int64 { return int64(d.uvarint(math.MaxInt64)) }

// count reads the number of things that follow, of at least each bytes.
func (d *decoder) count(each int) int { return int(d.uvarint(uint64(len(d.buf) / each))) }

func (d *decoder) take(n int) []byte {
	if n > len(d.buf) {
		d.fail()
		return nil
	}
	b := d.buf[:n:n]
	d.buf = d.buf[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) digest() (out snapshot.Digest) {
	copy(out[:], d.take(len(out)))
	return out
}

// text reads a string that shares a prefix with the one before.
func (d *decoder) text(before string, limit int) string {
	shared := int(d.uvarint(uint64(len(before))))
	rest := int(d.uvarint(uint64(limit)))
	if d.err != nil || shared+rest > limit {
		d.fail()
		return ""
	}
	return before[:shared] + string(d.take(rest))
}

func appendText(buf []byte, before, s string) []byte {
	shared := 0
	for shared < min(len(before), len(s)) && before[shared] == s[shared] {
		shared++
	}
	buf = binary.AppendUvarint(buf, uint64(shared))
	buf = binary.AppendUvarint(buf, uint64(len(s)-shared))
	return append(buf, s[shared:]...)
}

// packTable numbers the packs of a page in the order of their first use.
type packTable struct {
	packs []snapshot.Digest
	index map[snapshot.Digest]int
}

func (t *packTable) number(pack snapshot.Digest) uint64 {
	if i, ok := t.index[pack]; ok {
		return uint64(i)
	}
	if t.index == nil {
		t.index = map[snapshot.Digest]int{}
	}
	t.index[pack] = len(t.packs)
	t.packs = append(t.packs, pack)
	return uint64(len(t.packs) - 1)
}

// page puts the table before the body that was written with its numbers.
func (t *packTable) page(kind byte, n int, body []byte) []byte {
	buf := append(make([]byte, 0, len(body)+32*len(t.packs)+16), kind)
	buf = binary.AppendUvarint(buf, uint64(len(t.packs)))
	for _, pack := range t.packs {
		buf = append(buf, pack[:]...)
	}
	buf = binary.AppendUvarint(buf, uint64(n))
	return append(buf, body...)
}

// table reads the head of a page and the number of its rows.
func (d *decoder) table(kind byte) (packs []snapshot.Digest, rows int) {
	if d.byte() != kind {
		d.fail()
		return nil, 0
	}
	for n := d.count(32); n > 0; n-- {
		packs = append(packs, d.digest())
	}
	return packs, d.count(3)
}

func appendPlace(buf []byte, t *packTable, p snapshot.Piece) []byte {
	buf = binary.AppendUvarint(buf, t.number(p.Pack))
	return binary.AppendUvarint(buf, uint64(p.Offset))
}

func (d *decoder) place(packs []snapshot.Digest) (p snapshot.Piece) {
	if i := d.uvarint(math.MaxInt32); i < uint64(len(packs)) {
		p.Pack = packs[i]
	} else {
		d.fail()
	}
	p.Offset = int64(d.uvarint(maxPack))
	return p
}

// exact makes sure that a page is what the encoder writes, byte for byte: no
// padding, no unused pack, no other spelling of a number.
func (d *decoder) exact(page, again []byte) error {
	if d.err == nil && (len(d.buf) > 0 || !bytes.Equal(page, again)) {
		d.fail()
	}
	return d.err
}
