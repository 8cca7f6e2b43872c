package kvstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot/snapshottest"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

// world is a server of its own with an initialized store. With -replicas 3 it
// is an account of a cluster.
type world struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	store string
}

// another is a store of its own on the same server.
func (w *world) another(t testing.TB, store string) *world {
	t.Helper()
	if _, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: store, Storage: jetstream.MemoryStorage, Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	return &world{nc: w.nc, js: w.js, store: store}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{store: "sandbox"}
	if clustertest.On() {
		w.nc, w.js = dial(t, clustertest.URL(t))
	} else {
		w.nc, w.js = connect(t, startServer(t, func(*server.Options) {}))
	}
	if _, err := kvstore.Init(t.Context(), w.js, kvstore.Config{Store: "sandbox", Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	return w
}

func startServer(t testing.TB, set func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{ServerName: "test", DontListen: true, JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: 1 << 42, JetStreamMaxMemory: 1 << 42, NoLog: true, NoSigs: true}
	set(o)
	srv, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	return srv
}

func connect(t testing.TB, srv *server.Server) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	return dial(t, "", nats.InProcessServer(srv))
}

func dial(t testing.TB, url string, options ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(url, append(options, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func options() kvstore.Options { return kvstore.Options{Node: "node-1"} }

func (w *world) open(t testing.TB, o kvstore.Options) *kvstore.Store {
	t.Helper()
	if o.Store == "" {
		o.Store = w.store
	}
	s, err := kvstore.Open(t.Context(), w.js, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// kv is the bucket as any client sees it.
func (w *world) kv(t testing.TB) jetstream.KeyValue {
	t.Helper()
	kv, err := w.js.KeyValue(context.Background(), kvstore.BucketName(w.store))
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func TestContract(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) snapshottest.Stores {
		return newWorld(t).open(t, options().Short(2*time.Second))
	}
	t.Run("checkpoints", func(t *testing.T) { snapshottest.CheckpointsContract(t, open) })
	t.Run("leases", func(t *testing.T) { snapshottest.LeasesContract(t, open) })
	t.Run("instances", func(t *testing.T) { snapshottest.InstancesContract(t, open) })
	t.Run("artifacts", func(t *testing.T) { snapshottest.ArtifactsContract(t, open) })
}
