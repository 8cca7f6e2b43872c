package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// tally is what the clients of a cluster met.
type tally struct {
	acknowledged, resolved, retried, silent, taken atomic.Int64
	mu                                             sync.Mutex          // guards the rest
	chains                                         map[string][]string // ids acknowledged, by thread
	codes                                          map[string]int
}

func (y *tally) met(code string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.codes[code]++
}

func (y *tally) acked(thread, id string) {
	y.acknowledged.Add(1)
	y.mu.Lock()
	defer y.mu.Unlock()
	y.chains[thread] = append(y.chains[thread], id)
}

// persistent goes on at another server when its own dies.
func (c *cluster) persistent() *nats.Conn {
	c.t.Helper()
	nc, err := nats.Connect(c.urls, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.Timeout(2*time.Second))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(nc.Close)
	return nc
}

// requester sends until there is an answer that another try would not change.
type requester struct {
	*tally
	nc *nats.Conn
}

var errGivenUp = errors.New("no answer in time")

func (r requester) once(ctx context.Context, subject string, body any, into any) (*failure, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	msg, err := r.nc.RequestWithContext(limited, "sandbox."+subject, raw)
	if err != nil {
		r.silent.Add(1)
		return &failure{Code: "no reply", Message: err.Error(), Retryable: true}, nil
	}
	if msg.Header.Get("Nats-Service-Error-Code") == "" {
		return nil, json.Unmarshal(msg.Data, into)
	}
	var b struct{ Error *failure }
	if err := json.Unmarshal(msg.Data, &b); err != nil || b.Error == nil {
		return nil, fmt.Errorf("reply %.300q: %w", msg.Data, err)
	}
	r.met(b.Error.Code)
	return b.Error, nil
}

// persist sends the same request again while that is said to help.
func (r requester) persist(ctx context.Context, subject string, body any, into any) (*failure, error) {
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; {
		f, err := r.once(ctx, subject, body, into)
		if f == nil || !f.Retryable {
			return f, err
		}
		r.retried.Add(1)
		time.Sleep(20 * time.Millisecond) // not to flood a cluster without a leader
	}
	return nil, fmt.Errorf("%s %v: %w", subject, body, errGivenUp)
}

// append brings one checkpoint into the thread, by a lease of its own.
func (r requester) append(ctx context.Context, thread, id string) error {
	for {
		var got checkpointOrNull
		if f, err := r.persist(ctx, "checkpoint.get", object{"checkpointId": id}, &got); f != nil || err != nil {
			return fmt.Errorf("read back %s: %+v, %w", id, f, err)
		}
		if got.Checkpoint != nil { // an attempt without an answer had landed
			r.resolved.Add(1)
			r.acked(thread, id)
			return nil
		}
		done, err := r.attempt(ctx, thread, id)
		if done {
			r.acked(thread, id)
		}
		if done || err != nil {
			return err
		}
	}
}

func (r requester) attempt(ctx context.Context, thread, id string) (done bool, err error) {
	var lease struct {
		Writer
		ExpiresAt, RenewAfterMs float64
	}
	f, err := r.persist(ctx, "writer.acquire", object{"threadId": thread, "leaseDurationMs": 5000, "waitMs": 10_000}, &lease)
	if f != nil || err != nil {
		return false, fmt.Errorf("acquire: %+v, %w", f, err)
	}
	defer func() {
		var none empty
		_, _ = r.once(ctx, "writer.release", lease.Writer, &none) // or it ends by itself
	}()
	var head headOf
	if f, err := r.persist(ctx, "checkpoint.head", object{"threadId": thread}, &head); f != nil || err != nil {
		return false, fmt.Errorf("head: %+v, %w", f, err)
	}
	cp := object{"id": id, "threadId": thread, "parentCheckpointId": head.CheckpointID, "createdAt": time.Now().UnixMilli(), "reason": "automatic",
		"files": []int{}, "conversation": []string{id}, "artifacts": []int{}}
	var appended struct{ HeadID string }
	f, err = r.once(ctx, "checkpoint.append", object{"checkpoint": cp, "expectedHeadId": head.CheckpointID, "writer": lease.Writer}, &appended)
	switch {
	case err != nil:
		return false, err
	case f == nil && appended.HeadID != id:
		return false, fmt.Errorf("append %s: the head is %q", id, appended.HeadID)
	case f == nil:
		return true, nil
	case !f.Retryable && !slices.Contains([]string{fullCode("WRITER_LOST"), fullCode("STALE_HEAD"), fullCode("DUPLICATE_ID")}, f.Code):
		return false, fmt.Errorf("append %s: %+v", id, f)
	}
	r.taken.Add(1)
	return false, nil // read back, and again
}

