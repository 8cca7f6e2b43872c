package objstore

import (
	"encoding/binary"
)

const (
	maxWholeItem = 60 << 10 // larger items are cut into parts
	partSize     = 1 << 20  // part of the format
	maxItem      = 64 << 20
)

// encodeItems writes a page of whole items.
func encodeItems(items [][]byte) []byte {
	buf := binary.AppendUvarint([]byte{itemPage}, uint64(len(items)))
	for _, it := range items {
		buf = binary.AppendUvarint(buf, uint64(len(it)))
		buf = append(buf, it...)
	}
	return buf
}

// encodePart writes a page that holds a part of an item of total bytes.
func encodePart(total, offset int, part []byte) []byte {
	buf := binary.AppendUvarint([]byte{partPage}, uint64(total))
	buf = binary.AppendUvarint(buf, uint64(offset))
	return append(buf, part...)
}

// itemReader puts items together from pages.
type itemReader struct {
	partial []byte
	total   int
}

// add takes the next page and returns the items that it completes.
func (r *itemReader) add(page []byte) ([][]byte, error) {
	d := &decoder{buf: page}
	switch kind := d.byte(); {
	case kind == itemPage && r.total == 0:
		return d.items(page)
	case kind == partPage:
		return r.part(d, page)
	}
	return nil, errPage
}

func (d *decoder) items(page []byte) ([][]byte, error) {
	n := d.count(1)
	items := make([][]byte, 0, min(n, 1024))
	for range n {
		size := d.uvarint(maxWholeItem)
		items = append(items, d.take(int(size)))
	}
	if d.err != nil {
		return nil, d.err
	}
	return items, d.exact(page, encodeItems(items))
}

func (r *itemReader) part(d *decoder, page []byte) ([][]byte, error) {
	total, offset := int(d.uvarint(maxItem)), int(d.uvarint(maxItem))
	part := d.take(len(d.buf))
	first := r.total == 0
	if d.err != nil || total <= maxWholeItem || offset != len(r.partial) || !first && total != r.total ||
		len(part) != min(partSize, total-offset) {
		return nil, errPage
	}
	if err := d.exact(page, encodePart(total, offset, part)); err != nil {
		return nil, err
	}
	r.partial, r.total = append(r.partial, part...), total
	if len(r.partial) < total {
		return nil, nil
	}
	item := r.partial
	r.partial, r.total = nil, 0
	return [][]byte{item}, nil
}
