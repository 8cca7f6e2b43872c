package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	linWorkers = 4
	linBatch   = 40 // groups that are played in turn
	linPasses  = 3  // visits to each of them, so that leases expire in between
	linVisit   = 45 // operations of a visit
)

// linGroup are threads and ids that nothing outside of them depends on, and
// what was done to them.
type linGroup struct {
	name  string
	turns [linPasses]atomic.Int64

	mu      sync.Mutex // guards the rest
	writers [linThreads][]linWriter
	heads   [linThreads]string // as somebody saw them
	ops     []linRecord
}

type linRecord struct {
	op    linOp
	reply linReply
}

type linWriter struct {
	ThreadID   string `json:"threadId"`
	OwnerToken string `json:"ownerToken"`
	Fence      uint64 `json:"fence"`
}

func (g *linGroup) threadID(i int) string { return fmt.Sprintf("%s-t%d", g.name, i) }
func (g *linGroup) id(i int) string       { return fmt.Sprintf("%s-c%d", g.name, i) }

// threadNumber is the reverse of threadID.
func threadNumber(id string) int { return int(id[len(id)-1] - '0') }

// linBench is a server with workers and clients.
type linBench struct {
	*server
	workers []*process
	began   time.Time
	patient time.Duration // of a client with one request
	marks   atomic.Int64
	groups  int

	mu     sync.Mutex // guards counts
	counts map[string]int
}

func newLinBench(t *testing.T, patient time.Duration) *linBench {
	t.Helper()
	b := &linBench{server: startServer(t, "--no-agent", "--sync", "interval"), began: time.Now(), patient: patient, counts: map[string]int{}}
	for range linWorkers {
		b.workers = append(b.workers, b.linWorker())
	}
	return b
}

// linWorker takes leases for its own forks that a kill does not leave for long.
func (b *linBench) linWorker() *process { return b.worker(b.node, "--lease", "3s") }

func (b *linBench) now() int64 { return int64(time.Since(b.began)) }

// TestLinearizable has clients change few threads at once through several
// workers, and asks whether there is an order in which all replies make sense.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	b := newLinBench(t, 20*time.Second)
	b.playAll(linTotal(5_000, 200_000), 8, func(done <-chan struct{}) { <-done })
}

// TestLinearizableUnderKills does the same while workers die and come back.
func TestLinearizableUnderKills(t *testing.T) {
	t.Parallel()
	b := newLinBench(t, time.Second)
	b.playAll(linTotal(5_000, 60_000), 12, b.killWorkers)
}

func linTotal(short, full int) int {
	if *long {
		return full
	}
	return short
}

// killWorkers ends a worker every second as a power cut would, and starts
// another one.
func (b *linBench) killWorkers(done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		b.workers[i%linWorkers].kill()
		b.workers[i%linWorkers] = b.linWorker()
		b.count("kills")
	}
}

// playAll plays batches of groups until there are so many operations, and
// checks each.
func (b *linBench) playAll(total, clients int, meanwhile func(done <-chan struct{})) {
	all := make([]*linClient, clients)
	for i := range all {
		all[i] = &linClient{b, connect(b.t, b.url), rand.New(rand.NewPCG(uint64(i), uint64(b.began.UnixNano())))}
	}
	var playing, checking time.Duration
	for ops := 0; ops < total && !b.t.Failed(); {
		batch, started := b.newBatch(), time.Now()
		play(all, batch, meanwhile)
		played := time.Now()
		playing += played.Sub(started)
		for _, g := range batch {
			ops += len(g.ops)
			b.check(g)
		}
		checking += time.Since(played)
	}
	b.report(playing, checking)
}

func (b *linBench) newBatch() []*linGroup {
	batch := make([]*linGroup, linBatch)
	for i := range batch {
		b.groups++
		batch[i] = &linGroup{name: fmt.Sprint("g", b.groups)}
	}
	return batch
}

// play has all clients visit all groups, one after the other.
func play(clients []*linClient, batch []*linGroup, meanwhile func(done <-chan struct{})) {
	var wg sync.WaitGroup
	done := make(chan struct{})
	defer func() { <-done }() // also if the test ends in between
	for _, c := range clients {
		wg.Go(func() {
			for pass := range linPasses {
				for _, g := range batch {
					for g.turns[pass].Add(1) <= linVisit {
						c.act(g)
					}
				}
			}
		})
	}
	go func() {
		defer close(done)
		wg.Wait()
	}()
	meanwhile(done)
}

