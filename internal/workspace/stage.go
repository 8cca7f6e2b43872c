package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// restoreWorkers bounds the files that are written at once.
const restoreWorkers = 4

// stage is the hidden directory that a restore fills. A lock on it says that
// its process is alive.
type stage struct {
	parent *os.Root
	name   string
	lock   *os.File
	dirs   []*openDir // the way to the directory that is being filled, the top first
	late   []lateMode
}

// openDir is closed when the last of its users leaves it: the way, and the files
// that are being written into it.
type openDir struct {
	path  string // "" or "a/b"
	root  *os.Root
	users atomic.Int32
}

func newOpenDir(path string, root *os.Root) *openDir {
	d := &openDir{path: path, root: root}
	d.users.Add(1)
	return d
}

func (d *openDir) leave() {
	if d.users.Add(-1) == 0 {
		_ = d.root.Close()
	}
}

// lateMode is of a directory that its owner could not fill with that mode.
type lateMode struct {
	path string
	mode os.FileMode
}

// newStage makes a locked staging directory. Whoever removes stale ones may take
// a new one for stale until it is locked; then another is made.
func newStage(parent *os.Root) (*stage, error) {
	for {
		s := &stage{parent: parent, name: stagingPrefix + rand.Text()}
		if err := parent.Mkdir(s.name, 0o700); err != nil {
			return nil, err
		}
		err := s.take()
		switch {
		case err == nil:
			return s, nil
		case errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist):
			s.close()
		default:
			s.close()
			_ = parent.Remove(s.name)
			return nil, err
		}
	}
}

func (s *stage) take() error {
	top, err := enterDir(s.parent, s.name)
	if err != nil {
		return err
	}
	s.dirs = []*openDir{newOpenDir("", top)}
	if s.lock, err = lockDir(top); err != nil {
		return err
	}
	now, err := s.parent.Lstat(s.name)
	if err != nil {
		return err
	}
	mine, err := s.lock.Stat()
	if err == nil && !os.SameFile(now, mine) {
		err = fs.ErrNotExist
	}
	return err
}

// lockDir takes the lock on a directory if nobody has it.
func lockDir(dir *os.Root) (*os.File, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// removeStale removes the staging directories of dead processes. It fails
// silently: they are in nobody's way.
func removeStale(parent *os.Root) {
	list, err := parent.Open(".")
	if err != nil {
		return
	}
	defer list.Close()
	names, _ := list.Readdirnames(-1)
	for _, name := range names {
		if !strings.HasPrefix(name, stagingPrefix) {
			continue
		}
		dir, err := enterDir(parent, name)
		if err != nil {
			continue
		}
		if lock, err := lockDir(dir); err == nil {
			removeTree(parent, name)
			_ = lock.Close()
		}
		_ = dir.Close()
	}
}

// removeTree removes a tree that may have directories without write permission.
func removeTree(parent *os.Root, name string) {
	if parent.RemoveAll(name) == nil {
		return
	}
	_ = fs.WalkDir(parent.FS(), name, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && err == nil {
			_ = parent.Chmod(p, 0o700)
		}
		return nil
	})
	_ = parent.RemoveAll(name)
}

func (s *stage) remove() { removeTree(s.parent, s.name) }

func (s *stage) close() {
	for _, d := range s.dirs {
		d.leave()
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

// fill writes all entries into the stage, all but the modes that come late.
func (t *Trees) fill(ctx context.Context, s *stage, entries iter.Seq2[snapshot.Entry, error], open Open) (files, bytes int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work, workCtx := errgroup.WithContext(ctx)
	work.SetLimit(restoreWorkers)
	var check manifestCheck
	feed := func() error {
		for e, err := range entries {
			if err != nil {
				return fmt.Errorf("read manifest: %w", err)
			}
			if err := workCtx.Err(); err != nil {
				return err
			}
			if err := check.next(e); err != nil {
				return err
			}
			if err := t.fault("write", e.Path); err != nil {
				return diskFault("write", e.Path, err)
			}
			dir, err := s.make(e)
			if err != nil {
				return err
			}
			if dir != nil {
				files, bytes = files+1, bytes+e.Size
				work.Go(func() error {
					defer dir.leave()
					return writeFile(workCtx, dir, e, open)
				})
			}
		}
		return nil
	}
	fed := feed()
	if fed != nil {
		cancel()
	}
	// Each side's failure cancels the other; the one that was not cancelled is the cause.
	worked := work.Wait()
	if fed != nil && (worked == nil || !errors.Is(fed, context.Canceled)) {
		return 0, 0, fed
	}
	if worked != nil {
		return 0, 0, worked
	}
	return files, bytes, nil
}

// make makes what the entry is. For a file it returns the directory to write it
// into, which the writer has to leave.
func (s *stage) make(e snapshot.Entry) (*openDir, error) {
	dir, err := s.enter(path.Dir(e.Path))
	if err != nil {
		return nil, makeFault(e, err)
	}
	switch e.Kind {
	case snapshot.KindSymlink:
		err = dir.root.Symlink(e.Target, path.Base(e.Path))
	case snapshot.KindDir:
		err = s.makeDir(e)
	default:
		dir.users.Add(1)
		return dir, nil
	}
	return nil, makeFault(e, err)
}

func makeFault(e snapshot.Entry, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist) || errors.Is(err, errReplaced):
		return invalid(e, "has, on this file system, the name of another")
	}
	return diskFault("make", e.Path, err)
}

