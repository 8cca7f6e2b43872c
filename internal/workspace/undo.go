package workspace

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// undo takes back the moves of a restore in place that failed: by its own
// process or, if that is dead, by who finds its stage.
type undo struct {
	*mover
	moves  []move
	mtimes map[string]int64 // of new files, if not older than the stage
	parent *os.Root         // of the directory and of the stage
	name   string           // of the directory
	stage  string
	at     handle // the stage
	kept   []string
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
		err = endJournal(u.at, u.fault)
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
	m.took(v)
	dir, name := split(v.Path)
	to, err := m.top.enter(dir, openDirectory)
	if err == nil {
		err = m.old.move(v.Slot, to, name)
	}
	if isNotThere(err) || errors.Is(err, fs.ErrExist) {
		return m.keepOut(v)
	}
	return err
}

// keepOut keeps, under its path in the stage, an entry whose place is gone or
// taken since, unless it is an empty directory.
func (m *mover) keepOut(v *move) error {
	if v.Dir && uninterrupted(func() error { return unix.Unlinkat(int(m.old), v.Slot, unix.AT_REMOVEDIR) }) == nil {
		return nil
	}
	if err := m.old.mkdir(keptName, 0o700); err != nil && err != unix.EEXIST {
		return err
	}
	kept := way{top: m.old}
	defer kept.leave()
	dir, name := split(keptName + "/" + v.Path)
	to, err := kept.enter(dir, umask(0).openOrMake)
	if err != nil {
		return err
	}
	return m.old.move(v.Slot, to, name)
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
	// It may have two names, see moveSimply; one rename would leave both.
	_ = uninterrupted(func() error { return unix.Unlinkat(int(to), name, 0) })
	m.took(v)
	return from.take(name, to, name)
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
	if a.bits() != to.Mode || to.Mtime != nil && a.mtime != *to.Mtime {
		m.took(v)
	}
	return h.setLook(a, to)
}

// took counts an entry that is taken back, however many its moves are.
func (m *mover) took(v *move) {
	if m.back == nil {
		m.back = map[string]bool{}
	}
	m.back[v.Path] = true
}

// isAsSet reports whether an mtime is the one that was set, as exactly as some
// file system keeps it.
func isAsSet(mtime, set int64) bool {
	return slices.ContainsFunc([]time.Duration{1, 100, time.Microsecond, time.Millisecond, time.Second, 2 * time.Second},
		func(tick time.Duration) bool { return mtime == set-set%int64(tick) })
}

// keptSuffix begins the end of the names of directories in which an undo keeps
// what has no place any more, and what was written since the moves began.
const keptSuffix = ".kept-"

// keepWritten keeps, beside the directory, what could not come back, and what the
// restore had brought if anything in it was written since.
func (u *undo) keepWritten() error {
	if err := u.keepBeside(path.Join(oldName, keptName)); unlessAbsent(err) != nil {
		return err
	}
	for i := range u.moves {
		if v := &u.moves[i]; v.Do == moveIn && u.wasWritten(v.Path) {
			return u.keepBeside(freshName)
		}
	}
	return nil
}

// keepBeside moves a part of the stage beside the directory, whose name may be so
// long that only its beginning fits.
func (u *undo) keepBeside(part string) error {
	const most = 100
	name := strings.ToValidUTF8(u.name[:min(len(u.name), most)], "")
	name += keptSuffix + rand.Text()
	err := u.parent.Rename(path.Join(u.stage, part), name)
	if err == nil {
		u.kept = append(u.kept, name)
	}
	return err
}

// wasWritten looks for a file that is newer than the moves, or a directory below
// whose names have changed. What can't be looked at may be somebody's work.
func (u *undo) wasWritten(brought string) bool {
	began, fresh := time.Unix(0, u.began), path.Join(u.stage, freshName)+"/"
	found := errors.New("found")
	err := fs.WalkDir(u.parent.FS(), fresh+brought, func(at string, d fs.DirEntry, err error) error {
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
		t := info.ModTime()
		set, known := u.mtimes[strings.TrimPrefix(at, fresh)]
		if t.Before(began) || d.IsDir() && t.Equal(began) || known && isAsSet(t.UnixNano(), set) {
			return nil
		}
		return found
	})
	return err != nil
}
