package objstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"sandkeep/internal/snapshot"
)

// Add appends an entry; a file's content was Put or is Known. Its Pieces are
// found at its path in the parent, or by its digest; those given are ignored.
func (t *tree) Add(ctx context.Context, e snapshot.Entry) error {
	if t.closed {
		return errFinished
	}
	e.Pieces = nil
	if err := checkNext(e, t.last); err != nil {
		return err
	}
	t.seek(e.Path)
	here := t.parent.at(e.Path)
	if !here || !t.keepRow(&e) {
		if err := t.addEntry(e, here); err != nil {
			return err
		}
	}
	if here {
		t.parent.next()
	}
	t.last = e.Path
	t.count++
	if t.queued >= maxQueue {
		if err := t.files.close(); err != nil {
			return err
		}
	}
	if err := t.drain(); err != nil {
		return err
	}
	return cmp.Or(t.failure, t.looks.failure(), ctx.Err())
}

// seek goes on in the parent to the path. A row that is passed over was
// removed, and with it changes its page.
func (t *tree) seek(path string) {
	for t.parent.behind(path) {
		t.breakRun()
		t.parent.next()
	}
}

// keepRow takes the parent's row along with its page, which is taken over whole
// once its last row is kept; false if the row must be added by itself. It goes
// by what a writer without a parent would do: one that stands at the beginning
// of a page ends it after the same rows, if the last one says so itself.
func (t *tree) keepRow(e *snapshot.Entry) bool {
	c := &t.parent
	begins := c.index == 0 && c.all && t.rows.atPage()
	if t.run == 0 && !begins || !c.row().is(e) || !c.usable() {
		return false
	}
	if c.rows.left > 0 {
		c.use()
		t.run, t.runPage = t.run+1, c.page
		return true
	}
	if !pageEnds(c.row().path, entryWeight(len(e.Path), len(e.Target), c.row().pieces)) {
		return false
	}
	t.run = 0
	c.use()
	c.page.useAll()
	t.queue = append(t.queue, treePage{taken: c.page.ref})
	return true
}

// breakRun adds the rows that were to be taken over with their page one by one.
func (t *tree) breakRun() {
	if t.run == 0 {
		return
	}
	again := cursor{page: t.runPage, rows: t.runPage.rows}
	for ; t.run > 0 && again.rows.next(); t.run-- {
		t.addRow(treeRow{again.row().entry(), again.spans()})
	}
}

func (t *tree) addRow(row treeRow) {
	if err := t.rows.add(row); err != nil {
		t.failure = cmp.Or(t.failure, err)
	}
}

// addEntry adds an entry by itself. Its content lies where the parent's row has
// it, if that is the same one, or is found by its digest.
func (t *tree) addEntry(e snapshot.Entry, here bool) error {
	row := treeRow{entry: e}
	if e.Kind == snapshot.KindFile {
		ok := false
		if here && t.parent.holds(e.Digest, e.Size) {
			row.spans, ok = t.parent.spans(), true
		} else {
			row.spans, ok = t.spans(e.Digest, e.Size)
		}
		if !ok {
			return snapshot.Errorf(snapshot.MissingBlob, "the content %s of %q is not stored; put it first", e.Digest, e.Path)
		}
	}
	if err := t.s.describable(row); err != nil {
		return err
	}
	t.breakRun()
	t.addRow(row)
	return nil
}

// describable refuses an entry whose page could not be read again. Packs that
// are open have no name yet; any names are as long.
func (s *Store) describable(row treeRow) error {
	e := row.entry
	if entryWeight(len(e.Path), len(e.Target), len(row.spans)) <= s.maxEntry {
		return nil
	}
	names := map[*packRef]snapshot.Digest{}
	for _, sp := range row.spans {
		name, ok := names[sp.pack]
		if !ok {
			binary.BigEndian.PutUint64(name[:], uint64(len(names)))
			names[sp.pack] = name
		}
		e.Pieces = append(e.Pieces, snapshot.Piece{Digest: sp.digest, Pack: name, Offset: int64(sp.offset), Length: int64(sp.length)})
	}
	if len(encodeEntries([]snapshot.Entry{e})) <= s.maxEntry {
		return nil
	}
	return snapshot.Errorf(snapshot.WorkspaceTooLarge, "%q can't be kept: its %d bytes lie in %d pieces, too many to be listed; exclude it", e.Path, e.Size, len(e.Pieces))
}

// enqueue takes a page from the cutter.
func (t *tree) enqueue(rows []treeRow) error {
	page := treePage{rows: slices.Clone(rows)}
	useRows(rows)
	for _, r := range rows {
		for _, sp := range r.spans {
			if !sp.pack.closed {
				page.open = sp.pack
			}
		}
	}
	t.queue = append(t.queue, page)
	t.queued += len(rows)
	return nil
}

// drain moves pages whose packs are closed into the manifest.
func (t *tree) drain() error {
	done := 0
	for _, page := range t.queue {
		if page.open != nil && !page.open.closed {
			break
		}
		if err := t.store(page); err != nil {
			return err
		}
		done++
		t.queued -= len(page.rows)
	}
	t.queue = slices.Delete(t.queue, 0, done)
	return nil
}

func (t *tree) store(p treePage) error {
	if p.rows == nil {
		t.pages.take(p.taken)
		return nil
	}
	return t.pages.page(treeRows.encode(p.rows), treeRows.first(p.rows[0]))
}
