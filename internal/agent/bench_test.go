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
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

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
	reply, err := r.try(subject, body)
	r.must(err)
	return reply
}

func (r *rig) try(subject string, body any) ([]byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	msg, err := r.nc.Request("sandbox."+subject, data, time.Minute)
	if err == nil && msg.Header.Get("Nats-Service-Error-Code") != "" {
		err = fmt.Errorf("%s: %s", subject, msg.Data)
	}
	if err != nil {
		return nil, err
	}
	return msg.Data, nil
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

const writers = 16

// each runs fn n times in all, on that many goroutines, and returns the rate a second.
func (r *rig) each(goroutines, n int, fn func(worker int) error) float64 {
	r.b.Helper()
	var group errgroup.Group
	began := time.Now()
	for w := range goroutines {
		group.Go(func() error {
			for range n / goroutines {
				if err := fn(w); err != nil {
					return err
				}
			}
			return nil
		})
	}
	r.must(group.Wait())
	return float64(n/goroutines*goroutines) / time.Since(began).Seconds()
}

func (r *rig) decode(data []byte, into any) { r.b.Helper(); r.must(json.Unmarshal(data, into)) }

// BenchmarkAppend appends small checkpoints to 16 threads at once and, in the
// same run, makes raw conditional KV writes from 16 writers. times-raw is how
// many raw writes fit into the time of one append.
func BenchmarkAppend(b *testing.B) {
	r := newRig(b)
	js, err := jetstream.New(r.nc)
	r.must(err)
	raw, err := js.CreateKeyValue(b.Context(), jetstream.KeyValueConfig{Bucket: "raw", Storage: jetstream.FileStorage})
	r.must(err)
	leases, heads, revisions := make([]json.RawMessage, writers), make([]any, writers), make([]uint64, writers)
	made := make([]int, writers)
	for w := range leases {
		var lease struct {
			ThreadID   string `json:"threadId"`
			OwnerToken string `json:"ownerToken"`
			Fence      uint64 `json:"fence"`
		}
		r.decode(r.request("writer.acquire", map[string]any{"threadId": fmt.Sprint("t", w), "leaseDurationMs": 600_000}), &lease)
		leases[w], err = json.Marshal(lease)
		r.must(err)
	}
	for b.Loop() {
		const n = writers * 50
		appends := r.each(writers, n, func(w int) error {
			made[w]++
			id := fmt.Sprintf("c%d-%d", w, made[w])
			checkpoint := map[string]any{"id": id, "threadId": fmt.Sprint("t", w), "parentCheckpointId": heads[w], "createdAt": made[w], "reason": "automatic",
				"files": []any{}, "conversation": []any{}, "artifacts": []any{}}
			_, err := r.try("checkpoint.append", map[string]any{"checkpoint": checkpoint, "expectedHeadId": heads[w], "writer": leases[w]})
			heads[w] = id
			return err
		})
		value := bytes.Repeat([]byte("x"), 200)
		puts := r.each(writers, 10*n, func(w int) (err error) {
			revisions[w], err = raw.Update(b.Context(), fmt.Sprint("k", w), value, revisions[w])
			return err
		})
		b.ReportMetric(appends, "appends/s")
		b.ReportMetric(puts, "raw-writes/s")
		b.ReportMetric(puts/appends, "times-raw")
	}
}

// BenchmarkInstanceGet reads an instance record and, in the same run, makes raw
// reads of one key from the stream's leader.
func BenchmarkInstanceGet(b *testing.B) {
	r := newRig(b)
	r.request("instance.upsert", map[string]any{"record": map[string]any{"key": "k", "provider": "local", "providerSandboxId": "n/k", "threadId": "t", "updatedAt": 1}})
	leaderGet := []byte(`{"last_by_subj":"$KV.sandbox-state.instance.k"}`)
	for b.Loop() {
		const n = 4000
		gets := r.each(4, n, func(int) error {
			_, err := r.try("instance.get", map[string]any{"key": "k"})
			return err
		})
		reads := r.each(4, n, func(int) error {
			_, err := r.nc.Request("$JS.API.STREAM.MSG.GET.KV_sandbox-state", leaderGet, time.Minute)
			return err
		})
		b.ReportMetric(gets, "gets/s")
		b.ReportMetric(reads, "raw-reads/s")
		b.ReportMetric(reads/gets, "times-raw")
	}
}
