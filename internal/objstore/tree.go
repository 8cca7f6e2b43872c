package objstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/fastcdc" // registers cutAlgorithm

	"sandkeep/internal/snapshot"
)

// How contents over maxContent are cut; part of the format.
const (
	cutAlgorithm = "fastcdc-v1.0.0"
	cutMin       = 256 << 10
	cutAverage   = 1 << 20
	cutMax       = maxContent
)

const (
	maxQueue   = 64 << 10 // entries that wait for their pack
	pieceBytes = 46       // of an entry, for each piece of a large file whose packs are full
)

// tree is the writing of one manifest. Entries wait until the packs of their
// contents are closed, since only then are the packs' names known.
type tree struct {
	s      *Store
	cancel context.CancelFunc
	files  *packer
	pages  *listWriter
	rows   inlineOr[snapshot.Entry]
	known  *index

	queue  []waiting
	last   string // path of the newest entry
	count  int64
	closed bool

	buf    []byte // for a content
	cutBuf []byte // for the cutting of a large one
}

type waiting struct {
	entry snapshot.Entry
	spans []span
}

var errFinished = errors.New("the tree is finished or aborted")

// NewTree starts the writing of a manifest. parent is reused by digest. ctx
// holds for the uploads until Finish or Abort, one of which must be called.
func (s *Store) NewTree(ctx context.Context, parent snapshot.List) (snapshot.TreeWriter, error) {
	known := newIndex()
	whole, err := known.addParent(ctx, s, parent)
	if err != nil {
		return nil, fmt.Errorf("read parent manifest: %w", err)
	}
	if !whole { // the pages after the broken one may be broken too
		parent = snapshot.List{}
	}
	ctx, cancel := context.WithCancel(ctx)
	pages, err := s.newListWriter(ctx, parent)
	if err != nil {
		cancel()
		return nil, err
	}
	return &tree{s: s, cancel: cancel, files: newPacker(ctx, s), pages: pages, rows: newEntryRows(pages), known: known}, nil
}

// Known reports whether the content can be reused without its bytes.
func (t *tree) Known(d snapshot.Digest, size int64) bool {
	_, ok := t.spans(d, size)
	return ok
}

func (t *tree) spans(d snapshot.Digest, size int64) ([]span, bool) {
	if size == 0 {
		return nil, d == emptyDigest
	}
	return t.known.find(d, size)
}

// Put reads r to its end and keeps what it read.
func (t *tree) Put(ctx context.Context, r io.Reader) (snapshot.Digest, int64, error) {
	if t.closed {
		return snapshot.Digest{}, 0, errFinished
	}
	n, err := t.fill(r)
	if err != nil {
		return snapshot.Digest{}, 0, fmt.Errorf("read content: %w", err)
	}
	if n > maxContent {
		return t.putLarge(ctx, io.MultiReader(bytes.NewReader(t.buf), r))
	}
	d := snapshot.Digest(sha256.Sum256(t.buf[:n]))
	_, err = t.keep(t.buf[:n], d)
	return d, int64(n), err
}

// fill reads a content into the buffer, or the first maxContent+1 bytes of a
// large one. The buffer grows as needed, since most trees have small files only.
func (t *tree) fill(r io.Reader) (n int, err error) {
	for {
		m, err := io.ReadFull(r, t.buf[n:])
		n += m
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF:
			return n, nil
		case err != nil, n > maxContent:
			return n, err
		}
		grown := make([]byte, min(max(4*n, 64<<10), maxContent+1))
		copy(grown, t.buf)
		t.buf = grown
	}
}

// keep makes sure that a content of at most maxContent bytes is in a pack.
func (t *tree) keep(data []byte, d snapshot.Digest) ([]span, error) {
	if spans, ok := t.spans(d, int64(len(data))); ok {
		return spans, nil
	}
	sp, err := t.files.add(data, d)
	if err != nil {
		return nil, err
	}
	spans := []span{sp}
	t.known.add(d, int64(len(data)), spans)
	return spans, nil
}

