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

// moveSimply is for file systems that don't know the flag, and only out of a
// stage: what another puts in the place of name meanwhile is lost. A leaf has both
// names for a moment; of a second call the first one goes. What a directory may
// replace at worst is an empty one that came at that moment, and a leaf that can't
// have two names one that did.
func (h handle) moveSimply(name string, to handle, toName string) error {
	is, err := h.lstat(name)
	if err != nil {
		return err
	}
	there, lost := to.lstat(toName)
	isDir, both := is.is(unix.S_IFDIR), lost == nil && there.inode == is.inode && there.device == is.device
	if !isAbsent(lost) && (isDir || !both) {
		return errors.Join(unix.EEXIST, lost)
	}
	if !isDir && !both {
		err = uninterrupted(func() error { return unix.Linkat(int(h), name, int(to), toName, 0) })
	}
	if isDir || err == unix.EPERM || err == unix.EOPNOTSUPP || err == unix.EMLINK {
		return h.take(name, to, toName)
	}
	if err != nil {
		return err
	}
	return uninterrupted(func() error { return unix.Unlinkat(int(h), name, 0) })
}

// syncAll brings what was written in the file system to the disk.
func (h handle) syncAll() error { return uninterrupted(func() error { return unix.Syncfs(int(h)) }) }
