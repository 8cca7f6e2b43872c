package workspace

import (
	"bytes"
	"encoding/binary"
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

// setMtime sets the mtime of an open file or directory.
func (h handle) setMtime(ns int64) error {
	times := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(ns)}
	for {
		_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(h), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// names reads the directory from where its handle is, which is its beginning
// once. buf is room to read into. add must not keep the name.
func (h handle) names(buf []byte, add func(name []byte, k kind)) error {
	const nameAt = int(unsafe.Offsetof(unix.Dirent{}.Name))
	for {
		n, err := unix.ReadDirent(int(h), buf)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n <= 0:
			return nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			if len(rest) < nameAt {
				return unix.EIO
			}
			size := int(binary.NativeEndian.Uint16(rest[unsafe.Offsetof(unix.Dirent{}.Reclen):]))
			if size <= nameAt || size > len(rest) {
				return unix.EIO
			}
			record := rest[:size]
			rest = rest[size:]
			name, _, _ := bytes.Cut(record[nameAt:], []byte{0})
			if string(name) == "." || string(name) == ".." {
				continue
			}
			add(name, kindOf(record[unsafe.Offsetof(unix.Dirent{}.Type)]))
		}
	}
}

func kindOf(t byte) kind {
	switch t {
	case unix.DT_UNKNOWN:
		return kindUnknown
	case unix.DT_DIR:
		return kindDir
	}
	return kindLeaf
}

// machine tells this machine from others.
func machine() string {
	id, _ := os.ReadFile("/etc/machine-id")
	return string(id)
}

// born is when an open directory was made, 0 if the system doesn't say. Overlays
// say another time once something in the directory was changed.
func (h handle) born() int64 {
	var fs unix.Statfs_t
	var s unix.Statx_t
	if unix.Fstatfs(int(h), &fs) != nil || fs.Type == unix.OVERLAYFS_SUPER_MAGIC ||
		unix.Statx(int(h), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &s) != nil || s.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return nanos(s.Btime.Sec, int64(s.Btime.Nsec))
}
