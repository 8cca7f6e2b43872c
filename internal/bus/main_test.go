package bus_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"sandkeep/internal/bus"
	"sandkeep/internal/leaktest"
	"sandkeep/internal/snapshot"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// The domain is what the endpoints need.
var _ bus.Service = (*snapshot.Service)(nil)

const canary = "hunter2-canary"

// redactor knows one secret.
type redactor struct{}

func (redactor) Text(s string) string { return strings.ReplaceAll(s, canary, "[redacted]") }

func (redactor) JSON(raw []byte) ([]byte, int64) {
	n := bytes.Count(raw, []byte(canary))
	return bytes.ReplaceAll(raw, []byte(canary), []byte("[redacted]")), int64(n)
}

func (redactor) Reader(io.Reader) snapshot.RedactingReader { panic("not for the bus") }

// service is a domain of which a test sets what it needs; the rest panics.
type service struct {
	bus.Service
	save       func(context.Context, snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error)
	node       func(snapshot.SaveRequest) (snapshot.NodeName, error)
	restore    func(context.Context, snapshot.RestoreRequest) (*snapshot.RestoreReply, error)
	attach     func(context.Context, snapshot.AttachRequest) (*snapshot.AttachReply, error)
	put        func(context.Context, snapshot.PutArtifactRequest) (*snapshot.Artifact, error)
	load       func(context.Context, snapshot.ThreadRequest) (*snapshot.LoadThreadReply, error)
	saveThread func(context.Context, snapshot.SaveThreadRequest) (int64, error)
	head       func(context.Context, snapshot.ThreadRequest) (snapshot.CheckpointID, error)
	upsert     func(context.Context, snapshot.Instance, *int64) (uint64, error)
	readFile   func(context.Context, snapshot.ReadFileRequest, int64) (*snapshot.ReadFileReply, error)
	checkpoint func(context.Context, snapshot.GetCheckpointRequest) (*snapshot.Checkpoint, error)
}

func (s *service) Save(ctx context.Context, r snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
	return s.save(ctx, r)
}
func (s *service) SandboxNode(_ context.Context, r snapshot.SaveRequest) (snapshot.NodeName, error) {
	if s.node == nil {
		return "", nil
	}
	return s.node(r)
}
func (s *service) Restore(ctx context.Context, r snapshot.RestoreRequest) (*snapshot.RestoreReply, error) {
	return s.restore(ctx, r)
}
func (s *service) Attach(ctx context.Context, r snapshot.AttachRequest) (*snapshot.AttachReply, error) {
	return s.attach(ctx, r)
}
func (s *service) PutArtifact(ctx context.Context, r snapshot.PutArtifactRequest) (*snapshot.Artifact, error) {
	return s.put(ctx, r)
}
func (s *service) LoadThread(ctx context.Context, r snapshot.ThreadRequest) (*snapshot.LoadThreadReply, error) {
	return s.load(ctx, r)
}
func (s *service) SaveThread(ctx context.Context, r snapshot.SaveThreadRequest) (int64, error) {
	return s.saveThread(ctx, r)
}
func (s *service) Head(ctx context.Context, r snapshot.ThreadRequest) (snapshot.CheckpointID, error) {
	return s.head(ctx, r)
}
func (s *service) UpsertInstance(ctx context.Context, r snapshot.Instance, n *int64) (uint64, error) {
	return s.upsert(ctx, r, n)
}
func (s *service) GetInstance(context.Context, snapshot.InstanceKey) (*snapshot.Instance, uint64, error) {
	return nil, 0, nil
}
func (s *service) RemoveInstance(context.Context, snapshot.InstanceKey, *int64) error { return nil }
func (s *service) DeleteArtifact(context.Context, snapshot.DeleteArtifactRequest) error {
	return nil
}
func (s *service) ListInstances(context.Context, snapshot.ListInstancesRequest, int64) (*snapshot.ListInstancesReply, error) {
	return &snapshot.ListInstancesReply{}, nil
}
func (s *service) ReadFile(ctx context.Context, r snapshot.ReadFileRequest, n int64) (*snapshot.ReadFileReply, error) {
	return s.readFile(ctx, r, n)
}
func (s *service) Checkpoint(ctx context.Context, r snapshot.GetCheckpointRequest) (*snapshot.Checkpoint, error) {
	return s.checkpoint(ctx, r)
}

