package objstore

import (
	"crypto/sha256"
	"encoding/binary"

	"sandkeep/internal/snapshot"
)

const (
	pageAim   = 16 << 10
	pageLimit = 64 << 10 // for more than one row
)

// rowKind says how rows of one kind become pages.
type rowKind[T any] struct {
	encode func([]T) []byte
	weight func(T) int    // not less than what the row adds to a page
	key    func(T) []byte // its hash decides whether a page ends after the row
	first  func(T) string // name of a page that begins with the row
}

var entryRows = rowKind[snapshot.Entry]{
	encode: encodeEntries,
	weight: func(e snapshot.Entry) int { return entryWeight(len(e.Path), len(e.Target), len(e.Pieces)) },
	key:    func(e snapshot.Entry) []byte { return []byte(e.Path) },
	first:  func(e snapshot.Entry) string { return e.Path },
}

func entryWeight(path, target, pieces int) int {
	n := 96 + path + target
	if pieces > 1 { // each with its length, digest and perhaps a pack of its own
		n += 80 * pieces
	}
	return n
}

var refRows = rowKind[snapshot.PageRef]{
	encode: encodeRefs,
	weight: func(r snapshot.PageRef) int { return 80 + len(r.First) },
	key:    func(r snapshot.PageRef) []byte { return append(r.Digest[:], r.First...) },
	first:  func(r snapshot.PageRef) string { return r.First },
}

var itemRows = rowKind[[]byte]{
	encode: encodeItems,
	weight: func(item []byte) int { return 8 + len(item) },
	key:    func(item []byte) []byte { return item },
	first:  func([]byte) string { return "" },
}

// pages makes rows a page of the list.
func pages[T any](w *listWriter, kind rowKind[T]) func([]T) error {
	return func(rows []T) error { return w.page(kind.encode(rows), kind.first(rows[0])) }
}

// cutter collects rows into pages that end where the rows themselves say so,
// so that a change leaves the pages before and after it as they were.
type cutter[T any] struct {
	kind rowKind[T]
	out  func(rows []T) error // takes a page; it must not keep the rows
	rows []T
	size int
}

func (c *cutter[T]) add(row T) error {
	weight := c.kind.weight(row)
	if c.size+weight > pageLimit {
		if err := c.close(); err != nil {
			return err
		}
	}
	c.rows = append(c.rows, row)
	c.size += weight
	if pageEnds(c.kind.key(row), weight) {
		return c.close()
	}
	return nil
}

// pageEnds reports whether a page ends after the row, whatever is before it.
func pageEnds(key []byte, weight int) bool {
	sum := sha256.Sum256(key)
	return endsHere(binary.BigEndian.Uint64(sum[:]), weight, pageAim)
}

// close ends the page that was begun.
func (c *cutter[T]) close() error {
	if len(c.rows) == 0 {
		return nil
	}
	err := c.out(c.rows)
	clear(c.rows)
	c.rows, c.size = c.rows[:0], 0
	return err
}
