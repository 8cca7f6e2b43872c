package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
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

// eventPatience is long: a server that could not reach a stream's source tries
// again after up to two minutes.
const eventPatience = 5 * time.Minute

// wantEvents reads the events of a prefix until all the wanted subjects came, each
// with a body that has the given part ("" for an empty body with a marker).
func wantEvents(t *testing.T, js jetstream.JetStream, store, prefix string, want map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventPatience)
	defer cancel()
	c, err := js.OrderedConsumer(ctx, kvstore.EventsName(store), jetstream.OrderedConsumerConfig{FilterSubjects: []string{prefix + ".event.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for len(want) > 0 {
		m, err := c.Next(jetstream.FetchMaxWait(time.Second))
		if ctx.Err() != nil {
			t.Fatalf("events that did not come: %v", want)
		}
		if err != nil {
			continue
		}
		part, wanted := want[m.Subject()]
		marked := m.Headers().Get("Nats-Marker-Reason") != "" || m.Headers().Get("KV-Operation") == "PURGE"
		if wanted && (part == "" && len(m.Data()) == 0 && marked || part != "" && strings.Contains(string(m.Data()), part)) {
			delete(want, m.Subject())
		}
	}
}

// changes makes one change of each kind that is an event, and returns the writer.
func changes(t *testing.T, s *kvstore.Store) snapshot.Writer {
	t.Helper()
	ctx := t.Context()
	wr := acquire(t, s, "t.1")
	err := s.Append(ctx, snapshottest.Record("t.1", "c1", ""), "", wr)
	rec := snapshot.Instance{Key: "k*", Provider: "local", ProviderSandboxID: "n/k", ThreadID: "t.1"}
	_, err2 := s.PutInstance(ctx, rec, 0)
	l, err3 := s.AcquireLock(ctx, "l", 0, 0)
	if err := errors.Join(err, err2, err3, s.PutArtifact(ctx, "t.1", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "a"}})); err != nil {
		t.Fatal(err)
	}
	if l.OwnerToken == "" || wr.OwnerToken == "" {
		t.Fatal("a holder has no token")
	}
	return wr
}

func firstEvents() map[string]string {
	return map[string]string{
		"sandbox.event.thread.t=2E1": `"head":"c1"`, "sandbox.event.checkpoint.t=2E1.1": `"id":"c1"`, "sandbox.event.instance.k=2A": `"provider":"local"`,
		"sandbox.event.writer.t=2E1": `"owner":"`, "sandbox.event.lock.l": `"leaseMs":`,
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open(t, options())
	wr := changes(t, s)
	wantEvents(t, w.js, "sandbox", "sandbox", firstEvents())
	if err := errors.Join(s.DeleteInstance(t.Context(), "k*", -1), s.Release(t.Context(), wr)); err != nil {
		t.Fatal(err)
	}
	// Another lease and lock expire, which is the server's doing.
	short := w.open(t, options().Short(time.Second))
	acquire(t, short, "t.2")
	if _, err := short.AcquireLock(t.Context(), "l2", 0, 0); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, w.js, "sandbox", "sandbox", map[string]string{"sandbox.event.writer.t=2E1": "",
		"sandbox.event.writer.t=2E2": "", "sandbox.event.lock.l2": "", "sandbox.event.instance.k=2A": ""})
	if _, err := s.DeleteThread(t.Context(), "t.1"); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, w.js, "sandbox", "sandbox", map[string]string{"sandbox.event.thread.t=2E1": `"deleted":true`})

	// Nobody can publish an event, and nothing else is one.
	stream, err := w.js.Stream(t.Context(), kvstore.EventsName("sandbox"))
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"sandbox.event.thread.t", "sandbox-events", "sandbox.event.x"} {
		if _, err := w.js.Publish(t.Context(), subject, nil, jetstream.WithRetryAttempts(0)); !errors.Is(err, jetstream.ErrNoStreamResponse) {
			t.Fatalf("publish to %s: %v", subject, err)
		}
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
	if err != nil {
		t.Fatal(err)
	}
	for subject := range info.State.Subjects {
		kind, _, _ := strings.Cut(strings.TrimPrefix(subject, "sandbox.event."), ".")
		if !strings.Contains(" thread checkpoint instance writer lock ", " "+kind+" ") {
			t.Errorf("%s is an event", subject)
		}
	}
	c := info.Config
	if c.MaxAge != 7*24*time.Hour || c.MaxBytes != 1<<30 || c.Discard != jetstream.DiscardOld || len(c.Subjects) != 0 || c.Storage != jetstream.FileStorage {
		t.Errorf("the stream is %+v", c)
	}
}

