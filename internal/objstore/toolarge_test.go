package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// TestTree_FileTooLarge reaches the limit of some 90 GB with 40 MB.
func TestTree_FileTooLarge(t *testing.T) {
	s, _ := newStore(t)
	s.LimitEntry(1000) // bytes for some twenty pieces of a megabyte
	data := snapshottest.RandomBytes(1, 40<<20)
	w, err := s.NewTree(t.Context(), snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort() // again does nothing
	src := bytes.NewReader(data)
	if _, _, err := w.Put(t.Context(), src); !errors.Is(err, snapshot.WorkspaceTooLarge) || src.Len() == 0 {
		t.Fatalf("%v with %d bytes left to read, want %v before the end", err, src.Len(), snapshot.WorkspaceTooLarge)
	}
	w.Abort() // gives its share of the memory back
	small := map[string][]byte{"big": data[:10<<20]}
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, small)
	checkTree(t, s, list, small)
}

// TestTree_FileInTooManyPacks lets a file grow save by save, so that it lies in
// more packs than it would have in one, and its entry takes more bytes.
func TestTree_FileInTooManyPacks(t *testing.T) {
	s, _ := newStore(t)
	data := snapshottest.RandomBytes(1, 15<<20)
	var list snapshot.List
	for n := 5 << 20; n <= len(data); n += 1 << 20 {
		list, _ = snapshottest.WriteTree(t, s, list, map[string][]byte{"log": data[:n]})
	}
	e := entryOf(t, s, list, "log")
	size := len(objstore.EncodeEntries([]snapshot.Entry{e}))
	again := func(limit int) (snapshot.List, error) {
		s.LimitEntry(limit)
		return writeFile(t.Context(), s, list, "log", data)
	}
	if _, err := again(size - 1); !errors.Is(err, snapshot.WorkspaceTooLarge) || !strings.Contains(err.Error(), `"log"`) {
		t.Errorf("an entry of %d bytes with %d pieces: %v, want %v about it", size, len(e.Pieces), err, snapshot.WorkspaceTooLarge)
	}
	whole, err := again(size)
	if err != nil {
		t.Fatal(err)
	}
	checkTree(t, s, whole, map[string][]byte{"log": data})
}

func writeFile(ctx context.Context, s *objstore.Store, parent snapshot.List, path string, data []byte) (snapshot.List, error) {
	w, err := s.NewTree(ctx, parent)
	if err != nil {
		return snapshot.List{}, err
	}
	defer w.Abort()
	d, size, err := w.Put(ctx, bytes.NewReader(data))
	if err != nil {
		return snapshot.List{}, err
	}
	if err := w.Add(ctx, snapshot.Entry{Path: path, Kind: snapshot.KindFile, Mode: 0o644, Size: size, Digest: d}); err != nil {
		return snapshot.List{}, err
	}
	list, _, err := w.Finish(ctx)
	return list, err
}

// TestEntries_LargestFile has as many pieces as a Put takes, in full packs: the
// entry is a content that is read again.
func TestEntries_LargestFile(t *testing.T) {
	const pieces, length = objstore.MaxContent / objstore.PieceBytes, 1 << 20
	e := snapshot.Entry{Path: strings.Repeat("p", snapshot.MaxPathBytes), Kind: snapshot.KindFile, Mode: 0o644, Mtime: 1, Size: pieces * length, Digest: snapshot.Digest{1}}
	for i := range pieces {
		pack := i / (objstore.MaxPack / length)
		e.Pieces = append(e.Pieces, snapshot.Piece{Digest: snapshot.Digest{2, byte(i), byte(i >> 8), byte(i >> 16)}, Length: length,
			Pack: snapshot.Digest{3, byte(pack), byte(pack >> 8)}, Offset: int64(i%(objstore.MaxPack/length)) * length})
	}
	page := objstore.EncodeEntries([]snapshot.Entry{e})
	if read, err := objstore.DecodeEntries(page); err != nil || len(read) != 1 || len(read[0].Pieces) != pieces {
		t.Fatalf("%d entries, %v", len(read), err)
	}
	if len(page) > objstore.MaxContent || pieces < 90_000 {
		t.Errorf("%d pieces take %d bytes, more than the %d of a content", pieces, len(page), objstore.MaxContent)
	}
}
