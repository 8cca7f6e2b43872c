package objstore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// model is a tree as a scan would hand it over: entries, and contents by digest.
type model struct {
	entries  map[string]snapshot.Entry
	contents map[snapshot.Digest][]byte
}

func (m *model) put(e snapshot.Entry, data []byte) {
	if e.Kind == snapshot.KindFile {
		e.Digest, e.Size = sha256.Sum256(data), int64(len(data))
		m.contents[e.Digest] = data
	}
	m.entries[e.Path] = e
}

func (m *model) sorted() []snapshot.Entry {
	return slices.SortedFunc(maps.Values(m.entries), func(a, b snapshot.Entry) int { return strings.Compare(a.Path, b.Path) })
}

// write hands the tree to a writer as a capture does: what is known is not put.
func (m *model) write(ctx context.Context, s *objstore.Store, parent snapshot.List) (list snapshot.List, stored int64, err error) {
	return m.writeEntries(ctx, s, m.sorted(), parent)
}

func (m *model) writeEntries(ctx context.Context, s *objstore.Store, entries []snapshot.Entry, parent snapshot.List) (list snapshot.List, stored int64, err error) {
	w, err := s.NewTree(ctx, parent)
	if err != nil {
		return list, 0, err
	}
	defer w.Abort()
	for _, e := range entries {
		if e.Kind == snapshot.KindFile && !w.Known(e.Path, e.Digest, e.Size) {
			if _, _, err := w.Put(ctx, bytes.NewReader(m.contents[e.Digest])); err != nil {
				return list, 0, err
			}
		}
		if err := w.Add(ctx, e); err != nil {
			return list, 0, err
		}
	}
	return w.Finish(ctx)
}

// edit changes the tree at random: mostly little, sometimes much.
func (m *model) edit(t *rapid.T, path *rapid.Generator[string]) {
	kinds := rapid.SampledFrom([]string{"put", "put", "touch", "touch", "remove", "move", "dir", "link", "drop"})
	for _, kind := range rapid.SliceOfN(kinds, 0, 12).Draw(t, "edits") {
		paths := slices.Sorted(maps.Keys(m.entries))
		at := path.Draw(t, "path")
		if len(paths) > 0 && kind != "put" && kind != "dir" && kind != "link" {
			at = rapid.SampledFrom(paths).Draw(t, "at")
		}
		e := m.entries[at]
		switch kind {
		case "put":
			data := snapshottest.RandomBytes(rapid.Uint64Range(0, 300).Draw(t, "content"), rapid.IntRange(0, 300).Draw(t, "size"))
			m.put(snapshot.Entry{Path: at, Kind: snapshot.KindFile, Mode: 0o644}, data)
		case "touch":
			if e.Kind == snapshot.KindFile {
				e.Mtime++
				m.entries[at] = e
			}
		case "remove":
			delete(m.entries, at)
		case "move":
			if e.Kind == snapshot.KindFile {
				delete(m.entries, at)
				e.Path = path.Draw(t, "to")
				m.entries[e.Path] = e
			}
		case "dir":
			m.put(snapshot.Entry{Path: at, Kind: snapshot.KindDir, Mode: uint16(rapid.IntRange(0, 0o777).Draw(t, "mode"))}, nil)
		case "link":
			m.put(snapshot.Entry{Path: at, Kind: snapshot.KindSymlink, Target: rapid.StringN(1, 5, -1).Filter(func(s string) bool { return !strings.Contains(s, "\x00") }).Draw(t, "target")}, nil)
		case "drop":
			maps.DeleteFunc(m.entries, func(p string, _ snapshot.Entry) bool { return strings.HasPrefix(p, at[:len(at)-len(at)/3]) })
		}
	}
}

func pageNames(refs []snapshot.PageRef) (names []string) {
	for _, r := range refs {
		names = append(names, fmt.Sprintf("%s %q %d", r.Digest, r.First, r.Length))
	}
	return names
}

