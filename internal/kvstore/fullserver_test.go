package kvstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
)

// A server that takes no message at all has no room for the marker of a removal
// or of an expiry. Leases are given up all the same; one that nobody gives up
// says why it is still there, and ends when there is room.
func TestFull_Server(t *testing.T) {
	t.Parallel()
	srv := startServer(t, func(*server.Options) {})
	w := &world{store: "sandbox"}
	w.nc, w.js = connect(t, srv)
	if _, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "sandbox"}); err != nil {
		t.Fatal(err)
	}
	limit := func(most int64) {
		t.Helper()
		l := srv.GlobalAccount().JetStreamUsage().Limits
		l.MaxStore = most
		if err := srv.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": l}); err != nil {
			t.Fatal(err)
		}
	}
	s := w.open(t, options().Short(2*time.Second))
	deletable(t, s)
	held := acquire(t, s, "t")
	acquire(t, s, "dead")
	lock, err := s.AcquireLock(t.Context(), "l", 10*time.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	limit(0)
	if err := s.Release(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	if err := s.ReleaseLock(t.Context(), lock.Lock); err != nil {
		t.Fatal(err)
	}
	if left := w.keys(t, "writer", "lock"); len(left) != 1 || left[0] != kvstore.WriterKey("dead") {
		t.Errorf("left are %v", left)
	}
	_, err = s.DeleteThread(t.Context(), "t")
	wantCode(t, err, snapshot.StoreFull)
	later := w.open(t, options().Clock(func() time.Time { return time.Now().Add(time.Minute) }))
	_, err = later.DeleteThread(t.Context(), "dead")
	if wantCode(t, err, snapshot.WriterConflict); strings.Contains(err.Error(), "until") || !strings.Contains(err.Error(), "more storage") {
		t.Error(err)
	}
	_, err = s.Acquire(t.Context(), "dead", 3*time.Second) // longer than the lease
	wantCode(t, err, snapshot.WriterConflict)
	limit(-1)
	if _, err := s.Acquire(t.Context(), "dead", time.Minute); err != nil {
		t.Error(err)
	}
	if n, err := s.DeleteThread(t.Context(), "t"); n != 2 || err != nil {
		t.Errorf("%d checkpoints, %v", n, err)
	}
}
