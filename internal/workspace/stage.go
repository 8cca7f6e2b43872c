package workspace

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// stage is the hidden directory that a restore fills. A lock on it says that
// its process is alive.
type stage struct {
	parent *os.Root
	name   string
	lock   *os.File
	umask  umask
}

// newStage makes a locked staging directory. Whoever removes stale ones may take
// a new one for stale until it is locked; then another is made.
func newStage(parent *os.Root) (*stage, error) {
	for {
		s := &stage{parent: parent, name: stagingPrefix + rand.Text()}
		if err := parent.Mkdir(s.name, 0o777); err != nil {
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

// take locks the new directory, and learns from its mode what the umask does.
func (s *stage) take() error {
	top, err := enterDir(s.parent, s.name)
	if err != nil {
		return err
	}
	defer top.Close()
	if s.lock, err = lockDir(top); err != nil {
		return err
	}
	mine, err := s.lock.Stat()
	if err != nil {
		return err
	}
	s.umask = umask(0o777 &^ mine.Mode().Perm())
	if err := s.lock.Chmod(0o700); err != nil {
		return err
	}
	now, err := s.parent.Lstat(s.name)
	if err == nil && !os.SameFile(now, mine) {
		err = fs.ErrNotExist
	}
	return err
}

func (s *stage) top() handle { return handle(s.lock.Fd()) }

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

// removeStale removes the staging directories of dead processes, after what
// they left half done is undone. It fails silently: they are in nobody's way.
func (t *Trees) removeStale(parent *os.Root) {
	for _, name := range stagesIn(parent) {
		_ = t.settle(parent, name)
	}
}

// stagesIn are the names in a directory that are the worker's own.
func stagesIn(parent *os.Root) []string {
	list, err := parent.Open(".")
	if err != nil {
		return nil
	}
	defer list.Close()
	names, _ := list.Readdirnames(-1)
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, stagingPrefix) })
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
	if s.lock != nil {
		_ = s.lock.Close()
	}
}
