package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

const (
	// fillWorkers bounds the packs that a restore reads at once, each while its
	// files are written.
	fillWorkers = 4
	// fillWindow is how many contents are sorted by their packs, so that each
	// pack is read once: as many as most trees have.
	fillWindow = 32 << 10
	// fillPlain bounds the files without a pack that are handed on at once.
	fillPlain = 64
)

// fill makes the tree of some entries, which come in path order, below an empty
// directory. Directories and links are made at once; files when enough of them
// are there to be sorted by pack. No mode keeps it from filling a directory.
type fill struct {
	ctx     context.Context // of the workers, and of what they wait for
	cancel  context.CancelFunc
	workers *errgroup.Group
	from    snapshot.Contents
	top     handle
	umask   umask
	way     way

	jobs   chan []unit
	plain  []unit // without a pack
	packs  map[snapshot.Digest]int
	queue  [][]unit // by pack, in the order of the first file
	queued int

	late         []lateMode
	files, bytes int64
}

// unit is a content and where it goes. The file of several has as many of them.
type unit struct {
	file  *newFile
	piece snapshot.Piece
	at    int64
}

type newFile struct {
	snapshot.Entry
	left atomic.Int32 // pieces of a file of several that are not written
}

// lateMode is of a directory that its owner could not fill with that mode.
type lateMode struct {
	path string
	mode uint32
}

func newFill(ctx context.Context, top handle, u umask, from snapshot.Contents) *fill {
	ctx, cancel := context.WithCancel(ctx)
	workers, ctx := errgroup.WithContext(ctx)
	f := &fill{ctx: ctx, cancel: cancel, workers: workers, from: from, top: top, umask: u, way: way{top: top},
		jobs: make(chan []unit), packs: map[snapshot.Digest]int{}}
	for range fillWorkers {
		workers.Go(f.work)
	}
	return f
}

// add makes what an entry is, files perhaps later.
func (f *fill) add(e snapshot.Entry) error {
	if err := f.ctx.Err(); err != nil {
		return err
	}
	dir, name := split(e.Path)
	in, err := f.way.enter(dir, f.umask.openOrMake)
	if err != nil {
		return makeFault(e, err)
	}
	switch e.Kind {
	case snapshot.KindSymlink:
		return makeFault(e, in.symlink(e.Target, name))
	case snapshot.KindDir:
		return makeFault(e, f.addDir(e))
	}
	f.files, f.bytes = f.files+1, f.bytes+e.Size
	return f.addFile(in, name, e)
}

func (f *fill) addDir(e snapshot.Entry) error {
	h, err := f.way.enter(e.Path, f.umask.openOrMake)
	if err != nil {
		return err
	}
	mode := uint32(e.Mode & 0o777)
	switch {
	case mode&0o700 != 0o700:
		f.late = append(f.late, lateMode{e.Path, mode})
		return nil
	case mode == snapshot.DefaultDirMode:
		return nil
	}
	return h.chmod(mode)
}

func (f *fill) addFile(in handle, name string, e snapshot.Entry) error {
	file := &newFile{Entry: e}
	if e.Size == 0 || len(e.Pieces) == 0 {
		if f.plain = append(f.plain, unit{file: file}); len(f.plain) == fillPlain {
			return f.flushPlain()
		}
		return nil
	}
	if len(e.Pieces) > 1 { // several workers may write it
		h, err := in.create(name, 0o600)
		if err != nil {
			return makeFault(e, err)
		}
		h.close()
		file.left.Store(int32(len(e.Pieces)))
	}
	at := int64(0)
	for _, p := range e.Pieces {
		i, ok := f.packs[p.Pack]
		if !ok {
			i = len(f.queue)
			f.packs[p.Pack] = i
			f.queue = append(f.queue, nil)
		}
		f.queue[i] = append(f.queue[i], unit{file, p, at})
		at += p.Length
	}
	if at != e.Size {
		return snapshot.Errorf(snapshot.InvalidBlob, "the pieces of %q have %d bytes and not the %d of its entry; the checkpoint is damaged", e.Path, at, e.Size)
	}
	if f.queued += len(e.Pieces); f.queued >= fillWindow {
		return f.flush()
	}
	return nil
}

func (f *fill) flush() error {
	for i, job := range f.queue {
		f.queue[i] = nil
		if err := f.hand(job); err != nil {
			return err
		}
	}
	clear(f.packs)
	f.queue, f.queued = f.queue[:0], 0
	return nil
}

func (f *fill) flushPlain() error {
	job := f.plain
	f.plain = nil
	return f.hand(job)
}

