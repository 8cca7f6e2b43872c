package objstore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// packsOf counts the packs that a manifest refers to, for contents and pages.
func packsOf(t *testing.T, s *objstore.Store, list snapshot.List) int {
	t.Helper()
	names := map[snapshot.Digest]bool{}
	for e, err := range s.Entries(t.Context(), list, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range e.Pieces {
			names[p.Pack] = true
		}
	}
	pages, err := s.Leaves(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		names[p.Pack] = true
	}
	return len(names)
}

// TestTree_ManySmallSaves changes one file of many at a time, now and then in
// another worker: neither the packs of a manifest nor the requests of a save
// grow with the number of saves, and nothing is lost.
func TestTree_ManySmallSaves(t *testing.T) {
	s, js := newStore(t)
	m := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
	put := func(i, version int) {
		m.put(snapshot.Entry{Path: fmt.Sprintf("d%d/f%03d", i%10, i), Kind: snapshot.KindFile, Mtime: int64(version)}, snapshottest.RandomBytes(uint64(i+1000*version), 500))
	}
	for i := range 500 {
		put(i, 0)
	}
	var asked atomic.Int64
	count := func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		asked.Add(1)
		return send(ctx, msg)
	}
	s.Intercept(count)
	list, _, err := m.write(t.Context(), s, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	all, most := int64(0), 0
	for n := range 120 {
		if n%50 == 49 {
			s = open(t, js)
			s.Intercept(count)
		}
		put(n*37%500, n+1)
		before := asked.Load()
		next, stored, err := m.write(t.Context(), s, list)
		if err != nil {
			t.Fatal(err)
		}
		list, all = next, all+stored
		most = max(most, packsOf(t, s, list))
		if requests := asked.Load() - before; requests > 150 {
			t.Errorf("save %d made %d requests", n, requests)
		}
	}
	if most > 45 {
		t.Errorf("a manifest had up to %d packs", most)
	}
	if all > 120*500*10 {
		t.Errorf("%d bytes were stored for %d that were new", all, 120*500)
	}
	files := map[string][]byte{}
	for _, e := range m.sorted() {
		files[e.Path] = m.contents[e.Digest]
	}
	s.ForgetCache()
	checkTree(t, s, list, files)
	settles(t, s, m, list)
}

// blobThat finds random bytes whose digest ends a pack, or does not.
func blobThat(ends bool, seed uint64, size int) []byte {
	return dataThat(ends, snapshottest.RandomBytes(seed, size))
}

// dataThat changes the first bytes of data until its digest ends a pack, or does not.
func dataThat(ends bool, data []byte) []byte {
	for n := uint64(0); ; n++ {
		binary.LittleEndian.PutUint64(data, n)
		d := sha256.Sum256(data)
		if ends == (binary.BigEndian.Uint64(d[:]) < uint64(len(data)+256)*(math.MaxUint64/uint64(4<<20))) {
			return data
		}
	}
}

func newModel() *model {
	return &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
}

func (m *model) putFile(path string, mtime int64, data []byte) {
	m.put(snapshot.Entry{Path: path, Kind: snapshot.KindFile, Mtime: mtime}, data)
}

