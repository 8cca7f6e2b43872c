package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// exact is a restore into a directory that has something in it. What differs is
// staged; then a journal of the moves is written, and they are made.
type exact struct {
	t      *Trees
	dest   *destination
	to     snapshot.Target
	top    handle // the directory
	inode  uint64
	before map[string]attr // what the leaves were that change
	stage  *stage
	began  int64            // when that was made, by the file system's clock
	mtimes map[string]int64 // of new files, if not older than that
	fresh  handle           // in the stage: what is new, at its paths
	old    handle           // in the stage: what was displaced, by number
}

// Names in the stage of an exact restore.
const (
	freshName   = "new"
	oldName     = "old"
	journalName = "journal"
	keptName    = "kept" // in old: what has no place any more, at its path
)

// isFull reports whether the destination is a directory with something in it,
// after what a dead restore left of it is undone. It makes nothing.
func (d *destination) isFull() (bool, error) {
	if err := d.enterParents(); isNotThere(err) {
		return false, nil // who makes them finds the fault
	} else if err != nil {
		return false, diskFault("enter a parent of", d.path, err)
	}
	if err := d.t.settleAll(d.parent(), d.base()); err != nil {
		return false, err
	}
	err := d.checkFree()
	if errors.Is(err, snapshot.DestinationNotEmpty) {
		info, err := d.parent().Lstat(d.base())
		return err == nil && info.IsDir(), nil
	}
	return false, err
}

// isNotThere reports whether a directory is missing, or something else.
func isNotThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errReplaced)
}

func (t *Trees) restoreExact(ctx context.Context, dest *destination, to snapshot.Target, entries iter.Seq2[snapshot.Entry, error], from snapshot.Contents) (files, bytes int64, err error) {
	x := &exact{t: t, dest: dest, to: to, before: map[string]attr{}, mtimes: map[string]int64{}, top: noHandle, fresh: noHandle, old: noHandle}
	defer x.close()
	if err := t.CheckRoot(dest.full()); err != nil {
		return 0, 0, err
	}
	// The stage comes first: nobody else changes the directory from then on.
	if x.stage, err = t.newExactStage(dest.parent(), dest.base()); err != nil {
		return 0, 0, err
	}
	done := true // what is in the stage is in nobody's way
	defer func() {
		if done {
			x.dest.removeSign()
			x.stage.remove()
		}
	}()
	if err := x.open(); err != nil {
		return 0, 0, err
	}
	f := newFill(ctx, x.fresh, x.stage.umask, from)
	diff, err := x.compare(ctx, f, entries)
	if err = f.finish(err); err != nil {
		return 0, 0, err
	}
	moves, err := x.plan(diff, f.late)
	if err != nil {
		return 0, 0, err
	}
	if done, err = x.commit(ctx, moves); err != nil {
		return 0, 0, err
	}
	return f.files, f.bytes, nil
}

// open opens the directory and the parts of the stage.
func (x *exact) open() (err error) {
	if err = x.dest.makeSign(); err == nil {
		x.fresh, err = x.stage.part(freshName)
	}
	if err == nil {
		x.old, err = x.stage.part(oldName)
	}
	var is, beside attr
	if err == nil {
		beside, err = x.stage.top().stat()
	}
	if err != nil {
		return diskFault("make a staging directory for", x.to.Path, err)
	}
	if x.top, err = x.dest.open(); err == nil {
		is, err = x.top.stat()
	}
	if err != nil {
		return diskFault("open", x.to.Path, err)
	}
	x.began = beside.mtime
	if x.inode = is.inode; is.device != beside.device {
		return snapshot.Errorf(snapshot.InvalidWorkspace, "path %q is on another file system than the directory above it, and can't be changed in one step; restore into a new directory", x.to.Path)
	}
	return nil
}

// open opens the directory that the destination is.
func (d *destination) open() (handle, error) {
	parent, err := d.parent().Open(".")
	if err != nil {
		return noHandle, err
	}
	defer parent.Close()
	return openDirectory(handle(parent.Fd()), d.base())
}

func (x *exact) close() {
	for _, h := range []handle{x.top, x.fresh, x.old} {
		if h != noHandle {
			h.close()
		}
	}
	if x.stage != nil {
		x.stage.close()
	}
}

// compare hands to f what the directory has not, and finds out what else is to
// be changed. It looks at the directory as a save does.
func (x *exact) compare(ctx context.Context, f *fill, entries iter.Seq2[snapshot.Entry, error]) (*difference, error) {
	next, stop := iter.Pull2(entries)
	defer stop()
	d := &difference{x: x, fill: f, next: next, before: x.before, touched: map[string]look{}, dirs: map[string]uint16{}, was: map[string]uint16{}}
	if err := d.peek(); err != nil {
		return nil, err
	}
	if err := x.survey(ctx, d); err != nil {
		return nil, err
	}
	return d, d.rest()
}

// survey hands the tree to d as Capture does, but only what lies at or under the
// target's prefix, and with no fault that a strict save would have.
func (x *exact) survey(ctx context.Context, d *difference) error {
	rules, err := compile(x.to.Policy)
	if err != nil {
		return err
	}
	rules.only = x.to.Prefix
	root, err := x.top.open(".", unix.O_DIRECTORY)
	if err != nil {
		return rootFault(err)
	}
	c := x.t.newCapture(os.NewFile(uintptr(root), "."), rules, x.to.Policy, x.to.CacheKey, d)
	defer c.close()
	d.seen = &c.seen
	if err := c.run(ctx, x.dest.full()); err != nil {
		return err
	}
	if x.to.Prefix == "" { // else it would forget the rest
		c.cache.commit()
	}
	return nil
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
	u := &undo{mover: x.mover(), moves: moves, mtimes: x.mtimes, parent: x.dest.parent(), name: x.dest.base(), stage: x.stage.name, at: x.stage.top()}
	defer u.leave()
	if err = u.note(); err == nil {
		err = u.all(ctx, moves)
	}
	if err == nil {
		if err = x.endJournal(); err == nil {
			return true, nil
		}
		err = diskFault("end the journal for", x.to.Path, err)
	}
	if undone := u.takeBack(); undone != nil {
		half := snapshot.Errorf(snapshot.Internal, "the restore into %q failed and could not be taken back (%s), so that the directory may be half changed; see to the file system of the node, then restore or save there again, which takes it back first",
			x.to.Path, errnoText(undone))
		return false, half.Because(errors.Join(snapshot.ErrHalfRestored, err, undone))
	}
	return true, err
}

// conflict is about an entry that can't be made without the loss of something
// that no save keeps.
func conflict(path string) error {
	return snapshot.Errorf(snapshot.DestinationNotEmpty, "the checkpoint has an entry of another kind in the place of %q, which a save would leave out, or which has such things in it; move that away, then restore again", path)
}

// changed is about an entry that was another when the restore looked at it.
func changed(path string, err error) error {
	return snapshot.Errorf(snapshot.WorkspaceChanged, "%q was changed while the restore was at work, which is undone; stop what changes the directory, then restore again", path).Because(err)
}

func (s *stage) part(name string) (handle, error) {
	if err := s.top().mkdir(name, 0o700); err != nil {
		return noHandle, err
	}
	return openDirectory(s.top(), name)
}

func isAbsent(err error) bool { return errors.Is(err, unix.ENOENT) }

// full is the host path of the destination.
func (d *destination) full() string { return filepath.Join(d.dir, filepath.FromSlash(d.path)) }

func readFault(err error) error { return fmt.Errorf("read manifest: %w", err) }
