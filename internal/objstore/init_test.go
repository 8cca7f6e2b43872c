package objstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
)

func TestInit(t *testing.T) {
	js := connect(t, startServer(t))
	for range 2 {
		if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", MaxBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	for bucket, age := range map[string]time.Duration{
		"box-packs": 0, "box-artifacts": 0, "box-files": 0, "box-uploads": time.Hour, "box-replies": time.Hour,
	} {
		obs, err := js.ObjectStore(t.Context(), bucket)
		if err != nil {
			t.Fatal(err)
		}
		st, err := obs.Status(t.Context())
		if err != nil || st.TTL() != age || st.Description() == "" {
			t.Errorf("%s: age %v, description %q, %v", bucket, st.TTL(), st.Description(), err)
		}
		if _, err := obs.PutString(t.Context(), "a name", "some bytes"); err != nil {
			t.Errorf("%s takes no object of an ordinary client: %v", bucket, err)
		}
		if err := obs.Delete(t.Context(), "a name"); err != nil {
			t.Errorf("%s: %v", bucket, err)
		}
	}
}

// TestInit_OrdinaryConfig compares with what the ordinary client makes.
func TestInit_OrdinaryConfig(t *testing.T) {
	js := connect(t, startServer(t))
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box"}); err != nil {
		t.Fatal(err)
	}
	want := stream(t, js, "box-packs").CachedInfo().Config
	if _, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "other", Description: want.Description}); err != nil {
		t.Fatal(err)
	}
	got := stream(t, js, "other").CachedInfo().Config
	got.Name, got.Subjects = want.Name, want.Subjects
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestInit_KeepsSettings changes the limit and nothing else.
func TestInit_KeepsSettings(t *testing.T) {
	js := connect(t, startServer(t))
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box"}); err != nil {
		t.Fatal(err)
	}
	cfg := stream(t, js, "box-packs").CachedInfo().Config
	cfg.AllowAtomicPublish, cfg.Description = true, "changed by hand"
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", MaxBytes: 9 << 20}); err != nil {
		t.Fatal(err)
	}
	cfg.MaxBytes, cfg.Metadata = 9<<20, nil                                               // the server's own notes
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box"}); err != nil { // says nothing about the limit
		t.Fatal(err)
	}
	got := stream(t, js, "box-packs").CachedInfo().Config
	got.Metadata = nil
	if diff := cmp.Diff(cfg, got); diff != "" {
		t.Error(diff)
	}
}

// TestInit_ChangeIsWrittenBack has another client write back, with every bucket,
// what it has read before.
func TestInit_ChangeIsWrittenBack(t *testing.T) {
	js := connect(t, startServer(t))
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box"}); err != nil {
		t.Fatal(err)
	}
	updates := map[string]int{}
	fault := func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		reply, err := send(ctx, msg)
		if _, name, ok := strings.Cut(msg.Subject, ".STREAM.UPDATE."); ok {
			if updates[name]++; updates[name] == 1 {
				cfg := stream(t, js, strings.TrimPrefix(name, "OBJ_")).CachedInfo().Config
				cfg.MaxBytes = -1
				_, err = js.UpdateStream(ctx, cfg)
			}
		}
		return reply, err
	}
	err := objstore.InitThrough(t.Context(), js, objstore.Config{Store: "box", MaxBytes: 9 << 20}, fault)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range objstore.StreamNames("box") {
		if limit := stream(t, js, strings.TrimPrefix(name, "OBJ_")).CachedInfo().Config.MaxBytes; limit != 9<<20 || updates[name] != 2 {
			t.Errorf("%s: limit %d after %d updates", name, limit, updates[name])
		}
	}
}

func TestInit_Refuses(t *testing.T) {
	js := connect(t, startServer(t))
	if !clustertest.On() { // which may get another server yet, and says so
		err := objstore.Init(t.Context(), js, objstore.Config{Store: "big", MaxBytes: 1 << 60})
		if !errors.Is(err, snapshot.StoreFull) || !strings.Contains(snapshot.AsError(err).Message, "give a smaller --max-bytes") {
			t.Errorf("more than the servers have: %v", err)
		}
	}
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "a b"}); !errors.Is(err, snapshot.BadRequest) {
		t.Errorf("bad name: %v", err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OBJ_box-packs", Subjects: []string{"other"}}); err != nil {
		t.Fatal(err)
	}
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box"}); !errors.Is(err, snapshot.StoreUnavailable) {
		t.Errorf("foreign stream: %v", err)
	}
}

func TestOpen_MakesNothing(t *testing.T) {
	js := connect(t, startServer(t))
	_, err := objstore.Open(t.Context(), js, objstore.Options{Store: "box"})
	if !errors.Is(err, snapshot.StoreUnavailable) || !strings.Contains(snapshot.AsError(err).Message, "agent init") {
		t.Errorf("open: %v", err)
	}
	for name := range js.StreamNames(t.Context()).Name() {
		t.Errorf("stream %s was made", name)
	}
}

// TestBucketGone removes the streams under an open store: everything fails, at
// once, and nothing is made anew.
func TestBucketGone(t *testing.T) {
	s, js := newStore(t)
	b := newBlob(1, 100)
	b.mustPut(t, s, b.size())
	for _, bucket := range []string{"box-packs", "box-artifacts"} {
		if err := js.DeleteStream(t.Context(), "OBJ_"+bucket); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.read(t.Context(), s); !errors.Is(err, snapshot.StoreUnavailable) {
		t.Errorf("read: %v", err)
	}
	if _, err := b.put(t.Context(), s); !errors.Is(err, snapshot.StoreUnavailable) {
		t.Errorf("put: %v", err)
	}
	items := [][]byte{make([]byte, 50_000)}
	if _, err := s.WriteItems(t.Context(), items, snapshot.List{}); !errors.Is(err, snapshot.StoreUnavailable) {
		t.Errorf("items: %v", err)
	}
	if _, err := js.Stream(t.Context(), "OBJ_box-packs"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("the stream is there again: %v", err)
	}
}

// TestErrors_NoSecrets makes sure that what clients see has no addresses.
func TestErrors_NoSecrets(t *testing.T) {
	s, js := newStore(t)
	js.Conn().Close()
	b := newBlob(1, 100)
	_, err := b.put(t.Context(), s)
	if !errors.Is(err, snapshot.StoreUnavailable) {
		t.Fatalf("put on a closed connection: %v", err)
	}
	text, _ := json.Marshal(snapshot.AsError(err).Message)
	if strings.Contains(string(text), "nats:") {
		t.Errorf("message %s", text)
	}
}
