package workspace

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxEarlyFile bounds the files that are read ahead of the walk, maxEarly the
	// memory for them. With maxUnread files to read the scan need not go on.
	maxEarlyFile = 64 << 10
	maxEarly     = 2 << 20
	maxUnread    = 512
	earlyRoom    = 16 << 10 // least room for a file
	// A read of slowRead waited for the disk: then the next slowFiles are read
	// ahead. Files in memory are read quicker by the walk alone.
	slowRead  = 250 * time.Microsecond
	slowFiles = 256
)

// reads is what is read ahead of the walk: small files that the stat cache can't
// have, in path order. The walk reads the others when it comes to them.
type reads struct {
	slow  int   // files that are to be read ahead, since others were slow
	files int   // that nobody has begun
	room  int64 // of files that the walk has not taken
	full  bool
}

// early is a small file that is read ahead of the walk.
type early struct {
	state state
	room  int64
	attr  attr
	buf   *[]byte // its bytes without secrets; nil: the walk has to read it
	got   content
}

var earlyBuffers = sync.Pool{New: func() any { b := make([]byte, 0, earlyRoom+1); return &b }}

func (e *early) release() {
	if e != nil && e.buf != nil {
		earlyBuffers.Put(e.buf)
		e.buf = nil
	}
}

// wanted is how many files of a part are read ahead.
func (p *part) wanted() (n int) {
	for i := range p.places {
		if p.places[i].early != nil {
			n++
		}
	}
	return n
}

// want says that a file is to be read ahead, if it is one for that.
func (s *scan) want(d *dir, p *place) {
	if p.what == leafPlace && p.err == nil && p.is(unix.S_IFREG) && !d.probe && 0 < p.size && p.size <= maxEarlyFile && s.isNew(p.stat) && !isGitConfig(p.path) {
		p.early = &early{room: max(p.size, earlyRoom)}
	}
}

// readNext reads the nearest file that nobody has begun, if there is one and
// room for it. Called with the lock, it lets go of it meanwhile.
func (s *scan) readNext() bool {
	if s.reads.full = s.reads.full || s.reads.room >= maxEarly; s.reads.full || s.reads.files == 0 || s.reads.slow == 0 {
		return false
	}
	for e := s.queue.Front(); e != nil; e = e.Next() {
		p := e.Value.(*part)
		if p.state != scanned {
			continue
		}
		for ; p.unread < len(p.places); p.unread++ {
			if at := &p.places[p.unread]; at.early != nil && at.early.state == unscanned {
				s.readAhead(p.dir, at)
				return true
			}
		}
		s.queue.Remove(e)
		p.at = nil
		return true
	}
	return false
}

func (s *scan) readAhead(d *dir, p *place) {
	e := p.early
	e.state = scanning
	s.reads.files--
	s.reads.slow--
	s.reads.room += e.room
	s.mu.Unlock()
	s.read(d, p)
	s.mu.Lock()
	e.state = scanned
	s.done.Signal()
}

// take gives the walk what was read of a file; nil if it has to read it. While a
// worker reads it, the walk reads another, or scans.
func (s *scan) take(p *place) *early {
	e := p.early
	if e == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for e.state == scanning {
		if s.readNext() {
			continue
		}
		if next := s.next(); next != nil {
			s.run(next, true)
			continue
		}
		s.done.Wait()
	}
	p.early = nil
	if e.state == unscanned {
		s.reads.files--
		return nil
	}
	s.reads.room -= e.room
	if s.reads.full && s.reads.room < maxEarly/2 {
		s.reads.full = false
		s.work.Broadcast()
	}
	if e.buf == nil {
		return nil
	}
	return e
}

// read reads a file that must not change meanwhile. If anything is wrong, the
// walk sees it by itself.
func (s *scan) read(d *dir, p *place) {
	f, before, err := s.openFile(d, p)
	if err != nil {
		return
	}
	defer f.close()
	buf := earlyBuffers.Get().(*[]byte)
	if e, ok := s.readInto(buf, p.path, openFile{f, before}); ok {
		p.early.buf, p.early.attr, p.early.got = buf, before, e
		return
	}
	earlyBuffers.Put(buf)
}

// readInto reads a file into a buffer. It must still be what it was.
func (s *scan) readInto(buf *[]byte, path string, f openFile) (got content, ok bool) {
	size := f.before.size
	if size > maxEarlyFile { // it grew
		return got, false
	}
	*buf = slices.Grow((*buf)[:0], int(size)+1)
	clean := s.redactor.Reader(&source{left: size, next: func(b []byte) (int, error) {
		return s.readSome(f, path, b)
	}})
	n, err := io.ReadFull(clean, (*buf)[:size+1])
	after, statErr := f.stat()
	if err != io.ErrUnexpectedEOF || statErr != nil || f.before.stat != after.stat || int64(n) != size {
		return got, false
	}
	*buf = (*buf)[:n]
	return content{sha256.Sum256(*buf), size, clean.Redactions()}, true
}

// readSome reads from a file, and has more of them read ahead if that was slow.
func (s *scan) readSome(f openFile, path string, b []byte) (int, error) {
	start := time.Now()
	if err := s.fault("read", path); err != nil {
		return 0, err
	}
	n, err := f.Read(b)
	if time.Since(start) > slowRead {
		s.mu.Lock()
		s.reads.slow = slowFiles
		s.work.Broadcast()
		s.mu.Unlock()
	}
	return n, err
}

// takeEarly waits for what is being read ahead.
func (c *capture) takeEarly(p *place) *early {
	if p.early == nil {
		return nil
	}
	start := time.Now()
	defer func() { c.readTime += time.Since(start) }()
	return c.scan.take(p)
}

// putEarly hands on what was read ahead.
func (c *capture) putEarly(ctx context.Context, path string, e *early) error {
	defer e.release()
	start := time.Now()
	err := c.w.PutBytes(ctx, *e.buf, e.got.digest)
	c.readTime += time.Since(start)
	if err != nil {
		return fmt.Errorf("store %q: %w", path, err)
	}
	c.read.Count++
	c.read.Bytes += e.got.size
	c.cache.keep(path, e.attr.stat, e.got)
	return c.addFile(ctx, path, e.attr, e.got)
}
