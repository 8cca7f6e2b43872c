package snapshottest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandkeep/internal/snapshot"
)

// RunObjectsContract checks what every snapshot.Objects must do. Each test gets
// an empty store of its own.
func RunObjectsContract(t *testing.T, newObjects func(t *testing.T) snapshot.Objects) {
	tests := map[string]func(*testing.T, snapshot.Objects){
		"RoundTrip": objectsRoundTrip, "EmptyTree": objectsEmptyTree, "EqualTrees": objectsEqualTrees,
		"Known": objectsKnown, "Unstable": objectsUnstable, "Refuses": objectsRefuse,
		"SourceError": objectsSourceError, "Prefix": objectsPrefix, "Ranges": objectsRanges,
		"Canceled": objectsCanceled, "Items": objectsItems, "Inline": objectsInline, "Artifacts": objectsArtifacts,
		"Blobs": objectsBlobs, "Lend": objectsLend, "Import": objectsImport, "ImportMissing": objectsImportMissing,
		"ImportElsewhere": objectsImportElsewhere, "ImportParent": objectsImportParent, "ImportRefuses": objectsImportRefuses,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, newObjects(t)) })
	}
}

// RandomBytes are the same for the same seed.
func RandomBytes(seed uint64, n int) []byte {
	data := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(data)
	return data
}

// WriteTree stores files by path, and a directory for each path that ends in "/".
func WriteTree(t testing.TB, o snapshot.Objects, parent snapshot.List, files map[string][]byte) (snapshot.List, int64) {
	t.Helper()
	ctx := t.Context()
	w, err := o.NewTree(ctx, parent)
	if err != nil {
		t.Fatalf("new tree: %v", err)
	}
	defer w.Abort()
	paths := make([]string, 0, len(files))
	for p := range files {
		paths = append(paths, p)
	}
	slices.SortFunc(paths, func(a, b string) int {
		return strings.Compare(strings.TrimSuffix(a, "/"), strings.TrimSuffix(b, "/"))
	})
	for _, p := range paths {
		e := snapshot.Entry{Path: strings.TrimSuffix(p, "/"), Kind: snapshot.KindDir, Mode: 0o755}
		if e.Path == p {
			d, n, err := w.Put(ctx, bytes.NewReader(files[p]))
			if err != nil {
				t.Fatalf("put %s: %v", p, err)
			}
			e = snapshot.Entry{Path: p, Kind: snapshot.KindFile, Mode: 0o644, Mtime: 1_700_000_000_123_456_789, Size: n, Digest: d}
		}
		if err := w.Add(ctx, e); err != nil {
			t.Fatalf("add %s: %v", p, err)
		}
	}
	list, n, err := w.Finish(ctx)
	if err != nil {
		t.Fatalf("finish: %v", err)
	}
	return list, n
}

// ReadTree reads every file back; directories have a path that ends in "/".
func ReadTree(t testing.TB, o snapshot.Objects, list snapshot.List) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for e, err := range o.Entries(t.Context(), list, "", "") {
		if err != nil {
			t.Fatalf("entries: %v", err)
		}
		switch e.Kind {
		case snapshot.KindDir:
			files[e.Path+"/"] = nil
		case snapshot.KindFile:
			files[e.Path] = readFile(t, o, e, 0, -1)
		}
	}
	return files
}

