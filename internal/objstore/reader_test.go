package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// TestRead_ServerRestart restarts the server in the middle of a read.
func TestRead_ServerRestart(t *testing.T) {
	opts := server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true}
	srv := runServer(t, &opts)
	nc, err := nats.Connect(srv.ClientURL(), nats.ReconnectWait(10*time.Millisecond), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box"}); err != nil {
		t.Fatal(err)
	}
	s := open(t, js)
	b := newBlob(20, 20<<20)
	b.mustPut(t, s, b.size())
	r, err := s.OpenArtifact(t.Context(), b.digest, b.size())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	head := make([]byte, 5<<20)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	opts.Port = srv.Addr().(*net.TCPAddr).Port
	stop(srv)
	runServer(t, &opts)
	tail, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(append(head, tail...), b.data) {
		t.Errorf("read over a restart: %d bytes, %v", len(head)+len(tail), err)
	}
}

func runServer(t *testing.T, opts *server.Options) *server.Server {
	t.Helper()
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { stop(srv) })
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("server does not start")
	}
	return srv
}

func stop(srv *server.Server) {
	srv.Shutdown()
	srv.WaitForShutdown()
}

func TestRead_Canceled(t *testing.T) {
	s, _ := newStore(t)
	b := newBlob(21, 10<<20)
	b.mustPut(t, s, b.size())
	ctx, cancel := context.WithCancel(t.Context())
	r, err := s.OpenArtifact(ctx, b.digest, b.size())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
	r.Close()
	if _, err := r.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("read after close: %v", err)
	}
}

func TestOpenFile_LooseBlob(t *testing.T) {
	s, js := newStore(t)
	obs, err := js.ObjectStore(t.Context(), "box-files")
	if err != nil {
		t.Fatal(err)
	}
	b := newBlob(22, 3_000_000)
	e := snapshot.Entry{Path: "f", Kind: snapshot.KindFile, Size: b.size(), Digest: b.digest}
	if _, err := s.OpenFile(t.Context(), e, 0, -1); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("before the put: %v", err)
	}
	if _, err := obs.PutBytes(t.Context(), "sha256/"+b.digest.String(), b.data); err != nil {
		t.Fatal(err)
	}
	r, err := s.OpenFile(t.Context(), e, 1_000_000, 1_000_001)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, b.data[1_000_000:2_000_001]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	wrong := bytes.Clone(b.data)
	wrong[len(wrong)-1] ^= 1
	if _, err := obs.PutBytes(t.Context(), "sha256/"+b.digest.String(), wrong); err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenFile(t.Context(), e, 0, 10); !errors.Is(err, snapshot.InvalidBlob) {
		t.Errorf("wrong bytes: %v", err)
	}
}

// TestOpenFile_HoldsItsPack reads a file of many pieces with a cache that keeps
// nothing.
func TestOpenFile_HoldsItsPack(t *testing.T) {
	s, js := newStore(t)
	data := snapshottest.RandomBytes(1, 24<<20)
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, map[string][]byte{"f": data})
	s, err := objstore.Open(t.Context(), js, objstore.Options{Store: "box", CacheBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	e := entryOf(t, s, list, "f")
	names := map[snapshot.Digest]bool{}
	for _, p := range e.Pieces {
		names[p.Pack] = true
	}
	loads := s.CountLoads()
	checkTree(t, s, list, map[string][]byte{"f": data})
	if len(names) == len(e.Pieces) || loads() > len(names)+1 { // and a page
		t.Errorf("%d loads of %d packs for %d pieces", loads(), len(names), len(e.Pieces))
	}
}

// TestOpenFile_Parallel reads files of one pack at once: it is fetched once,
// and a reader that gives up does not fail the others.
func TestOpenFile_Parallel(t *testing.T) {
	s, _ := newStore(t)
	files := map[string][]byte{}
	for i := range 40 {
		files[fmt.Sprintf("f%02d", i)] = snapshottest.RandomBytes(uint64(i), 1000)
	}
	list, _ := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	names := map[snapshot.Digest]bool{}
	var entries []snapshot.Entry
	for e, err := range s.Entries(t.Context(), list, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
		names[e.Pieces[0].Pack] = true
	}
	loads := s.CountLoads()
	var g errgroup.Group
	var gaveUp atomic.Int64
	for i, e := range entries {
		g.Go(func() error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%4 == 0 {
				cancel()
				gaveUp.Add(1)
			}
			r, err := s.OpenFile(ctx, e, 0, -1)
			if err != nil {
				return err
			}
			defer r.Close()
			data, err := io.ReadAll(r)
			if i%4 == 0 {
				return nil // canceled, or served from the cache
			}
			if err == nil && !bytes.Equal(data, files[e.Path]) {
				err = errors.New("other bytes")
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if n := loads(); n > len(names)+int(gaveUp.Load()) {
		t.Errorf("%d loads of %d packs", n, len(names))
	}
}

// TestRead_LostMessage loses one message out of the middle of a batch, as a
// route between servers does when it breaks: the bytes are whole in the store,
// so the read must not call them damaged.
func TestRead_LostMessage(t *testing.T) {
	for _, nth := range []int{1, 3, 8} {
		t.Run(fmt.Sprint(nth), func(t *testing.T) {
			srv := startServer(t)
			js := connect(t, srv)
			if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", Replicas: clustertest.Replicas}); err != nil {
				t.Fatal(err)
			}
			b := newBlob(40, 8*objstore.ChunkSize)
			b.mustPut(t, open(t, js), b.size())
			lose(t, connect(t, srv).Conn(), "lossy", nth)
			lossy, err := jetstream.NewWithAPIPrefix(js.Conn(), "lossy")
			if err != nil {
				t.Fatal(err)
			}
			b.mustRead(t, open(t, lossy))
		})
	}
}

// lose relays the requests below prefix to the server's API and drops the nth
// message of the first batch.
func lose(t *testing.T, nc *nats.Conn, prefix string, nth int) {
	t.Helper()
	lost := false
	_, err := nc.Subscribe(prefix+".>", func(m *nats.Msg) {
		to := "$JS.API" + strings.TrimPrefix(m.Subject, prefix)
		if lost || !strings.Contains(to, ".DIRECT.GET.") {
			_ = nc.PublishRequest(to, m.Reply, m.Data)
			return
		}
		lost = true
		inbox, n := nc.NewInbox(), 0
		_, err := nc.Subscribe(inbox, func(part *nats.Msg) {
			if n++; n != nth {
				_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: part.Header, Data: part.Data})
			}
		})
		if err != nil {
			t.Error(err)
		}
		_ = nc.PublishRequest(to, inbox, m.Data)
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
}
