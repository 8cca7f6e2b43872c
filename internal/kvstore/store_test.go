package kvstore_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

func TestInit_Twice(t *testing.T) {
	w := newWorld(t)
	first := w.open(t, options()).StoreID()
	again, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "sandbox", MaxBytes: 1 << 20})
	if err != nil || again != first || first == "" {
		t.Fatalf("store id %q, then %q, %v", first, again, err)
	}
	other, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "other"})
	if err != nil || other == first {
		t.Fatalf("store id %q of another store, %v", other, err)
	}
	_, err = kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "a.b"})
	wantCode(t, err, snapshot.BadRequest)
}

func TestInit_Concurrent(t *testing.T) {
	w := newWorld(t)
	ids := make([]string, 8)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			var err error
			if ids[i], err = kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "new"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] || id == "" {
			t.Fatalf("store ids %v", ids)
		}
	}
}

func TestOpen_Refused(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	_, err := kvstore.Open(ctx, w.js, kvstore.Options{Store: "missing"})
	if wantCode(t, err, snapshot.StoreUnavailable); !strings.Contains(snapshot.AsError(err).Message, "agent init") {
		t.Fatalf("no advice in %v", err)
	}
	if _, err := w.js.KeyValue(ctx, kvstore.BucketName("missing")); !errors.Is(err, jetstream.ErrBucketNotFound) {
		t.Fatalf("open made the bucket: %v", err)
	}
	for _, ttl := range []time.Duration{time.Second, 2 * time.Second, 601 * time.Second, -1} {
		_, err = kvstore.Open(ctx, w.js, kvstore.Options{Store: "sandbox", LeaseTTL: ttl})
		wantCode(t, err, snapshot.BadRequest)
	}
	if _, err := w.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: kvstore.BucketName("plain"), History: 5}); err != nil {
		t.Fatal(err)
	}
	_, err = kvstore.Open(ctx, w.js, kvstore.Options{Store: "plain"})
	wantCode(t, err, snapshot.FormatUnsupported)
	_, err = kvstore.Init(ctx, w.js, kvstore.Config{Store: "plain"})
	wantCode(t, err, snapshot.FormatUnsupported)

	for _, value := range []string{`{"format":2,"storeId":"x","more":1}`, `{}`, `junk`} {
		if _, err := w.kv(t).Put(ctx, "store", []byte(value)); err != nil {
			t.Fatal(err)
		}
		_, err = kvstore.Open(ctx, w.js, kvstore.Options{Store: "sandbox"})
		wantCode(t, err, snapshot.FormatUnsupported)
	}
}

// A store works through the API of a JetStream domain.
func TestOpen_Domain(t *testing.T) {
	srv := startServer(t, func(o *server.Options) { o.JetStreamDomain = "edge" })
	nc, _ := connect(t, srv)
	js, err := jetstream.NewWithDomain(nc, "edge")
	if err != nil {
		t.Fatal(err)
	}
	prefixed, err := jetstream.NewWithAPIPrefix(nc, "$JS.edge.API")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kvstore.Init(t.Context(), js, kvstore.Config{Store: "sandbox"}); err != nil {
		t.Fatal(err)
	}
	w := &world{nc: nc, js: js, store: "sandbox"}
	s := w.open(t, options())
	if err := appendOp("c1", "")(t.Context(), s, acquire(t, s, "t")); err != nil {
		t.Fatal(err)
	}
	w.js = prefixed
	if got := chain(t, w.open(t, options()), "t"); len(got) != 1 {
		t.Fatalf("chain is %v", got)
	}
}

// A value that can't be read is an error that says so, not an empty thread.
func TestDamagedValues(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	for _, value := range []string{"", "junk", `{"head":null,"future":1}`, `{} {}`} {
		if _, err := w.kv(t).Put(t.Context(), kvstore.ThreadKey("t"), []byte(value)); err != nil {
			t.Fatal(err)
		}
		_, err := s.State(t.Context(), "t")
		wantCode(t, err, snapshot.FormatUnsupported)
		_, err = s.SaveConversation(t.Context(), "t", snapshot.List{}, -1)
		wantCode(t, err, snapshot.FormatUnsupported)
	}
}

func TestPayloadTooLarge(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	wr := acquire(t, s, "t")
	rec := snapshottest.Record("t", "c1", "")
	rec.Label = strings.Repeat("x", 2<<20)
	err := s.Append(t.Context(), rec, "", wr)
	wantCode(t, err, snapshot.PayloadTooLarge)
	if d := snapshot.AsError(err).Details; d["size"] == nil || d["limit"] == nil {
		t.Fatalf("details %v lack the sizes", d)
	}
	rec.Label = strings.Repeat("x", 1<<20-2000) // just fits, and comes back whole
	if err := s.Append(t.Context(), rec, "", wr); err != nil {
		t.Fatal(err)
	}
	if found, err := s.Get(t.Context(), "c1"); err != nil || found.Label != rec.Label {
		t.Fatal(err)
	}
}