// TestMerge_Model writes a tree again and again after random edits, each time
// upon the manifest before, and compares its pages with those of a writer that
// knows no parent. -rapid.checks 2000 is the long form.
func TestMerge_Model(t *testing.T) {
	s, _ := newStore(t)
	path := rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf("%s/%s%03d", rapid.SampledFrom([]string{"a", "a-b", "a/c", "lib", "zz"}).Draw(t, "dir"),
			rapid.SampledFrom([]string{"", strings.Repeat("long-", 30)}).Draw(t, "name"), rapid.IntRange(0, 400).Draw(t, "n"))
	})
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
		for i := range rapid.SampledFrom([]int{0, 20, 500, 1200}).Draw(rt, "files") {
			m.put(snapshot.Entry{Path: fmt.Sprintf("%s/%03d", []string{"a", "a/c", "lib", "zz"}[i%4], i/4), Kind: snapshot.KindFile, Mode: 0o644, Mtime: int64(i)}, fmt.Appendf(nil, "content %d", i/2))
		}
		parent := snapshot.List{}
		for range rapid.IntRange(2, 4).Draw(rt, "saves") {
			list, _, err := m.write(t.Context(), s, parent)
			if err != nil {
				rt.Fatal(err)
			}
			sameAsPlain(t.Context(), rt, s, list, m)
			again, stored, err := m.write(t.Context(), s, list)
			if err != nil || stored != 0 || asJSON(again) != asJSON(list) {
				rt.Fatalf("the same tree again: %v, %d new bytes, another list: %v", err, stored, asJSON(again) != asJSON(list))
			}
			parent = list
			m.edit(rt, path)
		}
	})
}

func sameAsPlain(ctx context.Context, t *rapid.T, s *objstore.Store, list snapshot.List, m *model) {
	var entries, bare []snapshot.Entry
	for e, err := range s.Entries(ctx, list, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
		e.Pieces = nil
		bare = append(bare, e)
	}
	if tree := m.sorted(); !reflect.DeepEqual(tree, bare) { // much cheaper than a diff
		t.Fatalf("the tree (-) and its manifest (+): %s", cmp.Diff(tree, bare))
	}
	plain, err := s.Plain(ctx, entries)
	if err != nil {
		t.Fatal(err)
	}
	want, err := s.Leaves(ctx, plain)
	got, err2 := s.Leaves(ctx, list)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(pageNames(want), pageNames(got)); diff != "" || string(plain.Inline) != string(list.Inline) || plain.Count != list.Count {
		t.Fatalf("pages without (-) and with a parent (+): %s", diff)
	}
}

// TestMerge_LostPack loses one pack of many, which nobody has read since: what
// lies in it is asked for again, and nothing else.
func TestMerge_LostPack(t *testing.T) {
	for _, part := range []string{"info", "chunks"} {
		t.Run(part, func(t *testing.T) {
			s, js := newStore(t)
			m := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
			for i := range 300 {
				m.put(snapshot.Entry{Path: fmt.Sprintf("f%03d", i), Kind: snapshot.KindFile}, snapshottest.RandomBytes(uint64(i), 60_000))
			}
			list, _, err := m.write(t.Context(), s, snapshot.List{})
			if err != nil {
				t.Fatal(err)
			}
			in := map[snapshot.Digest]int64{} // bytes by pack
			for e, err := range s.Entries(t.Context(), list, "", "") {
				if err != nil {
					t.Fatal(err)
				}
				in[e.Pieces[0].Pack] += e.Size
			}
			lost := entryOf(t, s, list, "f150").Pieces[0].Pack
			if len(in) < 3 {
				t.Fatalf("%d packs", len(in))
			}
			losePack(t, js, lost, part)
			again, stored, err := m.write(t.Context(), s, list)
			if err != nil || stored != in[lost] {
				t.Errorf("%v, %d new bytes, %d were lost", err, stored, in[lost])
			}
			s.ForgetCache()
			files := map[string][]byte{}
			for _, e := range m.sorted() {
				files[e.Path] = m.contents[e.Digest]
			}
			checkTree(t, s, again, files)
		})
	}
}

