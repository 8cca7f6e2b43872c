package agent_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
)

// A server that has yet to make a stream may be the first to say what it knows
// of it, nothing. A worker that starts then does not take it for the truth.
func TestServe_ServerThatLagsBehind(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	initStore(t, s, dir)
	link, err := agent.Dial(common(dir), bus.ConnectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Conn.Close)
	var lagging sync.Map // streams that were asked for once
	_, err = s.Conn.Subscribe("LAG.API.>", func(m *nats.Msg) {
		api := strings.TrimPrefix(m.Subject, "LAG.API.")
		if _, again := lagging.LoadOrStore(api, true); !again && strings.HasPrefix(api, "STREAM.INFO.") {
			_ = m.Respond([]byte(`{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`))
			return
		}
		_ = s.Conn.PublishRequest("$JS.API."+api, m.Reply, m.Data)
	})
	if err != nil {
		t.Fatal(err)
	}
	if link.JS, err = jetstream.NewWithAPIPrefix(link.Conn, "LAG.API"); err != nil {
		t.Fatal(err)
	}
	setup, err := agent.NewSetup(common(dir), worker(), &lines{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := setup.Start(t.Context(), link)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
