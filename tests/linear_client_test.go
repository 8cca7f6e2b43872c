package tests

import (
	"fmt"
	"math/rand/v2"

	"github.com/nats-io/nats.go"
)

// linClient sends one request at a time.
type linClient struct {
	b    *linBench
	nc   *nats.Conn
	rand *rand.Rand
}

// linMix is how often clients do what.
var linMix = []struct {
	weight int
	act    func(c *linClient, g *linGroup)
}{
	{12, (*linClient).readHead}, {12, (*linClient).get}, {10, (*linClient).list}, {24, (*linClient).append}, {16, (*linClient).deleteHead},
	{7, (*linClient).fork}, {7, (*linClient).forkHeld}, {10, (*linClient).acquire}, {2, (*linClient).renew}, {4, (*linClient).release},
}

// act does something to the group.
func (c *linClient) act(g *linGroup) {
	total := 0
	for _, m := range linMix {
		total += m.weight
	}
	n := c.rand.IntN(total)
	for _, m := range linMix {
		if n -= m.weight; n < 0 {
			m.act(c, g)
			return
		}
	}
}

func (c *linClient) thread() int { return c.rand.IntN(linThreads) }

func (c *linClient) anyID(g *linGroup) string { return g.id(c.rand.IntN(linIDs)) }

// likely is a thread that was seen with a head, or without one.
func (c *linClient) likely(g *linGroup, headed bool) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := c.thread()
	for i := range linThreads {
		if t := (first + i) % linThreads; (g.heads[t] != "") == headed {
			return t
		}
	}
	return first
}

// headOf is mostly the head that was seen last.
func (c *linClient) headOf(g *linGroup, thread int) string {
	if c.rand.IntN(10) == 0 {
		return c.anyID(g)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.heads[thread]
}

// writer is mostly the newest, whoever acquired it; false if there was none.
func (c *linClient) writer(g *linGroup, thread int) (linWriter, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.writers[thread]
	if len(all) == 0 {
		return linWriter{}, false
	}
	if c.rand.IntN(12) == 0 {
		return all[c.rand.IntN(len(all))], true
	}
	return all[len(all)-1], true
}

// twice sends a request, and some of them again; those with an unknown outcome
// more often.
func (c *linClient) twice(g *linGroup, op linOp, body object) {
	r := c.send(g, op, body)
	if odds := c.rand.IntN(20); odds == 0 || r.code == pending && odds < 10 {
		r = c.send(g, op, body)
	}
	c.learn(g, op, r)
}

// learn keeps what a reply says about the head of the thread.
func (c *linClient) learn(g *linGroup, op linOp, r linReply) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case r.code == "" && (op.kind == "fork" || op.kind == "checkpoint.fork"):
		g.heads[op.thread] = r.seen[0].id
	case r.code == "" || r.code == fullCode("STALE_HEAD") || r.code == fullCode("NOT_HEAD"):
		g.heads[op.thread] = r.head
	}
}

func (c *linClient) readHead(g *linGroup) {
	op := linOp{kind: "checkpoint.head", thread: c.thread()}
	c.learn(g, op, c.send(g, op, object{"threadId": g.threadID(op.thread)}))
}

func (c *linClient) get(g *linGroup) {
	op := linOp{kind: "checkpoint.get", id: c.headOf(g, c.likely(g, true))}
	if op.id == "" {
		op.id = c.anyID(g)
	}
	c.send(g, op, object{"checkpointId": op.id, "include": []string{"conversation"}})
}

func (c *linClient) list(g *linGroup) {
	op := linOp{kind: "checkpoint.list", thread: c.thread()}
	c.send(g, op, object{"threadId": g.threadID(op.thread), "include": []string{"conversation"}})
}

