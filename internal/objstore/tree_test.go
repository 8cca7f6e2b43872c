package objstore_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

const packs = "box-packs"

// manyFiles is a tree like source code: n files, about total bytes.
func manyFiles(n, total int) map[string][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	files := map[string][]byte{}
	for i := range n {
		size := total / n / 2
		size += rng.IntN(total/n + 1)
		text := make([]byte, 0, size)
		for len(text) < size {
			text = fmt.Appendf(text, "line %d says %x\n", len(text), rng.Uint64())
		}
		files[fmt.Sprintf("src/pkg%02d/file%04d.go", i%40, i)] = text
	}
	return files
}

func entryOf(t testing.TB, s *objstore.Store, list snapshot.List, path string) snapshot.Entry {
	t.Helper()
	for e, err := range s.Entries(t.Context(), list, path, "") {
		if err != nil {
			t.Fatal(err)
		}
		if e.Path == path {
			return e
		}
	}
	t.Fatalf("no entry %s", path)
	return snapshot.Entry{}
}

func TestTree_LargeFileReuse(t *testing.T) {
	s, _ := newStore(t)
	data := snapshottest.RandomBytes(1, 40<<20)
	first, n := snapshottest.WriteTree(t, s, snapshot.List{}, map[string][]byte{"big": data})
	if n != int64(len(data)) {
		t.Errorf("%d new bytes, want %d", n, len(data))
	}
	checkTree(t, s, first, map[string][]byte{"big": data})

	changed := slices.Insert(bytes.Clone(data), 17<<20, snapshottest.RandomBytes(2, 100)...)
	second, n := snapshottest.WriteTree(t, s, first, map[string][]byte{"big": changed})
	if n == 0 || n > 10<<20 {
		t.Errorf("%d new bytes after 100 inserted ones", n)
	}
	checkTree(t, s, second, map[string][]byte{"big": changed})
	if e := entryOf(t, s, second, "big"); len(e.Pieces) < 10 {
		t.Errorf("%d pieces", len(e.Pieces))
	}
}

