package workspace

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"sandkeep/internal/snapshot"
)

// A stat cache is a file of cacheMagic, a key of 32 bytes, and rows in path
// order. A wrong row ends the cache: what is after it is read again.
const cacheMagic = "sandkeep stat cache 2\n"

// statCache reads the rows of the scan before and writes those of this one,
// both in path order. As long as these are the same nothing is written. A nil
// cache knows nothing.
type statCache struct {
	file   string
	start  time.Time
	device uint64
	head   []byte   // magic and key
	old    *os.File // nil: none that can be used
	oldEnd int64    // when the old rows were written: nothing newer is in them
	in     *bufio.Reader
	row    cacheRow // of old: the first one that was not passed; nil at the end
	at     int64    // where that begins
	kept   bool     // it is among the new rows
	tmp    *os.File // the new cache, once it differs from the old
	out    *bufio.Writer
	buf    []byte
	failed bool
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
	c := &statCache{file: filepath.Join(t.cacheDir(), cacheName(cacheKey)), start: start, device: root.device,
		head: append([]byte(cacheMagic), t.cacheKey(root, pol)...)}
	c.openOld()
	return c
}

func cacheName(cacheKey string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(cacheKey))) }

// cacheKey changes with whatever a row's digest depends on besides the file,
// and with the machine, which another's inodes mean nothing to.
func (t *Trees) cacheKey(root stat, pol snapshot.Policy) []byte {
	h := sha256.New()
	rules, _ := json.Marshal(pol) // strings and flags only
	fmt.Fprintf(h, "%q %d %d %q %q", machine(), root.device, root.inode, rules, t.redactor.fingerprint(t.salt))
	return h.Sum(nil)
}

func (c *statCache) openOld() {
	f, err := os.Open(c.file)
	if err != nil {
		return
	}
	in := bufio.NewReaderSize(f, 64<<10)
	head := make([]byte, len(c.head))
	if _, err := io.ReadFull(in, head); err != nil || !bytes.Equal(head, c.head) {
		_ = f.Close()
		return
	}
	if fi, err := f.Stat(); err == nil {
		c.oldEnd = fi.ModTime().UnixNano()
	}
	c.old, c.in, c.at = f, in, int64(len(head))
	c.peek()
}

func (c *statCache) peek() {
	var err error
	c.kept = false
	if c.row, err = peekRow(c.in); err != nil && err != io.EOF {
		c.diverge() // what is after the damage goes
	}
}

func (c *statCache) advance() {
	if !c.kept {
		c.diverge()
	}
	c.at += int64(len(c.row))
	_, _ = c.in.Discard(len(c.row)) // it is in the buffer
	c.peek()
}

// lookup finds the row of an unchanged file; it is good until the next lookup.
// Paths come in order.
func (c *statCache) lookup(path string, s stat) (cacheRow, bool) {
	if c == nil {
		return nil, false
	}
	for c.row != nil && string(c.row.path()) < path {
		c.advance()
	}
	return c.row, c.isHit(c.row, path, s)
}

func (c *statCache) isHit(row cacheRow, path string, s stat) bool {
	return row != nil && s.device == c.device && string(row.path()) == path && row.is(s)
}

// misses reports whether no lookup can find the file. It may be called at any
// time and by several goroutines.
func (c *statCache) misses(s stat) bool {
	return c == nil || c.old == nil || s.ctime > c.oldEnd || s.device != c.device
}

// foresees reports whether a lookup that is due later will find the file. It
// sees as far as the buffer goes.
func (c *statCache) foresees(path string, s stat) bool {
	if c == nil || c.row == nil {
		return false
	}
	for rest, _ := c.in.Peek(c.in.Buffered()); len(rest) >= rowPath && len(rest) >= rowLength(rest); {
		row := cacheRow(rest[:rowLength(rest)])
		if string(row.path()) >= path {
			return row.isSound() && c.isHit(row, path, s)
		}
		rest = rest[len(row):]
	}
	return false
}

// keepRow keeps the row that lookup has found if it can still be trusted later.
func (c *statCache) keepRow() {
	if c.row.isSettled(c.start) {
		c.write(c.row)
		c.kept = true
	}
}

// keep adds the row of a file that was read, if it can be trusted later.
func (c *statCache) keep(path string, s stat, got content) {
	if c == nil || s.device != c.device || !s.settled(c.start) {
		return
	}
	c.buf = appendRow(c.buf[:0], path, s, got)
	if bytes.Equal(c.buf, c.row) {
		c.keepRow()
		return
	}
	c.diverge()
	c.write(c.buf)
}

func (c *statCache) write(row cacheRow) {
	if c.tmp != nil {
		_, _ = c.out.Write(row) // an error of the file shows at the flush
	}
}

// diverge begins a new cache with what it shares with the old one.
func (c *statCache) diverge() {
	if c.tmp != nil || c.failed {
		return
	}
	var err error
	if c.tmp, err = os.CreateTemp(filepath.Dir(c.file), "new-*"); err != nil {
		c.failed = true
		return
	}
	c.out = bufio.NewWriterSize(c.tmp, 64<<10)
	_, _ = c.out.Write(c.head)
	if c.old == nil {
		return
	}
	from := int64(len(c.head))
	if _, err := io.Copy(c.out, io.NewSectionReader(c.old, from, c.at-from)); err != nil {
		c.giveUp()
	}
}

func (c *statCache) giveUp() {
	_ = c.tmp.Close()
	_ = os.Remove(c.tmp.Name())
	c.tmp, c.failed = nil, true
}

// commit puts the new rows in the place of the old ones. A cache that can't be
// written is left as it was: the next scan reads more, nothing else.
func (c *statCache) commit() {
	if c == nil {
		return
	}
	if c.row != nil && c.kept {
		c.advance()
	}
	if c.row != nil || c.old == nil {
		c.diverge()
	}
	switch {
	case c.tmp == nil && c.old != nil:
		_ = handle(c.old.Fd()).setMtime(time.Now().UnixNano()) // it is in use
	case c.tmp != nil && c.out.Flush() == nil && c.tmp.Close() == nil && os.Rename(c.tmp.Name(), c.file) == nil:
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
		c.giveUp()
	}
}
