package workspace

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// The journal of an exact restore is a line about the directory and one for each
// move. While it is in the stage, the directory may be half changed: whoever
// finds it there without its process undoes the moves. Its removal is the commit.

type journalHead struct {
	Name  string `json:"name"` // of the directory, beside the stage
	Inode uint64 `json:"inode"`
}

// commit makes the moves, all or none. done is false if that failed too, so that
// the stage must stay.
func (x *exact) commit(ctx context.Context, moves []move) (done bool, err error) {
	if len(moves) == 0 {
		return true, nil
	}
	if x.to.Confirm != nil {
		if err := x.to.Confirm(ctx); err != nil {
			return true, err
		}
	}
	if err := x.writeJournal(moves); err != nil {
		return true, diskFault("write the journal for", x.to.Path, err)
	}
	m := mover{top: way{top: x.top}, fresh: way{top: x.fresh}, old: x.old, fault: x.t.fault}
	defer m.leave()
	if err = m.all(ctx, moves); err == nil {
		if err = errors.Join(x.stage.top().syncAll(), x.endJournal()); err == nil { // or a power cut could empty what is new
			return true, nil
		}
		err = diskFault("end the journal for", x.to.Path, err)
	}
	if undone := m.undoAll(moves); undone != nil {
		return false, errors.Join(snapshot.Errorf(snapshot.Internal, "the restore into %q failed and could not be undone; the next restore or save there tries it again", x.to.Path), err, undone)
	}
	if ended := x.endJournal(); ended != nil {
		return false, errors.Join(err, ended)
	}
	return true, err
}

func (x *exact) writeJournal(moves []move) error {
	if err := x.t.fault("journal", ""); err != nil {
		return err
	}
	const part = journalName + ".part"
	h, err := x.stage.top().create(part, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(h), part)
	defer f.Close()
	buf := bufio.NewWriter(f)
	out := json.NewEncoder(buf)
	err = out.Encode(journalHead{x.dest.base(), x.inode})
	for i := range moves {
		err = errors.Join(err, out.Encode(moves[i]))
	}
	if err = errors.Join(err, buf.Flush()); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = x.stage.top().move(part, x.stage.top(), journalName)
	}
	if err == nil {
		err = x.stage.lock.Sync()
	}
	return err
}

// endJournal says that there is nothing to undo any more.
func (x *exact) endJournal() error {
	if err := x.t.fault("commit", ""); err != nil {
		return err
	}
	return endJournal(x.stage.top())
}

// The removal is on the disk before anything that it was needed for goes.
func endJournal(stage handle) error {
	err := uninterrupted(func() error { return unix.Unlinkat(int(stage), journalName, 0) })
	if err == nil {
		err = uninterrupted(func() error { return unix.Fsync(int(stage)) })
	}
	return err
}

func readJournal(stage handle) (head journalHead, moves []move, err error) {
	h, err := stage.open(journalName, 0)
	if err != nil {
		return head, nil, err
	}
	f := os.NewFile(uintptr(h), journalName)
	defer f.Close()
	in := json.NewDecoder(bufio.NewReader(f))
	for err = in.Decode(&head); err == nil; {
		var m move
		if err = in.Decode(&m); err == nil {
			moves = append(moves, m)
		}
	}
	if err != io.EOF {
		return head, nil, fmt.Errorf("read journal: %w", err)
	}
	return head, moves, nil
}

// mover makes moves and undoes them, relative to open directories.
type mover struct {
	top, fresh way
	old        handle
	fault      func(op, path string) error
}

func (m *mover) leave() {
	m.top.leave()
	m.fresh.leave()
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
	return m.look(v, v.Now, v.Maybe)
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
	if err := in.move(name, m.old, v.Slot); err != nil {
		return unlessAbsent(err)
	}
	a, err := m.old.lstat(v.Slot)
	if err == nil && a.inode != v.Inode {
		err = errReplaced
	}
	if err == nil && v.Dir {
		var empty bool
		if empty, err = isEmpty(m.old, v.Slot); !empty {
			err = errors.Join(unix.ENOTEMPTY, err)
		}
	}
	return err
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

// look sets mode and mtime of what still has the move's inode. lenient passes
// over another.
func (m *mover) look(v *move, to *look, lenient bool) error {
	dir, name := split(v.Path)
	h, err := m.top.enter(dir, openDirectory)
	if err == nil && v.Path != "" {
		if h, err = h.open(name, 0); err == nil {
			defer h.close()
		}
	}
	var a attr
	if err == nil {
		a, err = h.stat()
	}
	if err != nil || a.inode != v.Inode {
		if lenient {
			return nil
		}
		return errors.Join(errReplaced, err)
	}
	if err = h.chmod(to.Mode); err == nil && to.Mtime != nil {
		err = h.setMtime(*to.Mtime)
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
	if v.Do == moveLook {
		return m.look(v, v.Was, true)
	}
	dir, name := split(v.Path)
	if v.Do == moveOut {
		if _, err := m.old.lstat(v.Slot); isAbsent(err) {
			return nil
		}
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
	from, err := m.top.enter(dir, openDirectory)
	if isAbsent(err) || errors.Is(err, errReplaced) {
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

func (m *mover) close() {
	m.leave()
	for _, h := range []handle{m.top.top, m.fresh.top, m.old} {
		if h != noHandle {
			h.close()
		}
	}
}
