package workspace

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// mover makes moves and undoes them, relative to open directories.
type mover struct {
	top, fresh way
	old        handle
	fault      func(op, path string) error
	before     map[string]attr  // what the leaves were when they were compared
	ctimes     map[uint64]int64 // that moves have given to files with other names, by inode
	began      int64            // when the first move could be made, by the file system's clock
	back       map[string]bool  // what was taken back
}

func (x *exact) mover() *mover {
	return &mover{top: way{top: x.top}, fresh: way{top: x.fresh}, old: x.old, fault: x.t.fault, before: x.before, ctimes: map[uint64]int64{}}
}

func (m *mover) leave() {
	m.top.leave()
	m.fresh.leave()
}

func (m *mover) close() {
	m.leave()
	for _, h := range []handle{m.top.top, m.fresh.top, m.old} {
		if h != noHandle {
			h.close()
		}
	}
}

func (m *mover) all(ctx context.Context, moves []move) error {
	for i := range moves {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := m.fault("move", moves[i].Path)
		if err == nil {
			err = m.one(&moves[i])
		}
		if _, known := errors.AsType[*snapshot.Error](err); err != nil && !known {
			return m.failed(moves[i].Path, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// failed tells what changed meanwhile from what the file system does.
func (m *mover) failed(path string, err error) error {
	for _, other := range []error{unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.ENOTDIR, unix.EISDIR, errReplaced} {
		if errors.Is(err, other) {
			return changed(path, err)
		}
	}
	return diskFault("move", path, err)
}

func (m *mover) one(v *move) error {
	switch v.Do {
	case moveOut:
		return m.out(v)
	case moveIn:
		dir, name := split(v.Path)
		from, err := m.fresh.enter(dir, openDirectory)
		if err != nil {
			return err
		}
		to, err := m.top.enter(dir, openDirectory)
		if err != nil {
			return err
		}
		return from.move(name, to, name)
	}
	return m.look(v)
}

// out displaces an entry. What has vanished needs not be.
func (m *mover) out(v *move) error {
	dir, name := split(v.Path)
	in, err := m.top.enter(dir, openDirectory)
	if err != nil {
		return err
	}
	if v.Dir {
		if empty, err := isEmpty(in, name); err != nil || !empty {
			return m.keeps(v, err)
		}
	}
	if is, err := in.lstat(name); err != nil {
		return unlessAbsent(err)
	} else if !m.isStill(v.Path, is) {
		return errReplaced
	}
	if err := in.take(name, m.old, v.Slot); err != nil {
		return unlessAbsent(err)
	}
	return m.checkOut(v)
}

// checkOut finds what became of an entry just before it was displaced.
func (m *mover) checkOut(v *move) error {
	a, err := m.old.lstat(v.Slot)
	if err != nil {
		return err
	}
	if a.links > 1 && !v.Dir {
		m.ctimes[a.inode] = a.ctime
	}
	a.ctime = m.before[v.Path].ctime // the move has changed it
	if a.inode != v.Inode || !m.isStill(v.Path, a) {
		return errReplaced
	}
	if !v.Dir {
		return nil
	}
	empty, err := isEmpty(m.old, v.Slot)
	if !empty {
		err = errors.Join(unix.ENOTEMPTY, err)
	}
	return err
}

// isStill reports whether a leaf is what it was when it was compared.
func (m *mover) isStill(path string, is attr) bool {
	was, known := m.before[path]
	if ctime, moved := m.ctimes[is.inode]; moved && ctime == is.ctime {
		is.ctime = was.ctime
	}
	return !known || is.stat == was.stat
}

func unlessAbsent(err error) error {
	if isAbsent(err) {
		return nil
	}
	return err
}

// keeps leaves a directory where it is that is not empty, if it may stay.
func (m *mover) keeps(v *move, err error) error {
	if err == nil && v.Must {
		return conflict(v.Path)
	}
	return unlessAbsent(err)
}

func isEmpty(in handle, name string) (bool, error) {
	h, err := openDirectory(in, name)
	if err != nil {
		return false, err
	}
	defer h.close()
	empty := true
	err = h.names(make([]byte, 4<<10), func([]byte, kind) { empty = false })
	return empty, err
}

// look sets mode and mtime of what is what it was.
func (m *mover) look(v *move) error {
	h, a, err := m.open(v)
	if err == nil && v.Path != "" {
		defer h.close()
	}
	if err != nil || a.inode != v.Inode {
		if v.Maybe {
			return nil
		}
		return errors.Join(errReplaced, err)
	}
	if v.Now.Mtime != nil && (a.links != 1 || !m.isStill(v.Path, a)) {
		return errReplaced
	}
	return h.setLook(a, *v.Now)
}

// open opens what a move is about; its caller closes it, unless it is the
// directory itself.
func (m *mover) open(v *move) (h handle, a attr, err error) {
	dir, name := split(v.Path)
	if h, err = m.top.enter(dir, openDirectory); err == nil && v.Path != "" {
		h, err = h.open(name, 0)
	}
	if err != nil {
		return noHandle, a, replacedIf(err, unix.ELOOP, unix.ENOTDIR, unix.ENXIO)
	}
	if a, err = h.stat(); err != nil && v.Path != "" {
		h.close()
	}
	return h, a, err
}

// setLook changes what is different.
func (h handle) setLook(is attr, to look) error {
	if is.bits() != to.Mode {
		if err := h.chmod(to.Mode); err != nil {
			return err
		}
	}
	if to.Mtime != nil && is.mtime != *to.Mtime {
		return h.setMtime(*to.Mtime)
	}
	return nil
}