// transfer moves large things through real buckets.
type transfer struct{ js jetstream.JetStream }

func (t transfer) OpenUpload(ctx context.Context, object string) (io.ReadCloser, int64, error) {
	name, ok := strings.CutPrefix(object, "sandbox-uploads/")
	if !ok {
		return nil, 0, snapshot.Errorf(snapshot.BadRequest, "object %q is not in the bucket of uploads", object)
	}
	if name == "huge" {
		return io.NopCloser(strings.NewReader("")), 64<<20 + 1, nil
	}
	store, err := t.js.ObjectStore(ctx, "sandbox-uploads")
	if err != nil {
		return nil, 0, err
	}
	r, err := store.Get(ctx, name)
	if err != nil {
		return nil, 0, snapshot.Errorf(snapshot.MissingBlob, "there is no object %q", object).Because(err)
	}
	info, err := r.Info()
	return r, int64(info.Size), err
}

func (t transfer) PutReply(ctx context.Context, data []byte) (string, error) {
	store, err := t.js.ObjectStore(ctx, "sandbox-replies")
	if err != nil {
		return "", err
	}
	_, err = store.PutBytes(ctx, "r1", data)
	return "sandbox-replies/r1", err
}

func startServer(t *testing.T) *bus.Server {
	t.Helper()
	s, err := bus.StartServer(bus.ServerOptions{StoreDir: t.TempDir(), AllowTempStore: true, Sync: bus.SyncInterval, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func connect(t *testing.T, s *bus.Server) *nats.Conn {
	t.Helper()
	nc, err := bus.Connect(bus.ConnectOptions{Embedded: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// logBuffer can be written and read at once.
type logBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// world is a server, a worker and a client.
type world struct {
	server *bus.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	worker *bus.Worker
	client *bus.Client
	log    *logBuffer
}

func newWorld(t *testing.T, svc *service, change ...func(*bus.Options)) *world {
	t.Helper()
	w := &world{server: startServer(t), log: &logBuffer{}}
	w.nc = connect(t, w.server)
	js, err := bus.JetStream(w.nc, bus.ConnectOptions{Embedded: w.server})
	if err != nil {
		t.Fatal(err)
	}
	w.js = js
	w.worker = w.serve(t, w.nc, "n1", svc, change...)
	w.client = bus.NewClient(connect(t, w.server), bus.ClientOptions{JetStream: js, Patience: time.Millisecond})
	return w
}

func (w *world) serve(t *testing.T, nc *nats.Conn, node snapshot.NodeName, svc *service, change ...func(*bus.Options)) *bus.Worker {
	t.Helper()
	o := bus.Options{Service: svc, Redactor: redactor{}, Transfer: transfer{w.js}, Node: node, Log: zerolog.New(w.log)}
	for _, c := range change {
		c(&o)
	}
	worker, err := bus.Serve(t.Context(), nc, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := worker.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return worker
}

func (w *world) buckets(t *testing.T) {
	t.Helper()
	for _, name := range []string{"sandbox-uploads", "sandbox-replies"} {
		if _, err := w.js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: name}); err != nil {
			t.Fatal(err)
		}
	}
}

// ask sends a request and returns the reply or the error.
func (w *world) ask(t *testing.T, name, payload string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	body, err := w.client.Request(ctx, w.client.Subject(name), []byte(payload))
	return string(body), err
}

func (w *world) mustAsk(t *testing.T, name, payload string) string {
	t.Helper()
	body, err := w.ask(t, name, payload)
	if err != nil {
		t.Fatalf("%s %s: %v", name, payload, err)
	}
	return body
}

func asError(t *testing.T, err error) *snapshot.Error {
	t.Helper()
	e, ok := errors.AsType[*snapshot.Error](err)
	if !ok {
		t.Fatalf("got %v, want a snapshot.Error", err)
	}
	return e
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
