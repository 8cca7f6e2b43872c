package snapshottest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandkeep/internal/snapshot"
)

func opener(data []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

// PutBlob stores data as a loose blob.
func PutBlob(t testing.TB, o snapshot.Objects, data []byte) snapshot.Digest {
	t.Helper()
	d := snapshot.Digest(sha256.Sum256(data))
	if err := o.PutBlob(t.Context(), d, int64(len(data)), opener(data)); err != nil {
		t.Fatalf("put blob of %d bytes: %v", len(data), err)
	}
	return d
}

// FileEntry is the entry of a file with that content, without a place.
func FileEntry(path string, data []byte) snapshot.Entry {
	return snapshot.Entry{Path: path, Kind: snapshot.KindFile, Mode: 0o640, Mtime: 1_700_000_000_987_654_321,
		Size: int64(len(data)), Digest: sha256.Sum256(data)}
}

func objectsBlobs(t *testing.T, o snapshot.Objects) {
	for _, size := range []int{0, 1, 512 << 10, 512<<10 + 1, 5 << 20} {
		data := RandomBytes(uint64(size), size)
		d, n := snapshot.Digest(sha256.Sum256(data)), int64(size)
		blobIs(t, o, d, false, nil)
		if err := o.PutBlob(t.Context(), d, n, opener([]byte("other bytes"))); !errors.Is(err, snapshot.InvalidBlob) {
			t.Errorf("other bytes: %v", err)
		}
		blobIs(t, o, d, false, nil)
		PutBlob(t, o, data)
		PutBlob(t, o, data)
		blobIs(t, o, d, false, data)
		blobIs(t, o, d, true, nil) // no artifact
		if _, err := o.PutArtifact(t.Context(), d, n, opener(data)); err != nil {
			t.Fatal(err)
		}
		blobIs(t, o, d, true, data)
		if !strings.HasSuffix(o.BlobObject(d), "-files/sha256/"+d.String()) {
			t.Errorf("object %q", o.BlobObject(d))
		}
	}
	broken := errors.New("the source is gone")
	err := o.PutBlob(t.Context(), snapshot.Digest{1}, 5, func() (io.ReadCloser, error) { return nil, broken })
	if !errors.Is(err, broken) {
		t.Errorf("source that can't be opened: %v", err)
	}
}

// blobIs checks what the store says about a blob; nil data is a missing one.
func blobIs(t *testing.T, o snapshot.Objects, d snapshot.Digest, artifact bool, data []byte) {
	t.Helper()
	size, there, err := o.BlobSize(t.Context(), d, artifact)
	if err != nil || there != (data != nil) || size != int64(len(data)) {
		t.Errorf("size %d, there %v, %v; want %d bytes", size, there, err, len(data))
	}
	r, n, err := o.OpenBlob(t.Context(), d, artifact)
	if data == nil {
		if !errors.Is(err, snapshot.MissingBlob) {
			t.Errorf("open a missing blob: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatalf("open blob: %v", err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || n != int64(len(data)) || !bytes.Equal(got, data) {
		t.Errorf("size %d, %d bytes, %v; want %d", n, len(got), err, len(data))
	}
}

func objectsLend(t *testing.T, o snapshot.Objects) {
	seen := map[string]bool{}
	for _, size := range []int{0, 10, 10, 3 << 20} {
		data := RandomBytes(uint64(size), size)
		object, err := o.Lend(t.Context(), int64(size), opener(data))
		if err != nil || seen[object] || !strings.Contains(object, "-replies/") {
			t.Errorf("%d bytes: object %q, %v", size, object, err)
		}
		seen[object] = true
	}
	broken := errors.New("the source is gone")
	_, err := o.Lend(t.Context(), 5, func() (io.ReadCloser, error) { return io.NopCloser(failing{broken}), nil })
	if !errors.Is(err, broken) {
		t.Errorf("broken source: %v", err)
	}
}

// objectsImport stores a tree of loose blobs and reads it back, whole and in
// parts.
func objectsImport(t *testing.T, o snapshot.Objects) {
	want := map[string][]byte{
		"a/": nil, "a/empty": {}, "a/one": {7}, "a/same": {7}, "large": RandomBytes(1, 5<<20), "small": []byte("some text"),
	}
	entries := []snapshot.Entry{{Path: "a", Kind: snapshot.KindDir, Mode: 0o711}}
	for _, p := range []string{"a/empty", "a/one", "a/same", "large", "small"} {
		PutBlob(t, o, want[p])
		entries = append(entries, FileEntry(p, want[p]))
	}
	entries = append(entries, snapshot.Entry{Path: "to", Kind: snapshot.KindSymlink, Target: "../x"})
	list, err := o.Import(t.Context(), entries, snapshot.List{}, true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(entries, allEntries(t, o, list)); diff != "" || list.Count != int64(len(entries)) {
		t.Errorf("count %d %s", list.Count, diff)
	}
	sameTree(t, ReadTree(t, o, list), want)
	for _, path := range []string{"large", "small"} {
		e, size := FileEntry(path, want[path]), int64(len(want[path]))
		for _, r := range [][2]int64{{0, 3}, {2, 4}, {size - 1, -1}, {size + 1, 5}, {0, size}, {1, size}} {
			from := min(r[0], size)
			to := size
			if r[1] >= 0 {
				to = min(size, from+r[1])
			}
			if got := readFile(t, o, e, r[0], r[1]); !bytes.Equal(got, want[path][from:to]) {
				t.Errorf("%s, range %v: got %d other bytes", path, r, len(got))
			}
		}
	}
	if list, err = o.Import(t.Context(), nil, list, true); err != nil || !list.IsEmpty() {
		t.Errorf("no entries: %+v, %v", list, err)
	}
}

func allEntries(t *testing.T, o snapshot.Objects, list snapshot.List) (all []snapshot.Entry) {
	t.Helper()
	for e, err := range o.Entries(t.Context(), list, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// objectsImportMissing wants the first path whose blob is missing, or has
// another size.
func objectsImportMissing(t *testing.T, o snapshot.Objects) {
	there, gone := []byte("there"), []byte("gone")
	PutBlob(t, o, there)
	longer := FileEntry("b longer", there)
	longer.Size++
	for name, c := range map[string]struct {
		entries []snapshot.Entry
		first   string
	}{
		"missing":      {[]snapshot.Entry{FileEntry("a", there), FileEntry("b first", gone), FileEntry("c second", gone), FileEntry("d", []byte("x"))}, "b first"},
		"another size": {[]snapshot.Entry{FileEntry("a", there), longer, FileEntry("c", gone)}, "b longer"},
		"negligible":   {[]snapshot.Entry{FileEntry("a", nil), FileEntry("b one", []byte("1"))}, "b one"},
	} {
		_, err := o.Import(t.Context(), c.entries, snapshot.List{}, true)
		if !errors.Is(err, snapshot.MissingBlob) || !strings.Contains(err.Error(), c.first) {
			t.Errorf("%s: got %v, want that of %q", name, err, c.first)
		}
	}
	PutBlob(t, o, gone)
	if _, err := o.Import(t.Context(), []snapshot.Entry{FileEntry("b", gone)}, snapshot.List{}, true); err != nil {
		t.Errorf("after the put: %v", err)
	}
}

// objectsImportElsewhere keeps a manifest whose blobs come later.
func objectsImportElsewhere(t *testing.T, o snapshot.Objects) {
	data := []byte("comes later")
	entries := []snapshot.Entry{FileEntry("f", data)}
	list, err := o.Import(t.Context(), entries, snapshot.List{}, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(entries, allEntries(t, o, list)); diff != "" {
		t.Error(diff)
	}
	if _, err := o.OpenFile(t.Context(), entries[0], 0, -1); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("before the put: %v", err)
	}
	if _, err := o.Import(t.Context(), entries, list, true); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("a parent that keeps it elsewhere has no place for it: %v", err)
	}
	PutBlob(t, o, data)
	sameTree(t, ReadTree(t, o, list), map[string][]byte{"f": data})
	w, err := o.NewTree(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if w.Known(entries[0].Path, entries[0].Digest, entries[0].Size) {
		t.Error("a loose blob can't be reused by a tree")
	}
}

// objectsImportParent takes over the places of a saved tree, and an equal tree
// becomes an equal manifest.
func objectsImportParent(t *testing.T, o snapshot.Objects) {
	saved := sampleTree()
	parent, _ := WriteTree(t, o, snapshot.List{}, saved)
	before := allEntries(t, o, parent)
	captured := slices.Clone(before)
	for i := range captured {
		captured[i].Pieces = nil
	}
	for _, require := range []bool{true, false} {
		list, err := o.Import(t.Context(), captured, parent, require)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, allEntries(t, o, list)); diff != "" {
			t.Error(diff)
		}
		sameTree(t, ReadTree(t, o, list), saved)
	}
	fresh := []byte("a file of the client's own")
	moved := FileEntry("moved", saved["many/010"])
	mixed := []snapshot.Entry{moved, FileEntry("new", fresh)}
	if _, err := o.Import(t.Context(), mixed, parent, true); !errors.Is(err, snapshot.MissingBlob) || !strings.Contains(err.Error(), "new") {
		t.Errorf("got %v, want that of \"new\"", err)
	}
	PutBlob(t, o, fresh)
	list, err := o.Import(t.Context(), mixed, parent, true)
	if err != nil {
		t.Fatal(err)
	}
	sameTree(t, ReadTree(t, o, list), map[string][]byte{"moved": saved["many/010"], "new": fresh})
	moved.Size++
	if _, err := o.Import(t.Context(), []snapshot.Entry{moved}, parent, true); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("another size than the parent's: %v", err)
	}
	if _, n := WriteTree(t, o, list, map[string][]byte{"moved": saved["many/010"], "new": fresh}); n != int64(len(fresh)) {
		t.Errorf("a save after it stored %d bytes, want those of the loose blob", n)
	}
}

func objectsImportRefuses(t *testing.T, o snapshot.Objects) {
	dir := func(path string) snapshot.Entry {
		return snapshot.Entry{Path: path, Kind: snapshot.KindDir, Mode: 0o755}
	}
	negative := FileEntry("f", nil)
	negative.Size = -1
	empty := FileEntry("f", []byte("x"))
	empty.Size = 0
	for i, entries := range [][]snapshot.Entry{
		{dir("b"), dir("a")}, {dir("a"), dir("a")}, {{Path: "a"}}, {negative}, {empty},
		{{Path: "l", Kind: snapshot.KindSymlink}}, {{Path: "d", Kind: snapshot.KindDir, Mode: 0o1000}},
	} {
		if _, err := o.Import(t.Context(), entries, snapshot.List{}, false); !errors.Is(err, snapshot.InvalidEntry) {
			t.Errorf("%d: got %v", i, err)
		}
	}
	for _, path := range []string{"", "/a", "a/../b", "a\xff", "a\\b"} {
		if _, err := o.Import(t.Context(), []snapshot.Entry{dir(path)}, snapshot.List{}, true); !errors.Is(err, snapshot.InvalidPath) {
			t.Errorf("path %q: %v", path, err)
		}
	}
	given := FileEntry("f", []byte("text"))
	given.Pieces = []snapshot.Piece{{Digest: given.Digest, Pack: snapshot.Digest{9}, Length: given.Size}}
	list, err := o.Import(t.Context(), []snapshot.Entry{given}, snapshot.List{}, false)
	if err != nil {
		t.Fatal(err)
	}
	if got := allEntries(t, o, list); len(got) != 1 || len(got[0].Pieces) > 0 {
		t.Errorf("a place that the client gave was believed: %s", fmt.Sprint(got))
	}
}
