package objstore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
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
	select {
	case <-reached:
	case <-ctx.Done():
		t.Fatal("the big save did not come to its middle: ", group.Wait())
	}
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

// TestBudget_OpenPacks has two saves that stand still with open packs, or the
// second one waits for its own: meanwhile a restore is done.
func TestBudget_OpenPacks(t *testing.T) {
	s, _ := newStore(t)
	small := map[string][]byte{"a": snapshottest.RandomBytes(1, 3<<20)}
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, small)
	places, _ := piecesByPack(t, s, list, small)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for what hangs
	defer cancel()
	goOn := make(chan struct{})
	var group errgroup.Group
	var opened atomic.Int64
	save := func(seed int) {
		w, err := s.NewTree(ctx, list)
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() error {
			defer w.Abort()
			for i := range 20 {
				if _, _, err := w.Put(ctx, bytes.NewReader(blobThat(false, uint64(seed+i), 100_000))); err != nil {
					return err
				}
			}
			opened.Add(1)
			select {
			case <-goOn:
			case <-ctx.Done():
			}
			return ctx.Err()
		})
	}
	wait := func(what string, until func() bool) {
		for !until() {
			if ctx.Err() != nil {
				t.Fatal(what)
			}
			runtime.Gosched()
		}
	}
	save(1000)
	wait("the first save has no open pack", func() bool { return opened.Load() == 1 })
	save(2000)
	wait("the second save does not go on", func() bool { return opened.Load() == 2 || s.SavesWait() })
	for _, pieces := range places {
		if err := s.ReadPack(ctx, pieces, func(int, []byte) error { return nil }); err != nil {
			t.Errorf("a restore: %v", err)
		}
	}
	close(goOn)
	if err := group.Wait(); err != nil {
		t.Errorf("the saves: %v", err)
	}
}

// TestBudget_IdleAndCache has a save that stored two packs while it fills a
// third, and readers that fill the cache: all of it is in the budget.
func TestBudget_IdleAndCache(t *testing.T) {
	s, _ := newStore(t)
	files := manyFiles(24, 24<<20)
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	places, _ := piecesByPack(t, s, list, files)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // for what hangs
	defer cancel()
	goOn := make(chan struct{})
	s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		if isWrite(msg) {
			select {
			case <-goOn:
			case <-ctx.Done():
			}
		}
		return send(ctx, msg)
	})
	w, err := s.NewTree(ctx, snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for i := range 36 {
		data := make([]byte, 1<<20)
		data[len(data)-1] = byte(i)
		if _, _, err := w.Put(ctx, bytes.NewReader(dataThat(false, data))); err != nil {
			t.Fatal(err)
		}
	}
	close(goOn)
	for idle := 0; idle < 2; _, _, idle = s.Held() {
		if ctx.Err() != nil {
			t.Fatal("no buffer came back")
		}
		runtime.Gosched()
	}
	most := int64(0)
	for _, pieces := range places {
		if _, err := s.ReadPage(ctx, pieces[0]); err != nil {
			t.Fatal(err)
		}
		taken, cached, idle := s.Held()
		most = max(most, taken+cached+int64(idle)*objstore.MaxPack)
	}
	if most > 64<<20+objstore.MaxPack { // the cache keeps the pack that was read last
		t.Errorf("up to %d bytes were held", most)
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
