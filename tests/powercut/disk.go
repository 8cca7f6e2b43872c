package powercut

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Model says when names are durable.
type Model int

const (
	Journal Model = iota // in the order of a journal, as ext4
	Names                // by fsync of their directory only
)

// sector is what a disk writes whole.
const sector = 512

// Disk is a file system and what is durable of it.
type Disk struct {
	model Model

	mu      sync.Mutex // guards all below, and every inode
	rand    *rand.Rand
	root    *inode
	lastIno uint64
	journal []edit // not durable yet, in order
	lastSeq uint64
	changes int64
	offAt   int64         // the change that the power does not outlast; 0 is none
	off     chan struct{} // closed when the power is off
	free    chan struct{} // closed when changes that came too late may fail
}

// inode is a file or directory as it is seen and as it is on the disk.
type inode struct {
	ino       uint64
	mode      uint32
	links     uint32 // names
	mtime     time.Time
	data      []byte
	keptData  []byte
	dirty     []span // written since the last sync, in order
	names     map[string]*inode
	keptNames map[string]*inode
	seq       uint64 // of the last journal operation on it
}

type span struct{ from, to int }

// edit is a part of a journal operation: a name of a directory, or the size of
// a file.
type edit struct {
	seq   uint64 // edits of one operation have the same
	of    *inode
	name  string // "" for a size
	child *inode // nil removes the name
	size  int
}

// New is an empty disk. The seed decides what is left of what was not synced.
func New(m Model, seed uint64) *Disk {
	d := &Disk{model: m, rand: rand.New(rand.NewPCG(seed, 0)), off: make(chan struct{}), free: make(chan struct{})}
	d.root = d.newInode(syscall.S_IFDIR | 0o755)
	return d
}

// newInode needs mu, but in New.
func (d *Disk) newInode(mode uint32) *inode {
	d.lastIno++
	i := &inode{ino: d.lastIno, mode: mode, links: 1, mtime: time.Now()}
	if i.isDir() {
		i.names, i.keptNames = map[string]*inode{}, map[string]*inode{}
	}
	return i
}

func (i *inode) isDir() bool { return i.mode&syscall.S_IFMT == syscall.S_IFDIR }

// OffAt has the power fail before the n-th change from now on.
func (d *Disk) OffAt(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.offAt = d.changes + max(n, 1)
}

// Changes is how many changes and syncs were asked for.
func (d *Disk) Changes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changes
}

// Off has the power fail now.
func (d *Disk) Off() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turnOff()
}

func (d *Disk) turnOff() {
	select {
	case <-d.off:
	default:
		close(d.off)
	}
}

// WhenOff is closed when the power has failed. Changes that come later wait.
func (d *Disk) WhenOff() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.off
}

// IsOff tells whether the power has failed: what a program said before that it
// said in time.
func (d *Disk) IsOff() bool {
	select {
	case <-d.WhenOff():
		return true
	default:
		return false
	}
}

// Free fails the changes that wait, so that programs that were killed can end.
func (d *Disk) Free() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turnOff()
	select {
	case <-d.free:
	default:
		close(d.free)
	}
}

// change makes one change, or waits if the power is off.
func (d *Disk) change(what func() syscall.Errno) syscall.Errno {
	d.mu.Lock()
	d.changes++
	if d.changes == d.offAt {
		d.turnOff()
	}
	select {
	case <-d.off:
		free := d.free
		d.mu.Unlock()
		<-free
		return syscall.EIO
	default:
	}
	defer d.mu.Unlock()
	return what()
}

// log appends one operation to the journal. It needs mu, as all below.
func (d *Disk) log(edits ...edit) {
	d.lastSeq++
	for _, e := range edits {
		e.seq = d.lastSeq
		e.of.seq = d.lastSeq
		if e.child != nil {
			e.child.seq = d.lastSeq
		}
		d.journal = append(d.journal, e)
	}
}

// sync makes a file or directory durable.
func (d *Disk) sync(i *inode) {
	if d.model == Journal {
		d.commit(func(e edit) bool { return e.seq <= i.seq })
	} else {
		d.commit(func(e edit) bool { return e.of == i })
	}
	for _, s := range i.dirty {
		i.keep(s.from, s.to)
	}
	i.dirty = nil
}

// Sync makes everything durable, as sync(2).
func (d *Disk) Sync() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.commit(func(edit) bool { return true })
	var walk func(*inode)
	walk = func(i *inode) {
		d.sync(i)
		for _, child := range i.names {
			walk(child)
		}
	}
	walk(d.root)
}

// commit makes the journal's edits durable that are chosen.
func (d *Disk) commit(chosen func(edit) bool) {
	var rest []edit
	for _, e := range d.journal {
		if chosen(e) {
			e.apply()
		} else {
			rest = append(rest, e)
		}
	}
	d.journal = rest
}