func (f *fill) hand(job []unit) error {
	if len(job) == 0 {
		return nil
	}
	select {
	case f.jobs <- job:
		return nil
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
}

// finish waits until all is written. It must be called; fed is why nothing more
// was added, if that is an error.
func (f *fill) finish(fed error) error {
	if fed == nil {
		fed = errors.Join(f.flushPlain(), f.flush())
	}
	if fed != nil {
		f.cancel()
	}
	close(f.jobs)
	worked := f.workers.Wait()
	f.cancel()
	f.way.leave()
	// Each side's failure cancels the other; the one that was not cancelled is the cause.
	if fed != nil && (worked == nil || !errors.Is(fed, context.Canceled)) {
		return fed
	}
	return worked
}

// setModes finishes the directories, the deepest first, since a mode may bar the
// way to what is below.
func (f *fill) setModes() error {
	w := way{top: f.top}
	defer w.leave()
	for _, l := range slices.Backward(f.late) {
		h, err := w.enter(l.path, openDirectory)
		if err == nil {
			err = h.chmod(l.mode)
		}
		if err != nil {
			return diskFault("set the mode of", l.path, err)
		}
	}
	return nil
}

func (f *fill) work() error {
	w := way{top: f.top}
	defer w.leave()
	for job := range f.jobs {
		err := f.ctx.Err()
		switch {
		case err != nil:
		case len(job[0].file.Pieces) == 0:
			err = f.writePlain(&w, job)
		default:
			err = f.writePack(&w, job)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fill) writePack(w *way, job []unit) error {
	slices.SortStableFunc(job, func(a, b unit) int { return cmp.Compare(a.piece.Offset, b.piece.Offset) })
	pieces := make([]snapshot.Piece, len(job))
	for i := range job {
		pieces[i] = job[i].piece
	}
	err := f.from.ReadPack(f.ctx, pieces, func(i int, data []byte) error {
		if err := f.ctx.Err(); err != nil {
			return err
		}
		return f.write(w, job[i], data)
	})
	if _, known := errors.AsType[*snapshot.Error](err); err != nil && !known && f.ctx.Err() == nil {
		return fmt.Errorf("read contents of %q and others: %w", job[0].file.Path, err)
	}
	return err
}

func (f *fill) write(w *way, u unit, data []byte) error {
	h, err := f.open(w, u.file)
	if err != nil {
		return err
	}
	if int64(len(data)) != u.piece.Length {
		err = wrongLength(u.file.Entry, int64(len(data)))
	} else if err = h.writeAt(data, u.at); err != nil {
		err = diskFault("write", u.file.Path, err)
	}
	if err != nil || len(u.file.Pieces) > 1 && u.file.left.Add(-1) > 0 {
		return errors.Join(err, h.finish())
	}
	return f.close(h, u.file.Entry)
}

// open makes a file, or opens one of several pieces, which is there.
func (f *fill) open(w *way, file *newFile) (handle, error) {
	dir, name := split(file.Path)
	in, err := w.enter(dir, openDirectory)
	if err != nil {
		return noHandle, makeFault(file.Entry, err)
	}
	if len(file.Pieces) > 1 {
		h, err := in.open(name, unix.O_WRONLY)
		return h, makeFault(file.Entry, err)
	}
	h, err := in.create(name, uint32(file.Mode&0o777))
	return h, makeFault(file.Entry, err)
}

// close finishes a file that has all its bytes.
func (f *fill) close(h handle, e snapshot.Entry) error {
	var err error
	if mode := e.Mode & 0o777; len(e.Pieces) > 1 || f.umask.takes(mode) {
		err = h.chmod(uint32(mode))
	}
	if err == nil {
		err = h.setMtime(e.Mtime)
	}
	if closed := h.finish(); err == nil {
		err = closed
	}
	if err != nil {
		return diskFault("finish", e.Path, err)
	}
	return nil
}

// writePlain writes empty files, and those whose contents are loose blobs.
func (f *fill) writePlain(w *way, job []unit) error {
	for _, u := range job {
		h, err := f.open(w, u.file)
		if err != nil {
			return err
		}
		if err := f.copyContent(h, u.file.Entry); err != nil {
			h.close()
			return err
		}
		if err := f.close(h, u.file.Entry); err != nil {
			return err
		}
	}
	return nil
}

func (f *fill) copyContent(h handle, e snapshot.Entry) error {
	if e.Size == 0 {
		return f.ctx.Err()
	}
	r, err := f.from.OpenFile(f.ctx, e, 0, -1)
	if err != nil {
		return fmt.Errorf("open content of %q: %w", e.Path, err)
	}
	defer r.Close()
	dst := &sink{h: h}
	n, err := io.Copy(dst, io.LimitReader(r, e.Size+1))
	switch {
	case dst.err != nil:
		return diskFault("write", e.Path, dst.err)
	case err != nil:
		return fmt.Errorf("read content of %q: %w", e.Path, err)
	case n != e.Size:
		return wrongLength(e, n)
	}
	return nil
}

func wrongLength(e snapshot.Entry, n int64) error {
	return snapshot.Errorf(snapshot.InvalidBlob, "content of %q has %d bytes and not the %d of its entry; the checkpoint is damaged", e.Path, n, e.Size)
}

// sink tells an error of writing from one of reading.
type sink struct {
	h   handle
	at  int64
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	if s.err = s.h.writeAt(p, s.at); s.err != nil {
		return 0, s.err
	}
	s.at += int64(len(p))
	return len(p), nil
}

func makeFault(e snapshot.Entry, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist) || errors.Is(err, errReplaced):
		return invalid(e, "has, on this file system, the name of another")
	}
	return diskFault("make", e.Path, err)
}
