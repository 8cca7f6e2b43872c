package workspace

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// exactPrefix begins the names of stages that may have a journal.
const exactPrefix = stagingPrefix + "exact-"

// exactStage is the name of the stage for a directory: one at a time.
func exactStage(name string) string {
	return fmt.Sprintf("%s%x", exactPrefix, sha256.Sum256([]byte(name)))
}

// asideStage is the name of a stage whose directory is not at its place.
func asideStage(name string, inode uint64) string {
	return fmt.Sprintf("%s-%d", exactStage(name), inode)
}

// newExactStage makes the stage for a directory, after what a dead restore left
// of it is undone.
func (t *Trees) newExactStage(parent *os.Root, name string) (*stage, error) {
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
		if err := t.settle(parent, s.name); err != nil {
			return nil, err
		}
	}
	return nil, atWork()
}

func atWork() error {
	return snapshot.Errorf(snapshot.Busy, "another restore is at work on the directory; send the request again")
}

// settleDir undoes what a dead restore left of a directory; Busy if one is at work.
func (t *Trees) settleDir(dir string) error {
	real, err := resolve(dir)
	if err != nil {
		return nil // who uses it will say so
	}
	parent, err := os.OpenRoot(filepath.Dir(real))
	if err != nil {
		return diskFault("open the directory above", filepath.Base(real), err)
	}
	defer parent.Close()
	return t.settleAll(parent, filepath.Base(real))
}

// settleAll settles the stages of a directory: the one of its name, and the one
// that was set aside when it was away.
func (t *Trees) settleAll(parent *os.Root, name string) error {
	if err := t.settle(parent, exactStage(name)); err != nil {
		return err
	}
	info, err := parent.Lstat(name)
	if err != nil {
		return nil // who uses it will say so
	}
	is, _ := sysStat(info)
	return t.settle(parent, asideStage(name, is.inode))
}

// settle removes a stage whose process is dead, after its moves are undone.
func (t *Trees) settle(parent *os.Root, name string) error {
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
	undone, head, err := t.undoStage(parent, name, handle(lock.Fd()))
	if errors.Is(err, errOrphan) {
		return setAside(parent, name, head)
	}
	if errors.Is(err, errForeign) {
		return snapshot.Errorf(snapshot.Internal, "%q, beside the directory, is of a restore that broke off, and its journal is damaged or not this worker's; start the worker with the state directory that it had then, or move that away, then send the request again", name).Because(err)
	}
	if err != nil {
		return snapshot.Errorf(snapshot.Internal, "a restore that broke off could not be undone (%s); see to the file system of the node, then send the request again", errnoText(err)).Because(err)
	}
	if undone != nil && t.options.Undone != nil {
		t.options.Undone(*undone)
	}
	removeTree(parent, name)
	return nil
}

// setAside keeps a stage until its directory is back, out of the way of another
// of that name.
func setAside(parent *os.Root, stage string, head journalHead) error {
	aside := asideStage(head.Name, head.Inode)
	if stage == aside {
		return nil
	}
	err := parent.Rename(stage, aside)
	if errors.Is(err, fs.ErrExist) {
		err = parent.Rename(stage, exactStage(head.Name)+"-"+rand.Text())
	}
	return err
}

// errOrphan is about a stage whose directory is gone, or another by now.
var errOrphan = errors.New("the directory of the journal is not there")

// undoStage undoes the moves of a stage's journal; without one, undone is nil.
func (t *Trees) undoStage(parent *os.Root, name string, stage handle) (undone *Undone, head journalHead, err error) {
	if !strings.HasPrefix(name, exactPrefix) {
		return nil, head, nil // what is in it may be of a checkpoint
	}
	head, moves, err := t.readJournal(stage)
	if err != nil {
		return nil, head, unlessAbsent(err)
	}
	up, err := parent.Open(".")
	if err != nil {
		return nil, head, err
	}
	defer up.Close()
	u := undo{moves: moves, mtimes: head.Mtimes, parent: parent, name: head.Name, stage: name, at: stage,
		mover: &mover{top: way{top: noHandle}, fresh: way{top: noHandle}, old: noHandle, fault: t.fault}}
	defer u.close()
	if u.top.top, err = openDirectory(handle(up.Fd()), head.Name); err == nil {
		err = head.check(u.top.top)
	}
	if isNotThere(err) {
		return nil, head, errOrphan
	}
	// An undo that broke off may have kept what is new, a removal begun to go on.
	if err == nil {
		u.fresh.top, err = umask(0).openOrMake(stage, freshName)
	}
	if err == nil {
		u.old, err = umask(0).openOrMake(stage, oldName)
	}
	if err == nil {
		err = u.note()
	}
	if err == nil {
		err = u.takeBack()
	}
	return &Undone{Dir: filepath.Join(parent.Name(), head.Name), Entries: len(u.back), Kept: u.kept}, head, err
}

// check returns errReplaced if the directory is not the one of the journal.
func (j journalHead) check(dir handle) error {
	a, err := dir.stat()
	if err != nil {
		return err
	}
	born := dir.born()
	if a.inode != j.Inode || born != 0 && j.Born != 0 && born != j.Born {
		return errReplaced
	}
	return nil
}
