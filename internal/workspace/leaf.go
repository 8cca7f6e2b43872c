package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

const (
	// maxReads bounds how often a file that changes under the read is read.
	maxReads = 3
	// readSlack is how far a read goes beyond the size at its beginning, so that
	// a file that grows for ever ends; it is more than files of no stated size have.
	readSlack = 1 << 20
)

// leaf captures whatever is not a directory. What was replaced since it was
// looked up is looked up again.
func (c *capture) leaf(ctx context.Context, d *dir, p *place) error {
	for try := 1; ; try++ {
		err := c.tryLeaf(ctx, d, p, try == maxReads)
		if !errors.Is(err, errReplaced) {
			return err
		}
		if try == maxReads {
			c.report.unstable(p.path)
			return nil
		}
		c.scan.look(d, p)
	}
}

// tryLeaf returns errReplaced to be called again.
func (c *capture) tryLeaf(ctx context.Context, d *dir, p *place, last bool) error {
	switch {
	case errors.Is(p.err, errReplaced):
		return p.err
	case p.err != nil:
		return c.failed(p.path, p.err)
	case p.is(unix.S_IFREG):
		return c.file(ctx, d, p, last)
	case p.is(unix.S_IFDIR):
		return errReplaced // a file when the directory was listed
	case !p.is(unix.S_IFLNK):
		c.report.skip(p.path, kindName(p.mode), snapshot.UnsupportedEntry)
		return nil
	case p.what == unsupportedPlace: // since it was looked up again
		c.report.skip(p.path, p.note, snapshot.UnsupportedEntry)
		return nil
	}
	c.seen = p.attr
	return c.add(ctx, snapshot.Entry{Path: p.path, Kind: snapshot.KindSymlink, Target: p.target})
}

func kindName(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "named pipe"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFBLK, unix.S_IFCHR:
		return "device"
	}
	return "not a file, directory or symbolic link"
}

// openFile opens a regular file without following or waiting for anything.
func (s *scan) openFile(d *dir, p *place) (handle, attr, error) {
	if err := s.fault("open", p.path); err != nil {
		return noHandle, attr{}, err
	}
	f, err := d.handle.open(d.base(p.path), 0)
	if err != nil {
		return noHandle, attr{}, replacedIf(err, unix.ENXIO, unix.ELOOP, unix.ENOTDIR)
	}
	a, err := f.stat()
	if err == nil && (!a.is(unix.S_IFREG) || a.inode != p.inode || a.device != p.device) {
		err = errReplaced
	}
	if err != nil {
		f.close()
		return noHandle, attr{}, err
	}
	return f, a, nil
}

// file captures a regular file, from the stat cache or by reading it. It
// returns errReplaced to be called again.
func (c *capture) file(ctx context.Context, d *dir, p *place, last bool) error {
	early := c.takeEarly(p)
	if c.doomed() {
		return nil
	}
	if row, hit := c.cache.lookup(p.path, p.stat); hit && c.w.Known(p.path, row.digest(), p.size) {
		got := content{row.digest(), p.size, row.redactions()}
		c.cache.keepRow()
		early.release()
		return c.addFile(ctx, p.path, p.attr, got)
	}
	if early != nil {
		return c.putEarly(ctx, p.path, early)
	}
	f, before, err := c.scan.openFile(d, p)
	switch {
	case errors.Is(err, errReplaced):
		return err
	case err != nil:
		return c.failed(p.path, err)
	}
	defer f.close()
	return c.readFile(ctx, p.path, openFile{f, before}, last)
}

// openFile is a file and what it was when it was opened.
type openFile struct {
	handle
	before attr
}

// readFile reads a file whose stat must be the same before and after.
func (c *capture) readFile(ctx context.Context, path string, f openFile, last bool) error {
	src := &source{next: func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return c.scan.readSome(f, path, p)
	}, left: f.before.size + readSlack}
	got, err := c.put(ctx, path, src)
	switch {
	case src.err != nil && ctx.Err() == nil:
		return c.failed(path, src.err)
	case errors.Is(err, errTooLarge):
		c.report.skip(path, "git configuration is too large to be redacted", snapshot.UnsupportedEntry)
		return nil
	case errors.Is(err, snapshot.WorkspaceTooLarge):
		return snapshot.Errorf(snapshot.WorkspaceTooLarge, "%q is too large to be kept; exclude it", c.report.show(path)).Because(err)
	case err != nil:
		return fmt.Errorf("store %q: %w", path, err)
	}
	after, err := f.stat()
	if err != nil {
		return c.failed(path, err)
	}
	switch {
	case f.before.stat == after.stat && got.size == after.size:
		c.cache.keep(path, after.stat, got)
	case !last:
		return errReplaced
	default:
		c.report.unstable(path)
	}
	return c.addFile(ctx, path, after, got)
}

// content is what a file was when it was read, without its secrets.
type content struct {
	digest     snapshot.Digest
	size       int64
	redactions int64
}

func (c *capture) addFile(ctx context.Context, path string, a attr, got content) error {
	c.seen = a
	c.report.cov.Redactions += got.redactions
	return c.add(ctx, snapshot.Entry{Path: path, Kind: snapshot.KindFile, Mode: a.perm(), Mtime: a.mtime, Size: got.size, Digest: got.digest})
}

// source reads at most left bytes and remembers why a read failed.
type source struct {
	next func([]byte) (int, error)
	left int64
	err  error
}

func (s *source) Read(p []byte) (int, error) {
	if s.left <= 0 {
		return 0, io.EOF
	}
	n, err := s.next(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

var errTooLarge = errors.New("too large")

// put hands the redacted bytes of a file to the writer.
func (c *capture) put(ctx context.Context, path string, src io.Reader) (got content, err error) {
	start := time.Now()
	defer func() { c.readTime += time.Since(start) }()
	if isGitConfig(path) {
		data, err := io.ReadAll(io.LimitReader(src, maxGitConfig+1))
		if err != nil {
			return got, err
		}
		if len(data) > maxGitConfig {
			return got, errTooLarge
		}
		got.redactions = redactGitConfig(data)
		src = bytes.NewReader(data)
	}
	clean := c.t.redactor.Reader(src)
	got.digest, got.size, err = c.w.Put(ctx, clean)
	got.redactions += clean.Redactions()
	c.read.Count++
	c.read.Bytes += got.size
	return got, err
}

// errnoText is the system's word for an error, without the host path in it.
func errnoText(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return "unknown error"
}
