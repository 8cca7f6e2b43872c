package workspace

import (
	"context"
	"crypto/sha256"
	"io"

	"sandkeep/internal/snapshot"
)

// difference takes the entries that a save of the directory would have, and
// compares them with the wanted ones. It keeps the names of what changes and of
// the directories, never of the tree.
type difference struct {
	x     *exact
	fill  *fill
	check manifestCheck

	next func() (snapshot.Entry, error, bool)
	want snapshot.Entry // the first one that was not passed
	more bool

	seen    *attr             // the leaf that Add gets
	before  map[string]attr   // what the leaves were that change
	removed []string          // leaves, in path order
	touched map[string]look   // files that differ in mode or mtime only
	dirs    map[string]uint16 // the wanted directories and their modes
	was     map[string]uint16 // those that are there
}

var _ snapshot.TreeWriter = (*difference)(nil)

// peek goes on to the next wanted entry.
func (d *difference) peek() error {
	var err error
	if d.want, err, d.more = d.next(); !d.more {
		return nil
	}
	if err != nil {
		return readFault(err)
	}
	if err := d.check.next(d.want); err != nil {
		return err
	}
	note(d.dirs, d.want)
	return nil
}

// note remembers the directories that an entry shows.
func note(dirs map[string]uint16, e snapshot.Entry) {
	if e.Kind == snapshot.KindDir {
		dirs[e.Path] = e.Mode & 0o777
	}
	for dir, _ := split(e.Path); dir != ""; dir, _ = split(dir) {
		if _, ok := dirs[dir]; ok {
			return
		}
		dirs[dir] = snapshot.DefaultDirMode
	}
}

// Known says that no file needs to be read whose digest is known.
func (d *difference) Known(string, snapshot.Digest, int64) bool { return true }

// Put only finds out what the content is.
func (d *difference) Put(_ context.Context, r io.Reader) (snapshot.Digest, int64, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, r)
	return snapshot.Digest(sum.Sum(nil)), n, err
}

// PutBytes has nothing to do.
func (d *difference) PutBytes(context.Context, []byte, snapshot.Digest) error { return nil }

// Add compares an entry of the directory.
func (d *difference) Add(_ context.Context, is snapshot.Entry) error {
	if !isWithin(is.Path, d.x.to.Prefix) {
		return nil // a directory above it
	}
	note(d.was, is)
	for d.more && d.want.Path < is.Path {
		if err := d.stageNext(); err != nil {
			return err
		}
	}
	if d.more && d.want.Path == is.Path {
		return d.both(is)
	}
	if is.Kind != snapshot.KindDir {
		d.remove(is.Path)
	}
	return nil
}

func (d *difference) remove(path string) {
	d.removed = append(d.removed, path)
	d.before[path] = *d.seen
}

func (d *difference) both(is snapshot.Entry) error {
	isDir, wantDir := is.Kind == snapshot.KindDir, d.want.Kind == snapshot.KindDir
	switch {
	case isDir && wantDir:
		return d.peek()
	case wantDir:
		d.remove(is.Path)
	case isDir:
	case !sameContent(is, d.want):
		d.before[is.Path] = *d.seen
	case is.Kind == snapshot.KindSymlink || is.Mtime == d.want.Mtime && is.Mode == d.want.Mode&0o777:
		return d.peek()
	default:
		d.before[is.Path] = *d.seen
		// Else its other names, which may lie outside, would change with it, or no
		// undo could open it.
		if d.seen.links == 1 && d.want.Mode&0o400 != 0 {
			mtime := d.want.Mtime
			d.touched[is.Path] = look{Mode: uint32(d.want.Mode & 0o777), Mtime: &mtime}
			return d.peek()
		}
	}
	return d.stageNext()
}

func sameContent(a, b snapshot.Entry) bool {
	return a.Kind == b.Kind && a.Size == b.Size && a.Digest == b.Digest && a.Target == b.Target
}

// stageNext makes the wanted entry in the stage.
func (d *difference) stageNext() error {
	if err := d.x.t.fault("write", d.want.Path); err != nil {
		return diskFault("write", d.want.Path, err)
	}
	if d.want.Kind == snapshot.KindFile && d.want.Mtime >= d.x.began {
		d.x.mtimes[d.want.Path] = d.want.Mtime
	}
	if err := d.fill.add(d.want); err != nil {
		return err
	}
	return d.peek()
}

// rest stages what the directory has nothing of.
func (d *difference) rest() error {
	for d.more {
		if err := d.stageNext(); err != nil {
			return err
		}
	}
	return nil
}

func (d *difference) Finish(context.Context) (snapshot.List, int64, error) {
	return snapshot.List{}, 0, nil
}

func (d *difference) Abort() {}
