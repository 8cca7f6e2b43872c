package objstore

import (
	"bytes"
	"cmp"
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

// tree is the writing of one manifest. Rows are cut into pages as they come;
// pages wait until the packs of their contents are closed, since only then are
// the packs' names known.
type tree struct {
	s      *Store
	ctx    context.Context // of the uploads
	cancel context.CancelFunc
	memory *share
	files  *packer
	pages  *listWriter
	rows   inlineOr[treeRow]
	own    *index // contents that were put

	looks   *packLooks
	parent  cursor
	run     int                // rows that were kept, to be taken over with their page
	runPage *parentPage        // that page
	upper   []snapshot.PageRef // pages of references of the parent
	moved   *parentIndex
	failure error // of a question that can't return one

	queue  []treePage
	queued int    // rows in it
	last   string // path of the newest entry
	count  int64
	closed bool

	buf    []byte // for a content
	cutBuf []byte // for the cutting of a large one
}

// treeRow is an entry whose packs may still be open.
type treeRow struct {
	entry snapshot.Entry // without pieces
	spans []span
}

// treePage is a page on its way into the manifest: rows, or a page of the parent.
type treePage struct {
	rows  []treeRow
	open  *packRef // of the packs of its rows the last one, if it was open
	taken snapshot.PageRef
}

var treeRows = rowKind[treeRow]{
	encode: encodeTreeRows,
	weight: func(r treeRow) int { return entryWeight(len(r.entry.Path), len(r.entry.Target), len(r.spans)) },
	key:    func(r treeRow) []byte { return []byte(r.entry.Path) },
	first:  func(r treeRow) string { return r.entry.Path },
}

func encodeTreeRows(rows []treeRow) []byte {
	entries := make([]snapshot.Entry, len(rows))
	for i, r := range rows {
		entries[i] = r.entry
		for _, sp := range r.spans {
			entries[i].Pieces = append(entries[i].Pieces, sp.piece())
		}
	}
	return encodeEntries(entries)
}

var errFinished = errors.New("the tree is finished or aborted")

// NewTree starts the writing of a manifest. What parent has is reused: a page
// as it is if nothing in it changed, else the places of its contents. What of
// it can't be read, or lies in packs that are gone, is stored anew, and so
// healed. ctx holds for the uploads until Finish or Abort, one of which must be
// called.
func (s *Store) NewTree(ctx context.Context, parent snapshot.List) (snapshot.TreeWriter, error) {
	manifest := manifestPages{s: s, inline: parent.Inline}
	var upper []snapshot.PageRef
	err := s.reuse(ctx, parent, func(ref snapshot.PageRef, leaf bool) bool {
		if leaf {
			manifest.refs = append(manifest.refs, ref)
		} else {
			upper = append(upper, ref)
		}
		return ref.First != ""
	})
	if err != nil && !unreadable(err) {
		return nil, fmt.Errorf("read parent manifest: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	memory, looks := s.newKept(), newPackLooks(ctx, s, true)
	looks.anew = s.sparse.get(parent)
	pages := make(chan *parentPage, pagesAhead)
	t := &tree{
		s: s, ctx: ctx, cancel: cancel, memory: memory, own: newIndex(),
		files: newPacker(ctx, s, memory, maxPack, packsAtOnce), pages: s.newPages(ctx, memory, 1),
		looks: looks, upper: upper, moved: &parentIndex{pages: manifest, looks: looks},
	}
	t.rows = inlineOr[treeRow]{cutter: cutter[treeRow]{kind: treeRows, out: t.enqueue}}
	t.parent = cursor{pages: pages, known: t.pages.known}
	looks.group.Go(func() error { looks.feed(ctx, manifest, pages); return nil })
	return t, nil
}

// Known reports whether the content can be reused without its bytes.
func (t *tree) Known(path string, d snapshot.Digest, size int64) bool {
	if t.closed {
		return false
	}
	t.seek(path)
	if t.parent.at(path) && t.parent.holds(d, size) {
		return true
	}
	_, ok := t.spans(d, size)
	return ok
}

// spans finds a content by its digest.
func (t *tree) spans(d snapshot.Digest, size int64) ([]span, bool) {
	if size == 0 {
		return nil, d == emptyDigest
	}
	if spans, ok := t.own.find(d, size); ok {
		return spans, true
	}
	spans, err := t.moved.find(t.ctx, d, size)
	t.failure = cmp.Or(t.failure, err)
	return spans, len(spans) > 0
}

// Put reads r to its end and keeps what it read.
func (t *tree) Put(ctx context.Context, r io.Reader) (snapshot.Digest, int64, error) {
	if t.closed {
		return snapshot.Digest{}, 0, errFinished
	}
	n, err := t.fill(ctx, r)
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

// PutBytes keeps a content that its caller has hashed.
func (t *tree) PutBytes(ctx context.Context, data []byte, d snapshot.Digest) error {
	if t.closed {
		return errFinished
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := t.keep(data, d)
	return err
}

// fill reads a content into the buffer, or the first maxContent+1 bytes of a
// large one. The buffer grows as needed, since most trees have small files only.
func (t *tree) fill(ctx context.Context, r io.Reader) (n int, err error) {
	for {
		m, err := io.ReadFull(r, t.buf[n:])
		n += m
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF:
			return n, nil
		case err != nil, n > maxContent:
			return n, err
		}
		if 4*n > smallBuffer {
			if err := t.memory.take(ctx); err != nil {
				return n, err
			}
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
	t.own.add(sp)
	return []span{sp}, nil
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
			return snapshot.Digest{}, 0, cmp.Or(t.files.wait(), ctx.Err())
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
	t.own.addLarge(d, all)
	return d, size, nil
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
	t.s.sparse.add(list, t.looks.sparse())
	return list, t.files.stored.Load(), nil
}

func (t *tree) finish() (snapshot.List, error) {
	t.breakRun()
	err := errors.Join(t.rows.close(), t.files.close(), t.drain())
	if err != nil {
		return snapshot.List{}, err
	}
	for _, ref := range t.upper {
		if t.looks.ask(ref.Pack).isWhole() {
			t.pages.known[ref.Digest] = closedSpan(ref.Piece)
		}
	}
	list, err := t.rows.finish(t.pages, t.count)
	if err == nil {
		err = t.files.wait()
	}
	return list, errors.Join(err, t.failure, t.looks.failure())
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
	_ = t.looks.group.Wait()
	t.memory.giveBack()
	*t = tree{closed: true}
}
