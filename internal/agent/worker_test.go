package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// ready waits for the line "ready" and returns its fields.
func (l *lines) ready(t *testing.T, count int) map[string]any {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		seen := 0
		for line := range strings.Lines(l.String()) {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == "ready" {
				if seen++; seen == count {
					return fields
				}
			}
		}
		select {
		case <-t.Context().Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
	t.Fatalf("no line %d \"ready\" in:\n%s", count, l)
	return nil
}

func common(dir string) agent.Common {
	return agent.Common{Prefix: "sandbox", Store: "sandbox", StateDir: filepath.Join(dir, "state"), Log: agent.Log{LogLevel: "info", LogFormat: "json"}}
}

func worker() agent.Worker {
	return agent.Worker{Node: "n1", Lease: 30 * time.Second, Drain: 5 * time.Second}
}

func embedded(dir string) agent.Embedded {
	return agent.Embedded{StoreDir: filepath.Join(dir, "store"), AllowTempStore: true, Listen: "127.0.0.1:0", Sync: "interval", Auth: "token"}
}

func startServer(t *testing.T, dir string) *agent.Server {
	t.Helper()
	s, err := agent.StartServer(common(dir), embedded(dir), bus.ConnectOptions{}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func initStore(t *testing.T, s *agent.Server, dir string) {
	t.Helper()
	if err := s.Init(t.Context(), common(dir), embedded(dir), agent.Buckets{}); err != nil {
		t.Fatal(err)
	}
}

func TestServe(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	initStore(t, s, dir)
	log := &lines{}
	setup, err := agent.NewSetup(common(dir), worker(), log)
	if err != nil {
		t.Fatal(err)
	}
	// A worker over TCP finds the server and its token in the state directory.
	link, err := agent.Dial(common(dir), bus.ConnectOptions{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return setup.Serve(ctx, link) })
	if got := log.ready(t, 1); got["url"] != s.URL || got["node"] != "n1" || got["version"] != "0.0.0-dev" ||
		got["sandboxRoot"] != filepath.Join(dir, "state", "sandboxes") || got["restoreRoot"] != filepath.Join(dir, "state", "restored") {
		t.Errorf("ready line = %v, want url %s and the roots", got, s.URL)
	}
	client := bus.NewClient(s.Conn, bus.ClientOptions{JetStream: s.JS})
	if err := os.MkdirAll(filepath.Join(dir, "state", "sandboxes", "box"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := client.Call(t.Context(), "instance.attach", map[string]any{"threadId": "t", "name": "box"}, nil); err != nil {
		t.Errorf("attach: %v", err)
	}
	if err := client.Call(t.Context(), "snapshot.save", map[string]any{"threadId": "t", "runId": "r"}, nil); err != nil {
		t.Errorf("save: %v", err)
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Errorf("Serve after a signal: %v", err)
	}
	if !link.Conn.IsClosed() {
		t.Error("the connection is still open")
	}
	if strings.Contains(log.String(), `"warn"`) || strings.Contains(log.String(), `"error"`) {
		t.Errorf("the log has faults:\n%s", log)
	}
}

func TestServe_ConnectionClosed(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	initStore(t, s, dir)
	log := &lines{}
	setup, err := agent.NewSetup(common(dir), worker(), log)
	if err != nil {
		t.Fatal(err)
	}
	link, err := agent.Dial(common(dir), bus.ConnectOptions{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	g.Go(func() error { return setup.Serve(t.Context(), link) })
	log.ready(t, 1)
	link.Conn.Close()
	if err := g.Wait(); !errors.Is(err, snapshot.StoreUnavailable) {
		t.Errorf("Serve on a closed connection: %v", err)
	}
}

func TestServe_NoStore(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	setup, err := agent.NewSetup(common(dir), worker(), &lines{})
	if err != nil {
		t.Fatal(err)
	}
	if err := setup.Serve(t.Context(), s.Link); !errors.Is(err, snapshot.StoreUnavailable) || !strings.Contains(err.Error(), "agent init") {
		t.Errorf("Serve without a store: %v, want advice to run agent init", err)
	}
}

// A store that this machine has worked with is never replaced by an empty one.
func TestInitStore_KnownStoreIsGone(t *testing.T) {
	for _, bucket := range []string{"KV_sandbox-state", "OBJ_sandbox-packs"} {
		t.Run(bucket, func(t *testing.T) {
			dir := t.TempDir()
			s := startServer(t, dir)
			initStore(t, s, dir)
			initStore(t, s, dir) // again is no fault
			if err := s.JS.DeleteStream(t.Context(), bucket); err != nil {
				t.Fatal(err)
			}
			if _, err := agent.InitStore(t.Context(), s.Link, common(dir), agent.Buckets{}); !errors.Is(err, snapshot.StoreUnavailable) {
				t.Errorf("init: %v, want it refused", err)
			}
			if _, err := s.JS.Stream(t.Context(), bucket); err == nil {
				t.Error("the bucket was made anew")
			}
			setup, err := agent.NewSetup(common(dir), worker(), &lines{})
			if err != nil {
				t.Fatal(err)
			}
			if err := setup.Serve(t.Context(), s.Link); !errors.Is(err, snapshot.StoreUnavailable) {
				t.Errorf("serve: %v, want it refused", err)
			}
		})
	}
}

func TestServe_AnotherStore(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	initStore(t, startServer(t, first), first)
	s := startServer(t, second)
	initStore(t, s, second)
	setup, err := agent.NewSetup(common(first), worker(), &lines{}) // remembers the first store
	if err != nil {
		t.Fatal(err)
	}
	err = setup.Serve(t.Context(), s.Link)
	if !errors.Is(err, snapshot.StoreUnavailable) || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("Serve on another store: %v, want advice", err)
	}
}

// A server that comes back without the store, or another one at its address, is
// not written to.
func TestServe_AnotherStoreComesBack(t *testing.T) {
	first, second, log := t.TempDir(), t.TempDir(), &lines{}
	s, err := agent.StartServer(common(first), embedded(first), bus.ConnectOptions{}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	initStore(t, s, first)
	setup, err := agent.NewSetup(common(first), worker(), log)
	if err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(first, "state", "token"))
	if err != nil {
		t.Fatal(err)
	}
	link, err := agent.Dial(common(first), bus.ConnectOptions{Server: s.URL, Token: strings.TrimSpace(string(token)), NoContext: true, Daemon: true, Log: zerolog.Nop(), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- setup.Serve(t.Context(), link) }()
	log.ready(t, 1)
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	e := embedded(second)
	e.Listen, e.Auth = strings.TrimPrefix(s.URL, "nats://"), "none"
	other, err := agent.StartServer(common(second), e, bus.ConnectOptions{}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Shutdown()
	if err := other.Init(t.Context(), common(second), e, agent.Buckets{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-served:
		if !errors.Is(err, snapshot.StoreUnavailable) || !strings.Contains(err.Error(), "--state-dir") {
			t.Errorf("Serve on another store: %v, want advice", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("it goes on:\n%s", log)
	}
}

func TestStartServer_Token(t *testing.T) {
	dir := t.TempDir()
	s, err := agent.StartServer(common(dir), embedded(dir), bus.ConnectOptions{}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "state", "token")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("token file: %v, %v, want mode 0600", info, err)
	}
	before, _ := os.ReadFile(file)
	if _, err := bus.Connect(bus.ConnectOptions{Server: s.URL, NoContext: true}); err == nil {
		t.Error("a client without the token got in")
	}
	if err := s.Shutdown(); err != nil {
		t.Error(err)
	}
	second := embedded(dir)
	second.StoreDir = filepath.Join(dir, "store2")
	other, err := agent.StartServer(common(dir), second, bus.ConnectOptions{}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Shutdown(); err != nil {
		t.Error(err)
	}
	if after, _ := os.ReadFile(file); string(after) != string(before) || len(before) < 32 {
		t.Error("the token has changed or is too short")
	}
	if _, err := os.Stat(filepath.Join(dir, "state", "server")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's address stays after its end: %v", err)
	}
}

func TestStartServer_AllAddresses(t *testing.T) {
	dir := t.TempDir()
	e := embedded(dir)
	e.Listen = "0.0.0.0:0"
	s, err := agent.StartServer(common(dir), e, bus.ConnectOptions{}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	link, err := agent.Dial(common(dir), bus.ConnectOptions{Timeout: time.Second})
	if err != nil || !strings.HasPrefix(s.URL, "nats://127.0.0.1:") {
		t.Fatalf("connect to %s: %v", s.URL, err)
	}
	link.Conn.Close()
}

func TestAwait_EndsWithTheContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "nats://" + l.Addr().String()
	l.Close()
	link, err := agent.Dial(common(t.TempDir()), bus.ConnectOptions{Server: url, NoContext: true, Daemon: true, Log: zerolog.Nop(), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := link.Await(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Await: %v", err)
	}
}

func TestLog_HidesSecrets(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "c.json")
	if err := os.WriteFile(config, []byte(`{"definitions": {"default": {"secrets": {"K": {"value": "hunter2hunter2"}}}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"json", "console"} {
		c, w, log := common(dir), worker(), &lines{}
		c.LogFormat, w.Config = format, config
		setup, err := agent.NewSetup(c, w, log)
		if err != nil {
			t.Fatal(err)
		}
		setup.Log.Info().Str("hunter2hunter2", "x hunter2hunter2").Err(errors.New("hunter2hunter2")).Msg("seen hunter2hunter2")
		if text := log.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "seen") {
			t.Errorf("%s log: %s", format, text)
		}
	}
}
