package workspace

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"sandkeep/internal/snapshot"
)

// A sign is a link in a root to a directory further down that a restore in place
// is at work on, so that the next worker finds what a dead one left beside that.
// It is there whenever a stage has a journal. Nothing follows it as a link.

// makeSign is called with the stage locked, as removeSign is.
func (d *destination) makeSign() error {
	if len(d.parts) == 1 {
		return nil
	}
	if err := d.roots[0].Symlink(d.path, exactStage(d.path)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	root, err := d.roots[0].Open(".")
	if err != nil {
		return err
	}
	return errors.Join(root.Sync(), root.Close())
}

// removeSign does nothing while a stage waits until its directory is back.
func (d *destination) removeSign() {
	waits := func(stage string) bool { return strings.HasPrefix(stage, exactStage(d.base())+"-") }
	if len(d.parts) > 1 && !slices.ContainsFunc(stagesIn(d.parent()), waits) {
		_ = d.roots[0].Remove(exactStage(d.path)) // what stays is removed by the next worker
	}
}

// followSigns undoes what dead restores left half done further down in a root.
func (t *Trees) followSigns(root *os.Root) {
	for _, name := range stagesIn(root) {
		path, err := root.Readlink(name)
		if err == nil && snapshot.ValidatePath(path) == nil && exactStage(path) == name {
			t.followSign(&destination{t: t, path: path, parts: strings.Split(path, "/"), roots: []*os.Root{root}})
		}
	}
}

// followSign removes the sign if there is nothing that it is needed for, now or
// when a parent is back that is away. Like a restore it takes the stage first.
func (t *Trees) followSign(d *destination) {
	defer d.leave()
	if d.enterParents() != nil {
		return
	}
	t.removeStale(d.parent())
	s, err := t.newExactStage(d.parent(), d.base())
	if err != nil {
		return
	}
	defer s.close()
	_ = t.fault("sign", d.path)
	d.removeSign()
	s.remove()
}