func losePack(t *testing.T, js jetstream.JetStream, pack snapshot.Digest, part string) {
	t.Helper()
	obs, err := js.ObjectStore(t.Context(), packs)
	if err != nil {
		t.Fatal(err)
	}
	info, err := obs.GetInfo(t.Context(), "sha256/"+pack.String())
	if err != nil {
		t.Fatal(err)
	}
	subject := objstore.InfoSubject(packs, info.Name)
	if part == "chunks" {
		subject = objstore.ChunkSubject(packs, info.NUID)
	}
	if err := stream(t, js, packs).Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
		t.Fatal(err)
	}
}

// TestMerge_LostPagePack loses the pages of a manifest that are still in memory:
// a save does not refer to them any more.
func TestMerge_LostPagePack(t *testing.T) {
	s, js := newStore(t)
	files := manyFiles(1000, 200_000)
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	if len(list.Pages) < 3 {
		t.Fatalf("%d pages", len(list.Pages))
	}
	checkTree(t, s, list, files) // now they are
	losePack(t, js, list.Pages[0].Pack, "chunks")
	again, stored := snapshottest.WriteTree(t, s, list, files)
	if stored != 0 {
		t.Errorf("%d new bytes of contents", stored)
	}
	s.ForgetCache()
	checkTree(t, s, again, files)
}

