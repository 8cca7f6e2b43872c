package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

const far snapshot.NodeName = "far node.*>é"

// onNode is a domain that counts what it runs and says where saves belong.
func onNode(ran *atomic.Int32, savesGoTo snapshot.NodeName) *service {
	return &service{
		node: func(snapshot.SaveRequest) (snapshot.NodeName, error) { return savesGoTo, nil },
		save: func(ctx context.Context, r snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
			ran.Add(1)
			switch r.ThreadID {
			case "bad":
				return nil, nil, snapshot.Errorf(snapshot.StaleHead, "moved").With("actualHead", "c9")
			case "slow":
				<-ctx.Done()
				return nil, nil, snapshot.AsError(ctx.Err()).With("checkpointId", "c7")
			}
			return &snapshot.Checkpoint{ID: "c", Conversation: snapshot.Messages{json.RawMessage(`"\ud800"`)}},
				[]snapshot.Warning{{Code: snapshot.LockLost, Message: "late"}}, nil
		},
		restore: func(_ context.Context, r snapshot.RestoreRequest) (*snapshot.RestoreReply, error) {
			ran.Add(1)
			return &snapshot.RestoreReply{Node: r.Node}, nil
		},
		attach: func(context.Context, snapshot.AttachRequest) (*snapshot.AttachReply, error) {
			ran.Add(1)
			return &snapshot.AttachReply{Key: "k"}, nil
		},
	}
}

// Whichever worker takes a request about a sandbox of the far node, it runs
// there, once, and the reply comes back as it is.
func TestRelay(t *testing.T) {
	var near, away atomic.Int32
	w := newWorld(t, onNode(&near, far))
	const attach, restore = `{"threadId":"t","name":"d","node":"far node.*>é"}`, `{"threadId":"t","path":"p","node":"far node.*>é"}`
	for _, request := range [][2]string{{"instance.attach", attach}, {"restore", restore}, {"snapshot.save", fmt.Sprintf(saveOf, "t")}} {
		_, err := w.ask(t, request[0], request[1])
		if e := asError(t, err); e.Code != snapshot.NodeUnreachable || e.Details["node"] != string(far) {
			t.Errorf("nobody there: %v", err)
		}
	}
	w.serve(t, connect(t, w.server), far, onNode(&away, far))
	const rounds = 10
	for range rounds {
		reply := w.mustAsk(t, "snapshot.save", fmt.Sprintf(saveOf, "t"))
		if !strings.Contains(reply, `"conversation":["\ud800"]`) || !strings.HasSuffix(reply, `"warnings":[{"code":"SANDBOX_LOCK_LOST","message":"late"}]}`) {
			t.Errorf("reply %s", reply)
		}
		_, err := w.ask(t, "snapshot.save", fmt.Sprintf(saveOf, "bad"))
		if e := asError(t, err); e.Code != snapshot.StaleHead || e.Details["actualHead"] != "c9" {
			t.Errorf("error %v", err)
		}
		w.mustAsk(t, "instance.attach", attach)
		w.mustAsk(t, "restore", restore)
	}
	if near.Load() != 0 || away.Load() != 4*rounds {
		t.Errorf("%d ran here, %d there, want all %d there", near.Load(), away.Load(), 4*rounds)
	}
	w.mustAsk(t, "restore", `{"threadId":"t","path":"p"}`) // any node will do
	_, err := w.ask(t, "snapshot.save", `{"threadId":"slow","runId":"r","timeoutMs":50}`)
	if e := asError(t, err); e.Code != snapshot.Timeout || e.Details["checkpointId"] != "c7" {
		t.Errorf("slow is not unreachable, and the far node's word counts: %v", err)
	}
}

// A request that has no room for the headers of a relay says how to send it.
func TestRelay_NoRoom(t *testing.T) {
	var near atomic.Int32
	w := newWorld(t, onNode(&near, far))
	body := fmt.Sprintf(saveOf, "t")
	body += strings.Repeat(" ", int(w.nc.MaxPayload())-len(body))
	if _, err := w.ask(t, "snapshot.save", body); !errors.Is(err, snapshot.PayloadTooLarge) {
		t.Errorf("got %v", err)
	}
}

// Two nodes that each believe the sandbox is at the other's pass a request on
// once.
func TestRelay_OneHop(t *testing.T) {
	var near, away atomic.Int32
	w := newWorld(t, onNode(&near, far))
	w.serve(t, connect(t, w.server), far, onNode(&away, "n1"))
	const rounds = 10
	for range rounds {
		w.mustAsk(t, "snapshot.save", fmt.Sprintf(saveOf, "t"))
	}
	if n := near.Load() + away.Load(); n != rounds {
		t.Errorf("%d requests ran %d times", rounds, n)
	}
}

