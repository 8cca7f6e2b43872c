package bus_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/bus"
)

// The object of a reply may come into sight after the reply: here when it was
// looked for in vain.
func TestFetch_ReplicaThatLagsBehind(t *testing.T) {
	w := newWorld(t, &service{})
	w.buckets(t)
	store, err := w.js.ObjectStore(t.Context(), "sandbox-replies")
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	_, err = w.nc.Subscribe("$JS.API.DIRECT.GET.OBJ_sandbox-replies.>", func(*nats.Msg) {
		once.Do(func() {
			if _, err := store.PutString(t.Context(), "late", "here"); err != nil {
				t.Error(err)
			}
		})
	})
	if err == nil {
		_, err = store.GetInfo(t.Context(), "late")
	}
	if !errors.Is(err, jetstream.ErrObjectNotFound) {
		t.Fatalf("the object was there at once: %v", err)
	}
	body, err := bus.Fetch(t.Context(), store, "late")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := bus.Fetch(t.Context(), store, "never"); !errors.Is(err, jetstream.ErrObjectNotFound) {
		t.Errorf("an object that never comes: %v", err)
	}
}