// TestMerge_Unanswered gives no answer about packs: the save fails instead of
// trusting them, and before it has read the tree again.
func TestMerge_Unanswered(t *testing.T) {
	s, _ := newStore(t)
	files := manyFiles(100, 100_000)
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	m := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
	for p, data := range files {
		m.put(snapshot.Entry{Path: p, Kind: snapshot.KindFile, Mode: 0o644}, data)
	}
	s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		if strings.Contains(msg.Subject, "STREAM.INFO") {
			return &nats.Msg{Data: []byte(`{"error":{"code":404,"err_code":10059}}`)}, nil
		}
		return send(ctx, msg)
	})
	w, err := s.NewTree(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	entries := m.sorted()
	for n, e := range entries {
		if !w.Known(e.Path, e.Digest, e.Size) {
			if _, _, err := w.Put(t.Context(), bytes.NewReader(m.contents[e.Digest])); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Add(t.Context(), e); err != nil {
			if !errors.Is(err, snapshot.StoreUnavailable) || n > 0 {
				t.Errorf("after %d entries: %v", n, err)
			}
			return
		}
	}
	t.Errorf("%d entries were added", len(entries))
}

// TestMerge_OnePageChanges counts what a change costs: its page, and the pages of
// references above it.
func TestMerge_OnePageChanges(t *testing.T) {
	s, _ := newStore(t)
	m := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
	for i := range 20_000 {
		m.put(snapshot.Entry{Path: fmt.Sprintf("d%02d/f%05d", i/1000, i), Kind: snapshot.KindFile}, fmt.Append(nil, i))
	}
	list, _, err := m.write(t.Context(), s, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	m.put(snapshot.Entry{Path: "d07/f07500", Kind: snapshot.KindFile}, []byte("changed"))
	second, stored, err := m.write(t.Context(), s, list)
	if err != nil || stored != int64(len("changed")) {
		t.Fatalf("%v, %d new bytes", err, stored)
	}
	old, err := s.Leaves(t.Context(), list)
	now, err2 := s.Leaves(t.Context(), second)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	fresh := 0
	for i := range now {
		if i >= len(old) || now[i] != old[i] {
			fresh++
		}
	}
	if fresh != 1 || list.Level == 0 {
		t.Errorf("%d of %d pages are new; level %d", fresh, len(now), list.Level)
	}
}

// TestMerge_HostileParent saves upon manifests that are not what they should
// be, though their digests are right: nothing wrong gets into the new one.
func TestMerge_HostileParent(t *testing.T) {
	s, js := newStore(t)
	m := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
	for i := range 2000 {
		m.put(snapshot.Entry{Path: fmt.Sprintf("f%04d", i), Kind: snapshot.KindFile}, fmt.Append(nil, i))
	}
	good, _, err := m.write(t.Context(), s, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	if len(good.Pages) < 5 {
		t.Fatalf("%d pages", len(good.Pages))
	}
	files := map[string][]byte{}
	for _, e := range m.sorted() {
		files[e.Path] = m.contents[e.Digest]
	}
	obs, err := js.ObjectStore(t.Context(), packs)
	if err != nil {
		t.Fatal(err)
	}
	page := func(n int) []byte {
		raw, err := s.ReadPage(t.Context(), good.Pages[n].Piece)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Clone(raw)
	}
	for name, change := range map[string]func(pages [][]byte){
		"trailing byte": func(p [][]byte) { p[1] = append(p[1], 0) },
		"cut short":     func(p [][]byte) { p[1] = p[1][:len(p[1])-5] },
		"empty":         func(p [][]byte) { p[1] = objstore.EncodeEntries(nil) },
		"no page":       func(p [][]byte) { p[1] = []byte("garbage") },
		"twice":         func(p [][]byte) { p[2] = p[1] },
		"swapped":       func(p [][]byte) { p[1], p[2] = p[2], p[1] },
		"another kind":  func(p [][]byte) { p[1] = objstore.EncodeItems([][]byte{[]byte("x")}) },
	} {
		t.Run(name, func(t *testing.T) {
			var pages [][]byte
			for n := range good.Pages {
				pages = append(pages, page(n))
			}
			change(pages)
			bad := snapshot.List{Count: good.Count}
			for n, raw := range pages {
				ref := good.Pages[n]
				ref.Digest, ref.Pack = sha256.Sum256(raw), sha256.Sum256(fmt.Append(nil, name, n))
				ref.Offset, ref.Length = 0, int64(len(raw))
				bad.Pages = append(bad.Pages, ref)
				if _, err := obs.PutBytes(t.Context(), "sha256/"+ref.Pack.String(), objstore.Zip(raw)); err != nil {
					t.Fatal(err)
				}
			}
			list, _, err := m.write(t.Context(), s, bad)
			if err != nil {
				t.Fatal(err)
			}
			checkTree(t, s, list, files)
			if again, stored, err := m.write(t.Context(), s, list); err != nil || stored > 0 || asJSON(again) != asJSON(list) {
				t.Errorf("the same tree again: %v, %d new bytes", err, stored)
			}
		})
	}
}

// TestMerge_Moved moves a directory: its contents are found where they are.
func TestMerge_Moved(t *testing.T) {
	s, _ := newStore(t)
	old := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
	moved := &model{entries: map[string]snapshot.Entry{}, contents: old.contents}
	for i := range 1000 {
		e := snapshot.Entry{Path: fmt.Sprintf("old/f%03d", i), Kind: snapshot.KindFile}
		old.put(e, fmt.Append(nil, i))
		e.Path = fmt.Sprintf("a/f%03d", 999-i)
		moved.put(e, fmt.Append(nil, i))
	}
	big := snapshottest.RandomBytes(1, 9<<20)
	old.put(snapshot.Entry{Path: "z", Kind: snapshot.KindFile}, big)
	moved.put(snapshot.Entry{Path: "a/big", Kind: snapshot.KindFile}, big)
	moved.put(snapshot.Entry{Path: "a/longer", Kind: snapshot.KindFile}, append(bytes.Clone(big), "and more"...))
	list, _, err := old.write(t.Context(), s, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	second, stored, err := moved.write(t.Context(), s, list)
	if err != nil || stored > 5<<20 { // the last piece of the longer one
		t.Errorf("%v, %d new bytes", err, stored)
	}
	files := map[string][]byte{}
	for _, e := range moved.sorted() {
		files[e.Path] = moved.contents[e.Digest]
	}
	checkTree(t, s, second, files)
}
