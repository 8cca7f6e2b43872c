package objstore_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// losses are the ways in which the store can lose all of its packs.
var losses = map[string]string{"chunks": ".C.>", "infos": ".M.>", "all": ".>"}

func losePacks(t *testing.T, js jetstream.JetStream, lost string) {
	t.Helper()
	if err := stream(t, js, packs).Purge(t.Context(), jetstream.WithPurgeSubject("$O."+packs+lost)); err != nil {
		t.Fatal(err)
	}
}

// TestTree_LostButCached loses the packs of a manifest that the worker still
// has in its cache.
func TestTree_LostButCached(t *testing.T) {
	for name, lost := range losses {
		t.Run(name, func(t *testing.T) {
			s, js := newStore(t)
			files := manyFiles(400, 400_000)
			list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
			checkTree(t, s, list, files)
			losePacks(t, js, lost)
			again, _ := snapshottest.WriteTree(t, s, list, files)
			s.ForgetCache()
			checkTree(t, s, again, files)
		})
	}
}

// TestItems_Lost loses the packs of a list that nobody has read since: the next
// list takes none of its pages for granted.
func TestItems_Lost(t *testing.T) {
	for name, lost := range losses {
		if name == "chunks" { // are found missing by who reads them
			continue
		}
		t.Run(name, func(t *testing.T) {
			s, js := newStore(t)
			items := make([][]byte, 200)
			for i := range items {
				items[i] = snapshottest.RandomBytes(uint64(i), 1000)
			}
			prior, err := s.WriteItems(t.Context(), items, snapshot.List{})
			if err != nil {
				t.Fatal(err)
			}
			losePacks(t, js, lost)
			list, err := s.WriteItems(t.Context(), append(items, []byte("one more")), prior)
			if err != nil {
				t.Fatal(err)
			}
			if err := lastError(s.Items(t.Context(), list)); err != nil {
				t.Errorf("the new list: %v", err)
			}
		})
	}
}

// TestImport_LostParent loses the packs of the parent, which nobody has read
// since: what lies in them has no place there, and must be loose.
func TestImport_LostParent(t *testing.T) {
	for name, lost := range losses {
		t.Run(name, func(t *testing.T) {
			s, js := newStore(t)
			files := manyFiles(60, 30_000)
			parent, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
			var entries []snapshot.Entry
			for e, err := range s.Entries(t.Context(), parent, "", "") {
				if err != nil {
					t.Fatal(err)
				}
				e.Pieces = nil
				entries = append(entries, e)
			}
			losePacks(t, js, lost)
			if _, err := s.Import(t.Context(), entries, parent, true); !errors.Is(err, snapshot.MissingBlob) {
				t.Fatalf("got %v", err)
			}
			for _, data := range files {
				snapshottest.PutBlob(t, s, data)
			}
			list, err := s.Import(t.Context(), entries, parent, true)
			if err != nil {
				t.Fatal(err)
			}
			s.ForgetCache()
			checkTree(t, s, list, files)
		})
	}
}

// TestImport_ManyLost has a parent that has lost more packs than a store notes:
// none of them counts.
func TestImport_ManyLost(t *testing.T) {
	const count = 10_050
	s, js := newStore(t)
	parent := snapshot.List{Count: count}
	var entries, page []snapshot.Entry
	for i := range count {
		d := snapshot.Digest(sha256.Sum256(fmt.Append(nil, "content", i)))
		e := snapshot.Entry{Path: fmt.Sprintf("f%06d", i), Kind: snapshot.KindFile, Mode: 0o644, Size: 10, Digest: d}
		entries = append(entries, e)
		e.Pieces = []snapshot.Piece{{Digest: d, Pack: sha256.Sum256(d[:]), Length: 10}}
		if page = append(page, e); len(page) == 500 || i == count-1 {
			parent.Pages = append(parent.Pages, putPage(t, js, objstore.EncodeEntries(page), page[0].Path))
			page = nil
		}
	}
	list, err := s.Import(t.Context(), entries, parent, true)
	if !errors.Is(err, snapshot.MissingBlob) || !strings.Contains(err.Error(), entries[0].Path) { // the first of them
		t.Fatalf("got %d entries, %v", list.Count, err)
	}
}

// TestPack_HealedDespiteLostReply has whole objects of a stranger's bytes under
// the names of packs, and a server whose first reply to each chunk is lost.
func TestPack_HealedDespiteLostReply(t *testing.T) {
	s, js := newStore(t)
	items := [][]byte{snapshottest.RandomBytes(1, 30_000)}
	list, err := s.WriteItems(t.Context(), items, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	obs, err := js.ObjectStore(t.Context(), packs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := obs.PutBytes(t.Context(), fmt.Sprintf("sha256/%s", list.Pages[0].Pack), objstore.Zip(make([]byte, 50_000))); err != nil {
		t.Fatal(err)
	}
	s.ForgetCache()
	if err := lastError(s.Items(t.Context(), list)); !errors.Is(err, snapshot.InvalidBlob) {
		t.Fatalf("got %v", err)
	}
	var once sync.Once
	s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		reply, err := send(ctx, msg)
		if strings.Contains(msg.Subject, ".C.") {
			once.Do(func() { reply, err = nil, nats.ErrTimeout })
		}
		return reply, err
	})
	again, err := s.WriteItems(t.Context(), items, list)
	if err != nil {
		t.Fatal(err)
	}
	s.ForgetCache()
	if err := lastError(s.Items(t.Context(), again)); err != nil {
		t.Errorf("after the same items were stored again: %v", err)
	}
}