func TestStoreFull(t *testing.T) {
	w := newWorld(t)
	if _, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "small", MaxBytes: 16 << 10, Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	s := w.open(t, kvstore.Options{Store: "small"})
	wr := acquire(t, s, "t")
	parent := snapshot.CheckpointID("")
	var err error
	for i := 0; err == nil && i < 100; i++ {
		id := snapshot.CheckpointID(fmt.Sprint("c", i))
		if err = appendOp(id, parent)(t.Context(), s, wr); err == nil {
			parent = id
		}
	}
	wantCode(t, err, snapshot.StoreFull)
	if got := chain(t, s, "t"); len(got) == 0 || got[len(got)-1] != parent {
		t.Fatalf("chain is %v, acknowledged up to %q", got, parent)
	}
}

// What the server keeps tells nobody how to act as the writer, and every lease
// has its end.
func TestLease_Stored(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	l, err := s.Acquire(t.Context(), "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		m, err := mustStream(t, w).GetLastMsgForSubject(t.Context(), "$KV.sandbox-state."+kvstore.WriterKey("t"))
		if err != nil || m.Header.Get("Nats-TTL") != "30s" {
			t.Fatalf("TTL %q, %v", m.Header.Get("Nats-TTL"), err)
		}
		var v map[string]any
		if err := json.Unmarshal(m.Data, &v); err != nil || v["node"] != "node-1" || len(v["owner"].(string)) != 64 || v["leaseMs"] != 30000.0 {
			t.Fatalf("lease %s, %v", m.Data, err)
		}
		if strings.Contains(string(m.Data), l.OwnerToken) {
			t.Fatal("the token is stored")
		}
	}
	check()
	if _, err := s.Renew(t.Context(), l.Writer); err != nil {
		t.Fatal(err)
	}
	check()
	_, err = s.Acquire(t.Context(), "t", 0)
	if text := fmt.Sprintf("%v %v %+v %#v", err, snapshot.AsError(err).Details, l, l); strings.Contains(text, l.OwnerToken) {
		t.Fatal("a token is shown")
	}
	longer, err := s.AcquireFor(t.Context(), "u", 3001*time.Millisecond, 0)
	if err != nil || longer.RenewAfterMs != 1333 {
		t.Fatalf("renew after %d ms, %v", longer.RenewAfterMs, err)
	}
	_, err = s.AcquireFor(t.Context(), "v", 2*time.Second, 0)
	wantCode(t, err, snapshot.BadRequest)
}

func mustStream(t *testing.T, w *world) jetstream.Stream {
	t.Helper()
	st, err := w.js.Stream(t.Context(), "KV_"+kvstore.BucketName("sandbox"))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// In its last second a lease is not renewed, and nothing is written.
func TestRenew_LastSecond(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	s := w.open(t, options().Clock(func() time.Time { return now }))
	wr := acquire(t, s, "t")
	now = now.Add(28900 * time.Millisecond)
	if _, err := s.Renew(t.Context(), wr); err != nil {
		t.Fatal(err)
	}
	e, err := w.kv(t).Get(t.Context(), kvstore.WriterKey("t"))
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(29100 * time.Millisecond)
	_, err = s.Renew(t.Context(), wr)
	wantCode(t, err, snapshot.WriterLost)
	if after, err := w.kv(t).Get(t.Context(), kvstore.WriterKey("t")); err != nil || after.Revision() != e.Revision() {
		t.Fatalf("revision %d after %d, %v", after.Revision(), e.Revision(), err)
	}
}

// A lock that is taken away cancels the function.
func TestLock_Lost(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options().Short(3*time.Second))
	err := s.Lock(t.Context(), "l", 0, func(ctx context.Context) error {
		if err := w.kv(t).Purge(t.Context(), kvstore.LockKey("l")); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	wantCode(t, err, snapshot.LockLost)
}

// A store that is away for a while in the middle of a renewal is no lost lock.
func TestLock_RenewedAfterAnOutage(t *testing.T) {
	w := newWorld(t)
	var away atomic.Int64
	through := func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			if away.Load() > 0 && keyOf(m) == "" { // the reads of the renewals, one after the other
				away.Add(-1)
				return nil, nats.ErrNoResponders
			}
			return next(ctx, m)
		}
	}
	var slept atomic.Int64 // makes a renewal due at once, of a lease that lasts on a slow machine too
	o := options().Impatient(5*time.Second, 20*time.Millisecond, 10*time.Second, time.Second)
	o = o.Clock(func() time.Time { return time.Now().Add(time.Duration(slept.Load())) })
	o.LeaseTTL = kvstore.MaxLease
	err := w.open(t, o.Through(through)).Lock(t.Context(), "l", 0, func(ctx context.Context) error {
		before, err := w.kv(t).Get(ctx, kvstore.LockKey("l"))
		if err != nil {
			return err
		}
		away.Store(30) // longer than the patience of one read
		slept.Store(int64(kvstore.MaxLease / 2))
		for {
			now, err := w.kv(t).Get(ctx, kvstore.LockKey("l"))
			if err != nil || now.Revision() > before.Revision() {
				return err
			}
		}
	})
	if err != nil || away.Load() > 0 {
		t.Fatalf("%v, %d requests still to be lost", err, away.Load())
	}
}

