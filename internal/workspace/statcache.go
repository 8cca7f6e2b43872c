package workspace

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"sandkeep/internal/snapshot"
)

// A stat cache is a file of cacheMagic, a key of 32 bytes, and rows in path
// order, each as its CRC-32C, the length of its body, and the body. A wrong
// row ends the cache: what is after it is read again.
const (
	cacheMagic = "sandkeep stat cache 1\n"
	maxRow     = snapshot.MaxPathBytes + 128
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

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

type cacheRow struct {
	path       string
	stat       stat // the device is that of the key
	digest     snapshot.Digest
	redactions int64
}

// statCache reads the rows of the scan before and writes those of this one,
// both in path order. A nil cache knows nothing.
type statCache struct {
	file   string
	start  time.Time
	device uint64
	old    *os.File
	in     *bufio.Reader
	row    cacheRow // the first one that was not passed
	more   bool
	tmp    *os.File
	out    *bufio.Writer
}

// openCache never fails: a cache that can't be used is none.
func (t *Trees) openCache(dir *os.File, pol snapshot.Policy, cacheKey string, start time.Time) *statCache {
	fi, err := dir.Stat()
	if t.options.StateDir == "" || cacheKey == "" || err != nil || !hasLocalClock(dir) {
		return nil
	}
	root, ok := sysStat(fi)
	if !ok {
		return nil
	}
	name := sha256.Sum256([]byte(cacheKey))
	c := &statCache{file: filepath.Join(t.cacheDir(), fmt.Sprintf("%x", name)), start: start, device: root.device}
	key := t.cacheKey(root, pol)
	c.openOld(key)
	c.tmp, err = os.CreateTemp(t.cacheDir(), "new-*")
	if err != nil {
		return c
	}
	c.out = bufio.NewWriterSize(c.tmp, 64<<10)
	_, _ = c.out.WriteString(cacheMagic) // an error of the file shows at the flush
	_, _ = c.out.Write(key)
	return c
}

// cacheKey changes with whatever a row's digest depends on besides the file.
func (t *Trees) cacheKey(root stat, pol snapshot.Policy) []byte {
	h := sha256.New()
	rules, _ := json.Marshal(pol) // strings and flags only
	fmt.Fprintf(h, "%d %d %q %q", root.device, root.inode, rules, t.redactor.fingerprint(t.salt))
	return h.Sum(nil)
}

func (c *statCache) openOld(key []byte) {
	f, err := os.Open(c.file)
	if err != nil {
		return
	}
	in := bufio.NewReaderSize(f, 64<<10)
	head := make([]byte, len(cacheMagic)+len(key))
	if _, err := io.ReadFull(in, head); err != nil || !bytes.Equal(head, append([]byte(cacheMagic), key...)) {
		_ = f.Close()
		return
	}
	c.old, c.in = f, in
	c.advance()
}

func (c *statCache) advance() {
	var err error
	c.row, err = readRow(c.in)
	c.more = err == nil
}

// lookup finds the row of an unchanged file. Paths come in order.
func (c *statCache) lookup(path string, s stat) (cacheRow, bool) {
	if c == nil {
		return cacheRow{}, false
	}
	for c.more && c.row.path < path {
		c.advance()
	}
	s2 := s
	s2.device = 0
	return c.row, c.more && c.row.path == path && s.device == c.device && c.row.stat == s2
}

// keep adds a row if it can be trusted later.
func (c *statCache) keep(r cacheRow) {
	if c == nil || c.out == nil || r.stat.device != c.device || !r.stat.settled(c.start) {
		return
	}
	_, _ = c.out.Write(r.encode())
}

// commit puts the new rows in the place of the old ones. A cache that can't be
// written is left as it was: the next scan reads more, nothing else.
func (c *statCache) commit() {
	if c == nil || c.out == nil {
		return
	}
	if c.out.Flush() == nil && c.tmp.Close() == nil && os.Rename(c.tmp.Name(), c.file) == nil {
		c.tmp = nil
	}
}

func (c *statCache) close() {
	if c == nil {
		return
	}
	if c.old != nil {
		_ = c.old.Close()
	}
	if c.tmp != nil {
		_ = c.tmp.Close()
		_ = os.Remove(c.tmp.Name())
	}
}

func (r cacheRow) encode() []byte {
	body := binary.AppendUvarint(nil, uint64(len(r.path)))
	body = append(body, r.path...)
	for _, v := range []int64{r.stat.size, r.stat.mtime, r.stat.ctime, r.redactions} {
		body = binary.AppendVarint(body, v)
	}
	body = binary.AppendUvarint(body, r.stat.inode)
	body = append(body, r.digest[:]...)
	row := binary.LittleEndian.AppendUint32(nil, crc32.Checksum(body, castagnoli))
	return append(binary.AppendUvarint(row, uint64(len(body))), body...)
}

var errDamagedRow = errors.New("row of the stat cache is damaged")

func readRow(in *bufio.Reader) (cacheRow, error) {
	var sum [4]byte
	if _, err := io.ReadFull(in, sum[:]); err != nil {
		return cacheRow{}, err
	}
	size, err := binary.ReadUvarint(in)
	if err != nil || size > maxRow {
		return cacheRow{}, errDamagedRow
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(in, body); err != nil || crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(sum[:]) {
		return cacheRow{}, errDamagedRow
	}
	return decodeRow(bytes.NewReader(body))
}

func decodeRow(in *bytes.Reader) (r cacheRow, err error) {
	n, err := binary.ReadUvarint(in)
	if err != nil || n > uint64(in.Len()) {
		return r, errDamagedRow
	}
	path := make([]byte, n)
	_, _ = in.Read(path)
	r.path = string(path)
	for _, v := range []*int64{&r.stat.size, &r.stat.mtime, &r.stat.ctime, &r.redactions} {
		if *v, err = binary.ReadVarint(in); err != nil {
			return r, errDamagedRow
		}
	}
	if r.stat.inode, err = binary.ReadUvarint(in); err != nil || in.Len() != len(r.digest) {
		return r, errDamagedRow
	}
	_, _ = in.Read(r.digest[:])
	return r, nil
}
