package tests

import (
	"encoding/json"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// inFlight is how many requests an endpoint of the one worker has at work.
func (c client) inFlight(endpoint string) int64 {
	c.t.Helper()
	msg, err := c.nc.Request("$SRV.STATS.sandbox", nil, patience)
	if err != nil {
		c.t.Fatal(err)
	}
	var stats micro.Stats
	if err := json.Unmarshal(msg.Data, &stats); err != nil {
		c.t.Fatal(err)
	}
	i := slices.IndexFunc(stats.Endpoints, func(e *micro.EndpointStats) bool { return e.Name == endpoint })
	var data struct{ InFlight int64 }
	if err := json.Unmarshal(stats.Endpoints[i].Data, &data); err != nil {
		c.t.Fatal(err)
	}
	return data.InFlight
}

// However many saves and forks wait for a lease, its holder's own requests, and
// saves of other threads, get their turn.
func TestWaitsKeepNobodyFromRunning(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, th := range []string{"held", "other"} {
		build(t, s.sandbox(t, th)).code(5)
		s.attach(th, th)
	}
	source := s.save("other", "r0")
	holder := ok[held](s.client, "writer.acquire", object{"threadId": "held", "leaseDurationMs": 300_000})
	const saves, forks = 30, 10 // more than may run at once
	var waiting []<-chan *nats.Msg
	for i := range saves {
		waiting = append(waiting, s.replyTo("snapshot.save", object{"threadId": "held", "runId": fmt.Sprint(i), "checkpointId": "same", "waitMs": 300_000}))
	}
	for range forks {
		waiting = append(waiting, s.replyTo("fork", object{"threadId": "other", "destinationThreadId": "held", "waitMs": 300_000}))
	}
	eventually(t, "the waits", func() bool { return s.inFlight("snapshot-save") == saves && s.inFlight("fork") == forks })
	ok[object](s.client, "checkpoint.append", appendBy(holder.Writer, "by hand", ""))
	if got := s.save("other", "r1"); *got.Parent != source.ID {
		t.Errorf("the parent of the other save is %q", *got.Parent)
	}
	ok[empty](s.client, "writer.release", holder.Writer)
	saved := 0
	for i, reply := range waiting {
		f := decodeFailure(t, await(t, reply))
		switch {
		case f == nil:
			saved++
		case i < saves && f.Code != fullCode("DUPLICATE_ID") || i >= saves && f.Code != fullCode("FORK_DESTINATION_NOT_EMPTY"):
			t.Errorf("request %d: %+v", i, f)
		}
	}
	if chain := s.chain("held"); saved != 1 || fmt.Sprint(chain) != "[by hand same]" {
		t.Errorf("%d were saved, the chain is %q", saved, chain)
	}
}

// A request that a stopping worker gives up is told so, and leaves nothing behind.
func TestStoppedWorkerCancels(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--no-agent")
	w := s.worker(s.node, "--drain", "0s")
	build(t, s.sandbox(t, "work")).code(5)
	s.attach("t", "work")
	holder := ok[held](s.client, "writer.acquire", object{"threadId": "t", "leaseDurationMs": 300_000})
	save := object{"threadId": "t", "runId": "r", "checkpointId": "c", "waitMs": 300_000}
	reply := s.replyTo("snapshot.save", save)
	eventually(t, "the save", func() bool { return s.inFlight("snapshot-save") == 1 })
	w.signal(syscall.SIGTERM)
	if f := decodeFailure(t, await(t, reply)); f == nil || f.Code != "SANDBOX_CANCELED" || !f.Retryable {
		t.Errorf("the save was answered with %+v", f)
	}
	if code := w.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	s.worker(s.node)
	if head := s.head("t"); head != "" {
		t.Errorf("the head is %q", head)
	}
	ok[empty](s.client, "writer.release", holder.Writer)
	ok[checkpoint](s.client, "snapshot.save", save)
}
