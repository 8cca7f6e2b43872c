package objstore_test

import (
	"context"
	"fmt"
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
	again, stored, err := m.write(t.Context(), s, list)
	if err != nil || stored != 0 && packsOf(t, s, again) >= packsOf(t, s, list) {
		t.Errorf("the same tree again: %v, %d new bytes", err, stored)
	}
}
