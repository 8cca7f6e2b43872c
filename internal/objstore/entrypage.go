package objstore

import (
	"encoding/binary"
	"unicode/utf8"

	"sandkeep/internal/snapshot"
)

// encodeEntries writes a manifest page; the entries are valid and in order.
func encodeEntries(entries []snapshot.Entry) []byte {
	var table packTable
	var body []byte
	before := ""
	for _, e := range entries {
		body = appendText(body, before, e.Path)
		body = append(body, byte(e.Kind))
		switch e.Kind {
		case snapshot.KindFile:
			body = appendFile(body, &table, e)
		case snapshot.KindDir:
			body = binary.AppendUvarint(body, uint64(e.Mode))
		case snapshot.KindSymlink:
			body = appendText(body, "", e.Target)
		}
		before = e.Path
	}
	return table.page(entryPage, len(entries), body)
}

func appendFile(body []byte, table *packTable, e snapshot.Entry) []byte {
	body = binary.AppendUvarint(body, uint64(e.Mode))
	body = binary.BigEndian.AppendUint64(body, uint64(e.Mtime))
	body = binary.AppendUvarint(body, uint64(e.Size))
	if e.Size == 0 {
		return body
	}
	body = append(body, e.Digest[:]...)
	body = binary.AppendUvarint(body, uint64(len(e.Pieces)))
	if len(e.Pieces) == 1 { // its digest and length are those of the file
		return appendPlace(body, table, e.Pieces[0])
	}
	for _, p := range e.Pieces {
		body = appendPlace(body, table, p)
		body = binary.AppendUvarint(body, uint64(p.Length))
		body = append(body, p.Digest[:]...)
	}
	return body
}

// decodeEntries reads a manifest page, which may come from anywhere.
func decodeEntries(page []byte) ([]snapshot.Entry, error) {
	r := readRows(page)
	entries := make([]snapshot.Entry, 0, min(r.left, 1024))
	for r.next() {
		e := r.row.entry()
		if r.row.pieces > 0 {
			e.Pieces = make([]snapshot.Piece, 0, r.row.pieces)
		}
		r.eachPiece(func(p rowPiece) {
			e.Pieces = append(e.Pieces, snapshot.Piece{
				Digest: snapshot.Digest(p.digest), Pack: r.packs[p.pack], Offset: p.offset, Length: p.length,
			})
		})
		if checkEntry(e) != nil {
			return nil, errPage
		}
		entries = append(entries, e)
	}
	if r.err != nil {
		return nil, r.err
	}
	return entries, nil
}

// checkEntry refuses what no manifest may hold. Errors: InvalidPath, InvalidEntry.
func checkEntry(e snapshot.Entry) error {
	if err := snapshot.ValidatePath(e.Path); err != nil {
		return err
	}
	if fault := entryFault(e); fault != "" {
		return snapshot.Errorf(snapshot.InvalidEntry, "entry %q %s", e.Path, fault)
	}
	return nil
}

// checkNext is checkEntry for one that follows the path last.
func checkNext(e snapshot.Entry, last string) error {
	if err := checkEntry(e); err != nil {
		return err
	}
	if e.Path <= last {
		return snapshot.Errorf(snapshot.InvalidEntry, "entry %q comes after %q; entries are sorted by path, each once", e.Path, last)
	}
	return nil
}

func entryFault(e snapshot.Entry) string {
	switch {
	case e.Kind != snapshot.KindFile && (e.Size != 0 || e.Mtime != 0 || !e.Digest.IsZero() || len(e.Pieces) > 0):
		return "is no file but has what only files have"
	case e.Kind != snapshot.KindSymlink && e.Target != "":
		return "is no symlink but has a target"
	}
	switch e.Kind {
	case snapshot.KindFile:
		return fileFault(e)
	case snapshot.KindDir:
		if e.Mode > 0o777 {
			return "has a mode above 0777"
		}
		return ""
	case snapshot.KindSymlink:
		return linkFault(e)
	}
	return "has an unknown kind"
}

func fileFault(e snapshot.Entry) string {
	switch {
	case e.Mode > 0o777:
		return "has a mode above 0777"
	case e.Size < 0:
		return "has a negative size"
	case e.Size == 0 && (e.Digest != emptyDigest || len(e.Pieces) > 0):
		return "is empty but has another content's digest"
	case len(e.Pieces) > 0 && !wholePieces(e):
		return "has pieces that do not make up its content"
	}
	return ""
}

func wholePieces(e snapshot.Entry) bool {
	left := e.Size
	for _, p := range e.Pieces {
		if p.Length <= 0 || p.Length > maxContent || p.Offset < 0 || p.Offset > maxPack-p.Length || p.Length > left {
			return false
		}
		left -= p.Length
	}
	return left == 0 && (len(e.Pieces) != 1 || e.Pieces[0].Digest == e.Digest)
}

func linkFault(e snapshot.Entry) string {
	switch {
	case e.Mode != 0:
		return "is a symlink and has a mode"
	case e.Target == "":
		return "is a symlink without a target"
	case len(e.Target) > snapshot.MaxPathBytes:
		return "has a target of more than 4096 bytes"
	case !utf8.ValidString(e.Target):
		return "has a target that is not UTF-8"
	}
	for i := range len(e.Target) {
		if e.Target[i] == 0 {
			return "has a target with a NUL"
		}
	}
	return ""
}
