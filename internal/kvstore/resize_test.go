package kvstore_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
)

// settings are those of a stream, without the server's own notes.
func (w *world) settings(t *testing.T, stream string) jetstream.StreamConfig {
	t.Helper()
	s, err := w.js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	c.Metadata = maps.Clone(c.Metadata)
	maps.DeleteFunc(c.Metadata, func(key, _ string) bool { return strings.HasPrefix(key, "_nats.") })
	return c
}

// Init changes the limit of a bucket that is there, and nothing that an
// operator has changed, there or in the stream of events.
func TestInit_ChangesTheLimit(t *testing.T) {
	w := newWorld(t)
	state, events := w.settings(t, kvstore.StreamName("sandbox")), w.settings(t, kvstore.EventsName("sandbox"))
	state.Description, state.MaxMsgSize, state.MaxConsumers = "changed by hand", 1<<20, 99
	state.Metadata["owner"] = "operators"
	events.MaxAge, events.MaxBytes = 2*events.MaxAge, events.MaxBytes/2
	for _, c := range []jetstream.StreamConfig{state, events} {
		if _, err := w.js.UpdateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, cfg := range []kvstore.Config{{MaxBytes: 9 << 20}, {}, {Replicas: clustertest.Replicas}} {
		cfg.Store = "sandbox"
		if _, err := kvstore.Init(t.Context(), w.js, cfg); err != nil {
			t.Fatal(err)
		}
		state.MaxBytes = 9 << 20
		if diff := cmp.Diff(state, w.settings(t, state.Name)) + cmp.Diff(events, w.settings(t, events.Name)); diff != "" {
			t.Errorf("after %+v: %s", cfg, diff)
		}
	}
}

// A full store takes writes again, and its reserve grows with it.
func TestInit_RaisesTheLimit(t *testing.T) {
	w, s, _ := fullWorld(t)
	_, err := s.AcquireLock(t.Context(), "another", 0, 0)
	wantCode(t, err, snapshot.StoreFull)
	before := w.reserve(t)
	if _, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "small", MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AcquireLock(t.Context(), "another", 0, 0); err != nil {
		t.Fatal(err)
	}
	if now := w.reserve(t); before != 2<<10 || now != 1<<20/32 {
		t.Errorf("the reserve is %d bytes, was %d", now, before)
	}
}

// Inits that say nothing of the limit don't undo the one that does.
func TestInit_ConcurrentChanges(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	for i := range 12 {
		cfg := kvstore.Config{Store: "sandbox"}
		switch i % 3 {
		case 0:
			cfg.MaxBytes = 9 << 20
		case 1:
			cfg.Replicas = clustertest.Replicas
		}
		all.Go(func() {
			if _, err := kvstore.Init(t.Context(), w.js, cfg); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if c := w.settings(t, kvstore.StreamName("sandbox")); c.MaxBytes != 9<<20 || c.Replicas != clustertest.Replicas {
		t.Errorf("limit %d, %d replicas", c.MaxBytes, c.Replicas)
	}
}

// A change that another client writes back, since it has read the settings
// before, is made again, and so is one whose reply is lost.
func TestInit_ChangeIsWrittenBack(t *testing.T) {
	w := newWorld(t)
	before := w.settings(t, kvstore.StreamName("sandbox"))
	updates := 0
	err := kvstore.ChangeLimit(t.Context(), w.js, "sandbox", 9<<20, func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			reply, err := next(ctx, m)
			if !strings.Contains(m.Subject, ".STREAM.UPDATE.") {
				return reply, err
			}
			switch updates++; updates {
			case 1:
				_, err = w.js.UpdateStream(ctx, before)
			case 2:
				_, err = w.js.UpdateStream(ctx, before)
				reply, err = nil, errors.Join(nats.ErrTimeout, err)
			}
			return reply, err
		}
	})
	if c := w.settings(t, before.Name); err != nil || updates != 3 || c.MaxBytes != 9<<20 {
		t.Errorf("limit %d after %d updates, %v", c.MaxBytes, updates, err)
	}
}

// A server that has promised most of its room changes what it has.
func TestInit_LittleRoom(t *testing.T) {
	srv := startServer(t, func(o *server.Options) { o.JetStreamMaxStore = 100 << 20 })
	nc, js := connect(t, srv)
	w := &world{nc: nc, js: js, store: "sandbox"}
	for _, limit := range []int64{30 << 20, 35 << 20, 0} { // events get 64 MiB, beside the first
		if _, err := kvstore.Init(t.Context(), js, kvstore.Config{Store: "sandbox", MaxBytes: limit}); err != nil {
			t.Fatalf("%d: %v", limit, err)
		}
	}
	if c := w.settings(t, kvstore.StreamName("sandbox")); c.MaxBytes != 35<<20 {
		t.Errorf("limit %d", c.MaxBytes)
	}
}

// What the servers can't do is said, and changes nothing.
func TestInit_CantChange(t *testing.T) {
	w := newWorld(t)
	name := kvstore.StreamName("sandbox")
	before := w.settings(t, name)
	stores := []string{"sandbox", "new"}
	if clustertest.On() { // which may get another server yet, and says so
		stores = stores[:1]
	}
	for _, store := range stores {
		_, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: store, MaxBytes: 1 << 60})
		if wantCode(t, err, snapshot.StoreFull); !strings.Contains(snapshot.AsError(err).Message, "give a smaller --max-bytes") {
			t.Errorf("no advice in %v", err)
		}
	}
	if !clustertest.On() {
		_, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "sandbox", Replicas: 3})
		wantCode(t, err, snapshot.BadRequest)
	}
	if diff := cmp.Diff(before, w.settings(t, name)); diff != "" {
		t.Error(diff)
	}
}
