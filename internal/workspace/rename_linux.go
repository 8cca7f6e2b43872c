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
	return h.moveSimply(name, to, toName)
}

// moveSimply is for file systems that don't know the flag. A leaf has both names
// for a moment; of a second call the first one goes. What a directory may replace
// at worst is an empty one that came at that moment.
func (h handle) moveSimply(name string, to handle, toName string) error {
	is, err := h.lstat(name)
	if err != nil {
		return err
	}
	there, lost := to.lstat(toName)
	if is.is(unix.S_IFDIR) {
		if !isAbsent(lost) {
			return errors.Join(unix.EEXIST, lost)
		}
		return uninterrupted(func() error { return unix.Renameat(int(h), name, int(to), toName) })
	}
	if lost != nil || there.inode != is.inode || there.device != is.device {
		if err := uninterrupted(func() error { return unix.Linkat(int(h), name, int(to), toName, 0) }); err != nil {
			return err
		}
	}
	return uninterrupted(func() error { return unix.Unlinkat(int(h), name, 0) })
}

// syncAll brings what was written in the file system to the disk.
func (h handle) syncAll() error { return uninterrupted(func() error { return unix.Syncfs(int(h)) }) }
