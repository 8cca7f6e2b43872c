package workspace

import (
	"io"
	"math"

	"golang.org/x/sys/unix"
)

// handle is an open directory or file. What is looked up in a directory is a
// single name, and no link is followed, so that nothing outside is ever reached.
type handle int

const noHandle handle = -1

// kind is what a listing says about a name; not every file system says it.
type kind uint8

const (
	kindUnknown kind = iota
	kindDir
	kindLeaf
)

// attr is what the system says about a file.
type attr struct {
	stat
	mode  uint32
	links uint32
}

func (a *attr) is(format uint32) bool { return a.mode&unix.S_IFMT == format }
func (a *attr) perm() uint16          { return uint16(a.mode & 0o777) }
func (a *attr) bits() uint32          { return a.mode & 0o7777 }
func (a *attr) special() uint32       { return a.mode & 0o7000 }

func (a *attr) set(s *unix.Stat_t) {
	*a = attr{mode: uint32(s.Mode), links: uint32(min(uint64(s.Nlink), math.MaxUint32)), stat: stat{size: s.Size, mtime: nanos(s.Mtim.Unix()), ctime: nanos(s.Ctim.Unix()),
		inode: s.Ino, device: uint64(s.Dev)}}
}

// nanos saturates: file systems know times that nanoseconds in 64 bits do not.
func nanos(sec, nsec int64) int64 {
	const most = math.MaxInt64 / 1_000_000_000
	switch {
	case sec < -most:
		return math.MinInt64
	case sec >= most:
		return math.MaxInt64
	}
	return sec*1_000_000_000 + nsec
}

func (h handle) open(name string, flags int) (handle, error) {
	for {
		fd, err := unix.Openat(int(h), name, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		switch err {
		case nil:
			return handle(fd), nil
		case unix.EINTR:
		default:
			return noHandle, err
		}
	}
}

func (h handle) close() { _ = unix.Close(int(h)) }

// lstat looks a name up in a directory.
func (h handle) lstat(name string) (a attr, err error) {
	var s unix.Stat_t
	for {
		if err = unix.Fstatat(int(h), name, &s, unix.AT_SYMLINK_NOFOLLOW); err != unix.EINTR {
			break
		}
	}
	if err == nil {
		a.set(&s)
	}
	return a, err
}

// stat is about what is open.
func (h handle) stat() (a attr, err error) {
	var s unix.Stat_t
	for {
		if err = unix.Fstat(int(h), &s); err != unix.EINTR {
			break
		}
	}
	if err == nil {
		a.set(&s)
	}
	return a, err
}

func (h handle) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(h), p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (h handle) readlink(name string) (string, error) {
	for b := make([]byte, 256); ; {
		n, err := unix.Readlinkat(int(h), name, b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return "", err
		case n < len(b):
			return string(b[:n]), nil
		default:
			b = make([]byte, 2*len(b))
		}
	}
}