func (c *linClient) append(g *linGroup) {
	thread := c.thread()
	w, found := c.writer(g, thread)
	if !found {
		c.acquire(g)
		return
	}
	op := linOp{kind: "checkpoint.append", thread: thread, id: c.anyID(g), expected: c.headOf(g, thread), fence: w.Fence, mark: c.b.marks.Add(1)}
	c.twice(g, op, object{"checkpoint": object{"id": op.id, "threadId": g.threadID(thread), "parentCheckpointId": nullable(op.expected),
		"createdAt": op.mark, "reason": "named", "label": fmt.Sprint(op.mark), "files": []any{}, "conversation": []any{op.mark}, "artifacts": []any{}},
		"expectedHeadId": nullable(op.expected), "writer": w, "requireBlobs": false})
}

func nullable(id string) any {
	if id == "" {
		return nil
	}
	return id
}

func (c *linClient) deleteHead(g *linGroup) {
	thread := c.thread()
	w, found := c.writer(g, thread)
	op := linOp{kind: "checkpoint.delete-head", thread: thread, id: c.headOf(g, thread), fence: w.Fence}
	if !found || op.id == "" {
		c.readHead(g)
		return
	}
	c.learn(g, op, c.send(g, op, object{"threadId": g.threadID(thread), "checkpointId": op.id, "writer": w}))
}

// copying is a fork of about any checkpoint into another thread.
func (c *linClient) copying(g *linGroup, kind string) linOp {
	op := linOp{kind: kind, source: c.likely(g, true), thread: c.likely(g, false), id: c.anyID(g), mark: c.b.marks.Add(1)}
	if op.thread == op.source {
		op.thread = (op.source + 1 + c.rand.IntN(linThreads-1)) % linThreads
	}
	if op.expected = c.headOf(g, op.source); op.expected == "" || c.rand.IntN(4) == 0 {
		op.expected = c.anyID(g)
	}
	if kind == "fork" && c.rand.IntN(3) == 0 {
		op.expected = "" // whatever is the head
	}
	return op
}

func (c *linClient) fork(g *linGroup) {
	op := c.copying(g, "fork")
	c.twice(g, op, object{"threadId": g.threadID(op.source), "checkpointId": nullable(op.expected), "destinationThreadId": g.threadID(op.thread),
		"destinationCheckpointId": op.id, "createdAt": op.mark, "waitMs": c.wait(), "include": []string{"conversation"}})
}

func (c *linClient) forkHeld(g *linGroup) {
	op := c.copying(g, "checkpoint.fork")
	w, found := c.writer(g, op.thread)
	if !found {
		c.acquire(g)
		return
	}
	op.fence = w.Fence
	c.twice(g, op, object{"sourceThreadId": g.threadID(op.source), "sourceCheckpointId": op.expected, "destinationThreadId": g.threadID(op.thread),
		"destinationCheckpointId": op.id, "createdAt": op.mark, "writer": w, "include": []string{"conversation"}})
}

// wait is short, with few exceptions that outlast a lease.
func (c *linClient) wait() int {
	switch n := c.rand.IntN(100); {
	case n < 60:
		return 0
	case n < 99:
		return c.rand.IntN(50)
	}
	return int(linLease.Milliseconds()) + 500
}

func (c *linClient) acquire(g *linGroup) {
	op := linOp{kind: "writer.acquire", thread: c.rand.IntN(8*(linThreads-1)+1) / 8} // rarely the last: forks find it absent
	r := c.send(g, op, object{"threadId": g.threadID(op.thread), "leaseDurationMs": linLease.Milliseconds(), "waitMs": c.wait()})
	if r.code != "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writers[op.thread] = append(g.writers[op.thread], linWriter{g.threadID(op.thread), r.token, r.fence})
}

func (c *linClient) renew(g *linGroup)   { c.useWriter(g, "writer.renew") }
func (c *linClient) release(g *linGroup) { c.useWriter(g, "writer.release") }

func (c *linClient) useWriter(g *linGroup, kind string) {
	op := linOp{kind: kind, thread: c.thread()}
	if w, found := c.writer(g, op.thread); found {
		op.fence = w.Fence
		c.send(g, op, w)
	}
}
