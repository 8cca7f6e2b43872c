package objstore

import (
	"context"

	"sandkeep/internal/snapshot"
)

// pagesAhead of the parent are read, and their packs asked for, before a tree
// writer comes to them.
const pagesAhead = 16

func spanOf(p rowPiece, pack *packRef) span {
	return span{snapshot.Digest(p.digest), pack, uint32(p.offset), uint32(p.length)}
}

// parentPage is a page of the parent, checked against its digest.
type parentPage struct {
	ref   snapshot.PageRef // zero for an inline manifest
	rows  rowReader        // at its beginning
	own   *packLook        // the pack that it lies in; nil for an inline manifest
	looks []*packLook      // the packs of its table
	used  []packUse        // of each, by the rows that use has noted
}

// manifestPages are the pages of a manifest; an inline one is one page.
type manifestPages struct {
	s      *Store
	refs   []snapshot.PageRef
	inline []byte
}

func (m *manifestPages) count() int {
	if len(m.inline) > 0 {
		return 1
	}
	return len(m.refs)
}

// read returns the checked bytes of a page.
func (m *manifestPages) read(ctx context.Context, n int) ([]byte, snapshot.PageRef, error) {
	if len(m.inline) > 0 {
		return m.inline, snapshot.PageRef{}, nil
	}
	raw, err := m.s.content(ctx, m.refs[n].Piece)
	return raw, m.refs[n], err
}

// feed reads the pages in order, up to one that can't be read.
func (l *packLooks) feed(ctx context.Context, pages manifestPages, out chan<- *parentPage) {
	defer close(out)
	for n := range pages.count() {
		raw, ref, err := pages.read(ctx, n)
		if err != nil {
			if !unreadable(err) {
				l.fail(err)
			}
			return
		}
		select {
		case out <- l.page(ref, raw):
		case <-ctx.Done():
			return
		}
	}
}

func (l *packLooks) page(ref snapshot.PageRef, raw []byte) *parentPage {
	p := &parentPage{ref: ref, rows: readRows(raw)}
	if !ref.Digest.IsZero() {
		p.own = l.ask(ref.Pack)
	}
	for _, pack := range p.rows.packs {
		p.looks = append(p.looks, l.ask(pack))
	}
	p.used = make([]packUse, len(p.looks))
	return p
}

// cursor goes through the rows of the parent, in the order of their paths. It
// has a row while page is set.
type cursor struct {
	pages <-chan *parentPage
	begun bool
	page  *parentPage
	rows  rowReader
	index int                      // of the row in its page
	whole []bool                   // the packs of the page's table that are there
	all   bool                     // of those, and the page's own
	last  []byte                   // path of the last row of the page before
	known map[snapshot.Digest]span // gets the pages that may be reused
}

func (c *cursor) row() *row { return &c.rows.row }

// next goes to the next row.
func (c *cursor) next() {
	c.begun = true
	if c.page != nil {
		if c.index++; c.rows.next() {
			return
		}
		c.last = append(c.last[:0], c.rows.row.path...)
	}
	// A page that can't be decoded ends the parent, as one that can't be read does.
	if c.page = nil; c.rows.err == nil {
		c.enter(<-c.pages)
	}
}

// behind reports whether the row is before the path.
func (c *cursor) behind(path string) bool {
	return !c.begun || c.page != nil && string(c.rows.row.path) < path
}

func (c *cursor) enter(p *parentPage) {
	if p == nil {
		return
	}
	c.rows, c.index = p.rows, 0
	if !c.rows.next() || p.own != nil && p.ref.First != string(c.rows.row.path) || string(c.rows.row.path) <= string(c.last) {
		c.rows.err = errPage
		return
	}
	c.page, c.whole, c.all = p, c.whole[:0], p.own != nil && p.own.isWhole()
	for _, look := range p.looks {
		c.whole = append(c.whole, look.isWhole())
		c.all = c.all && look.whole
	}
	if p.own != nil && p.own.whole {
		c.known[p.ref.Digest] = closedSpan(p.ref.Piece)
	}
}

// at reports whether the row is that of the path.
func (c *cursor) at(path string) bool { return c.page != nil && string(c.rows.row.path) == path }

// holds reports whether the row is a file with that content, which can be reused.
func (c *cursor) holds(d snapshot.Digest, size int64) bool {
	return c.row().kind == snapshot.KindFile && c.row().holds(d, size) && c.usable()
}

// usable reports whether the content of the row is in packs that are there. An
// object of its own is none.
func (c *cursor) usable() bool {
	if c.row().size > 0 && c.row().pieces == 0 {
		return false
	}
	if c.all {
		return true
	}
	ok := true
	c.rows.eachPiece(func(p rowPiece) { ok = ok && c.whole[p.pack] })
	return ok
}

// spans are where the content of the row lies.
func (c *cursor) spans() (spans []span) {
	c.rows.eachPiece(func(p rowPiece) {
		spans = append(spans, spanOf(p, &c.page.looks[p.pack].ref))
	})
	return spans
}
