package objstore_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/leaktest"
	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// startServer runs a JetStream server of the test's own.
func startServer(t testing.TB) *server.Server {
	t.Helper()
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
	return srv
}

func connect(t testing.TB, srv *server.Server) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(srv))
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
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box"}); err != nil {
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
