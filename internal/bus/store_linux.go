package bus

import "golang.org/x/sys/unix"

// inMemory tells whether a file system forgets everything at a restart.
func inMemory(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, err
	}
	kind := uint32(st.Type)
	return kind == unix.TMPFS_MAGIC || kind == unix.RAMFS_MAGIC, nil
}

// freeSpace is what may be written below dir, which need not exist.
func freeSpace(dir string) int64 {
	var st unix.Statfs_t
	real, err := existing(dir)
	if err != nil || unix.Statfs(real, &st) != nil {
		return 1 << 40
	}
	return int64(st.Bavail) * st.Bsize
}

// diskSize is the size of the file system below dir, 0 if it can't be asked.
func diskSize(dir string) int64 {
	var st unix.Statfs_t
	real, err := existing(dir)
	if err != nil || unix.Statfs(real, &st) != nil {
		return 0
	}
	return int64(st.Blocks) * st.Bsize
}
