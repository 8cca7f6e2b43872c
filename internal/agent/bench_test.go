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

// rig is an embedded server with a worker, driven by requests as any client
// would.
type rig struct {
	b         *testing.B
	nc        *nats.Conn
	sandboxes string
	n         int
}

// newRig is one that does not wait for the disk.
func newRig(b *testing.B) *rig {
	b.Helper()
	return newSyncedRig(b, "interval")
}

func newSyncedRig(b *testing.B, sync string) *rig {
	b.Helper()
	dir := b.TempDir()
	common := agent.Common{Prefix: "sandbox", Store: "sandbox", StateDir: filepath.Join(dir, "state")}
	common.LogLevel, common.LogFormat = "error", "json"
	r := &rig{b: b, sandboxes: filepath.Join(dir, "sandboxes")}
	setup, err := agent.NewSetup(common, agent.Worker{Node: "bench", SandboxRoot: r.sandboxes, RestoreRoot: filepath.Join(dir, "restored"), Lease: 30 * time.Second, Policy: agent.Policy{NoDefaultExcludes: true, IncludeCredentials: true}}, io.Discard, filepath.Join(dir, "store"))
	r.must(err)
	embedded := agent.Embedded{StoreDir: filepath.Join(dir, "store"), AllowTempStore: true, Listen: "127.0.0.1:0", Sync: sync, Auth: "none"}
	server, err := agent.StartServer(common, embedded, bus.ConnectOptions{}, setup.Log)
	r.must(err)
	b.Cleanup(func() { r.must(server.Shutdown()) })
	r.must(server.Init(b.Context(), common, embedded, agent.Buckets{}))
	worker, err := setup.Start(b.Context(), server.Link)
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
	msg, err := r.reply(subject, data)
	r.must(err)
	return msg.Data
}

func (r *rig) reply(subject string, body []byte) (*nats.Msg, error) {
	msg, err := r.nc.Request("sandbox."+subject, body, time.Minute)
	if err == nil && msg.Header.Get("Nats-Service-Error-Code") != "" {
		err = fmt.Errorf("%s: %s", subject, msg.Data)
	}
	return msg, err
}

func (r *rig) send(subject string, body []byte) error {
	_, err := r.reply(subject, body)
	return err
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

const writers = 16

// pace is how often something was done, and how long that took in all.
type pace struct {
	times int
	took  time.Duration
}

func (p pace) perSecond() float64 { return float64(p.times) / p.took.Seconds() }

// each runs fn n times in all, on that many goroutines.
func (r *rig) each(p *pace, goroutines, n int, fn func(worker int) error) {
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
	p.times += n / goroutines * goroutines
	p.took += time.Since(began)
}

func (r *rig) decode(data []byte, into any) { r.b.Helper(); r.must(json.Unmarshal(data, into)) }

// BenchmarkAppend appends small checkpoints to 16 threads at once and, by turns
// in the same run, makes raw conditional KV writes from 16 writers. times-raw is
// how many raw writes fit into the time of one append.
func BenchmarkAppend(b *testing.B) {
	b.Run("files=0", func(b *testing.B) { benchmarkAppend(b, "") })
	b.Run("files=1", func(b *testing.B) { benchmarkAppend(b, "a file's content") })
}

func benchmarkAppend(b *testing.B, content string) {
	r := newRig(b)
	js, err := jetstream.New(r.nc)
	r.must(err)
	raw, err := js.CreateKeyValue(b.Context(), jetstream.KeyValueConfig{Bucket: "raw", Storage: jetstream.FileStorage})
	r.must(err)
	chains, revisions := r.chains(), make([]uint64, writers)
	files := r.files(content)
	value := bytes.Repeat([]byte("x"), 200)
	var appends, puts pace
	for b.Loop() {
		const n = writers * 10
		r.each(&appends, writers, n, func(w int) error { return r.append(&chains[w], files) })
		r.each(&puts, writers, 10*n, func(w int) (err error) {
			revisions[w], err = raw.Update(b.Context(), fmt.Sprint("k", w), value, revisions[w])
			return err
		})
	}
	b.ReportMetric(appends.perSecond(), "appends/s")
	b.ReportMetric(puts.perSecond(), "raw-writes/s")
	b.ReportMetric(puts.perSecond()/appends.perSecond(), "times-raw")
}

// chain is a thread that is held and appended to.
type chain struct {
	thread string
	writer []byte
	head   string // JSON
	length int
}

// chains makes a thread for each writer.
func (r *rig) chains() []chain {
	r.b.Helper()
	chains := make([]chain, writers)
	for w := range chains {
		var lease struct {
			ThreadID   string `json:"threadId"`
			OwnerToken string `json:"ownerToken"`
			Fence      uint64 `json:"fence"`
		}
		thread := fmt.Sprint("t", w)
		r.decode(r.request("writer.acquire", map[string]any{"threadId": thread, "leaseDurationMs": 600_000}), &lease)
		writer, err := json.Marshal(lease)
		r.must(err)
		chains[w] = chain{thread: thread, writer: writer, head: "null"}
	}
	return chains
}

// files is the list, in JSON, of a checkpoint with one file, or with none.
func (r *rig) files(content string) string {
	r.b.Helper()
	if content == "" {
		return "[]"
	}
	var blob struct{ Key string }
	r.decode(r.request("blob.put", map[string]any{"kind": "file", "data": []byte(content)}), &blob)
	return fmt.Sprintf(`[{"path":"f","kind":"file","blobKey":%q,"size":%d}]`, blob.Key, len(content))
}

// append makes the next checkpoint of the chain, at little cost of its own.
func (r *rig) append(c *chain, files string) error {
	c.length++
	id := fmt.Sprintf(`"%s-%d"`, c.thread, c.length)
	err := r.send("checkpoint.append", fmt.Appendf(nil, `{"checkpoint":{"id":%s,"threadId":%q,"parentCheckpointId":%s,"createdAt":%d,"reason":"automatic",`+
		`"files":%s,"conversation":[],"artifacts":[]},"expectedHeadId":%s,"writer":%s}`, id, c.thread, c.head, c.length, files, c.head, c.writer))
	c.head = id
	return err
}

// BenchmarkInstanceGet reads an instance record and, by turns in the same run,
// makes raw reads of one key from the stream's leader.
func BenchmarkInstanceGet(b *testing.B) {
	r := newRig(b)
	r.request("instance.upsert", map[string]any{"record": map[string]any{"key": "k", "provider": "local", "providerSandboxId": "n/k", "threadId": "t", "updatedAt": 1}})
	leaderGet := []byte(`{"last_by_subj":"$KV.sandbox-state.instance.k"}`)
	var gets, reads pace
	for b.Loop() {
		const n = 1000
		r.each(&gets, 4, n, func(int) error { return r.send("instance.get", []byte(`{"key":"k"}`)) })
		r.each(&reads, 4, n, func(int) error {
			_, err := r.nc.Request("$JS.API.STREAM.MSG.GET.KV_sandbox-state", leaderGet, time.Minute)
			return err
		})
	}
	b.ReportMetric(gets.perSecond(), "gets/s")
	b.ReportMetric(reads.perSecond(), "raw-reads/s")
	b.ReportMetric(reads.perSecond()/gets.perSecond(), "times-raw")
}
