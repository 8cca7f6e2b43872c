package objstore

import (
	"encoding/binary"

	"sandkeep/internal/snapshot"
)

// encodeRefs writes a page of page references.
func encodeRefs(refs []snapshot.PageRef) []byte {
	var table packTable
	var body []byte
	before := ""
	for _, r := range refs {
		body = appendText(body, before, r.First)
		body = append(body, r.Digest[:]...)
		body = appendPlace(body, &table, r.Piece)
		body = binary.AppendUvarint(body, uint64(r.Length))
		before = r.First
	}
	return table.page(refPage, len(refs), body)
}

// decodeRefs reads a page of references, which may come from anywhere.
func decodeRefs(page []byte) ([]snapshot.PageRef, error) {
	d := &decoder{buf: page}
	packs, n := d.table(refPage)
	refs := make([]snapshot.PageRef, 0, min(n, 1024))
	before, weight := "", 0
	for range n {
		var r snapshot.PageRef
		r.First = d.text(before, snapshot.MaxPathBytes)
		digest := d.digest()
		r.Piece = d.place(packs)
		r.Digest, r.Length = digest, int64(d.uvarint(maxContent))
		if weight += refRows.weight(r); d.err != nil || weight > pageLimit && n > 1 { // shared names cost little to write
			return nil, errPage
		}
		refs = append(refs, r)
		before = r.First
	}
	if d.err != nil {
		return nil, d.err
	}
	return refs, d.exact(page, encodeRefs(refs))
}