func (e edit) apply() {
	switch {
	case e.name == "":
		e.of.keptData = resize(e.of.keptData, e.size)
	case e.child == nil:
		delete(e.of.keptNames, e.name)
	default:
		e.of.keptNames[e.name] = e.child
	}
}

// resize cuts, or grows with zeros.
func resize(data []byte, size int) []byte {
	if size <= len(data) {
		return data[:size]
	}
	return append(data, make([]byte, size-len(data))...)
}

// keep makes a part of a file durable.
func (i *inode) keep(from, to int) {
	if to = min(to, len(i.data)); from >= to {
		return
	}
	i.keptData = resize(i.keptData, max(len(i.keptData), to))
	copy(i.keptData[from:to], i.data[from:to])
}

func (i *inode) write(data []byte, off int) {
	i.data = resize(i.data, max(len(i.data), off+len(data)))
	copy(i.data[off:], data)
	i.dirty = append(i.dirty, span{off, off + len(data)})
	i.mtime = time.Now()
}

func (d *Disk) truncate(i *inode, size int) {
	if size == len(i.data) {
		return
	}
	i.data = resize(i.data, size)
	for n := range i.dirty { // what is beyond the end was never written
		s := &i.dirty[n]
		s.from, s.to = min(s.from, size), min(s.to, size)
	}
	i.mtime = time.Now()
	d.log(edit{of: i, size: size})
}

// Cut leaves what is durable and turns the power on again. With torn, some of
// what was not durable is left as well. Nothing may be mounted.
func (d *Disk) Cut(torn bool) {
	d.Free()
	d.mu.Lock()
	defer d.mu.Unlock()
	if torn {
		d.flushSome()
	}
	pending := map[*inode]bool{} // bytes of a size that never came about
	for _, e := range d.journal {
		pending[e.of] = pending[e.of] || e.name == ""
	}
	d.root.restart(func(i *inode) {
		if torn && !pending[i] {
			i.tear(d.rand)
		}
	}, map[*inode]bool{})
	d.journal, d.offAt = nil, 0
	d.off, d.free = make(chan struct{}), make(chan struct{})
}

// flushSome commits what the system may have committed by itself: a beginning
// of the journal, or of each directory's part of it.
func (d *Disk) flushSome() {
	if d.model == Journal {
		if n := len(d.journal); n > 0 {
			upTo := d.journal[d.rand.IntN(n)].seq - uint64(d.rand.IntN(2))
			d.commit(func(e edit) bool { return e.seq <= upTo })
		}
		return
	}
	upTo := map[*inode]uint64{}
	d.commit(func(e edit) bool {
		if _, known := upTo[e.of]; !known {
			upTo[e.of] = e.seq + d.rand.Uint64N(d.lastSeq-e.seq+2) - 1
		}
		return e.seq <= upTo[e.of]
	})
}

// tear keeps a part of what was written and not synced.
func (i *inode) tear(r *rand.Rand) {
	switch r.IntN(4) {
	case 0: // nothing
	case 1: // all
		for _, s := range i.dirty {
			i.keep(s.from, s.to)
		}
	case 2: // up to some moment
		n := r.IntN(len(i.dirty) + 1)
		for _, s := range i.dirty[:n] {
			i.keep(s.from, s.to)
		}
		if n < len(i.dirty) {
			s := i.dirty[n]
			i.keep(s.from, (s.from+r.IntN(s.to-s.from+1))/sector*sector)
		}
	case 3: // any sectors
		for _, s := range i.dirty {
			for at := s.from; at < s.to; at = (at/sector + 1) * sector {
				if r.IntN(2) == 0 {
					i.keep(at, min(s.to, (at/sector+1)*sector))
				}
			}
			i.keptData = resize(i.keptData, max(len(i.keptData), s.to))
		}
	}
}

// restart makes what is durable what is seen, from here downwards.
func (i *inode) restart(tear func(*inode), met map[*inode]bool) {
	i.links++
	if met[i] {
		return // by another name
	}
	met[i], i.links = true, 1
	if !i.isDir() {
		tear(i)
		i.data, i.dirty = append([]byte(nil), i.keptData...), nil
		return
	}
	i.names = maps.Clone(i.keptNames)
	for _, child := range i.names {
		child.restart(tear, met)
	}
}

// Volatile lists the paths that a cut would lose or give an older file, and
// those of files whose bytes it may lose.
func (d *Disk) Volatile() (names, bytes []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var walk func(i *inode, path string)
	walk = func(i *inode, path string) {
		if len(i.dirty) > 0 {
			bytes = append(bytes, path)
		}
		for _, name := range slices.Sorted(maps.Keys(i.names)) {
			child := path + "/" + name
			if i.keptNames[name] != i.names[name] {
				names = append(names, child)
			}
			walk(i.names[name], child)
		}
	}
	walk(d.root, "")
	return names, bytes
}
