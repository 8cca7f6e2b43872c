package agent_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/clustertest"
	"sandkeep/internal/snapshot"
)

// sizes are replicas and limit of each stream of a store.
func sizes(t *testing.T, l agent.Link) map[string]string {
	t.Helper()
	all := map[string]string{}
	list := l.JS.ListStreams(t.Context())
	for s := range list.Info() {
		if strings.Contains(s.Config.Name, "sandbox") { // one is the cluster's own
			all[s.Config.Name] = fmt.Sprintf("%d × %d", s.Config.Replicas, s.Config.MaxBytes)
		}
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

var streams = []string{"KV_sandbox-state", "OBJ_sandbox-packs", "OBJ_sandbox-artifacts", "OBJ_sandbox-files", "OBJ_sandbox-uploads", "OBJ_sandbox-replies"}

func wantSizes(t *testing.T, l agent.Link, replicas int, limit int64) {
	t.Helper()
	want := map[string]string{"sandbox-events": fmt.Sprintf("%d × %d", replicas, 1<<30)}
	for _, name := range streams {
		want[name] = fmt.Sprintf("%d × %d", replicas, limit)
	}
	if got := sizes(t, l); !maps.Equal(got, want) {
		t.Errorf("streams %v, want %v", got, want)
	}
}

// A store that is there gets what is asked for in all of its streams, and keeps
// what is not asked for.
func TestInitStore_Changes(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	url := clustertest.URL(t)
	l, err := agent.Dial(common(dir), bus.ConnectOptions{Server: url, NoContext: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Conn.Close()
	id := ""
	for _, tc := range []struct {
		flags    agent.Buckets
		replicas int
		limit    int64
	}{
		{agent.Buckets{}, 1, -1},
		{agent.Buckets{Replicas: 3}, 3, -1},
		{agent.Buckets{MaxBytes: 64 << 20}, 3, 64 << 20},
		{agent.Buckets{}, 3, 64 << 20},
		{agent.Buckets{Replicas: 1, MaxBytes: 32 << 20}, 1, 32 << 20},
	} {
		now, err := agent.InitStore(t.Context(), l, common(dir), tc.flags)
		if err != nil || id != "" && now != id {
			t.Fatalf("%+v: id %q, was %q, %v", tc.flags, now, id, err)
		}
		id = now
		wantSizes(t, l, tc.replicas, tc.limit)
	}
}

// A limit below what any bucket holds changes none; one above it does, and one
// that is no change is none.
func TestInitStore_LimitBelowUse(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	initStore(t, s, dir)
	for _, name := range []string{"sandbox-replies", "sandbox-state"} {
		put := func(data []byte) error {
			kv, err := s.JS.KeyValue(t.Context(), name)
			if err == nil {
				_, err = kv.Put(t.Context(), "x", data)
			}
			return err
		}
		if name == "sandbox-replies" {
			put = func(data []byte) error {
				bucket, err := s.JS.ObjectStore(t.Context(), name)
				if err == nil {
					_, err = bucket.PutBytes(t.Context(), "x", data)
				}
				return err
			}
		}
		if err := put(make([]byte, 200<<10)); err != nil {
			t.Fatal(err)
		}
		_, err := agent.InitStore(t.Context(), s.Link, common(dir), agent.Buckets{MaxBytes: 200 << 10})
		if !errors.Is(err, snapshot.BadRequest) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%s holds more: %v", name, err)
		}
		wantSizes(t, s.Link, 1, -1)
		if err := put(nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := agent.InitStore(t.Context(), s.Link, common(dir), agent.Buckets{MaxBytes: 200 << 10}); err != nil {
		t.Fatal(err)
	}
	wantSizes(t, s.Link, 1, 200<<10)
}
