package workspace

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func sysStat(fi os.FileInfo) (stat, bool) {
	s, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return stat{}, false
	}
	return stat{size: s.Size, mtime: s.Mtimespec.Nano(), ctime: s.Ctimespec.Nano(), inode: s.Ino, device: uint64(s.Dev)}, true
}

func hasLocalClock(dir *os.File) bool {
	var s unix.Statfs_t
	return unix.Fstatfs(int(dir.Fd()), &s) == nil && s.Flags&unix.MNT_LOCAL != 0
}

// setMtime is exact to the microsecond here, which is what the system offers.
func setMtime(f *os.File, ns int64) error {
	tv := unix.NsecToTimeval(ns)
	return unix.Futimes(int(f.Fd()), []unix.Timeval{tv, tv})
}