// A store from before gets its events by Init; they begin with what is there.
func TestEvents_ExistingStore(t *testing.T) {
	w := newWorld(t)
	s := w.open(t, options())
	changes(t, s)
	if err := w.js.DeleteStream(t.Context(), kvstore.EventsName("sandbox")); err != nil {
		t.Fatal(err)
	}
	init := func(prefix string) error {
		id, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "sandbox", Prefix: prefix})
		if err == nil && id != s.StoreID() {
			return fmt.Errorf("store id %q became %q", s.StoreID(), id)
		}
		return err
	}
	if err := errors.Join(init("a.b"), init("a.b"), init("sandbox")); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for subject, part := range firstEvents() {
		want["a.b"+strings.TrimPrefix(subject, "sandbox")] = part
	}
	wantEvents(t, w.js, "sandbox", "a.b", want)
	for _, bad := range []string{"a.*", ".a", "a.", ">", "a b", "$SYS.x"} {
		wantCode(t, init(bad), snapshot.BadRequest)
	}
}

// A stream of that name that is something else is not taken for ours.
func TestEvents_ForeignStream(t *testing.T) {
	w := newWorld(t)
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: kvstore.EventsName("x"), Subjects: []string{"x.event.>"}}); err != nil {
		t.Fatal(err)
	}
	_, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "x"})
	wantCode(t, err, snapshot.FormatUnsupported)
}

// A server with less than a gibibyte keeps as many events as fit.
func TestEvents_SmallServer(t *testing.T) {
	srv := startServer(t, func(o *server.Options) { o.JetStreamMaxStore = 100 << 20 })
	nc, js := connect(t, srv)
	w := &world{nc: nc, js: js, store: "sandbox"}
	if _, err := kvstore.Init(t.Context(), js, kvstore.Config{Store: "sandbox"}); err != nil {
		t.Fatal(err)
	}
	changes(t, w.open(t, options()))
	wantEvents(t, js, "sandbox", "sandbox", firstEvents())
}

// The same on three servers.
func TestEvents_ThreeReplicas(t *testing.T) {
	t.Parallel()
	servers := startCluster(t)
	nc, err := nats.Connect(servers[0].ClientURL()+","+servers[1].ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*snapshottest.Soon)
	defer cancel()
	for { // until the cluster has found its leader
		one, cancel := context.WithTimeout(ctx, time.Second) // without a leader nobody answers
		_, err = kvstore.Init(one, js, kvstore.Config{Store: "sandbox", Replicas: 3})
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	stream, err := js.Stream(ctx, kvstore.EventsName("sandbox"))
	if err != nil || stream.CachedInfo().Config.Replicas != 3 {
		t.Fatalf("%d replicas, %v", stream.CachedInfo().Config.Replicas, err)
	}
	s, err := kvstore.Open(ctx, js, kvstore.Options{Store: "sandbox", LeaseTTL: kvstore.MaxLease})
	if err != nil {
		t.Fatal(err)
	}
	changes(t, s)
	wantEvents(t, js, "sandbox", "sandbox", firstEvents())
	deletionOnThree(ctx, t, s)
}

// deletionOnThree deletes heads and threads where a removal is a proposal.
func deletionOnThree(ctx context.Context, t *testing.T, s *kvstore.Store) {
	wr := acquire(t, s, "u")
	err := s.Append(ctx, snapshottest.Record("u", "u1", ""), "", wr)
	for range 5 {
		_, err2 := s.DeleteHead(ctx, "u", "u1", wr)
		err = errors.Join(err, err2, s.Append(ctx, snapshottest.Record("u", "u1", ""), "", wr))
	}
	if err := errors.Join(err, s.Release(ctx, wr)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.DeleteThread(ctx, "u"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := errors.Join(s.Sweep(ctx, 0), s.Sweep(ctx, 0), s.Fork(ctx, snapshottest.ForkRoot("u", "u1"), 0)); err != nil {
		t.Fatal(err)
	}
	if got := chain(t, s, "u"); len(got) != 1 {
		t.Fatalf("chain is %v", got)
	}
}

// startCluster starts three servers on loopback.
func startCluster(t *testing.T) []*server.Server {
	t.Helper()
	var routes []*url.URL
	for range 3 {
		routes = append(routes, &url.URL{Scheme: "nats", Host: clustertest.FreeAddress(t)})
	}
	servers := make([]*server.Server, 3)
	for i := range servers {
		port, err := strconv.Atoi(routes[i].Port())
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = startServer(t, func(o *server.Options) {
			o.ServerName = fmt.Sprint("test", i)
			o.DontListen, o.Host, o.Port = false, "127.0.0.1", server.RANDOM_PORT
			o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port}
			o.Routes = routes
		})
	}
	return servers
}
