package objstore

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"sync"

	"sandkeep/internal/snapshot"
)

// Small saves make small packs. Each that a manifest refers to costs a save its
// questions and a restore a read, so of those that can be stored together there
// may not be more than maxSparse of which less than sparseUse bytes are used.
const (
	maxSparse = 32
	sparseUse = 512 << 10
)

// packUse is how much of a pack the new manifest refers to.
type packUse struct {
	bytes int64
	fixed bool // it would come out as small again, or cost a large file's reading
}

func (u *packUse) add(d snapshot.Digest, length int64, large bool) {
	u.bytes += length
	u.fixed = u.fixed || large || endsHere(digestHash(d), int(length)+contentWeight, packAim)
}

// use notes that the new manifest refers to the row of the parent.
func (c *cursor) use() {
	large := c.row().pieces > 1
	c.rows.eachPiece(func(p rowPiece) { c.page.used[p.pack].add(snapshot.Digest(p.digest), p.length, large) })
}

// useAll notes that the page is taken over, with the rows that were noted.
func (p *parentPage) useAll() {
	p.own.ref.used.add(p.ref.Digest, p.ref.Length, false)
	for i, u := range p.used {
		to := &p.looks[i].ref.used
		to.bytes, to.fixed = to.bytes+u.bytes, to.fixed || u.fixed
	}
}

// useRows notes that the new manifest refers to the rows.
func useRows(rows []treeRow) {
	for _, r := range rows {
		for _, sp := range r.spans {
			sp.pack.used.add(sp.digest, int64(sp.length), len(r.spans) > 1)
		}
	}
}

// sparse chooses the packs whose contents the next save upon the new manifest is
// to store anew, in one.
func (l *packLooks) sparse() []*packRef {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sparse []*packRef
	for _, look := range l.packs {
		if u := look.ref.used; u.bytes > 0 && u.bytes < sparseUse && !u.fixed {
			sparse = append(sparse, &look.ref)
		}
	}
	if len(sparse) <= maxSparse {
		return nil
	}
	slices.SortFunc(sparse, func(a, b *packRef) int {
		return cmp.Or(cmp.Compare(a.used.bytes, b.used.bytes), slices.Compare(a.name[:], b.name[:]))
	})
	return sparse[:worthIt(sparse)]
}

// worthIt tells how many of the packs, the least ones first, are stored anew
// together: up to one that is no larger than all before it. So a content is
// stored again only a few times, each time in a pack twice as large.
func worthIt(sparse []*packRef) (n int) {
	total := int64(0)
	for i, ref := range sparse {
		if total+ref.used.bytes > packAim {
			break
		}
		if ref.used.bytes <= total {
			n = i + 1
		}
		total += ref.used.bytes
	}
	return n
}

// sparseNotes are packs, by the manifest that uses too little of them. To a save
// upon that manifest they are unknown, so it reads their contents from its tree
// again; the packs themselves stay, and to others they are as good as any.
type sparseNotes struct {
	mu    sync.Mutex
	of    map[[sha256.Size]byte]map[snapshot.Digest]bool
	packs int // in all of them
}

func noteKey(list snapshot.List) [sha256.Size]byte {
	raw, _ := json.Marshal(list) // it has nothing that can't be encoded
	return sha256.Sum256(raw)
}

// add forgets all others when there are too many: the next save notes its own again.
func (n *sparseNotes) add(list snapshot.List, packs []*packRef) {
	if len(packs) == 0 {
		return
	}
	names := make(map[snapshot.Digest]bool, len(packs))
	for _, p := range packs {
		names[p.name] = true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.packs += len(packs); n.of == nil || n.packs > maxNoted {
		n.of, n.packs = map[[sha256.Size]byte]map[snapshot.Digest]bool{}, len(packs)
	}
	n.of[noteKey(list)] = names
}

func (n *sparseNotes) get(list snapshot.List) map[snapshot.Digest]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[noteKey(list)]
}
