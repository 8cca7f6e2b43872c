package objstore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// TestTree_Healed loses a pack and saves again: first it is found missing, then
// it is stored anew, with the parent that refers to it.
func TestTree_Healed(t *testing.T) {
	s, js := newStore(t)
	files := map[string][]byte{"a": snapshottest.RandomBytes(1, 100_000), "b": []byte("b")}
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	if err := stream(t, js, packs).Purge(t.Context(), jetstream.WithPurgeSubject("$O."+packs+".C.>")); err != nil {
		t.Fatal(err)
	}
	s.ForgetCache()
	r, err := s.OpenFile(t.Context(), entryOf(t, s, list, "a"), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := r.Read(make([]byte, 10)); n != 0 || !errors.Is(err, snapshot.MissingBlob) {
		t.Fatalf("read of a lost pack: %d bytes, %v", n, err)
	}
	again, _ := snapshottest.WriteTree(t, s, list, files)
	s.ForgetCache()
	checkTree(t, s, again, files)
	checkTree(t, s, list, files) // the older checkpoint is whole again too
}

// TestTree_Lost loses every other reply of the server.
func TestTree_Lost(t *testing.T) {
	s, _ := newStore(t)
	var n atomic.Int64 // two packs may be on their way
	s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		reply, err := send(ctx, msg)
		if n.Add(1)%3 == 0 {
			return nil, nats.ErrTimeout
		}
		return reply, err
	})
	files := map[string][]byte{"a": snapshottest.RandomBytes(1, 3<<20), "b": snapshottest.RandomBytes(2, 100)}
	list, stored := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	if stored != 3<<20+100 {
		t.Errorf("%d new bytes", stored)
	}
	checkTree(t, s, list, files)
}

// TestTree_HealedWithoutInfos loses the infos of packs, then the whole packs of
// both kinds: a save with the broken parent must not refer to what is gone.
func TestTree_HealedWithoutInfos(t *testing.T) {
	for name, lost := range map[string]string{"infos": ".M.>", "all": ".>"} {
		t.Run(name, func(t *testing.T) {
			s, js := newStore(t)
			files := manyFiles(400, 400_000)
			list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
			if len(list.Pages) < 2 {
				t.Fatalf("the manifest has %d pages", len(list.Pages))
			}
			if err := stream(t, js, packs).Purge(t.Context(), jetstream.WithPurgeSubject("$O."+packs+lost)); err != nil {
				t.Fatal(err)
			}
			s.ForgetCache()
			again, _ := snapshottest.WriteTree(t, s, list, files)
			s.ForgetCache()
			checkTree(t, s, again, files)
		})
	}
}

// TestTree_HealedFilePack loses the info of a file pack only, which a read
// finds: the next save stores its contents anew.
func TestTree_HealedFilePack(t *testing.T) {
	s, js := newStore(t)
	files := map[string][]byte{"a": snapshottest.RandomBytes(1, 100_000), "b": []byte("b")}
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	a := entryOf(t, s, list, "a")
	obs, err := js.ObjectStore(t.Context(), packs)
	if err != nil {
		t.Fatal(err)
	}
	if err := obs.Delete(t.Context(), "sha256/"+a.Pieces[0].Pack.String()); err != nil {
		t.Fatal(err)
	}
	s.ForgetCache()
	if _, err := s.ReadPage(t.Context(), a.Pieces[0]); !errors.Is(err, snapshot.MissingBlob) {
		t.Fatalf("read of a deleted pack: %v", err)
	}
	again, _ := snapshottest.WriteTree(t, s, list, files)
	s.ForgetCache()
	checkTree(t, s, again, files)
}

// TestTree_SeveralBrokenPagePacks breaks the manifest in two packs. Reading the
// parent stops at the first one: the pages in the second are no more to be
// trusted than those in the first.
func TestTree_SeveralBrokenPagePacks(t *testing.T) {
	s, js := newStore(t)
	files := manyFiles(400, 400_000)
	for p := range files { // without contents, equal pages come out again
		files[p] = nil
	}
	before, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	files["zzz"] = nil // the last page is another one, in a pack of its own
	list, _ := snapshottest.WriteTree(t, s, before, files)
	broken := map[snapshot.Digest]bool{}
	for _, p := range list.Pages {
		broken[p.Pack] = true
	}
	if len(broken) < 2 || list.Level > 0 {
		t.Fatalf("the manifest is in %d packs, of level %d", len(broken), list.Level)
	}
	obs, err := js.ObjectStore(t.Context(), packs)
	if err != nil {
		t.Fatal(err)
	}
	for pack := range broken {
		if err := obs.Delete(t.Context(), "sha256/"+pack.String()); err != nil {
			t.Fatal(err)
		}
	}
	s.ForgetCache()
	again, _ := snapshottest.WriteTree(t, s, list, files)
	s.ForgetCache()
	checkTree(t, s, again, files)
}