// Under load the leader of the state dies again and again. Each acknowledged
// append and save is in the chain, once, and nothing else is.
func TestLeaderDiesUnderLoad(t *testing.T) {
	t.Parallel()
	kills, threads := 1, []string{"one", "two", "three"}
	if *long {
		kills = 10
	}
	c := startCluster(t)
	c.nc = c.persistent()
	for range 2 {
		c.worker("--lease", "10s")
	}
	build(t, c.sandbox(t, "work")).code(20)
	c.attach("saved", "work")
	y := &tally{chains: map[string][]string{}, codes: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	load, running := errgroup.WithContext(ctx)
	var over atomic.Bool
	for i := range 8 {
		r := requester{y, c.persistent()}
		load.Go(func() error {
			for k := 0; !over.Load(); k++ {
				if err := r.append(running, threads[i%len(threads)], fmt.Sprintf("c%d-%d", i, k)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	r := requester{y, c.persistent()}
	load.Go(func() error { return r.saves(running, &over) })
	c.killLeaders(running, y, kills)
	over.Store(true)
	if err := load.Wait(); err != nil {
		t.Fatal(err)
	}
	for thread, acknowledged := range y.chains {
		chain := c.chain(thread)
		slices.Sort(acknowledged)
		if slices.Sort(chain); !slices.Equal(chain, acknowledged) {
			t.Errorf("thread %s has %q, acknowledged were %q", thread, chain, acknowledged)
		}
	}
	t.Logf("%d kills, %d acknowledged (%d found by reading back), %d sent again, %d without a reply, %d attempts failed, codes %v",
		kills, y.acknowledged.Load(), y.resolved.Load(), y.retried.Load(), y.silent.Load(), y.taken.Load(), y.codes)
}

// saves saves one checkpoint after the other.
func (r requester) saves(ctx context.Context, over *atomic.Bool) error {
	for k := 0; !over.Load(); k++ {
		id := fmt.Sprint("save", k)
		save := object{"threadId": "saved", "runId": "r", "checkpointId": id, "waitMs": 15_000}
		for {
			var cp checkpoint
			f, err := r.persist(ctx, "snapshot.save", save, &cp)
			if err != nil {
				return err
			}
			if f == nil {
				r.acked("saved", id)
				break
			}
			if f.Code != fullCode("WRITER_LOST") { // its lease ended while there was no leader
				return fmt.Errorf("save %s: %+v", id, f)
			}
		}
	}
	return nil
}

// killLeaders kills whoever leads the state and starts it again, each time
// after some progress.
func (c *cluster) killLeaders(ctx context.Context, y *tally, kills int) {
	c.t.Helper()
	progress := func() {
		from := y.acknowledged.Load()
		eventually(c.t, "appends", func() bool { return y.acknowledged.Load() >= from+15 || ctx.Err() != nil })
	}
	for range kills {
		progress()
		victim := c.leader("KV_sandbox-state")
		victim.proc.kill()
		progress() // by the two that are left
		victim.proc = start(c.t, embeddedProgram, victim.args...)
		victim.proc.logged("ready")
	}
	progress()
}
