package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// Restore writes entries into a directory below the root "restore" or "sandbox"
// and returns how many files and bytes it had to write. from is used by several
// goroutines at once.
func (t *Trees) Restore(ctx context.Context, to snapshot.Target, entries iter.Seq2[snapshot.Entry, error], from snapshot.Contents) (files, bytes int64, err error) {
	dest, err := t.destination(to.Root, to.Path)
	if err != nil {
		return 0, 0, err
	}
	defer dest.close()
	if to.Exact {
		if full, err := dest.isFull(); err != nil {
			return 0, 0, err
		} else if full {
			return t.restoreExact(ctx, dest, to, entries, from)
		}
		dest.leave()
	}
	defer func() {
		if err != nil {
			dest.removeMade()
		}
	}()
	stage, err := dest.prepare()
	if err != nil {
		return 0, 0, err
	}
	defer stage.close()
	defer func() {
		if err != nil {
			stage.remove()
		}
	}()
	f := newFill(ctx, stage.top(), stage.umask, from)
	if err = f.finish(t.feed(f, entries)); err == nil {
		err = f.setModes()
	}
	if err != nil {
		return 0, 0, err
	}
	if err = dest.publish(stage); err != nil {
		return 0, 0, err
	}
	return f.files, f.bytes, nil
}

// feed hands all entries on.
func (t *Trees) feed(f *fill, entries iter.Seq2[snapshot.Entry, error]) error {
	var check manifestCheck
	for e, err := range entries {
		if err != nil {
			return fmt.Errorf("read manifest: %w", err)
		}
		if err := check.next(e); err != nil {
			return err
		}
		if err := t.fault("write", e.Path); err != nil {
			return diskFault("write", e.Path, err)
		}
		if err := f.add(e); err != nil {
			return err
		}
	}
	return nil
}

// destination is the way from a root to the directory that a restore makes.
type destination struct {
	t     *Trees
	dir   string // host path of the named root
	path  string
	parts []string
	roots []*os.Root // the named root and the parents below it
	made  int        // how many of the last parents did not exist before
	mode  os.FileMode
}

func (t *Trees) destination(root, path string) (*destination, error) {
	dir := ""
	switch root {
	case "restore":
		dir = t.options.RestoreRoot
	case "sandbox":
		dir = t.options.SandboxRoot
	}
	if dir == "" {
		return nil, snapshot.Errorf(snapshot.BadRequest, "into %q is not a root of this node; give \"restore\" or \"sandbox\"", root)
	}
	if err := snapshot.ValidatePath(path); err != nil {
		return nil, err
	}
	parts := strings.Split(path, "/")
	for _, part := range parts {
		if strings.HasPrefix(part, stagingPrefix) {
			return nil, snapshot.Errorf(snapshot.InvalidPath, "path %q has a part that begins with %q, a name for the worker's own use; give another", path, stagingPrefix)
		}
	}
	if err := os.MkdirAll(dir, snapshot.DefaultDirMode); err != nil {
		return nil, diskFault("make the root above", path, err)
	}
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, diskFault("open the root above", path, err)
	}
	return &destination{t: t, dir: dir, path: path, parts: parts, roots: []*os.Root{r}, mode: snapshot.DefaultDirMode}, nil
}

func (d *destination) parent() *os.Root { return d.roots[len(d.roots)-1] }
func (d *destination) base() string     { return d.parts[len(d.parts)-1] }

func (d *destination) close() {
	for _, r := range d.roots {
		_ = r.Close()
	}
}

// enterParents enters the directories above the destination.
func (d *destination) enterParents() error {
	for _, part := range d.parts[:len(d.parts)-1] {
		sub, err := enterDir(d.parent(), part)
		if err != nil {
			return err
		}
		d.roots = append(d.roots, sub)
	}
	return nil
}

// maxPrepares bounds how often a restore begins anew.
const maxPrepares = 10

// prepare makes the parents and a stage in them. A failing restore beside this
// one may take new parents away as long as nothing is in them; then it begins anew.
func (d *destination) prepare() (s *stage, err error) {
	for range maxPrepares {
		s, err = d.makeStage()
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errReplaced) {
			return s, err
		}
		d.removeMade()
		d.leave()
	}
	return nil, err
}

// leave goes back to the named root.
func (d *destination) leave() {
	for _, r := range d.roots[1:] {
		_ = r.Close()
	}
	d.roots, d.made, d.mode = d.roots[:1], 0, snapshot.DefaultDirMode
}

func (d *destination) makeStage() (*stage, error) {
	if err := d.makeParents(); err != nil {
		return nil, err
	}
	d.t.removeStale(d.parent())
	if err := d.checkFree(); err != nil {
		return nil, err
	}
	s, err := newStage(d.parent())
	if err != nil {
		return nil, diskFault("make a staging directory for", d.path, err)
	}
	return s, nil
}