// Waiters do not depend on their watch.
func TestAcquire_DeadWatch(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options().Impatient(time.Second, time.Second, time.Minute, time.Second))
	wr := acquire(t, s, "t")
	got := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), "t", snapshottest.Soon)
		got <- err
	}()
	st := mustStream(t, w)
	for end := time.Now().Add(snapshottest.Soon); ; {
		names := []string{}
		list := st.ConsumerNames(t.Context())
		for name := range list.Name() {
			names = append(names, name)
		}
		if len(names) > 0 {
			if err := st.DeleteConsumer(t.Context(), names[0]); err != nil {
				t.Fatal(err)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody watches")
		}
	}
	if err := s.Release(t.Context(), wr); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// An append asks the store five times when nothing is in its way.
func TestAppend_Requests(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []string
	s := newWorld(t).open(t, options().Through(func(next kvstore.Round) kvstore.Round {
		return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
			mu.Lock()
			asked = append(asked, cmp.Or(kindOf(keyOf(m)), "read"))
			mu.Unlock()
			return next(ctx, m)
		}
	}))
	l, err := s.Acquire(t.Context(), "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range [][2]snapshot.CheckpointID{{"c1", ""}, {"c2", "c1"}} {
		asked = nil
		if err := s.Append(t.Context(), snapshottest.Record("t", step[0], step[1]), step[1], l.Writer); err != nil {
			t.Fatal(err)
		}
		slices.Sort(asked)
		if want := []string{"checkpoint", "log", "read", "read", "thread"}; !slices.Equal(asked, want) {
			t.Errorf("append of %s: %v, want %v", step[0], asked, want)
		}
	}
}

// Sixteen workers hand one thread around: the chain is one line and has
// everything that was acknowledged.
func TestAppend_Handover(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	const workers, rounds = 16, 3
	for i := range workers {
		s := w.open(t, options())
		all.Go(func() {
			for r := range rounds {
				l, err := s.Acquire(t.Context(), "t", time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				st, err := s.State(t.Context(), "t")
				if err == nil {
					id := snapshot.CheckpointID(fmt.Sprintf("c%d-%d", i, r))
					err = s.Append(t.Context(), snapshottest.Record("t", id, st.Head), st.Head, l.Writer)
				}
				if err := errors.Join(err, s.Release(t.Context(), l.Writer)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := chain(t, w.open(t, options()), "t"); len(got) != workers*rounds {
		t.Fatalf("%d checkpoints of %d", len(got), workers*rounds)
	}
}

// Changes of instances whose replies are lost are found out by what is stored.
func TestInstance_LostReplies(t *testing.T) {
	for _, m := range modes[3:] {
		t.Run(m.name, func(t *testing.T) {
			w := newWorld(t)
			healthy := w.open(t, options())
			rec := snapshot.Instance{Key: "k", Provider: "local", ProviderSandboxID: "n/k", ThreadID: "t"}
			f := &fault{kind: "instance", nth: 1, mode: m}
			rev, err := w.open(t, options().Through(f.through)).PutInstance(t.Context(), rec, 0)
			if err != nil {
				t.Fatal(err)
			}
			f.deliver(t, w)
			if _, now, err := healthy.Instance(t.Context(), "k"); err != nil || now != rev {
				t.Fatalf("revision %d after %d, %v", now, rev, err)
			}
			f = &fault{kind: "instance", nth: 1, mode: m}
			if err := w.open(t, options().Through(f.through)).DeleteInstance(t.Context(), "k", int64(rev)); err != nil {
				t.Fatal(err)
			}
			f.deliver(t, w)
			if rec, now, err := healthy.Instance(t.Context(), "k"); rec != nil || now != 0 || err != nil {
				t.Fatal(rec, now, err)
			}
		})
	}
}
