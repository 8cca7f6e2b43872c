package objstore_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// putPage stores a page as the only content of a pack and refers to it.
func putPage(t *testing.T, js jetstream.JetStream, page []byte, first string) snapshot.PageRef {
	t.Helper()
	obs, err := js.ObjectStore(t.Context(), packs)
	if err != nil {
		t.Fatal(err)
	}
	d := snapshot.Digest(sha256.Sum256(page))
	if _, err := obs.PutBytes(t.Context(), "sha256/"+d.String(), objstore.Zip(page)); err != nil {
		t.Fatal(err)
	}
	return snapshot.PageRef{Piece: snapshot.Piece{Digest: d, Pack: d, Length: int64(len(page))}, First: first}
}

// TestItems_Tower stores a list upon one that claims billions of pages, all of
// them the same one: it looks at some, and is done.
func TestItems_Tower(t *testing.T) {
	s, js := newStore(t)
	list, err := s.WriteItems(t.Context(), [][]byte{snapshottest.RandomBytes(5, 40_000)}, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	ref := list.Pages[0]
	const levels = 4
	for range levels {
		ref = putPage(t, js, objstore.EncodeRefs(slices.Repeat([]snapshot.PageRef{ref}, 300)), "")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for what never ends
	defer cancel()
	prior := snapshot.List{Count: 1, Level: levels, Pages: []snapshot.PageRef{ref}}
	if _, err := s.WriteItems(ctx, [][]byte{snapshottest.RandomBytes(6, 40_000)}, prior); err != nil {
		t.Error(err)
	}
}

// linkTree is a tree of n links, which needs no contents.
func linkTree(n int) *model {
	m := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
	for i := range n {
		m.put(snapshot.Entry{Path: fmt.Sprintf("d%03d/a-longer-name-%06d", i/1000, i), Kind: snapshot.KindSymlink, Target: "x"}, nil)
	}
	return m
}

func sameEntries(t *testing.T, s *objstore.Store, list snapshot.List, m *model) {
	t.Helper()
	var got []snapshot.Entry
	for e, err := range s.Entries(t.Context(), list, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		e.Pieces = nil
		got = append(got, e)
	}
	if !slices.EqualFunc(got, m.sorted(), func(a, b snapshot.Entry) bool { return asJSON(a) == asJSON(b) }) {
		t.Errorf("%d entries instead of the %d that were saved", len(got), len(m.entries))
	}
}

// TestMerge_HostileReferences saves upon lists of pages that have no end, no
// names or a wrong order: each costs little and gives a whole tree.
func TestMerge_HostileReferences(t *testing.T) {
	s, js := newStore(t)
	m := linkTree(2000)
	good, _, err := m.write(t.Context(), s, snapshot.List{})
	if err != nil || len(good.Pages) < 5 {
		t.Fatal(err, len(good.Pages))
	}
	leaf := good.Pages[0]
	unnamed := leaf
	unnamed.First = ""
	tower := func(ref snapshot.PageRef, levels int) []snapshot.PageRef {
		for range levels {
			ref = putPage(t, js, objstore.EncodeRefs(slices.Repeat([]snapshot.PageRef{ref}, 300)), ref.First)
		}
		return []snapshot.PageRef{ref}
	}
	for name, list := range map[string]snapshot.List{
		"the same again and again": {Pages: tower(leaf, 4), Level: 4},
		"without names":            {Pages: tower(unnamed, 4), Level: 4},
		"a page without a name":    {Pages: append([]snapshot.PageRef{unnamed}, good.Pages[1:]...)},
		"backwards":                {Pages: slices.Concat(good.Pages[3:4], good.Pages[1:2], good.Pages[2:])},
		"root twice":               {Pages: append(good.Pages[:1:1], good.Pages...)},
	} {
		t.Run(name, func(t *testing.T) {
			list.Count = good.Count
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			saved, _, err := m.write(t.Context(), s, list)
			if err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 100 {
				t.Errorf("it took %d MiB", n)
			}
			if names := pageNames(saved.Pages); !slices.Equal(names, pageNames(good.Pages)) {
				t.Errorf("pages %q", names)
			}
			sameEntries(t, s, saved, m)
		})
	}
}

// TestMerge_WrongPlaceOfReferences saves upon a manifest whose root has the right
// pages of references at places where they are not.
func TestMerge_WrongPlaceOfReferences(t *testing.T) {
	for name, spoil := range map[string]func(*snapshot.PageRef){
		"offset":   func(r *snapshot.PageRef) { r.Offset++ },
		"no pack":  func(r *snapshot.PageRef) { r.Pack[0]++ },
		"negative": func(r *snapshot.PageRef) { r.Offset = -1 },
		"far":      func(r *snapshot.PageRef) { r.Offset += 1 << 32 },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStore(t)
			m := linkTree(15_000)
			list, _, err := m.write(t.Context(), s, snapshot.List{})
			if err != nil || list.Level == 0 {
				t.Fatal(err, list.Level)
			}
			list.Pages = slices.Clone(list.Pages)
			for i := range list.Pages {
				spoil(&list.Pages[i])
			}
			saved, _, err := m.write(t.Context(), s, list)
			if err != nil {
				t.Fatal(err)
			}
			s.ForgetCache()
			sameEntries(t, s, saved, m)
		})
	}
}

// TestLists_Overlapping has two pages of references, each in order, whose pages
// overlap.
func TestLists_Overlapping(t *testing.T) {
	s, js := newStore(t)
	m := linkTree(1000)
	good, _, err := m.write(t.Context(), s, snapshot.List{})
	if err != nil || len(good.Pages) < 4 {
		t.Fatal(err, len(good.Pages))
	}
	above := func(pages ...snapshot.PageRef) snapshot.PageRef {
		return putPage(t, js, objstore.EncodeRefs(pages), pages[0].First)
	}
	p := good.Pages
	list := snapshot.List{Count: good.Count, Level: 1, Pages: []snapshot.PageRef{above(p[0], p[3]), above(p[1], p[2])}}
	if leaves, err := s.Leaves(t.Context(), list); !errors.Is(err, snapshot.InvalidBlob) {
		t.Errorf("%d pages, %v", len(leaves), err)
	}
	saved, _, err := m.write(t.Context(), s, list)
	if err != nil {
		t.Fatal(err)
	}
	sameEntries(t, s, saved, m)
}
