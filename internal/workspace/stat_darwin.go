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
func (h handle) setMtime(ns int64) error {
	tv := unix.NsecToTimeval(ns)
	return unix.Futimes(int(h), []unix.Timeval{tv, tv})
}

// names reads the directory. add must not keep the name.
func (h handle) names(_ []byte, add func(name []byte, k kind)) error {
	again, err := h.open(".", unix.O_DIRECTORY) // the file closes it
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(again), ".")
	defer f.Close()
	list, err := f.Readdirnames(-1)
	for _, n := range list {
		add([]byte(n), kindUnknown)
	}
	return err
}

// machine tells this machine from others.
func machine() string {
	id, _ := unix.Sysctl("kern.uuid")
	return id
}

// born is when an open directory was made, 0 if the system doesn't say.
func (h handle) born() int64 {
	var s unix.Stat_t
	if unix.Fstat(int(h), &s) != nil {
		return 0
	}
	return nanos(s.Btim.Unix())
}
