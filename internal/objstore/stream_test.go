package objstore_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// piecesByPack are the places of a tree's contents, each pack's in their order,
// and the contents.
func piecesByPack(t *testing.T, s *objstore.Store, list snapshot.List, files map[string][]byte) (map[snapshot.Digest][]snapshot.Piece, map[snapshot.Digest][]byte) {
	t.Helper()
	places, contents := map[snapshot.Digest][]snapshot.Piece{}, map[snapshot.Digest][]byte{}
	for e, err := range s.Entries(t.Context(), list, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		rest := files[e.Path]
		for _, p := range e.Pieces {
			places[p.Pack] = append(places[p.Pack], p)
			contents[p.Digest], rest = rest[:p.Length], rest[p.Length:]
		}
	}
	for _, pieces := range places {
		slices.SortFunc(pieces, func(a, b snapshot.Piece) int { return cmp.Compare(a.Offset, b.Offset) })
	}
	return places, contents
}

func TestReadPack(t *testing.T) {
	s, js := newStore(t)
	files := manyFiles(400, 12<<20)
	files["large"] = snapshottest.RandomBytes(1, 10<<20)
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	places, contents := piecesByPack(t, s, list, files)
	small, err := objstore.Open(t.Context(), js, objstore.Options{Store: "box", MemoryBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	small.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		if strings.HasSuffix(msg.Subject, "MSG.GET.OBJ_"+packs) {
			asked.Add(1)
		}
		return send(ctx, msg)
	})
	var group errgroup.Group
	for _, pieces := range places {
		group.Go(func() error {
			pieces := append(pieces, pieces[len(pieces)-1]) // one for two files
			n := 0
			err := small.ReadPack(t.Context(), pieces, func(i int, data []byte) error {
				if n++; i != n-1 || !bytes.Equal(data, contents[pieces[i].Digest]) {
					t.Errorf("piece %d, the %dth, has other bytes", i, n)
				}
				return nil
			})
			if n != len(pieces) {
				t.Errorf("%d of %d pieces", n, len(pieces))
			}
			return err
		})
	}
	if err := group.Wait(); err != nil || asked.Load() != int64(len(places)) || len(places) < 4 {
		t.Errorf("%d packs were opened %d times: %v", len(places), asked.Load(), err)
	}
}

func TestReadPack_Faults(t *testing.T) {
	s, js := newStore(t)
	files := manyFiles(20, 1<<20)
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	places, _ := piecesByPack(t, s, list, files)
	var pieces []snapshot.Piece
	for _, p := range places {
		pieces = p[:3]
	}
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		spoil func(p []snapshot.Piece)
		use   error
		want  error
	}{
		"unsorted":      {spoil: func(p []snapshot.Piece) { p[0], p[2] = p[2], p[0] }, want: snapshot.InvalidBlob},
		"overlapping":   {spoil: func(p []snapshot.Piece) { p[1].Offset-- }, want: snapshot.InvalidBlob},
		"negative":      {spoil: func(p []snapshot.Piece) { p[1].Length = -1 }, want: snapshot.InvalidBlob},
		"too long":      {spoil: func(p []snapshot.Piece) { p[2].Length = objstore.MaxContent + 1 }, want: snapshot.InvalidBlob},
		"behind it":     {spoil: func(p []snapshot.Piece) { p[2].Offset = objstore.MaxPack }, want: snapshot.InvalidBlob},
		"far behind it": {spoil: func(p []snapshot.Piece) { p[2].Offset = 1 << 60 }, want: snapshot.InvalidBlob},
		"another pack":  {spoil: func(p []snapshot.Piece) { p[2].Pack[0]++ }, want: snapshot.InvalidBlob},
		"other bytes":   {spoil: func(p []snapshot.Piece) { p[1].Digest[0]++ }, want: snapshot.InvalidBlob},
		"no use":        {use: broken, want: broken},
		"no pack":       {spoil: func(p []snapshot.Piece) { p[0].Pack[0]++ }, want: snapshot.MissingBlob},
	} {
		t.Run(name, func(t *testing.T) {
			spoiled := slices.Clone(pieces)
			if c.spoil != nil {
				c.spoil(spoiled)
			}
			s := open(t, js)
			if err := s.ReadPack(t.Context(), spoiled, func(int, []byte) error { return c.use }); !errors.Is(err, c.want) {
				t.Errorf("error is %v", err)
			}
			if err := s.ReadPack(t.Context(), pieces, func(int, []byte) error { return nil }); err != nil {
				t.Errorf("then: %v", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.ReadPack(ctx, pieces, func(int, []byte) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestReadPack_LostChunk says that it is lost, whatever the rest looks like.
func TestReadPack_LostChunk(t *testing.T) {
	files := map[string][]byte{"a": snapshottest.RandomBytes(1, 1<<20), "b": snapshottest.RandomBytes(2, 1<<20)}
	for lost := range 4 {
		s, js := newStore(t)
		list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
		places, _ := piecesByPack(t, s, list, files)
		for pack, pieces := range places {
			obs, err := js.ObjectStore(t.Context(), packs)
			if err != nil {
				t.Fatal(err)
			}
			info, err := obs.GetInfo(t.Context(), "sha256/"+pack.String())
			if err != nil {
				t.Fatal(err)
			}
			chunks, left := stream(t, js, packs), lost
			for seq := uint64(1); ; seq++ {
				msg, err := chunks.GetMsg(t.Context(), seq)
				if err != nil {
					t.Fatalf("chunk %d of %d: %v", lost, info.Chunks, err)
				}
				if msg.Subject != objstore.ChunkSubject(packs, info.NUID) {
					continue
				}
				if left--; left < 0 {
					if err := chunks.DeleteMsg(t.Context(), seq); err != nil {
						t.Fatal(err)
					}
					break
				}
			}
			if err := s.ReadPack(t.Context(), pieces, func(int, []byte) error { return nil }); !errors.Is(err, snapshot.MissingBlob) {
				t.Errorf("without chunk %d: %v", lost, err)
			}
		}
	}
}
