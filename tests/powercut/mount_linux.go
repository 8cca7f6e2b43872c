package powercut

import (
	"context"
	"io"
	"log"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Mount shows the disk under a directory, which takes root's rights and
// /dev/fuse. Unmount fails while a program has a file open.
func (d *Disk) Mount(dir string) (unmount func() error, err error) {
	long := time.Hour // the kernel is the only one that changes anything
	server, err := fs.Mount(dir, &node{disk: d, inode: d.root}, &fs.Options{
		EntryTimeout: &long, AttrTimeout: &long,
		RootStableAttr: &fs.StableAttr{Ino: d.root.ino},
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "powercut", Name: "powercut", MaxWrite: 1 << 20,
			Logger: log.New(io.Discard, "", 0)}, // it tells of the unmount
	})
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := server.Unmount(); err != nil {
			return err
		}
		server.Wait()
		return nil
	}, nil
}

// node shows an inode to the kernel.
type node struct {
	fs.Inode
	disk  *Disk
	inode *inode
}

// synced is an open file whose writes are durable at once.
type synced struct{}

var (
	_ fs.NodeLookuper  = (*node)(nil)
	_ fs.NodeGetattrer = (*node)(nil)
	_ fs.NodeSetattrer = (*node)(nil)
	_ fs.NodeReaddirer = (*node)(nil)
	_ fs.NodeMkdirer   = (*node)(nil)
	_ fs.NodeCreater   = (*node)(nil)
	_ fs.NodeLinker    = (*node)(nil)
	_ fs.NodeUnlinker  = (*node)(nil)
	_ fs.NodeRmdirer   = (*node)(nil)
	_ fs.NodeRenamer   = (*node)(nil)
	_ fs.NodeOpener    = (*node)(nil)
	_ fs.NodeReader    = (*node)(nil)
	_ fs.NodeWriter    = (*node)(nil)
	_ fs.NodeFsyncer   = (*node)(nil)
	_ fs.NodeStatfser  = (*node)(nil)
)

func (n *node) show(ctx context.Context, i *inode) *fs.Inode {
	return n.NewInode(ctx, &node{disk: n.disk, inode: i}, fs.StableAttr{Mode: i.mode & syscall.S_IFMT, Ino: i.ino})
}

func (i *inode) attr(out *fuse.Attr) {
	out.Ino, out.Mode, out.Nlink = i.ino, i.mode, i.links
	out.Size, out.Blocks, out.Blksize = uint64(len(i.data)), uint64(len(i.data)+sector-1)/sector, 4096
	out.SetTimes(&i.mtime, &i.mtime, &i.mtime)
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	child := n.inode.names[name]
	if child == nil {
		return nil, syscall.ENOENT
	}
	child.attr(&out.Attr)
	return n.show(ctx, child), 0
}

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	n.inode.attr(&out.Attr)
	return 0
}

func (n *node) Setattr(_ context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return n.disk.change(func() syscall.Errno {
		if size, ok := in.GetSize(); ok {
			n.disk.truncate(n.inode, int(size))
		}
		if mode, ok := in.GetMode(); ok {
			n.inode.mode = n.inode.mode&syscall.S_IFMT | mode&0o7777
		}
		if mtime, ok := in.GetMTime(); ok {
			n.inode.mtime = mtime
		}
		n.inode.attr(&out.Attr)
		return 0
	})
}

func (n *node) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	var list []fuse.DirEntry
	for name, child := range n.inode.names {
		list = append(list, fuse.DirEntry{Name: name, Mode: child.mode & syscall.S_IFMT, Ino: child.ino})
	}
	slices.SortFunc(list, func(a, b fuse.DirEntry) int { return int(a.Ino) - int(b.Ino) })
	return fs.NewListDirStream(list), 0
}

// make adds a new inode to the directory.
func (n *node) make(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (made *fs.Inode, errno syscall.Errno) {
	errno = n.disk.change(func() syscall.Errno {
		if n.inode.names[name] != nil {
			return syscall.EEXIST
		}
		child := n.disk.newInode(mode)
		n.inode.names[name], n.inode.mtime = child, child.mtime
		n.disk.log(edit{of: n.inode, name: name, child: child})
		child.attr(&out.Attr)
		made = n.show(ctx, child)
		return 0
	})
	return made, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.make(ctx, name, syscall.S_IFDIR|mode&0o7777, out)
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	made, errno := n.make(ctx, name, syscall.S_IFREG|mode&0o7777, out)
	return made, handle(flags), fuse.FOPEN_KEEP_CACHE, errno
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (made *fs.Inode, errno syscall.Errno) {
	child := target.(*node).inode
	errno = n.disk.change(func() syscall.Errno {
		if n.inode.names[name] != nil {
			return syscall.EEXIST
		}
		n.inode.names[name], n.inode.mtime = child, time.Now()
		child.links++
		n.disk.log(edit{of: n.inode, name: name, child: child})
		child.attr(&out.Attr)
		made = n.show(ctx, child)
		return 0
	})
	return made, errno
}

func handle(flags uint32) fs.FileHandle {
	if flags&syscall.O_DSYNC != 0 { // a part of O_SYNC
		return synced{}
	}
	return nil
}

func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_TRUNC == 0 {
		return handle(flags), fuse.FOPEN_KEEP_CACHE, 0
	}
	errno := n.disk.change(func() syscall.Errno {
		n.disk.truncate(n.inode, 0)
		return 0
	})
	return handle(flags), 0, errno
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno {
	return n.disk.change(func() syscall.Errno {
		child := n.inode.names[name]
		switch {
		case child == nil:
			return syscall.ENOENT
		case len(child.names) > 0:
			return syscall.ENOTEMPTY
		}
		delete(n.inode.names, name)
		n.inode.mtime = time.Now()
		child.links--
		n.disk.log(edit{of: n.inode, name: name})
		child.seq = n.disk.lastSeq
		return 0
	})
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno { return n.Unlink(ctx, name) }

func (n *node) Rename(_ context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if flags != 0 {
		return syscall.EINVAL
	}
	return n.disk.change(func() syscall.Errno {
		from, into := n.inode, to.(*node).inode
		child := from.names[name]
		switch {
		case child == nil:
			return syscall.ENOENT
		case into.names[newName] == child:
			return 0
		case into.names[newName] != nil && len(into.names[newName].names) > 0:
			return syscall.ENOTEMPTY
		}
		if old := into.names[newName]; old != nil {
			old.links--
		}
		delete(from.names, name)
		into.names[newName] = child
		from.mtime, into.mtime = time.Now(), time.Now()
		n.disk.log(edit{of: into, name: newName, child: child}, edit{of: from, name: name})
		return 0
	})
}

func (n *node) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if off >= int64(len(n.inode.data)) {
		return fuse.ReadResultData(nil), 0
	}
	return fuse.ReadResultData(dest[:copy(dest, n.inode.data[off:])]), 0
}

func (n *node) Write(_ context.Context, h fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	errno := n.disk.change(func() syscall.Errno {
		n.inode.write(data, int(off))
		if _, ok := h.(synced); ok {
			n.disk.sync(n.inode)
		}
		return 0
	})
	return uint32(len(data)), errno
}

func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	return n.disk.change(func() syscall.Errno {
		n.disk.sync(n.inode)
		return 0
	})
}

// Statfs tells of a large disk.
func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	const blocks = 16 << 18 // 16 GiB
	out.Bsize, out.Frsize, out.Blocks, out.Bfree, out.Bavail, out.NameLen = 4096, 4096, blocks, blocks, blocks, 255
	return 0
}