func (t *tree) putLarge(ctx context.Context, r io.Reader) (snapshot.Digest, int64, error) {
	if t.cutBuf == nil {
		t.cutBuf = make([]byte, 2*cutMax) // twice the largest cut: less copying
	}
	cutter, err := chunkers.NewChunkerBuffer(cutAlgorithm, r,
		&chunkers.ChunkerOpts{MinSize: cutMin, NormalSize: cutAverage, MaxSize: cutMax}, t.cutBuf)
	if err != nil {
		return snapshot.Digest{}, 0, fmt.Errorf("make cutter: %w", err)
	}
	whole, size := sha256.New(), int64(0)
	var all []span
	for end := false; !end; {
		data, err := cutter.Next()
		if end = err == io.EOF; err != nil && !end {
			return snapshot.Digest{}, 0, fmt.Errorf("read content: %w", err)
		}
		if ctx.Err() != nil {
			return snapshot.Digest{}, 0, ctx.Err()
		}
		if len(data) == 0 {
			continue
		}
		whole.Write(data)
		size += int64(len(data))
		spans, err := t.keep(data, sha256.Sum256(data))
		if err != nil {
			return snapshot.Digest{}, 0, err
		}
		if all = append(all, spans...); len(all) > t.s.maxEntry/pieceBytes {
			return snapshot.Digest{}, 0, snapshot.Errorf(snapshot.WorkspaceTooLarge, "a file of more than %d bytes can't be kept; exclude it", size)
		}
	}
	d := snapshot.Digest(whole.Sum(nil))
	t.known.add(d, size, all)
	return d, size, nil
}

// Add appends an entry; a file's content was Put or is Known. Its Pieces are
// found by its digest, those given are ignored.
func (t *tree) Add(ctx context.Context, e snapshot.Entry) error {
	if t.closed {
		return errFinished
	}
	e.Pieces = nil
	if err := checkNext(e, t.last); err != nil {
		return err
	}
	w := waiting{entry: e}
	if e.Kind == snapshot.KindFile {
		spans, ok := t.spans(e.Digest, e.Size)
		if !ok {
			return snapshot.Errorf(snapshot.MissingBlob, "the content %s of %q is not stored; put it first", e.Digest, e.Path)
		}
		w.spans = spans
	}
	t.last = e.Path
	t.count++
	t.queue = append(t.queue, w)
	if len(t.queue) >= maxQueue {
		if err := t.files.close(); err != nil {
			return err
		}
	}
	return errors.Join(ctx.Err(), t.drain())
}

// drain moves entries whose packs are closed into the manifest.
func (t *tree) drain() error {
	done := 0
	for _, w := range t.queue {
		if !w.resolve() {
			break
		}
		if err := t.s.describable(w.entry); err != nil {
			return err
		}
		if err := t.rows.add(w.entry); err != nil {
			return err
		}
		done++
	}
	if done > 0 {
		t.queue = append(t.queue[:0], t.queue[done:]...)
	}
	return nil
}

func (w *waiting) resolve() bool {
	for _, sp := range w.spans {
		if !sp.pack.closed {
			return false
		}
	}
	for _, sp := range w.spans {
		w.entry.Pieces = append(w.entry.Pieces, sp.piece())
	}
	return true
}

// describable refuses an entry whose page could not be read again.
func (s *Store) describable(e snapshot.Entry) error {
	if entryWeight(e) <= s.maxEntry || len(encodeEntries([]snapshot.Entry{e})) <= s.maxEntry {
		return nil
	}
	return snapshot.Errorf(snapshot.WorkspaceTooLarge, "%q can't be kept: its %d bytes lie in %d pieces, too many to be listed; exclude it", e.Path, e.Size, len(e.Pieces))
}

// Finish stores what is left. Every byte that the list refers to is
// acknowledged when it returns.
func (t *tree) Finish(ctx context.Context) (snapshot.List, int64, error) {
	if t.closed {
		return snapshot.List{}, 0, errFinished
	}
	defer t.Abort()
	stop := context.AfterFunc(ctx, t.cancel)
	defer stop()
	list, err := t.finish()
	if err != nil {
		return snapshot.List{}, 0, err
	}
	return list, t.files.stored.Load(), nil
}

func (t *tree) finish() (snapshot.List, error) {
	if err := t.files.close(); err != nil {
		return snapshot.List{}, err
	}
	if err := t.drain(); err != nil {
		return snapshot.List{}, err
	}
	list, err := t.rows.finish(t.pages, t.count)
	if err != nil {
		return snapshot.List{}, err
	}
	return list, t.files.wait()
}

// Abort drops what is buffered. After Finish it does nothing.
func (t *tree) Abort() {
	if t.closed {
		return
	}
	t.closed = true
	t.cancel()
	_ = t.files.wait() // whoever aborts does not ask for the uploads' fate
	_ = t.pages.packs.wait()
	t.queue, t.buf, t.cutBuf, t.known = nil, nil, nil, newIndex()
}