// TestTree_EqualTreesShare writes one tree in two sessions that know nothing of
// each other.
func TestTree_EqualTreesShare(t *testing.T) {
	srv := startServer(t)
	js := connect(t, srv)
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	files := manyFiles(2000, 20<<20)
	first, n := snapshottest.WriteTree(t, open(t, js), snapshot.List{}, files)
	if n == 0 {
		t.Error("nothing was new")
	}
	before := streamBytes(t, js, packs)
	other := open(t, connect(t, srv))
	second, n := snapshottest.WriteTree(t, other, snapshot.List{}, files)
	if n != 0 || streamBytes(t, js, packs) != before {
		t.Errorf("the equal tree: %d new bytes, the stream went from %d to %d", n, before, streamBytes(t, js, packs))
	}
	if a, b := asJSON(first), asJSON(second); a != b {
		t.Error("equal trees have different roots")
	}
	checkTree(t, other, second, files)
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// TestTree_SmallChange changes one file of many: its content and about one page
// are new.
func TestTree_SmallChange(t *testing.T) {
	s, js := newStore(t)
	files := manyFiles(3000, 6<<20)
	first, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	before := streamBytes(t, js, packs)
	files["src/pkg07/file0007.go"] = []byte("changed")
	second, n := snapshottest.WriteTree(t, s, first, files)
	if n != int64(len("changed")) {
		t.Errorf("%d new bytes", n)
	}
	if grown := streamBytes(t, js, packs) - before; grown > 80<<10 {
		t.Errorf("one small change took %d bytes", grown)
	}
	pages := map[snapshot.Digest]bool{}
	for _, r := range first.Pages {
		pages[r.Digest] = true
	}
	fresh := 0
	for _, r := range second.Pages {
		if !pages[r.Digest] {
			fresh++
		}
	}
	if len(first.Pages) < 10 || fresh != 1 {
		t.Errorf("%d of %d pages are new, want 1", fresh, len(second.Pages))
	}
	checkTree(t, s, second, files)
}

func TestTree_UnchangedTakesNothing(t *testing.T) {
	s, js := newStore(t)
	files := manyFiles(100, 100_000)
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	before := streamBytes(t, js, packs)
	for i := range 1000 {
		parent := list
		if i%10 == 0 {
			parent = snapshot.List{}
		}
		again, n := snapshottest.WriteTree(t, s, parent, files)
		if n != 0 || asJSON(again) != asJSON(list) {
			t.Fatalf("tree %d: %d new bytes", i, n)
		}
	}
	if after := streamBytes(t, js, packs); after != before {
		t.Errorf("the stream went from %d to %d bytes", before, after)
	}
}

// TestTree_HugeManifest keeps the root small, and a directory's read short.
func TestTree_HugeManifest(t *testing.T) {
	s, _ := newStore(t)
	w, err := s.NewTree(t.Context(), snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	const n = 200_000
	name := func(i int) string { return fmt.Sprintf("directory-%03d/with-a-longer-name-%06d", i/1000, i) }
	for i := range n {
		if err := w.Add(t.Context(), snapshot.Entry{Path: name(i), Kind: snapshot.KindSymlink, Target: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	list, _, err := w.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if size := len(asJSON(list)); size > 20<<10 || list.Level == 0 || list.Count != n {
		t.Errorf("root of %d bytes, level %d, count %d", size, list.Level, list.Count)
	}
	s.ForgetCache()
	loads := s.CountLoads()
	got := 0
	for e, err := range s.Entries(t.Context(), list, "directory-123", "") {
		if err != nil || e.Path != name(123_000+got) {
			t.Fatalf("entry %d: %q, %v", got, e.Path, err)
		}
		got++
	}
	if got != 1000 || loads() > 3 {
		t.Errorf("%d entries of one directory, %d packs fetched", got, loads())
	}
	all := int64(0)
	for _, err := range s.Entries(t.Context(), list, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		all++
	}
	if all != n {
		t.Errorf("%d entries in all", all)
	}
}

// TestTree_ReadsEachPackOnce reads a tree with a cache that holds two packs.
func TestTree_ReadsEachPackOnce(t *testing.T) {
	s, js := newStore(t)
	files := manyFiles(400, 14<<20)
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	s, err := objstore.Open(t.Context(), js, objstore.Options{Store: "box", CacheBytes: 2 * objstore.MaxPack})
	if err != nil {
		t.Fatal(err)
	}
	loads := s.CountLoads()
	names := map[snapshot.Digest]bool{}
	for e, err := range s.Entries(t.Context(), list, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range e.Pieces {
			names[p.Pack] = true
		}
	}
	checkTree(t, s, list, files)
	if pages := 1; loads() > len(names)+pages {
		t.Errorf("%d packs fetched, there are %d", loads(), len(names))
	}
}

// TestTree_Memory streams a file far larger than what may be held.
func TestTree_Memory(t *testing.T) {
	_, js := newStore(t)
	s, err := objstore.Open(t.Context(), js, objstore.Options{Store: "box", MemoryBytes: 40 << 20})
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.NewTree(t.Context(), snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	var key [32]byte
	src := &measured{r: io.LimitReader(rand.NewChaCha8(key), 64<<20)}
	runtime.GC()
	before := heap()
	d, size, err := w.Put(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(t.Context(), snapshot.Entry{Path: "big", Kind: snapshot.KindFile, Size: size, Digest: d}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The server in this process holds some of what it was sent, too.
	if peak := int64(src.peak) - int64(before); peak > 80<<20 {
		t.Errorf("%d bytes live", peak)
	} else {
		t.Logf("%d MiB live", peak>>20)
	}
}

type measured struct {
	r     io.Reader
	count int
	peak  uint64
}

func (m *measured) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if before := m.count >> 23; (m.count+n)>>23 != before {
		runtime.GC()
		m.peak = max(m.peak, heap())
	}
	m.count += n
	return n, err
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestEntries_Model compares paging with a plain model.
func TestEntries_Model(t *testing.T) {
	s, _ := newStore(t)
	part := rapid.SampledFrom([]string{"a", "b", "a.txt", "a-", "a0", "ab", "é", "z z", strings.Repeat("long", 60)})
	path := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "parts"), "/")
	})
	rapid.Check(t, func(rt *rapid.T) {
		paths := rapid.SliceOfNDistinct(path, 0, 200, rapid.ID).Draw(rt, "paths")
		slices.Sort(paths)
		w, err := s.NewTree(t.Context(), snapshot.List{})
		if err != nil {
			rt.Fatal(err)
		}
		defer w.Abort()
		for _, p := range paths {
			if err := w.Add(t.Context(), snapshot.Entry{Path: p, Kind: snapshot.KindDir, Mode: 0o700}); err != nil {
				rt.Fatal(err)
			}
		}
		list, _, err := w.Finish(t.Context())
		if err != nil {
			rt.Fatal(err)
		}
		anyPath := rapid.OneOf(rapid.Just(""), path)
		prefix, after := anyPath.Draw(rt, "prefix"), anyPath.Draw(rt, "after")
		var want, got []string
		for _, p := range paths {
			if (prefix == "" || p == prefix || strings.HasPrefix(p, prefix+"/")) && p > after {
				want = append(want, p)
			}
		}
		for e, err := range s.Entries(t.Context(), list, prefix, after) {
			if err != nil {
				rt.Fatal(err)
			}
			got = append(got, e.Path)
		}
		if !slices.Equal(got, want) {
			rt.Errorf("prefix %q after %q: got %q, want %q", prefix, after, got, want)
		}
	})
}

func TestEntries_StopsEarly(t *testing.T) {
	s, _ := newStore(t)
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, manyFiles(1000, 10_000))
	n := 0
	for _, err := range s.Entries(t.Context(), list, "", "") {
		if n++; err != nil || n == 5 {
			break
		}
	}
	if n != 5 {
		t.Errorf("%d entries", n)
	}
}

func TestItems_GrowByOne(t *testing.T) {
	s, js := newStore(t)
	var items [][]byte
	list := snapshot.List{}
	for i := range 400 {
		items = append(items, fmt.Appendf(nil, `{"role":"user","content":"%x"}`, snapshottest.RandomBytes(uint64(i), 300)))
		before := streamBytes(t, js, packs)
		var err error
		if list, err = s.WriteItems(t.Context(), items, list); err != nil {
			t.Fatal(err)
		}
		if grown := streamBytes(t, js, packs) - before; grown > 70<<10 {
			t.Errorf("message %d took %d bytes", i, grown)
		}
	}
	i := 0
	for item, err := range s.Items(t.Context(), list) {
		if err != nil || !bytes.Equal(item, items[i]) {
			t.Fatalf("item %d: %v", i, err)
		}
		i++
	}
	if size := len(asJSON(list)); i != 400 || size > 20<<10 {
		t.Errorf("%d items, root of %d bytes", i, size)
	}
}

func TestItems_Large(t *testing.T) {
	s, _ := newStore(t)
	items := [][]byte{nil, []byte("x"), make([]byte, 64<<20), {}, snapshottest.RandomBytes(1, 17<<20+5), []byte("y"), make([]byte, 60<<10), make([]byte, 60<<10+1)}
	list, err := s.WriteItems(t.Context(), items, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	for item, err := range s.Items(t.Context(), list) {
		if err != nil || !bytes.Equal(item, items[i]) {
			t.Fatalf("item %d: %d bytes, %v", i, len(item), err)
		}
		i++
	}
	if i != len(items) {
		t.Errorf("%d items", i)
	}
	_, err = s.WriteItems(t.Context(), [][]byte{make([]byte, 64<<20+1)}, list)
	if !errors.Is(err, snapshot.PayloadTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// TestLists_Hostile gives roots that name what they should not.
func TestLists_Hostile(t *testing.T) {
	s, _ := newStore(t)
	tree, _ := snapshottest.WriteTree(t, s, snapshot.List{}, manyFiles(500, 50_000))
	items, err := s.WriteItems(t.Context(), [][]byte{make([]byte, 30_000), []byte("x")}, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	other := tree.Pages[0]
	other.First = "another"
	gone := tree.Pages[0]
	gone.Pack = snapshot.Digest{1}
	past := tree.Pages[0]
	past.Length = 1 << 40
	for name, list := range map[string]snapshot.List{
		"garbage": {Count: 1, Inline: []byte("garbage")}, "items": {Count: 2, Pages: items.Pages}, "tree": {Count: 2, Pages: tree.Pages[:1], Level: 1},
		"level": {Count: 1, Pages: tree.Pages, Level: 99}, "negative": {Count: 1, Pages: tree.Pages, Level: -1}, "count": {Count: 9, Pages: tree.Pages},
		"twice": {Count: 9, Pages: []snapshot.PageRef{tree.Pages[0], tree.Pages[0]}}, "first": {Count: 9, Pages: []snapshot.PageRef{other}},
		"gone": {Count: 9, Pages: []snapshot.PageRef{gone}}, "past": {Count: 9, Pages: []snapshot.PageRef{past}}, "nothing": {Count: 9},
	} {
		want := snapshot.InvalidBlob
		if name == "gone" {
			want = snapshot.MissingBlob
		}
		if err := lastError(s.Entries(t.Context(), list, "", "")); !errors.Is(err, want) {
			t.Errorf("entries of %s: %v", name, err)
		}
		if name == "items" {
			continue
		}
		if err := lastError(s.Items(t.Context(), list)); !errors.Is(err, want) {
			t.Errorf("items of %s: %v", name, err)
		}
	}
}

func lastError[T any](seq func(func(T, error) bool)) (last error) {
	for _, err := range seq {
		last = err
	}
	return last
}
