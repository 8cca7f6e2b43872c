package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
)

// silent listens on all subjects of the prefix "silent" and answers nothing.
func (m *machine) silent() *nats.Subscription {
	m.t.Helper()
	l, err := agent.Dial(m.common(), bus.ConnectOptions{Timeout: time.Minute})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(l.Conn.Close)
	sub, err := l.Conn.SubscribeSync("silent.>")
	if err == nil {
		err = l.Conn.Flush()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return sub
}

func TestNoReply(t *testing.T) {
	m := newMachine(t).start()
	m.silent()
	out := m.want(6, "--timeout, which is 2s", "save", "t", "--id", "c1", "--prefix", "silent", "--timeout", "2s", "--json")
	var reply struct {
		Error struct{ Details map[string]any }
	}
	if err := json.Unmarshal([]byte(out), &reply); err != nil || reply.Error.Details == nil {
		t.Errorf("with --json: %v, %s", err, out)
	}
	l, err := agent.Dial(m.common(), bus.ConnectOptions{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Conn.Close()
	common := m.common()
	common.Prefix = "silent"
	k := newCaller(l, common, agent.IO{}, false, 20*time.Millisecond)
	for _, tc := range []struct{ subject, request, want string }{
		{"snapshot.save", `{"threadId": "t 1", "checkpointId": "c1"}`, "`agent log 't 1'` shows whether it was done, look for checkpoint c1 ("},
		{"snapshot.save", `{"threadId": "t"}`, "`agent log t` shows whether it was done ("},
		{"fork", `{"threadId": "t", "destinationThreadId": "u", "destinationCheckpointId": "u1"}`, "`agent head u` shows whether it was done, look for checkpoint u1 ("},
		{"restore", `{"threadId": "t", "path": "out"}`, "look whether out is there ("},
		{"restore", `{"threadId": "t", "path": "out", "mode": "exact"}`, "; the same restore again makes it whole ("},
		{"thread.save", `{"threadId": "it's"}`, "`agent thread load 'it'\\''s'`"},
		{"new.subject", `no JSON`, "; look whether it was done"},
		{"checkpoint.head", `{"threadId": "t"}`, "--timeout, which is 20ms, makes it wait longer ("},
	} {
		_, err := k.send(t.Context(), k.Subject(tc.subject), []byte(tc.request))
		if text := agent.Sentence(err); !strings.Contains(text, tc.want) || !strings.Contains(text, "--timeout, which is 20ms") {
			t.Errorf("%s: %s, want %s", tc.subject, text, tc.want)
		}
	}
}

func TestInterrupted(t *testing.T) {
	m := newMachine(t).start()
	sub := m.silent()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"save", "t", "--id", "c1"}, "agent: interrupted; the worker may still finish silent.snapshot.save: `agent log t` shows whether it was done, look for checkpoint c1"},
		{[]string{"log", "t"}, "agent: interrupted\n"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		asked := make(chan error, 1)
		go func() {
			_, err := sub.NextMsg(10 * time.Second)
			cancel()
			asked <- err
		}()
		var out, log bytes.Buffer
		program := agent.Program{Name: "agent", CLI: &cli{}}
		code := program.Run(ctx, agent.IO{In: strings.NewReader(""), Out: &out, Err: &log}, append(tc.args, "--prefix", "silent"))
		if err := <-asked; err != nil {
			t.Fatalf("the request of %q: %v", tc.args, err)
		}
		if code != agent.ExitInterrupted || !strings.HasPrefix(log.String(), tc.want) {
			t.Errorf("%q: exit code %d, %s", tc.args, code, log.String())
		}
	}
}

// Without a worker there is nothing to suggest.
func TestNoWorker(t *testing.T) {
	m := newMachine(t)
	m.server()
	m.want(6, "start one with `agent serve`", "head", "t")
	m.want(6, `"details":{}`, "--json", "head", "t")
}

func TestNearest(t *testing.T) {
	names := []string{"sandbox.fork", "sandbox.restore", "sandbox.checkpoint.head"}
	for name, want := range map[string]string{"sandbox.frok": names[0], "sandbox.restor": names[1], "checkpoint.head": names[2], "": names[0]} {
		if got := nearest(name, names); got != want {
			t.Errorf("nearest(%q) = %q, want %q", name, got, want)
		}
	}
	if nearest("x", nil) != "" || distance("", "abc") != 3 || distance("kitten", "sitting") != 3 {
		t.Error("the distance is not that of Levenshtein")
	}
}