// makeDir makes a directory. One that its owner can't fill gets its mode late.
func (s *stage) makeDir(e snapshot.Entry) error {
	dir, err := s.enter(e.Path)
	if err != nil {
		return err
	}
	mode := os.FileMode(e.Mode) & fs.ModePerm
	if mode&0o700 != 0o700 {
		s.late = append(s.late, lateMode{e.Path, mode})
		return nil
	}
	return chmodDir(dir.root, mode)
}

// enter opens a directory of the stage, and makes what is missing on the way.
func (s *stage) enter(dir string) (*openDir, error) {
	if dir == "." {
		dir = ""
	}
	top := s.dirs[len(s.dirs)-1]
	for top.path != "" && top.path != dir && !strings.HasPrefix(dir, top.path+"/") {
		top.leave()
		s.dirs = s.dirs[:len(s.dirs)-1]
		top = s.dirs[len(s.dirs)-1]
	}
	rest := strings.TrimPrefix(strings.TrimPrefix(dir, top.path), "/")
	for part := range strings.SplitSeq(rest, "/") {
		if part == "" {
			break // it is the top itself
		}
		sub, _, err := enterOrMake(top.root, part)
		if err != nil {
			return nil, err
		}
		top = newOpenDir(path.Join(top.path, part), sub)
		s.dirs = append(s.dirs, top)
	}
	return top, nil
}

// setModes finishes the directories, the deepest first, since a mode may bar the
// way to what is below, and the top last.
func (s *stage) setModes(mode os.FileMode) error {
	top := s.dirs[0].root
	for _, l := range slices.Backward(s.late) {
		dir, err := top.OpenRoot(l.path)
		if err == nil {
			err = errors.Join(chmodDir(dir, l.mode), dir.Close())
		}
		if err != nil {
			return diskFault("set the mode of", l.path, err)
		}
	}
	if err := chmodDir(top, mode); err != nil {
		return diskFault("set the mode of", ".", err)
	}
	return nil
}

// writeFile makes, fills and finishes a file.
func writeFile(ctx context.Context, dir *openDir, e snapshot.Entry, open Open) error {
	f, err := dir.root.OpenFile(path.Base(e.Path), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return makeFault(e, err)
	}
	if err = copyContent(ctx, f, e, open); err == nil {
		err = errors.Join(f.Chmod(os.FileMode(e.Mode)&fs.ModePerm), setMtime(f, e.Mtime))
		if err != nil {
			err = diskFault("finish", e.Path, err)
		}
	}
	if closed := f.Close(); err == nil && closed != nil {
		err = diskFault("close", e.Path, closed)
	}
	return err
}

func copyContent(ctx context.Context, f *os.File, e snapshot.Entry, open Open) error {
	if e.Size == 0 {
		return nil
	}
	r, err := open(ctx, e)
	if err != nil {
		return fmt.Errorf("open content of %q: %w", e.Path, err)
	}
	defer r.Close()
	dst := &sink{f: f}
	n, err := io.Copy(dst, io.LimitReader(r, e.Size+1))
	switch {
	case dst.err != nil:
		return diskFault("write", e.Path, dst.err)
	case err != nil:
		return fmt.Errorf("read content of %q: %w", e.Path, err)
	case n != e.Size:
		return snapshot.Errorf(snapshot.InvalidBlob, "content of %q has %d bytes and not the %d of its entry; the checkpoint is damaged", e.Path, n, e.Size)
	}
	return nil
}

// sink tells an error of writing from one of reading.
type sink struct {
	f   *os.File
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.f.Write(p)
	if err != nil {
		s.err = err
	}
	return n, err
}
