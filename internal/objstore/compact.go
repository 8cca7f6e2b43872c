package objstore

import (
	"cmp"
	"slices"
)

// Small saves make small packs. Each that a manifest refers to costs a save its
// questions and a restore a read, so there may not be more than maxSparse of
// which less than sparseUse bytes are used.
const (
	maxSparse = 32
	sparseUse = 512 << 10
)

// use notes that the new manifest refers to the row of the parent.
func (c *cursor) use() {
	c.rows.eachPiece(func(p rowPiece) { c.page.used[p.pack] += p.length })
}

// useAll notes that the page is taken over, with the rows that were noted.
func (p *parentPage) useAll() {
	p.own.ref.used += p.ref.Length
	for i, n := range p.used {
		p.looks[i].ref.used += n
	}
}

// useRows notes that the new manifest refers to the rows.
func useRows(rows []treeRow) {
	for _, r := range rows {
		for _, sp := range r.spans {
			sp.pack.used += int64(sp.length)
		}
	}
}

// noteSparse chooses the packs whose contents the next save is to store anew, in
// one. To that save they are unknown, so it reads them from its tree again; the
// packs themselves stay for others.
func (l *packLooks) noteSparse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sparse []*packRef
	for _, look := range l.packs {
		if n := look.ref.used; n > 0 && n < sparseUse {
			sparse = append(sparse, &look.ref)
		}
	}
	if len(sparse) <= maxSparse {
		return
	}
	slices.SortFunc(sparse, func(a, b *packRef) int { return cmp.Compare(a.used, b.used) })
	for _, ref := range sparse[:worthIt(sparse)] {
		l.s.sparse.add(l.s.packs(), objectName(ref.name))
	}
}

// worthIt tells how many of the packs, the least ones first, are stored anew
// together: up to one that is no larger than all before it. So a content is
// stored again only a few times, each time in a pack twice as large.
func worthIt(sparse []*packRef) (n int) {
	total := int64(0)
	for i, ref := range sparse {
		if total+ref.used > packAim {
			break
		}
		if ref.used <= total {
			n = i + 1
		}
		total += ref.used
	}
	return n
}
