package workspace

import "golang.org/x/sys/unix"

// move renames an entry and replaces nothing.
func (h handle) move(name string, to handle, toName string) error {
	return uninterrupted(func() error { return unix.RenameatxNp(int(h), name, int(to), toName, unix.RENAME_EXCL) })
}

// syncAll brings what was written in the file system to the disk.
func (h handle) syncAll() error { return unix.Sync() }
