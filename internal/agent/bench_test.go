package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
)

// rig is an embedded server with a worker that does not wait for the disk
// (--sync interval), driven by requests as any client would.
type rig struct {
	b         *testing.B
	nc        *nats.Conn
	sandboxes string
	n         int
}

func newRig(b *testing.B) *rig {
	b.Helper()
	dir := b.TempDir()
	common := agent.Common{Prefix: "sandbox", Store: "sandbox", StateDir: filepath.Join(dir, "state")}
	common.LogLevel, common.LogFormat = "error", "json"
	r := &rig{b: b, sandboxes: filepath.Join(dir, "sandboxes")}
	setup, err := agent.NewSetup(common, agent.Worker{Node: "bench", SandboxRoot: r.sandboxes, RestoreRoot: filepath.Join(dir, "restored"), Lease: 30 * time.Second}, io.Discard)
	r.must(err)
	embedded := agent.Embedded{StoreDir: filepath.Join(dir, "store"), AllowTempStore: true, Listen: "127.0.0.1:0", Sync: "interval", Auth: "none"}
	server, err := agent.StartServer(common, embedded, bus.ConnectOptions{}, setup.Log)
	r.must(err)
	b.Cleanup(func() { r.must(server.Shutdown()) })
	r.must(server.Init(b.Context(), common, embedded, agent.Buckets{}))
	worker, err := setup.Start(b.Context(), server.Link, embedded.StoreDir)
	r.must(err)
	b.Cleanup(func() { r.must(worker.Stop(context.WithoutCancel(b.Context()))) })
	r.nc = server.Conn
	return r
}

func (r *rig) must(err error) {
	r.b.Helper()
	if err != nil {
		r.b.Fatal(err)
	}
}

func (r *rig) request(subject string, body any) []byte {
	r.b.Helper()
	data, err := json.Marshal(body)
	r.must(err)
	msg, err := r.nc.Request("sandbox."+subject, data, time.Minute)
	r.must(err)
	if msg.Header.Get("Nats-Service-Error-Code") != "" {
		r.b.Fatalf("%s: %s", subject, msg.Data)
	}
	return msg.Data
}

func (r *rig) next(what string) string {
	r.n++
	return fmt.Sprintf("%s-%d", what, r.n)
}

// tree makes a sandbox of text files, a few in each directory, and attaches it
// to a new thread.
func (r *rig) tree(files, bytesEach int, seed uint64) (thread string) {
	r.b.Helper()
	thread = r.next("thread")
	rnd := rand.New(rand.NewPCG(seed, 1))
	for i := range files {
		path := filepath.Join(r.sandboxes, thread, fmt.Sprintf("dir%03d", i/8), fmt.Sprintf("file%05d.txt", i))
		r.must(os.MkdirAll(filepath.Dir(path), 0o755))
		var text bytes.Buffer
		for text.Len() < bytesEach {
			fmt.Fprintf(&text, "line %d of what an agent wrote\n", rnd.Uint32())
		}
		r.must(os.WriteFile(path, text.Bytes(), 0o644))
	}
	r.request("instance.attach", map[string]any{"threadId": thread, "name": thread})
	return thread
}

func (r *rig) save(thread string) {
	r.b.Helper()
	r.request("snapshot.save", map[string]any{"threadId": thread, "runId": "bench"})
}

// BenchmarkSaveCold saves 2,000 files of 20 MB that the store has never seen.
func BenchmarkSaveCold(b *testing.B) {
	r := newRig(b)
	b.SetBytes(2000 * 10_000)
	b.ResetTimer()
	for seed := range uint64(b.N) {
		b.StopTimer()
		thread := r.tree(2000, 10_000, seed)
		b.StartTimer()
		r.save(thread)
	}
}

// BenchmarkSaveUnchanged saves the same 2,000 files again and again.
func BenchmarkSaveUnchanged(b *testing.B) {
	r := newRig(b)
	thread := r.tree(2000, 10_000, 1)
	r.save(thread)
	for b.Loop() {
		r.save(thread)
	}
}

// BenchmarkFork forks trees of very different sizes; the time must not depend
// on the size.
func BenchmarkFork(b *testing.B) {
	for _, files := range []int{10, 26_000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			r := newRig(b)
			thread := r.tree(files, 500, 1)
			r.save(thread)
			for b.Loop() {
				r.request("fork", map[string]any{"threadId": thread, "destinationThreadId": r.next("fork")})
			}
		})
	}
}
