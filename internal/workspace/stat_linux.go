package workspace

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func sysStat(fi os.FileInfo) (stat, bool) {
	s, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return stat{}, false
	}
	return stat{size: s.Size, mtime: s.Mtim.Nano(), ctime: s.Ctim.Nano(), inode: s.Ino, device: uint64(s.Dev)}, true
}

// localFileSystems keep ctimes by this machine's clock, to the nanosecond or
// to the second.
var localFileSystems = map[uint32]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true,
	unix.OVERLAYFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true, 0x2fc12fc1: true /* zfs */, 0xca451a4e: true, /* bcachefs */
}

func hasLocalClock(dir *os.File) bool {
	var s unix.Statfs_t
	return unix.Fstatfs(int(dir.Fd()), &s) == nil && localFileSystems[uint32(s.Type)]
}

// setMtime sets a file's mtime through its handle.
func setMtime(f *os.File, ns int64) error {
	times := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(ns)}
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_UTIMENSAT, fd, 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}
