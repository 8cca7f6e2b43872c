package workspace

import (
	"strings"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// What changes a directory or file, relative to its handle. No link is followed.

func uninterrupted(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}

func (h handle) mkdir(name string, mode uint32) error {
	return uninterrupted(func() error { return unix.Mkdirat(int(h), name, mode) })
}

func (h handle) symlink(target, name string) error {
	return uninterrupted(func() error { return unix.Symlinkat(target, int(h), name) })
}

// take renames an entry into a stage, where nobody else writes, whatever has
// become of it meanwhile.
func (h handle) take(name string, to handle, toName string) error {
	return uninterrupted(func() error { return unix.Renameat(int(h), name, int(to), toName) })
}

// create makes a file that is not there yet.
func (h handle) create(name string, mode uint32) (handle, error) {
	for {
		fd, err := unix.Openat(int(h), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		switch err {
		case nil:
			return handle(fd), nil
		case unix.EINTR:
		default:
			return noHandle, err
		}
	}
}

func (h handle) writeAt(data []byte, at int64) error {
	for len(data) > 0 {
		n, err := unix.Pwrite(int(h), data, at)
		if err != nil && err != unix.EINTR {
			return err
		}
		n = max(n, 0)
		data, at = data[n:], at+int64(n)
	}
	return nil
}

func (h handle) chmod(mode uint32) error {
	return uninterrupted(func() error { return unix.Fchmod(int(h), mode) })
}

// finish closes a file that was written. Some errors of writing come only now.
func (h handle) finish() error {
	if err := unix.Close(int(h)); err != unix.EINTR {
		return err
	}
	return nil
}

// split takes a path apart: "" and "a", or "a/b" and "c".
func split(path string) (dir, name string) {
	at := strings.LastIndexByte(path, '/')
	return path[:max(at, 0)], path[at+1:]
}

// way is the open directories from a top to where one goroutine is.
type way struct {
	top   handle // its maker closes it
	steps []step // the outermost first
}

type step struct {
	path string // "a/b"
	handle
}

func isBelow(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// enter goes to a directory below the top, "" for the top itself, part by part,
// each opened with open. The handle is good until the next call.
func (w *way) enter(dir string, open func(in handle, name string) (handle, error)) (handle, error) {
	n := len(w.steps)
	for n > 0 && w.steps[n-1].path != dir && !isBelow(dir, w.steps[n-1].path) {
		n--
		w.steps[n].close()
	}
	w.steps = w.steps[:n]
	at, from := w.top, 0
	if n > 0 {
		at, from = w.steps[n-1].handle, len(w.steps[n-1].path)+1
	}
	for from < len(dir) {
		end := len(dir)
		if i := strings.IndexByte(dir[from:], '/'); i >= 0 {
			end = from + i
		}
		part := dir[from:end]
		if part == "" || part == "." || part == ".." {
			return noHandle, unix.EINVAL
		}
		next, err := open(at, part)
		if err != nil {
			return noHandle, err
		}
		w.steps = append(w.steps, step{dir[:end], next})
		at, from = next, end+1
	}
	return at, nil
}

func (w *way) leave() {
	for _, s := range w.steps {
		s.close()
	}
	w.steps = nil
}

// openDirectory opens a directory that is no link; what is neither is errReplaced.
func openDirectory(in handle, name string) (handle, error) {
	h, err := in.open(name, unix.O_DIRECTORY)
	if err != nil {
		return noHandle, replacedIf(err, unix.ENOTDIR, unix.ELOOP)
	}
	return h, nil
}

// umask is the permission bits that the system takes from what is made.
type umask uint32

// takes reports whether what was made with this mode has another.
func (u umask) takes(mode uint16) bool { return uint32(mode)&uint32(u) != 0 }

// openOrMake opens a directory, and makes it if it is missing.
func (u umask) openOrMake(in handle, name string) (handle, error) {
	made := in.mkdir(name, snapshot.DefaultDirMode)
	if made != nil && made != unix.EEXIST {
		return noHandle, made
	}
	h, err := openDirectory(in, name)
	if err == nil && made == nil && u.takes(snapshot.DefaultDirMode) {
		if err = h.chmod(snapshot.DefaultDirMode); err != nil {
			h.close()
		}
	}
	return h, err
}
