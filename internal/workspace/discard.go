package workspace

import (
	"crypto/rand"
	"errors"
	"io/fs"
)

// Discard removes the directory that a Restore of this request has just made:
// at once out of sight, then for good. The parents that the restore made stay.
// What is gone already is no error.
func (t *Trees) Discard(root, path string) error {
	dest, err := t.destination(root, path)
	if err != nil {
		return err
	}
	defer dest.close()
	if err := dest.enterParents(); err != nil {
		return dest.discardFault(err)
	}
	dir, err := enterDir(dest.parent(), dest.base())
	if err != nil {
		return dest.discardFault(err)
	}
	defer dir.Close()
	hidden := stagingPrefix + rand.Text()
	if err := dest.parent().Rename(dest.base(), hidden); err != nil {
		return dest.discardFault(err)
	}
	removeTree(dest.parent(), hidden) // what stays is removed as stale by the next restore
	return nil
}

func (d *destination) discardFault(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return diskFault("discard", d.path, err)
}
