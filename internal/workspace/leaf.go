package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"
	"time"
	"unicode/utf8"

	"sandkeep/internal/snapshot"
)

const (
	// maxReads bounds how often a file that changes under the read is read.
	maxReads = 3
	// readSlack is how far a read goes beyond the size at its beginning, so that
	// a file that grows for ever ends; it is more than files of no stated size have.
	readSlack = 1 << 20
)

// leaf captures whatever is not a directory.
func (c *capture) leaf(ctx context.Context, d *dirWalk, name string) error {
	path := d.path + name
	for try := 1; ; try++ {
		if err := c.t.fault("lstat", path); err != nil {
			return c.failed(path, err)
		}
		info, err := d.root.Lstat(name)
		switch {
		case err != nil:
			return c.failed(path, err)
		case info.Mode().Type() == os.ModeSymlink:
			err = c.symlink(ctx, d, name)
		case info.Mode().IsRegular():
			err = c.file(ctx, d, name, info, try == maxReads)
		case info.IsDir():
			err = errReplaced // a file when the directory was listed
		default:
			c.report.skip(path, kindName(info.Mode()), snapshot.UnsupportedEntry)
			return nil
		}
		if !errors.Is(err, errReplaced) {
			return err
		}
		if try == maxReads {
			c.report.unstable(path)
			return nil
		}
	}
}

func kindName(m os.FileMode) string {
	switch {
	case m&os.ModeNamedPipe != 0:
		return "named pipe"
	case m&os.ModeSocket != 0:
		return "socket"
	case m&os.ModeDevice != 0:
		return "device"
	}
	return "not a file, directory or symbolic link"
}

func (c *capture) symlink(ctx context.Context, d *dirWalk, name string) error {
	path := d.path + name
	target, reason, err := c.readlink(d, name)
	switch {
	case err != nil:
		if err = replacedIf(err, syscall.EINVAL); errors.Is(err, errReplaced) {
			return err
		}
		return c.failed(path, err)
	case reason != "":
		c.report.skip(path, reason, snapshot.UnsupportedEntry)
		return nil
	}
	return c.add(ctx, snapshot.Entry{Path: path, Kind: snapshot.KindSymlink, Target: target})
}

// readlink reads a link's target, as it is; reason is why it can't be kept.
func (c *capture) readlink(d *dirWalk, name string) (target, reason string, err error) {
	target, err = d.root.Readlink(name)
	switch {
	case err != nil:
		return "", "", err
	case !utf8.ValidString(target):
		return "", "target is not UTF-8", nil
	case c.t.redactor.Text(target) != target:
		return "", "secret in its target", nil
	}
	return target, "", nil
}

// open opens a regular file without following or waiting for anything.
func (c *capture) open(d *dirWalk, name string) (*os.File, os.FileInfo, error) {
	if err := c.t.fault("open", d.path+name); err != nil {
		return nil, nil, err
	}
	// A link that is swapped in is followed inside this directory at most, and
	// what it leads to is not the file that lstat saw.
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, replacedIf(err, syscall.ENXIO, syscall.ELOOP, syscall.ENOTDIR)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errReplaced
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// file captures a regular file, from the stat cache or by reading it. It
// returns errReplaced to be called again.
func (c *capture) file(ctx context.Context, d *dirWalk, name string, seen os.FileInfo, last bool) error {
	path := d.path + name
	if c.doomed() {
		return nil
	}
	if s, ok := sysStat(seen); ok {
		if row, hit := c.cache.lookup(path, s); hit && c.w.Known(row.digest, s.size) {
			row.stat = s
			return c.keepFile(ctx, seen, row)
		}
	}
	f, info, err := c.open(d, name)
	if err == nil && !os.SameFile(info, seen) {
		_ = f.Close()
		err = errReplaced
	}
	switch {
	case errors.Is(err, errReplaced):
		return err
	case err != nil:
		return c.failed(path, err)
	}
	defer f.Close()
	return c.readFile(ctx, path, f, last)
}

// readFile reads a file whose stat must be the same before and after.
func (c *capture) readFile(ctx context.Context, path string, f *os.File, last bool) error {
	before, err := f.Stat()
	if err != nil {
		return c.failed(path, err)
	}
	src := &source{next: func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := c.t.fault("read", path); err != nil {
			return 0, err
		}
		return f.Read(p)
	}, left: before.Size() + readSlack}
	row, err := c.put(ctx, path, src)
	switch {
	case src.err != nil && ctx.Err() == nil:
		return c.failed(path, src.err)
	case errors.Is(err, errTooLarge):
		c.report.skip(path, "git configuration is too large to be redacted", snapshot.UnsupportedEntry)
		return nil
	case err != nil:
		return fmt.Errorf("store %q: %w", path, err)
	}
	after, err := f.Stat()
	if err != nil {
		return c.failed(path, err)
	}
	was, okBefore := sysStat(before)
	is, okAfter := sysStat(after)
	stable := okBefore && okAfter && was == is && row.stat.size == is.size
	switch {
	case stable:
		row.stat = is
	case !last:
		return errReplaced
	default:
		c.report.unstable(path)
	}
	return c.keepFile(ctx, after, row)
}

// keepFile adds the entry of a file; its size and digest are those of the row,
// which goes into the stat cache if it has a whole stat.
func (c *capture) keepFile(ctx context.Context, info os.FileInfo, row cacheRow) error {
	c.report.cov.Redactions += row.redactions
	if err := c.add(ctx, snapshot.Entry{Path: row.path, Kind: snapshot.KindFile, Mode: uint16(info.Mode().Perm()),
		Mtime: nanos(info.ModTime()), Size: row.stat.size, Digest: row.digest}); err != nil {
		return err
	}
	if row.stat.ctime != 0 {
		c.cache.keep(row)
	}
	return nil
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
func (c *capture) put(ctx context.Context, path string, src io.Reader) (cacheRow, error) {
	row := cacheRow{path: path}
	start := time.Now()
	defer func() { c.readTime += time.Since(start) }()
	if isGitConfig(path) {
		data, err := io.ReadAll(io.LimitReader(src, maxGitConfig+1))
		if err != nil {
			return row, err
		}
		if len(data) > maxGitConfig {
			return row, errTooLarge
		}
		row.redactions = redactGitConfig(data)
		src = bytes.NewReader(data)
	}
	clean := c.t.redactor.Reader(src)
	var err error
	row.digest, row.stat.size, err = c.w.Put(ctx, clean)
	row.redactions += clean.Redactions()
	c.read.Count++
	c.read.Bytes += row.stat.size
	return row, err
}

// errnoText is the system's word for an error, without the host path in it.
func errnoText(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return "unknown error"
}

// nanos saturates: file systems know times that nanoseconds in 64 bits do not.
func nanos(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}