func (b *linBench) report(playing, checking time.Duration) {
	ops := b.counts["operations"]
	b.t.Logf("%d operations on %d groups in %v (%.0f a minute), checked in %v", ops, b.groups, playing.Round(time.Second),
		float64(ops)/playing.Minutes(), checking.Round(time.Millisecond))
	if n := b.counts[undecided]; n*20 > b.groups {
		b.t.Errorf("%d of %d groups are undecided", n, b.groups)
	}
	for _, kind := range linKinds {
		if b.counts[kind] == 0 {
			b.t.Errorf("no %s succeeded", kind)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(b.counts)) {
		b.t.Logf("%7d %s", b.counts[what], what)
	}
}

func (b *linBench) count(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts[what]++
}

// settled are the refusals after which nothing has happened.
var settled = []string{fullCode("WRITER_LOST"), fullCode("WRITER_CONFLICT"), fullCode("DUPLICATE_ID"), fullCode("STALE_HEAD"), fullCode("NOT_HEAD"),
	fullCode("FORK_SOURCE_NOT_FOUND"), fullCode("FORK_SOURCE_THREAD_MISMATCH"), fullCode("FORK_DESTINATION_NOT_EMPTY")}

// send does one operation and keeps what came of it.
func (c *linClient) send(g *linGroup, op linOp, body any) linReply {
	raw := encode(c.b.t, body)
	op.sent = c.b.now()
	msg, err := c.nc.Request(c.b.prefix+"."+op.kind, raw, c.b.patient)
	op.got = c.b.now()
	c.b.count("operations")
	var r linReply
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		c.b.count("nobody there")
		return linReply{code: pending}
	case err != nil:
		r.code = pending
	default:
		r = c.decode(op, msg)
	}
	c.b.count(strings.TrimSpace(op.kind + " " + r.code))
	if r.code == "SANDBOX_BUSY" {
		return r
	}
	if r.code != "" && !slices.Contains(settled, r.code) {
		r.code, op.got = pending, never
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ops = append(g.ops, linRecord{op, r})
	return r
}

// decode reads a reply of any kind.
func (c *linClient) decode(op linOp, msg *nats.Msg) linReply {
	if f := decodeFailure(c.b.t, msg); f != nil {
		if f.Code == "SANDBOX_INTERNAL" || f.Code == "SANDBOX_BAD_REQUEST" {
			c.b.t.Errorf("%+v: %s %s", op, f.Code, f.Message)
		}
		head, _ := f.Details["actualHead"].(string)
		return linReply{code: f.Code, head: head}
	}
	if op.kind == "fork" {
		var cp checkpoint
		decodeStrict(c.b.t, msg.Data, &cp)
		return linReply{seen: []linSeen{seenOf(cp)}}
	}
	var body struct {
		linWriter
		HeadID       *string      `json:"headId"`
		CheckpointID *string      `json:"checkpointId"`
		Checkpoint   *checkpoint  `json:"checkpoint"`
		Checkpoints  []checkpoint `json:"checkpoints"`
		Next         string       `json:"next"`
	}
	if err := json.Unmarshal(msg.Data, &body); err != nil || body.Next != "" {
		c.b.t.Errorf("%+v: %s, %v", op, msg.Data, err)
	}
	r := linReply{fence: body.Fence, token: body.OwnerToken}
	for _, head := range []*string{body.HeadID, body.CheckpointID} {
		if head != nil {
			r.head = *head
		}
	}
	if body.Checkpoint != nil {
		body.Checkpoints = append(body.Checkpoints, *body.Checkpoint)
	}
	for _, cp := range body.Checkpoints {
		r.seen = append(r.seen, seenOf(cp))
	}
	return r
}

func seenOf(cp checkpoint) linSeen {
	seen := linSeen{linEntry: linEntry{id: cp.ID, mark: int64(cp.CreatedAt), content: -1}, thread: threadNumber(cp.ThreadID)}
	if cp.Parent != nil {
		seen.parent = *cp.Parent
	}
	if len(cp.Conversation) == 1 {
		_ = json.Unmarshal(cp.Conversation[0], &seen.content) // stays -1 if it is no number
	}
	return seen
}
