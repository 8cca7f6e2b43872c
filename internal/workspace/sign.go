package workspace

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// A sign is a link in a root to a directory further down that a restore in place
// is at work on, so that the next worker finds what a dead one left beside that.
// It is there whenever the stage has a journal. Nothing follows it as a link.

// makeSign is called with the stage locked, by which others know that the sign
// is in use.
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

func (d *destination) removeSign() {
	if len(d.parts) > 1 {
		_ = d.roots[0].Remove(exactStage(d.path)) // what stays is removed by the next worker
	}
}

// followSign settles what is beside the directory that a sign is about, and
// removes the sign of what is settled.
func followSign(root *os.Root, sign, path string) {
	if exactStage(path) != sign {
		return
	}
	d := &destination{parts: strings.Split(path, "/"), roots: []*os.Root{root}}
	defer d.leave()
	err := d.enterParents()
	if err == nil {
		removeStale(d.parent())
		waits := func(name string) bool { return strings.HasPrefix(name, exactStage(d.base())) }
		if slices.ContainsFunc(stagesIn(d.parent()), waits) {
			return
		}
	}
	if err == nil || isNotThere(err) {
		_ = root.Remove(sign)
	}
}
