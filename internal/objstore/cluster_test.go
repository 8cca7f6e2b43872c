package objstore_test

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
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

// startCluster runs three servers that keep three replicas.
func startCluster(t *testing.T) jetstream.JetStream {
	t.Helper()
	var routes []*url.URL
	for range 3 {
		routes = append(routes, &url.URL{Scheme: "nats", Host: clustertest.FreeAddress(t)})
	}
	var first *server.Server
	for i, route := range routes {
		port, err := strconv.Atoi(route.Port())
		if err != nil {
			t.Fatal(err)
		}
		srv, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port}, Routes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		srv.Start()
		t.Cleanup(func() { stop(srv) })
		if first == nil {
			first = srv
		}
	}
	if !first.ReadyForConnections(10 * time.Second) {
		t.Fatal("cluster does not start")
	}
	nc, err := nats.Connect(first.ClientURL())
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

// TestCluster_StepDowns makes the leaders step down in the middle of uploads
// and reads: all of them must come out whole.
func TestCluster_StepDowns(t *testing.T) {
	if testing.Short() {
		t.Skip("needs three servers")
	}
	js := startCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := objstore.Init(ctx, js, objstore.Config{Store: "box", Replicas: 3})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("init: %v", err)
		}
	}
	s := open(t, js)
	var writes, downs atomic.Int64 // several packs may be on their way
	s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		if isWrite(msg) && writes.Add(1)%3 == 0 {
			downs.Add(1)
			for _, bucket := range []string{packs, artifacts} {
				_, _ = js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN.OBJ_"+bucket, nil)
			}
		}
		return send(ctx, msg)
	})
	for i := range 2 {
		b := newBlob(uint64(30+i), 3<<20)
		if _, err := b.put(ctx, s); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
		b.mustRead(t, s)
		b.mustReadPlain(t, js)
	}
	files := map[string][]byte{"a": snapshottest.RandomBytes(1, 4<<20), "b": snapshottest.RandomBytes(2, 1<<20)}
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	s.ForgetCache()
	checkTree(t, s, list, files)
	if downs.Load() < 4 {
		t.Errorf("only %d times", downs.Load())
	}
}
