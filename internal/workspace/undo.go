package workspace

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// undo takes back the moves of a restore in place that failed: by its own
// process or, if that is dead, by who finds its stage.
type undo struct {
	*mover
	moves  []move
	parent *os.Root // of the directory and of the stage
	name   string   // of the directory
	stage  string
	at     handle // the stage
}

// note remembers when the moves began.
func (u *undo) note() error {
	journal, err := u.at.lstat(journalName)
	u.began = journal.mtime
	return err
}

// takeBack makes the directory what it was before the moves, keeps what was
// written since, and ends the journal.
func (u *undo) takeBack() error {
	if err := u.undoAll(u.moves); err != nil {
		return err
	}
	if err := u.keepWritten(); err != nil {
		return fmt.Errorf("keep what was written since: %w", err)
	}
	err := u.at.syncAll()
	if err == nil {
		err = u.fault("undone", "")
	}
	if err == nil {
		err = endJournal(u.at)
	}
	return err
}

// undoAll takes all moves back, the last first, as far as they were made.
func (m *mover) undoAll(moves []move) error {
	var errs []error
	for i := range slices.Backward(moves) {
		err := m.fault("undo", moves[i].Path)
		if err == nil {
			err = m.undo(&moves[i])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("undo %s of %q: %w", moves[i].Do, moves[i].Path, err))
		}
	}
	return errors.Join(errs...)
}

func (m *mover) undo(v *move) error {
	switch v.Do {
	case moveOut:
		return m.undoOut(v)
	case moveIn:
		return m.undoIn(v)
	}
	return m.undoLook(v)
}

func (m *mover) undoOut(v *move) error {
	if _, err := m.old.lstat(v.Slot); isAbsent(err) {
		return nil
	}
	dir, name := split(v.Path)
	to, err := m.top.enter(dir, openDirectory)
	if err != nil {
		return err
	}
	if err = m.old.move(v.Slot, to, name); errors.Is(err, unix.EEXIST) {
		// Something came into its place since; both are kept.
		err = m.old.move(v.Slot, to, name+keptSuffix+rand.Text())
	}
	return err
}

func (m *mover) undoIn(v *move) error {
	dir, name := split(v.Path)
	from, err := m.top.enter(dir, openDirectory)
	if isNotThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if a, err := from.lstat(name); err != nil || a.inode != v.Inode {
		return nil // it never came, or went since
	}
	to, err := m.fresh.enter(dir, openDirectory)
	if err != nil {
		return err
	}
	return from.move(name, to, name)
}

// undoLook sets back what is as the move has set it. What another has set since
// stays, and so does the mtime of a file that was written, so that this shows.
func (m *mover) undoLook(v *move) error {
	h, a, err := m.open(v)
	switch {
	case isNotThere(err):
		return nil // it went since
	case err != nil:
		return err
	case v.Path != "":
		defer h.close()
	}
	if a.inode != v.Inode {
		return nil
	}
	to := *v.Was
	if uint32(a.perm()) != v.Now.Mode&0o777 {
		to.Mode = a.bits()
	}
	if to.Mtime != nil && !isAsSet(a.mtime, *v.Now.Mtime) {
		to.Mtime = nil
	}
	return h.setLook(a, to)
}

// isAsSet reports whether an mtime is the one that was set, as exactly as some
// file system keeps it.
func isAsSet(mtime, set int64) bool {
	return slices.ContainsFunc([]time.Duration{1, 100, time.Microsecond, time.Millisecond, time.Second, 2 * time.Second},
		func(tick time.Duration) bool { return mtime == set-set%int64(tick) })
}

// keptSuffix begins the end of the names under which an undo keeps what was
// written since the moves began.
const keptSuffix = ".kept-"

// keepWritten keeps what the restore had brought, beside the directory, if
// anything in it was written since.
func (u *undo) keepWritten() error {
	brought := path.Join(u.stage, freshName)
	for i := range u.moves {
		if v := &u.moves[i]; v.Do == moveIn && u.wasWritten(path.Join(brought, v.Path)) {
			return u.parent.Rename(brought, u.name+keptSuffix+rand.Text())
		}
	}
	return nil
}

// wasWritten looks for a file that is newer than the moves, or a directory below
// whose names have changed. What can't be looked at may be somebody's work.
func (u *undo) wasWritten(brought string) bool {
	began := time.Unix(0, u.began)
	found := errors.New("found")
	err := fs.WalkDir(u.parent.FS(), brought, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it went since
		}
		if err != nil || d.Type() == fs.ModeSymlink {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		// Clocks of file systems tick slowly: what is new may be as old as the journal,
		// and so may what was staged last, whose files have older times.
		if t := info.ModTime(); t.After(began) || !d.IsDir() && t.Equal(began) {
			return found
		}
		return nil
	})
	return err != nil
}