func readFile(t testing.TB, o snapshot.Objects, e snapshot.Entry, offset, length int64) []byte {
	t.Helper()
	r, err := o.OpenFile(t.Context(), e, offset, length)
	if err != nil {
		t.Fatalf("open %s: %v", e.Path, err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %s: %v", e.Path, err)
	}
	return data
}

func sameTree(t testing.TB, got, want map[string][]byte) {
	t.Helper()
	for p, data := range want {
		if have, ok := got[p]; !ok || !bytes.Equal(have, data) {
			t.Errorf("%s: got %d bytes (there: %v), want %d", p, len(have), ok, len(data))
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d entries, want %d", len(got), len(want))
	}
}

func sampleTree() map[string][]byte {
	files := map[string][]byte{
		"dir/": nil, "dir/empty": {}, "dir/one": {7}, "dir.txt": []byte("sorts before dir/"),
		"large": RandomBytes(1, 6<<20), "é ü/": nil, "é ü/new\nline": []byte("x"),
	}
	for i := range 300 {
		files[fmt.Sprintf("many/%03d", i)] = RandomBytes(uint64(i), i*11)
	}
	return files
}

func objectsRoundTrip(t *testing.T, o snapshot.Objects) {
	want := sampleTree()
	list, n := WriteTree(t, o, snapshot.List{}, want)
	if list.Count != int64(len(want)) {
		t.Errorf("count %d, want %d", list.Count, len(want))
	}
	if n < 6<<20 {
		t.Errorf("%d new bytes, want all", n)
	}
	sameTree(t, ReadTree(t, o, list), want)

	entry := snapshot.Entry{Path: "link", Kind: snapshot.KindSymlink, Target: "../outside"}
	w, err := o.NewTree(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.Add(t.Context(), entry); err != nil {
		t.Fatal(err)
	}
	list, _, err = w.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range o.Entries(t.Context(), list, "", "") {
		if diff := cmp.Diff(entry, e); err != nil || diff != "" {
			t.Errorf("link: %v %s", err, diff)
		}
	}
}

func objectsEmptyTree(t *testing.T, o snapshot.Objects) {
	list, n := WriteTree(t, o, snapshot.List{}, nil)
	if !list.IsEmpty() || n != 0 {
		t.Errorf("got %+v, %d new bytes", list, n)
	}
	sameTree(t, ReadTree(t, o, list), nil)
}

func objectsEqualTrees(t *testing.T, o snapshot.Objects) {
	want := sampleTree()
	first, _ := WriteTree(t, o, snapshot.List{}, want)
	for _, parent := range []snapshot.List{{}, first} {
		list, n := WriteTree(t, o, parent, want)
		if n != 0 {
			t.Errorf("the same tree again: %d new bytes", n)
		}
		sameTree(t, ReadTree(t, o, list), want)
	}
}

func objectsKnown(t *testing.T, o snapshot.Objects) {
	data := []byte("kept by the parent")
	parent, _ := WriteTree(t, o, snapshot.List{}, map[string][]byte{"a": data})
	d, n := snapshot.Digest(sha256.Sum256(data)), int64(len(data))
	w, err := o.NewTree(t.Context(), parent)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if !w.Known("p", d, n) || w.Known("p", d, n+1) || w.Known("p", snapshot.Digest{1}, n) {
		t.Error("Known must be true for the parent's content and false for others")
	}
	if !w.Known("p", sha256.Sum256(nil), 0) {
		t.Error("the empty content must be known")
	}
	if err := w.Add(t.Context(), snapshot.Entry{Path: "b", Kind: snapshot.KindFile, Size: n, Digest: d}); err != nil {
		t.Fatal(err)
	}
	list, stored, err := w.Finish(t.Context())
	if err != nil || stored != 0 {
		t.Fatalf("finish: %v, %d new bytes", err, stored)
	}
	sameTree(t, ReadTree(t, o, list), map[string][]byte{"b": data})
}

// objectsUnstable puts a file three times before its Add.
func objectsUnstable(t *testing.T, o snapshot.Objects) {
	w, err := o.NewTree(t.Context(), snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	e := snapshot.Entry{Path: "log", Kind: snapshot.KindFile}
	for _, text := range []string{"one", "one two", "one two three"} {
		if e.Digest, e.Size, err = w.Put(t.Context(), strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Add(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	list, _, err := w.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sameTree(t, ReadTree(t, o, list), map[string][]byte{"log": []byte("one two three")})
}

func objectsRefuse(t *testing.T, o snapshot.Objects) {
	w, err := o.NewTree(t.Context(), snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	empty := snapshot.Digest(sha256.Sum256(nil))
	if err := w.Add(t.Context(), snapshot.Entry{Path: "m", Kind: snapshot.KindDir}); err != nil {
		t.Fatal(err)
	}
	bad := map[snapshot.Code][]snapshot.Entry{
		snapshot.InvalidPath: {{Path: "", Kind: snapshot.KindDir}, {Path: "x/../y", Kind: snapshot.KindDir}, {Path: "/x", Kind: snapshot.KindDir}, {Path: "x\xff", Kind: snapshot.KindDir}},
		snapshot.InvalidEntry: {
			{Path: "m", Kind: snapshot.KindDir}, {Path: "a", Kind: snapshot.KindDir}, {Path: "n", Kind: 9}, {Path: "n"},
			{Path: "n", Kind: snapshot.KindSymlink}, {Path: "n", Kind: snapshot.KindDir, Mode: 0o1000}, {Path: "n", Kind: snapshot.KindDir, Size: 1},
		},
		snapshot.MissingBlob: {{Path: "n", Kind: snapshot.KindFile, Size: 5, Digest: snapshot.Digest{1}}},
	}
	for code, entries := range bad {
		for _, e := range entries {
			if err := w.Add(t.Context(), e); !errors.Is(err, code) {
				t.Errorf("add %+v: got %v, want %s", e, err, code)
			}
		}
	}
	if err := w.Add(t.Context(), snapshot.Entry{Path: "n", Kind: snapshot.KindFile, Digest: empty}); err != nil {
		t.Errorf("a refused entry must change nothing: %v", err)
	}
}

func objectsSourceError(t *testing.T, o snapshot.Objects) {
	w, err := o.NewTree(t.Context(), snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	broken := errors.New("the disk is gone")
	for _, n := range []int{0, 10, 5 << 20} {
		_, _, err := w.Put(t.Context(), io.MultiReader(bytes.NewReader(make([]byte, n)), failing{broken}))
		if !errors.Is(err, broken) {
			t.Errorf("after %d bytes: got %v", n, err)
		}
	}
}

func objectsPrefix(t *testing.T, o snapshot.Objects) {
	files := map[string][]byte{}
	for _, p := range []string{"a/", "a.txt", "a/b/", "a/b/c", "a/b.c", "a0", "a b", "b/", "b/x"} {
		files[p] = nil
	}
	list, _ := WriteTree(t, o, snapshot.List{}, files)
	for _, c := range []struct {
		prefix, after string
		want          []string
	}{
		{"", "", []string{"a", "a b", "a.txt", "a/b", "a/b.c", "a/b/c", "a0", "b", "b/x"}},
		{"a", "", []string{"a", "a/b", "a/b.c", "a/b/c"}},
		{"a", "a", []string{"a/b", "a/b.c", "a/b/c"}},
		{"a", "a.txt", []string{"a/b", "a/b.c", "a/b/c"}},
		{"a", "a/b", []string{"a/b.c", "a/b/c"}},
		{"a/b", "", []string{"a/b", "a/b/c"}},
		{"a", "z", nil},
		{"none", "", nil},
		{"", "a0", []string{"b", "b/x"}},
	} {
		var got []string
		for e, err := range o.Entries(t.Context(), list, c.prefix, c.after) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e.Path)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("prefix %q after %q: got %q, want %q", c.prefix, c.after, got, c.want)
		}
	}
}

func objectsRanges(t *testing.T, o snapshot.Objects) {
	data := RandomBytes(3, 6<<20)
	list, _ := WriteTree(t, o, snapshot.List{}, map[string][]byte{"f": data})
	for e, err := range o.Entries(t.Context(), list, "f", "") {
		if err != nil {
			t.Fatal(err)
		}
		size := int64(len(data))
		for _, r := range [][2]int64{{0, -1}, {0, 0}, {0, 10}, {size - 5, 100}, {size, -1}, {size + 9, 5}, {3 << 20, 2 << 20}, {1, size}} {
			from := min(r[0], size)
			to := size
			if r[1] >= 0 {
				to = min(size, from+r[1])
			}
			if got := readFile(t, o, e, r[0], r[1]); !bytes.Equal(got, data[from:to]) {
				t.Errorf("range %v: got %d other bytes", r, len(got))
			}
		}
		if _, err := o.OpenFile(t.Context(), e, -1, 0); !errors.Is(err, snapshot.BadRequest) {
			t.Errorf("negative offset: %v", err)
		}
	}
}

func objectsCanceled(t *testing.T, o snapshot.Objects) {
	w, err := o.NewTree(t.Context(), snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, _, err := w.Put(ctx, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, _, err := w.Finish(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("finish: got %v", err)
	}
	w.Abort()
	w.Abort()
}

// objectsInline: lists of up to InlineList bytes, 128 more for each row, have
// everything in themselves.
func objectsInline(t *testing.T, o snapshot.Objects) {
	long := strings.Repeat("x", snapshot.InlineList/2-128)
	inline := func(list snapshot.List, err error) {
		t.Helper()
		if err != nil || len(list.Pages) > 0 || len(list.Inline) == 0 {
			t.Errorf("%d rows have %d pages and %d bytes inline, %v", list.Count, len(list.Pages), len(list.Inline), err)
		}
	}
	inline(o.WriteItems(t.Context(), [][]byte{[]byte(long), []byte(long)}, snapshot.List{}))
	inline(o.WriteItems(t.Context(), make([][]byte, snapshot.InlineList/128), snapshot.List{}))
	inline(o.Import(t.Context(), []snapshot.Entry{
		{Path: "a", Kind: snapshot.KindSymlink, Target: long[1:]},
		{Path: long, Kind: snapshot.KindDir},
	}, snapshot.List{}, true))

	parent, _ := WriteTree(t, o, snapshot.List{}, map[string][]byte{"big": RandomBytes(1, 1<<20)})
	var packed []snapshot.Entry // in a place of its own
	for i := range snapshot.InlineList / 136 {
		packed = append(packed, FileEntry(fmt.Sprintf("file-%03d", i), RandomBytes(1, 1<<20)))
	}
	inline(o.Import(t.Context(), packed, parent, true))
}

func objectsItems(t *testing.T, o snapshot.Objects) {
	var items [][]byte
	prior := snapshot.List{}
	for n := range 40 {
		list, err := o.WriteItems(t.Context(), items, prior)
		if err != nil {
			t.Fatal(err)
		}
		if list.Count != int64(len(items)) {
			t.Errorf("count %d, want %d", list.Count, len(items))
		}
		var got [][]byte
		for item, err := range o.Items(t.Context(), list) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, item)
		}
		if !slices.EqualFunc(got, items, bytes.Equal) {
			t.Fatalf("%d items: got %d other ones", len(items), len(got))
		}
		prior = list
		items = append(items, RandomBytes(uint64(n), n*n*60))
	}
}

func objectsArtifacts(t *testing.T, o snapshot.Objects) {
	for _, size := range []int{0, 1, 512 << 10, 512<<10 + 1, 3 << 20} {
		data := RandomBytes(uint64(size), size)
		d, n := snapshot.Digest(sha256.Sum256(data)), int64(size)
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		if _, err := o.OpenArtifact(t.Context(), d, n); !errors.Is(err, snapshot.MissingBlob) {
			t.Errorf("before put: %v", err)
		}
		short := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("other bytes")), nil }
		if _, err := o.PutArtifact(t.Context(), d, n, short); !errors.Is(err, snapshot.InvalidBlob) {
			t.Errorf("other bytes: %v", err)
		}
		for _, want := range []int64{n, 0} {
			if stored, err := o.PutArtifact(t.Context(), d, n, open); err != nil || stored != want {
				t.Errorf("put %d bytes: %d, %v; want %d", n, stored, err, want)
			}
		}
		r, err := o.OpenArtifact(t.Context(), d, n)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("read %d bytes: %d, %v", n, len(got), err)
		}
		r.Close()
		if !strings.HasSuffix(o.ArtifactObject(d), "-artifacts/sha256/"+d.String()) {
			t.Errorf("object %q", o.ArtifactObject(d))
		}
	}
}
