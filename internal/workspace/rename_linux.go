package workspace

import (
	"errors"

	"golang.org/x/sys/unix"
)

// move renames an entry and replaces nothing.
func (h handle) move(name string, to handle, toName string) error {
	err := uninterrupted(func() error { return unix.Renameat2(int(h), name, int(to), toName, unix.RENAME_NOREPLACE) })
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	// The file system does not know the flag.
	if _, err := to.lstat(toName); !errors.Is(err, unix.ENOENT) {
		return errors.Join(err, unix.EEXIST)
	}
	return uninterrupted(func() error { return unix.Renameat(int(h), name, int(to), toName) })
}

// syncAll brings what was written in the file system to the disk.
func (h handle) syncAll() error { return uninterrupted(func() error { return unix.Syncfs(int(h)) }) }
