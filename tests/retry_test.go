package tests

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
)

// sameCheckpoint compares what two replies say about a checkpoint; phases are
// those of the work that one reply took.
func sameCheckpoint(t *testing.T, what string, a, b checkpoint) {
	t.Helper()
	a.Coverage.Phases, b.Coverage.Phases = nil, nil
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("%s (-first +retry):\n%s", what, diff)
	}
}

func TestRetriesAreAnsweredWithWhatIsThere(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	b.file("file", []byte("first"), 0o644)
	s.attach("t", "work")
	s.putArtifact("t", "art", "bytes")
	save := object{"threadId": "t", "runId": "r", "label": "l", "checkpointId": "c1"}
	first := ok[checkpoint](s.client, "snapshot.save", save)
	b.file("file", []byte("second"), 0o644)
	sameCheckpoint(t, "save", first, ok[checkpoint](s.client, "snapshot.save", save))
	s.save("t", "r2")
	sameCheckpoint(t, "save below the head", first, ok[checkpoint](s.client, "snapshot.save", save))

	fork := object{"threadId": "t", "checkpointId": "c1", "destinationThreadId": "branch", "destinationCheckpointId": "root", "createdAt": 7}
	root := ok[checkpoint](s.client, "fork", fork)
	sameCheckpoint(t, "fork", root, ok[checkpoint](s.client, "fork", fork))
	delete(fork, "checkpointId")
	sameCheckpoint(t, "fork of the head", root, ok[checkpoint](s.client, "fork", fork))
	fork["checkpointId"] = s.head("t")
	refused(s.client, "fork", fork, fullCode("FORK_DESTINATION_NOT_EMPTY"))
	if got := s.chain("t"); len(got) != 2 || got[0] != "c1" {
		t.Errorf("chain is %q", got)
	}
	if root.CreatedAt != 7 || len(root.Artifacts) != 1 {
		t.Errorf("fork root is %+v", root)
	}
}

// A client that gave up waiting asks again while the first request is at work.
func TestEqualRequestsAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "work")).code(60)
	s.attach("t", "work")
	root := s.save("t", "r0")
	var replies []<-chan *nats.Msg
	for i := range 12 {
		subject, body := "snapshot.save", object{"threadId": "t", "runId": "r", "checkpointId": "c", "waitMs": 30_000}
		if i%2 == 1 {
			subject, body = "fork", object{"threadId": "t", "checkpointId": root.ID, "destinationThreadId": "branch", "destinationCheckpointId": "root", "waitMs": 30_000}
		}
		replies = append(replies, s.replyTo(subject, body))
	}
	for i, ch := range replies {
		msg := await(t, ch)
		if f := decodeFailure(t, msg); f != nil {
			t.Errorf("request %d: %s: %s", i, f.Code, f.Message)
		}
	}
	if got := s.chain("t"); len(got) != 2 || got[1] != "c" {
		t.Errorf("chain is %q", got)
	}
	if got := s.chain("branch"); !slices.Equal(got, []string{"root"}) {
		t.Errorf("branch is %q", got)
	}
}

// Saves of one thread come one after the other; none is lost or doubled.
func TestSavesOfOneThreadAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "work")).file("file", []byte("x"), 0o644)
	s.attach("t", "work")
	var replies []<-chan *nats.Msg
	for i := range 24 {
		replies = append(replies, s.replyTo("snapshot.save", object{"threadId": "t", "runId": fmt.Sprint("r", i), "waitMs": 50_000}))
	}
	var made []string
	for _, ch := range replies {
		msg := await(t, ch)
		switch f := decodeFailure(t, msg); {
		case f == nil:
			var cp checkpoint
			decodeStrict(t, msg.Data, &cp)
			made = append(made, cp.ID)
		case !f.Retryable:
			t.Errorf("%s: %s", f.Code, f.Message)
		}
	}
	got := s.chain("t")
	slices.Sort(made)
	slices.Sort(got)
	if diff := cmp.Diff(made, got); diff != "" || len(got) == 0 {
		t.Errorf("acknowledged and stored (-acknowledged +stored):\n%s", diff)
	}
}

// A record that somebody else writes at the same time is no reason to fail.
func TestSaveWhileItsRecordIsWritten(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "work")).file("file", []byte("x"), 0o644)
	at := s.attach("t", "work")
	record := object{"key": at.Key, "provider": "local", "providerSandboxId": "n1/work", "threadId": "t", "updatedAt": at.Record.UpdatedAt}
	body := encode(t, object{"record": record})
	meanwhile(t, func(int) { try(s.nc.Request("sandbox.instance.upsert", body, patience)) })
	for i := range 60 {
		s.save("t", fmt.Sprint(i))
	}
}

// A save that runs out of time leaves no lease behind.
func TestTimeout(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	b.file("big", b.noise(32<<20), 0o644)
	s.attach("t", "work")
	f := refused(s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "timeoutMs": 20}, "SANDBOX_TIMEOUT")
	if !f.Retryable {
		t.Errorf("%+v", f)
	}
	if head := s.head("t"); head != "" {
		t.Errorf("head is %q", head)
	}
	s.save("t", "r")
	refused(s.client, "restore", object{"threadId": "t", "path": "out", "timeoutMs": 10}, "SANDBOX_TIMEOUT")
	if left := readTree(t, s.restored); len(left) != 0 {
		t.Errorf("the restore left %v", left)
	}
}