// save writes the tree and tells how many bytes it had to read, and stored.
func (m *model) save(t *testing.T, s *objstore.Store, parent snapshot.List) (list snapshot.List, read, stored int64) {
	t.Helper()
	w, err := s.NewTree(t.Context(), parent)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, e := range m.sorted() {
		if !w.Known(e.Path, e.Digest, e.Size) {
			read += e.Size
			if _, _, err := w.Put(t.Context(), bytes.NewReader(m.contents[e.Digest])); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Add(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if list, stored, err = w.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	return list, read, stored
}

// settles saves the unchanged tree: after a few saves nothing of it is read or
// stored again, and its manifest stays the same.
func settles(t *testing.T, s *objstore.Store, m *model, list snapshot.List) {
	t.Helper()
	for n := range 6 {
		next, read, stored := m.save(t, s, list)
		if n > 2 && (read > 0 || stored > 0 || !reflect.DeepEqual(next, list)) {
			t.Errorf("unchanged save %d read %d bytes and stored %d; is its manifest the same: %v", n, read, stored, reflect.DeepEqual(next, list))
		}
		list = next
	}
}

// TestTree_SmallByNature has packs that are small because a content ends each:
// stored anew they would be as small again.
func TestTree_SmallByNature(t *testing.T) {
	s, _ := newStore(t)
	m := newModel()
	for i := range 80 {
		m.putFile(fmt.Sprintf("d%03d/a-file-that-ends-its-pack", i), 0, blobThat(true, uint64(i), 100_000))
		m.putFile(fmt.Sprintf("d%03d/small", i), 0, blobThat(false, uint64(1000+i), 1000))
	}
	list, _, _ := m.save(t, s, snapshot.List{})
	settles(t, s, m, list)
	for n := range 15 {
		m.putFile(fmt.Sprintf("d%03d/small", n*37%80), int64(n+1), blobThat(false, uint64(2000+n), 1000))
		next, read, stored := m.save(t, s, list)
		if read > 1000 || stored > 64<<10 {
			t.Errorf("save %d of 1000 new bytes read %d and stored %d", n, read, stored)
		}
		list = next
	}
}

// TestTree_SparseForOneOnly forks a tree whose packs are full: the fork uses
// little of them and stores that anew, which is nothing to the tree itself.
func TestTree_SparseForOneOnly(t *testing.T) {
	s, _ := newStore(t)
	whole, part := newModel(), newModel()
	for i := range 40 {
		whole.putFile(fmt.Sprintf("d%03d/a", i), 0, blobThat(false, uint64(1000+i), 600_000))
		whole.putFile(fmt.Sprintf("d%03d/z", i), 0, blobThat(true, uint64(2000+i), 1000))
		for _, m := range []*model{whole, part} {
			m.putFile(fmt.Sprintf("d%03d/b", i), 0, blobThat(false, uint64(i), 1000))
		}
	}
	list, _, _ := whole.save(t, s, snapshot.List{})
	fork, _, _ := part.save(t, s, list)
	if again, read, stored := whole.save(t, s, list); read > 0 || stored > 0 || !reflect.DeepEqual(again, list) {
		t.Errorf("the tree read %d bytes again and stored %d", read, stored)
	}
	before := packsOf(t, s, fork)
	after, _, _ := part.save(t, s, fork)
	if packs := packsOf(t, s, after); packs > before-maxSparse {
		t.Errorf("the fork has %d packs after %d", packs, before)
	}
	settles(t, s, part, after)
}

// maxSparse packs of which little is used may stay.
const maxSparse = 32

// TestTree_LargeFileStays has a piece of a large file alone in a small pack: it
// is left there, or the whole file would be read for it.
func TestTree_LargeFileStays(t *testing.T) {
	s, _ := newStore(t)
	m := newModel()
	var data []byte
	var list snapshot.List
	var pieces []snapshot.Piece
	for seed := uint64(7); len(pieces) == 0 || pieces[len(pieces)-1].Length > 300_000; seed++ {
		data = snapshottest.RandomBytes(seed, 6<<20)
		m.putFile("large", 0, data)
		list, _, _ = m.save(t, s, snapshot.List{})
		pieces = entryOf(t, s, list, "large").Pieces
	}
	data = bytes.Clone(data)
	copy(data[len(data)-100:], "changed")
	m.putFile("large", 1, data)
	list, _, _ = m.save(t, s, list)
	for n := range 45 {
		m.putFile(fmt.Sprintf("small%03d", n), 0, blobThat(false, uint64(100+n), 10_000))
		next, read, _ := m.save(t, s, list)
		if read > 1<<20 {
			t.Errorf("save %d of 10000 new bytes read %d", n, read)
		}
		list = next
	}
	settles(t, s, m, list)
}
