package workspace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"time"

	"sandkeep/internal/snapshot"
)

// stat is what tells one state of a file from another.
type stat struct {
	size, mtime, ctime int64
	inode, device      uint64
}

// settled reports whether any write after start must change the ctime. The
// kernel takes time stamps from a clock that ticks every 10 ms at the slowest;
// a file system that keeps whole seconds (seen by the ctime, which nobody can
// set) is given two of them.
func (s stat) settled(start time.Time) bool {
	tick := 100 * time.Millisecond
	if s.ctime%int64(time.Second) == 0 {
		tick = 2 * time.Second
	}
	limit := start.Add(-tick).UnixNano()
	return s.mtime < limit && s.ctime < limit
}

// cacheRow is what is known of a file, as it is stored: the CRC-32C of the rest,
// the length of the path (2 bytes), size, mtime, ctime, inode and redactions
// (8 bytes each), the digest and the path. Numbers are little-endian. The
// device is that of the key.
type cacheRow []byte

const (
	rowSize       = 6 + 8*iota // where the numbers are
	rowMtime      = 6 + 8*iota
	rowCtime      = 6 + 8*iota
	rowInode      = 6 + 8*iota
	rowRedactions = 6 + 8*iota
	rowDigest     = 6 + 8*iota
	rowPath       = rowDigest + len(snapshot.Digest{})
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (r cacheRow) path() []byte            { return r[rowPath:] }
func (r cacheRow) digest() snapshot.Digest { return snapshot.Digest(r[rowDigest:rowPath]) }
func (r cacheRow) redactions() int64       { return r.number(rowRedactions) }
func (r cacheRow) number(at int) int64     { return int64(binary.LittleEndian.Uint64(r[at:])) }

// is compares everything but the device.
func (r cacheRow) is(s stat) bool {
	return r.number(rowSize) == s.size && r.number(rowMtime) == s.mtime && r.number(rowCtime) == s.ctime && r.number(rowInode) == int64(s.inode)
}

func (r cacheRow) isSettled(start time.Time) bool {
	return stat{mtime: r.number(rowMtime), ctime: r.number(rowCtime)}.settled(start)
}

func appendRow(b []byte, path string, s stat, got content) cacheRow {
	from := len(b)
	b = binary.LittleEndian.AppendUint16(append(b, 0, 0, 0, 0), uint16(len(path)))
	for _, v := range [...]int64{s.size, s.mtime, s.ctime, int64(s.inode), got.redactions} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	b = append(append(b, got.digest[:]...), path...)
	binary.LittleEndian.PutUint32(b[from:], crc32.Checksum(b[from+4:], castagnoli))
	return b
}

var errDamagedRow = errors.New("row of the stat cache is damaged")

// rowLength is that of the row which begins so.
func rowLength(head []byte) int { return rowPath + int(binary.LittleEndian.Uint16(head[4:])) }

func (r cacheRow) isSound() bool {
	return len(r) > rowPath && crc32.Checksum(r[4:], castagnoli) == binary.LittleEndian.Uint32(r)
}

// peekRow gives the next row as long as nothing more is read; io.EOF at the end.
func peekRow(in *bufio.Reader) (cacheRow, error) {
	head, err := in.Peek(rowPath)
	if err == io.EOF && len(head) == 0 {
		return nil, io.EOF
	}
	if err != nil {
		return nil, errDamagedRow
	}
	row, err := in.Peek(rowLength(head))
	if err != nil || !cacheRow(row).isSound() {
		return nil, errDamagedRow
	}
	return row, nil
}