// makeParents enters the directories above the destination and makes those that
// are missing.
func (d *destination) makeParents() error {
	for _, part := range d.parts[:len(d.parts)-1] {
		sub, isNew, err := enterOrMake(d.parent(), part)
		switch {
		case errors.Is(err, errReplaced):
			return snapshot.Errorf(snapshot.InvalidPath, "part %q of path %q is a file or symbolic link; give a path of directories", part, d.path).Because(err)
		case err != nil:
			return diskFault("enter a parent of", d.path, err)
		}
		d.roots = append(d.roots, sub)
		if isNew {
			d.made++
		}
	}
	return nil
}

// enterOrMake opens a directory that is no link, and makes it if it is missing.
// What is neither is errReplaced.
func enterOrMake(in *os.Root, name string) (sub *os.Root, isNew bool, err error) {
	err = in.Mkdir(name, 0o700)
	isNew = err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, err
	}
	if sub, err = enterDir(in, name); err == nil && isNew {
		err = chmodDir(sub, snapshot.DefaultDirMode)
	}
	if err != nil && isNew {
		_ = in.Remove(name)
	}
	return sub, isNew, err
}

// enterDir opens a directory that is no link; what is neither is errReplaced.
func enterDir(in *os.Root, name string) (*os.Root, error) {
	seen, err := in.Lstat(name)
	if err != nil {
		return nil, err
	}
	return openSeen(in, name, seen)
}

// openSeen opens the directory that lstat has seen, and nothing else: that is
// errReplaced.
func openSeen(in *os.Root, name string, seen fs.FileInfo) (*os.Root, error) {
	if !seen.IsDir() {
		return nil, errReplaced
	}
	dir, err := in.OpenRoot(name)
	if err != nil {
		return nil, replacedIf(err, syscall.ENOTDIR, syscall.ELOOP)
	}
	info, err := dir.Stat(".")
	if err == nil && !os.SameFile(info, seen) {
		err = errReplaced
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// chmodDir sets a mode whatever the umask.
func chmodDir(dir *os.Root, mode os.FileMode) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Close())
}

// removeMade takes the parents away that this restore made, unless others use them.
func (d *destination) removeMade() {
	for i := len(d.roots) - 1; i > 0 && i >= len(d.roots)-d.made; i-- {
		if err := d.roots[i-1].Remove(d.parts[i-1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
}

// checkFree refuses a destination that is not absent or an empty directory,
// whose mode the restored one gets. publish decides; this only saves the work.
func (d *destination) checkFree() error {
	info, err := d.parent().Lstat(d.base())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return diskFault("look at", d.path, err)
	case info.Mode().Type() == fs.ModeSymlink:
		return snapshot.Errorf(snapshot.InvalidPath, "path %q is a symbolic link; give a new or empty directory", d.path)
	case !info.IsDir():
		return d.notEmpty()
	}
	f, err := d.parent().Open(d.base())
	if err != nil {
		return diskFault("look into", d.path, err)
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return diskFault("look into", d.path, err)
	}
	if len(names) > 0 {
		return d.notEmpty()
	}
	d.mode = info.Mode().Perm()
	return nil
}

func (d *destination) notEmpty() error {
	return snapshot.Errorf(snapshot.DestinationNotEmpty, "path %q exists and is not an empty directory; give a new or empty one", d.path)
}

// publish moves the staged tree to its place. The rename replaces an empty
// directory and nothing else, which is the last and deciding check.
func (d *destination) publish(s *stage) error {
	if err := s.top().chmod(uint32(d.mode)); err != nil {
		return diskFault("set the mode of", d.path, err)
	}
	dir, err := d.parent().Open(".")
	if err != nil {
		return diskFault("publish", d.path, err)
	}
	defer dir.Close()
	fd := int(dir.Fd())
	// os.Root.Rename refuses every directory that exists.
	switch err := unix.Renameat(fd, s.name, fd, d.base()); {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.ENOTDIR):
		return d.notEmpty()
	default:
		return diskFault("publish", d.path, err)
	}
}

// diskFault is what a client is told about an error of this node's file system.
func diskFault(verb, path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return snapshot.Errorf(snapshot.StoreFull, "the disk of the node is full at %q; free some of it, then restore again", path).Because(err)
	case errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, syscall.EILSEQ):
		return snapshot.Errorf(snapshot.InvalidEntry, "the file system of the node can't have the name %q; restore on another node", path).Because(err)
	}
	return snapshot.Errorf(snapshot.Internal, "the worker can't %s %q (%s); see to the file system of the node", verb, path, errnoText(err)).Because(err)
}
