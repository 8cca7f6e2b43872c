package objstore_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

// dial opens a connection to a server.
type dial func() (*nats.Conn, error)

// startServer runs a JetStream server of the test's own. With -replicas 3 it is
// an account of a cluster.
func startServer(t testing.TB) dial {
	t.Helper()
	if clustertest.On() {
		url := clustertest.URL(t)
		return func() (*nats.Conn, error) { return nats.Connect(url) }
	}
	srv, err := server.NewServer(&server.Options{
		DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("server does not start")
	}
	return func() (*nats.Conn, error) { return nats.Connect("", nats.InProcessServer(srv)) }
}

func connect(t testing.TB, server dial) jetstream.JetStream {
	t.Helper()
	nc, err := server()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func open(t testing.TB, js jetstream.JetStream) *objstore.Store {
	t.Helper()
	s, err := objstore.Open(t.Context(), js, objstore.Options{Store: "box"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newStore(t testing.TB) (*objstore.Store, jetstream.JetStream) {
	t.Helper()
	js := connect(t, startServer(t))
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	return open(t, js), js
}

func TestObjectsContract(t *testing.T) {
	snapshottest.RunObjectsContract(t, func(t *testing.T) snapshot.Objects {
		s, _ := newStore(t)
		return s
	})
}