// Both nodes log a request under one id, which no client chooses.
func TestRelay_LogID(t *testing.T) {
	var near atomic.Int32
	w := newWorld(t, onNode(&near, far))
	other := connect(t, w.server)
	ids := make(chan string, 1)
	_, err := other.Subscribe("sandbox.node."+snapshot.EscapeToken(string(far))+".>", func(m *nats.Msg) {
		ids <- m.Header.Get("Sandbox-Request-Id")
		_ = m.Respond([]byte(`{}`))
	})
	if err := errors.Join(err, other.Flush()); err != nil {
		t.Fatal(err)
	}
	w.mustAsk(t, "snapshot.save", fmt.Sprintf(saveOf, "t"))
	id := <-ids
	if id == "" || strings.Count(w.log.String(), `"req_id":"`+id+`"`) != 1 {
		t.Errorf("the request was passed on as %q: %s", id, w.log)
	}
	for id, hop := range map[string]string{strings.Repeat("a", len(id)): "n2", strings.Repeat("b", len(id)): "", strings.Repeat("c", 5000): "n2"} {
		msg := &nats.Msg{Subject: "sandbox.node.n1.snapshot.save", Data: fmt.Appendf(nil, saveOf, "t"), Header: nats.Header{}}
		msg.Header.Set("Sandbox-Request-Id", id)
		if hop != "" {
			msg.Header.Set("Sandbox-Hop", hop)
		}
		if _, err := other.RequestMsg(msg, time.Minute); err != nil {
			t.Fatal(err)
		}
		if logged := strings.Contains(w.log.String(), id); logged != (id[0] == 'a') {
			t.Errorf("the id %.30q is in the log: %t", id, logged)
		}
	}
}

// A client may ask a node itself.
func TestRelay_NodeSubject(t *testing.T) {
	var near atomic.Int32
	w := newWorld(t, onNode(&near, far))
	w.mustAsk(t, "node.n1.snapshot.save", fmt.Sprintf(saveOf, "t"))
	if near.Load() != 1 {
		t.Error("it did not run here")
	}
	for _, name := range []string{"node.n1.snapshot.delete", "node.n1.node.n1.snapshot.save"} {
		if _, err := w.ask(t, name, `{}`); !errors.Is(err, snapshot.BadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A large request that was passed on takes no room here while the other node is
// at work, so that two nodes that pass many to each other don't wait for each other.
func TestRelay_ClaimsTakeNoRoom(t *testing.T) {
	const most = 3
	var near atomic.Int32
	w := newWorld(t, onNode(&near, far), func(o *bus.Options) { o.Transfer, o.ClaimBytes = newUploads(fmt.Sprintf(saveOf, "t")), 100 })
	asked := make(chan *nats.Msg, most)
	other := connect(t, w.server)
	if _, err := other.ChanSubscribe("sandbox.node."+snapshot.EscapeToken(string(far))+".>", asked); err != nil {
		t.Fatal(err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	const claim = `{"$object":"sandbox-uploads/x"}`
	var replies []<-chan error
	for range most {
		replies = append(replies, w.askLater(t, "snapshot.save", claim))
	}
	eventually(t, "all of them at the other node", func() bool { return len(asked) == most })
	for range most {
		msg := <-asked
		if string(msg.Data) != claim {
			t.Errorf("passed on %s", msg.Data)
		}
		if err := msg.Respond([]byte(`{}`)); err != nil {
			t.Error(err)
		}
	}
	for _, r := range replies {
		if err := <-r; err != nil {
			t.Error(err)
		}
	}
	if lines := strings.Count(w.log.String(), `"thread":"t"`); lines != most {
		t.Errorf("%d lines of the log have the thread, want %d: %s", lines, most, w.log)
	}
}

// A relayed request that gets no reply ends with the request's time.
func TestRelay_DeadNode(t *testing.T) {
	var near atomic.Int32
	w := newWorld(t, onNode(&near, far))
	other := connect(t, w.server)
	asked := make(chan *nats.Msg, 1)
	sub, err := other.ChanSubscribe("sandbox.node."+snapshot.EscapeToken(string(far))+".>", asked)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	done := w.askLater(t, "snapshot.save", `{"threadId":"t","runId":"r","timeoutMs":600000}`)
	msg := <-asked
	if msg.Header.Get("Sandbox-Hop") != "n1" || !strings.HasPrefix(msg.Header.Get("Sandbox-Timeout-Ms"), "59") {
		t.Errorf("headers %v", msg.Header)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.worker.Stop(ctx); err == nil {
		t.Error("the stop waited for a reply that never comes")
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), `"outcome":"unknown"`) {
		t.Errorf("got %v", err)
	}
}
