package objstore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// held is a source that stands still in its middle until it may go on.
type held struct {
	first, second io.Reader
	reached       chan struct{}
	goOn          chan struct{}
}

func (h *held) Read(p []byte) (int, error) {
	if n, err := h.first.Read(p); err == nil {
		return n, nil
	}
	if h.reached != nil {
		close(h.reached)
		h.reached = nil
	}
	<-h.goOn
	return h.second.Read(p)
}

// TestBudget_BigSaveMakesRoom holds a big save in its middle: meanwhile another
// big save, a long list and a restore are done.
func TestBudget_BigSaveMakesRoom(t *testing.T) {
	s, _ := newStore(t)
	small := map[string][]byte{"a": snapshottest.RandomBytes(1, 3<<20)}
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, small)
	places, _ := piecesByPack(t, s, list, small)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for what hangs
	defer cancel()

	w, err := s.NewTree(ctx, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	src := &held{
		first:   bytes.NewReader(snapshottest.RandomBytes(2, 30<<20)),
		second:  bytes.NewReader(snapshottest.RandomBytes(3, 10<<20)),
		reached: make(chan struct{}), goOn: make(chan struct{}),
	}
	reached := src.reached
	var group errgroup.Group
	group.Go(func() error {
		defer w.Abort()
		d, size, err := w.Put(ctx, src)
		if err == nil {
			err = w.Add(ctx, snapshot.Entry{Path: "big", Kind: snapshot.KindFile, Size: size, Digest: d})
		}
		if err == nil {
			_, _, err = w.Finish(ctx)
		}
		return err
	})
	<-reached
	other := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
	other.put(snapshot.Entry{Path: "other", Kind: snapshot.KindFile}, snapshottest.RandomBytes(4, 20<<20))
	if _, _, err := other.write(ctx, s, snapshot.List{}); err != nil {
		t.Errorf("another big save: %v", err)
	}
	if _, err := s.WriteItems(ctx, [][]byte{snapshottest.RandomBytes(5, 6<<20)}, snapshot.List{}); err != nil {
		t.Errorf("a long list: %v", err)
	}
	for _, pieces := range places {
		if err := s.ReadPack(ctx, pieces, func(int, []byte) error { return nil }); err != nil {
			t.Errorf("a restore: %v", err)
		}
	}
	close(src.goOn)
	if err := group.Wait(); err != nil {
		t.Errorf("the big save: %v", err)
	}
}

// TestBudget_ManyOnLittle saves, lists and restores much more at once than the
// budget has room for: each waits for its turn, and none for ever.
func TestBudget_ManyOnLittle(t *testing.T) {
	plain, js := newStore(t)
	files := manyFiles(100, 3<<20)
	list, _ := snapshottest.WriteTree(t, plain, snapshot.List{}, files)
	places, _ := piecesByPack(t, plain, list, files)
	for _, budget := range []int64{1, 20 << 20} {
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			s, err := objstore.Open(t.Context(), js, objstore.Options{Store: "box", MemoryBytes: budget})
			if err != nil {
				t.Fatal(err)
			}
			var group errgroup.Group
			for i := range 6 {
				group.Go(func() error {
					m := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
					for n, size := range []int{100, 900_000, 6 << 20, 3 << 20, 10} {
						m.put(snapshot.Entry{Path: fmt.Sprint(n), Kind: snapshot.KindFile}, snapshottest.RandomBytes(uint64(i*10+n), size))
					}
					_, _, err := m.write(t.Context(), s, snapshot.List{})
					return err
				})
				group.Go(func() error {
					_, err := s.WriteItems(t.Context(), [][]byte{snapshottest.RandomBytes(uint64(i), 6<<20)}, snapshot.List{})
					return err
				})
				for _, pieces := range places {
					group.Go(func() error {
						return s.ReadPack(t.Context(), pieces, func(int, []byte) error { return nil })
					})
				}
			}
			if err := group.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
