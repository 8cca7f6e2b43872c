package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// Any worker takes a request; the one on the sandbox's node does it.
func TestWorkersOfTwoNodes(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	far := newNode(t, "far")
	w := s.worker(far)
	build(t, far.sandbox(t, "box")).file("file", []byte("on far"), 0o644)
	at := ok[attached](s.client, "instance.attach", object{"threadId": "t", "name": "box", "node": "far"})
	if at.Record.ProviderSandboxID != "far/box" {
		t.Errorf("attached %+v", at)
	}
	for i := range 30 {
		s.save("t", fmt.Sprint("r", i))
	}
	if n := len(s.chain("t")); n != 30 {
		t.Errorf("%d checkpoints", n)
	}
	for i, name := range []string{"far", "n1", "far"} {
		path := fmt.Sprint("out", i)
		got := ok[restored](s.client, "restore", object{"threadId": "t", "path": path, "node": name})
		n := map[string]node{"far": far, "n1": s.node}[name]
		if text, err := os.ReadFile(filepath.Join(n.restored, path, "file")); err != nil || string(text) != "on far" || got.Node != name {
			t.Errorf("restore on %s: %+v, %q, %v", name, got, text, err)
		}
	}
	for _, name := range []string{"n1", "far"} {
		got := ok[restored](s.client, "restore", object{"threadId": "t", "path": "moved", "node": name, "into": "sandbox"})
		if got.Key != at.Key {
			t.Errorf("restored under the key %q, attached under %q", got.Key, at.Key)
		}
		rec := ok[instanceOrNull](s.client, "instance.get", object{"key": at.Key}).Record
		if rec.ProviderSandboxID != name+"/moved" {
			t.Errorf("the record is %+v", rec)
		}
		s.save("t", "after the move to "+name)
	}
	// Errors come through as they are.
	refused(s.client, "restore", object{"threadId": "t", "path": "moved", "node": "far", "into": "sandbox"}, fullCode("DESTINATION_NOT_EMPTY"))
	w.stop()
	for range 3 {
		f := refused(s.client, "snapshot.save", object{"threadId": "t", "runId": "r"}, "SANDBOX_NODE_UNREACHABLE")
		if f.Details["node"] != "far" || !f.Retryable {
			t.Errorf("%+v", f)
		}
	}
	s.worker(far)
	s.save("t", "after the node is back")
}

// A retry of a save whose checkpoint is stored needs no sandbox.
func TestRetryWhileTheNodeIsAway(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	far := newNode(t, "far")
	w := s.worker(far)
	build(t, far.sandbox(t, "box")).file("file", []byte("x"), 0o644)
	ok[attached](s.client, "instance.attach", object{"threadId": "t", "name": "box", "node": "far"})
	save := object{"threadId": "t", "runId": "r", "checkpointId": "c"}
	first := ok[checkpoint](s.client, "snapshot.save", save)
	w.stop()
	sameCheckpoint(t, "save", first, ok[checkpoint](s.client, "snapshot.save", save))
}

// Workers of one node name share its roots, and the load.
func TestTwoWorkersOfOneNode(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--no-agent")
	first, second := s.worker(s.node), s.worker(s.node)
	build(t, s.sandbox(t, "box")).code(20)
	s.attach("t", "box")
	var replies []<-chan *nats.Msg
	for i := range 10 {
		replies = append(replies, s.replyTo("snapshot.save", object{"threadId": "t", "runId": fmt.Sprint(i), "waitMs": 30_000}))
	}
	for _, ch := range replies {
		if f := decodeFailure(t, await(t, ch)); f != nil {
			t.Errorf("%s: %s", f.Code, f.Message)
		}
	}
	first.stop()
	s.save("t", "one left")
	if n := len(s.chain("t")); n != 11 {
		t.Errorf("%d checkpoints", n)
	}
	second.stop()
}

// Node names are identifiers like all others.
func TestNodesOfAnyName(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for i, name := range []string{"a b.*>", "x/y", strings.Repeat("\U0001f9ea", 125)} {
		n := newNode(t, name)
		build(t, n.sandbox(t, "box")).file("file", []byte("x"), 0o644)
		w := s.worker(n)
		th := fmt.Sprint("t", i)
		at := ok[attached](s.client, "instance.attach", object{"threadId": th, "name": "box", "node": name})
		if at.Record.ProviderSandboxID != name+"/box" {
			t.Errorf("attached %+v", at)
		}
		s.save(th, "r")
		ok[restored](s.client, "restore", object{"threadId": th, "path": "out", "node": name})
		w.stop()
	}
}
