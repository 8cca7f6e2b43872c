package tests

import (
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// Everything that a store does, kept three times and done by two workers.
func TestSubjectsOnThreeReplicas(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for range 2 {
		c.worker()
	}
	for stream := range c.storeSize() {
		if info, err := c.js().Stream(c.ctx(), stream); err != nil || info.CachedInfo().Config.Replicas != 3 {
			t.Errorf("stream %s: %v, %+v", stream, err, info)
		}
	}
	dir := c.sandbox(t, "work")
	b := build(t, dir)
	b.code(50)
	c.attach("t", "work")
	c.putArtifact("t", "art", "bytes")
	ok[revision](c.client, "thread.save", object{"threadId": "t", "messages": []string{"said"}})
	first := c.save("t", "r1")
	b.file("more", b.noise(1<<20), 0o644)
	second := c.save("t", "r2")
	ok[checkpoint](c.client, "fork", object{"threadId": "t", "checkpointId": first.ID, "destinationThreadId": "branch"})
	ok[restored](c.client, "restore", object{"threadId": "t", "path": "out"})
	sameTree(t, "restore", readTree(t, dir), readTree(t, filepath.Join(c.restored, "out")))
	got := ok[artifactData](c.client, "artifact.read", object{"threadId": "t", "checkpointId": second.ID, "artifactId": "art"})
	if string(*got.Data) != "bytes" {
		t.Errorf("the artifact is %q", *got.Data)
	}
	c.byHand()
	if n := ok[deleted](c.client, "thread.delete", object{"threadId": "t"}).Checkpoints; n != 2 {
		t.Errorf("%d checkpoints deleted", n)
	}
	refused(c.client, "writer.acquire", object{"threadId": "t"}, "SANDBOX_THREAD_DELETED")
	if n := len(c.chain("branch")); n != 1 {
		t.Errorf("the branch has %d checkpoints", n)
	}
	within(t, eventPatience, "the event of the deleted thread", func() bool {
		msg, err := c.lastEvent("sandbox.event.thread.t")
		return err == nil && string(msg.Data) == string(c.record("thread.t"))
	})
}

func (c client) lastEvent(subject string) (*jetstream.RawStreamMsg, error) {
	stream, err := c.js().Stream(c.ctx(), "sandbox-events")
	if err != nil {
		return nil, err
	}
	return stream.GetLastMsgForSubject(c.ctx(), subject)
}

// byHand does what clients do that capture checkpoints themselves.
func (c client) byHand() {
	c.t.Helper()
	w := ok[held](c, "writer.acquire", object{"threadId": "hand", "leaseDurationMs": 30_000})
	refused(c, "writer.acquire", object{"threadId": "hand"}, fullCode("WRITER_CONFLICT"))
	var head any
	for _, id := range []string{"h1", "h2"} {
		cp := object{"id": id, "threadId": "hand", "parentCheckpointId": head, "createdAt": 1, "reason": "automatic", "files": []int{}, "conversation": []string{id}, "artifacts": []int{}}
		body := object{"checkpoint": cp, "expectedHeadId": head, "writer": w.Writer}
		for range 2 { // also as a retry
			ok[headAfter](c, "checkpoint.append", body)
		}
		head = id
	}
	ok[renewal](c, "writer.renew", w.Writer)
	if got := ok[headAfter](c, "checkpoint.delete-head", object{"threadId": "hand", "checkpointId": "h2", "writer": w.Writer}); deref(got.HeadID) != "h1" {
		c.t.Errorf("the head is %q", deref(got.HeadID))
	}
	ok[empty](c, "writer.release", w.Writer)
	refused(c, "checkpoint.delete-head", object{"threadId": "hand", "checkpointId": "h1", "writer": w.Writer}, fullCode("WRITER_LOST"))
	if chain := c.chain("hand"); len(chain) != 1 {
		c.t.Errorf("the chain is %q", chain)
	}
	l := ok[held](c, "lock.acquire", object{"name": "l"})
	refused(c, "lock.acquire", object{"name": "l"}, "SANDBOX_LOCK_CONFLICT")
	lock := object{"name": "l", "ownerToken": l.OwnerToken, "fence": l.Fence}
	ok[renewal](c, "lock.renew", lock)
	ok[empty](c, "lock.release", lock)
	refused(c, "lock.renew", lock, "SANDBOX_LOCK_LOST")
}

type (
	headAfter struct {
		HeadID *string `json:"headId"`
	}
	renewal struct {
		ExpiresAt float64 `json:"expiresAt"`
	}
)
