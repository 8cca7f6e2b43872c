package workspace

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// exactStage is the name of the stage for a directory: one at a time.
func exactStage(name string) string {
	return fmt.Sprintf("%sexact-%x", stagingPrefix, sha256.Sum256([]byte(name)))
}

// newExactStage makes the stage for a directory, after what a dead restore left
// of it is undone.
func newExactStage(parent *os.Root, name string) (*stage, error) {
	for range maxPrepares {
		s := &stage{parent: parent, name: exactStage(name)}
		err := parent.Mkdir(s.name, 0o777)
		if err == nil {
			if err = s.take(); err == nil {
				return s, nil
			}
			s.close()
		}
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, diskFault("make a staging directory for", name, err)
		}
		if err := settle(parent, s.name); err != nil {
			return nil, err
		}
	}
	return nil, atWork()
}

func atWork() error {
	return snapshot.Errorf(snapshot.Busy, "another restore is at work on the directory; send the request again")
}

// settleDir undoes what a dead restore left of a directory; Busy if one is at work.
func settleDir(dir string) error {
	real, err := resolve(dir)
	if err != nil {
		return nil // who uses it will say so
	}
	name := exactStage(filepath.Base(real))
	if _, err := os.Lstat(filepath.Join(filepath.Dir(real), name)); err != nil {
		return nil
	}
	parent, err := os.OpenRoot(filepath.Dir(real))
	if err != nil {
		return diskFault("open the directory above", filepath.Base(real), err)
	}
	defer parent.Close()
	return settle(parent, name)
}

// settle removes a stage whose process is dead, after its moves are undone.
func settle(parent *os.Root, name string) error {
	dir, err := enterDir(parent, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diskFault("enter a staging directory", name, err)
	}
	defer dir.Close()
	lock, err := lockDir(dir)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return atWork()
	}
	if err != nil {
		return diskFault("lock a staging directory", name, err)
	}
	defer lock.Close()
	now, err := parent.Lstat(name)
	mine, lost := lock.Stat()
	if err != nil || lost != nil || !os.SameFile(now, mine) {
		return nil // another was quicker
	}
	back, err := undoStage(parent, handle(lock.Fd()))
	if errors.Is(err, errOrphan) {
		// Kept until the directory is back, out of the way of another of its name.
		return parent.Rename(name, stagingPrefix+rand.Text())
	}
	if err != nil {
		return snapshot.Errorf(snapshot.Internal, "a restore that broke off could not be undone (%s); see to the file system of the node, then send the request again", errnoText(err)).Because(err)
	}
	if err := keepWritten(parent, name, back); err != nil {
		return diskFault("keep what was written since into", back.name, err)
	}
	removeTree(parent, name)
	return nil
}

// undone is a restore whose moves were taken back.
type undone struct {
	name  string    // of the directory; "" if there was nothing to take back
	began time.Time // of the moves
}

// keptSuffix begins the end of the names under which an undo keeps what was
// written after the restore that it takes back had broken off.
const keptSuffix = ".kept-"

// keepWritten keeps what a broken restore had brought, beside the directory, if
// any file in it was written since.
func keepWritten(parent *os.Root, stage string, u undone) error {
	if u.name == "" {
		return nil
	}
	brought, written := path.Join(stage, freshName), false
	err := fs.WalkDir(parent.FS(), brought, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		written = written || err == nil && !info.ModTime().Before(u.began) // clocks of file systems tick slowly
		return err
	})
	if written || err != nil { // what can't be looked at may be somebody's work
		return parent.Rename(brought, u.name+keptSuffix+rand.Text())
	}
	return nil
}

// errOrphan is about a stage whose directory is gone, or another by now.
var errOrphan = errors.New("the directory of the journal is not there")

// undoStage undoes the moves of a stage's journal, if it has one.
func undoStage(parent *os.Root, stage handle) (u undone, err error) {
	head, moves, err := readJournal(stage)
	if isAbsent(err) {
		return u, nil
	}
	if err != nil || strings.Contains(head.Name, "/") {
		return u, errors.Join(err, errReplaced)
	}
	up, err := parent.Open(".")
	if err != nil {
		return u, err
	}
	defer up.Close()
	m := mover{top: way{top: noHandle}, fresh: way{top: noHandle}, old: noHandle, fault: func(string, string) error { return nil }}
	defer m.close()
	m.top.top, err = openDirectory(handle(up.Fd()), head.Name)
	if isAbsent(err) || errors.Is(err, errReplaced) {
		return u, errOrphan
	}
	if err != nil {
		return u, err
	}
	a, err := m.top.top.stat()
	if err == nil && a.inode != head.Inode {
		err = errOrphan
	}
	if err == nil {
		m.fresh.top, err = openDirectory(stage, freshName)
	}
	if err == nil {
		m.old, err = openDirectory(stage, oldName)
	}
	var journal attr
	if err == nil {
		journal, err = stage.lstat(journalName)
	}
	if err == nil {
		err = m.undoAll(moves)
	}
	if err == nil {
		err = endJournal(stage)
	}
	return undone{head.Name, time.Unix(0, journal.mtime)}, err
}
