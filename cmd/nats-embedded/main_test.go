package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func clean(t *testing.T) {
	for _, pair := range os.Environ() {
		if name, value, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "SANDBOX_") || strings.HasPrefix(name, "NATS_") {
			t.Setenv(name, value) // restored at the end
			os.Unsetenv(name)
		}
	}
}

func program() agent.Program {
	return agent.Program{Name: "nats-embedded", Description: description, CLI: &cli{}}
}

// start runs the program until it is ready. stop ends it as a signal does and
// returns its exit code.
func start(t *testing.T, args ...string) (ready map[string]any, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	done := make(chan int, 1)
	go func() {
		code := program().Run(ctx, agent.IO{Out: io.Discard, Err: write}, args)
		write.Close()
		done <- code
	}()
	lines, text := bufio.NewScanner(read), ""
	for ready["message"] != "ready" {
		if !lines.Scan() {
			t.Fatalf("it ended with %d before it was ready: %s", <-done, text)
		}
		text += lines.Text() + "\n"
		ready = nil
		_ = json.Unmarshal(lines.Bytes(), &ready) // other lines are of no interest
	}
	rest := make(chan struct{})
	go func() { defer close(rest); _, _ = io.Copy(io.Discard, read) }()
	return ready, func() int {
		cancel()
		<-rest
		return <-done
	}
}

func arguments(dir string, more ...string) []string {
	return append([]string{"--store-dir", filepath.Join(dir, "store"), "--state-dir", filepath.Join(dir, "state"), "--allow-temp-store",
		"--listen", "127.0.0.1:0", "--sync", "interval", "--node", "n1", "--log-format", "json"}, more...)
}

func TestRun(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	for _, more := range [][]string{nil, {"--no-agent"}, {"--auth", "none"}} { // one after the other on the same store
		ready, stop := start(t, arguments(dir, more...)...)
		url, _ := ready["url"].(string)
		link, err := agent.Dial(agent.Common{StateDir: filepath.Join(dir, "state")}, bus.ConnectOptions{Server: url, NoContext: true})
		if err != nil {
			t.Fatalf("connect to %q: %v", url, err)
		}
		client := bus.NewClient(link.Conn, bus.ClientOptions{})
		err = client.Call(t.Context(), "checkpoint.head", map[string]any{"threadId": "t"}, nil)
		if answers := err == nil; answers == (len(more) > 0 && more[0] == "--no-agent") {
			t.Errorf("%q: the worker answers: %t, %v", more, answers, err)
		}
		link.Conn.Close()
		if code := stop(); code != agent.ExitDone {
			t.Errorf("%q: exit code %d after a signal", more, code)
		}
	}
}

func TestRun_SecondServer(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	_, stop := start(t, arguments(dir)...)
	defer stop()
	var log strings.Builder
	code := program().Run(t.Context(), agent.IO{Out: io.Discard, Err: &log}, arguments(dir))
	if code != agent.ExitError || !strings.Contains(log.String(), "in use by process") {
		t.Errorf("exit code %d, %s", code, log.String())
	}
}

// A port that is taken is told in one sentence, and nothing is made.
func TestRun_PortInUse(t *testing.T) {
	clean(t)
	dir, other := t.TempDir(), t.TempDir()
	ready, stop := start(t, arguments(other)...)
	defer stop()
	url, _ := ready["url"].(string)
	var log strings.Builder
	code := program().Run(t.Context(), agent.IO{Out: io.Discard, Err: &log}, arguments(dir, "--listen", strings.TrimPrefix(url, "nats://")))
	if code != agent.ExitError || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "stop it or give another --listen") {
		t.Errorf("exit code %d, %s", code, log.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

// A server that is refused, for its store or as the second one, leaves the files
// of the one that runs.
func TestRun_StateDirInUse(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	ready, stop := start(t, arguments(dir)...)
	defer stop()
	var log strings.Builder
	code := program().Run(t.Context(), agent.IO{Out: io.Discard, Err: &log}, arguments(dir, "--store-dir", filepath.Join(dir, "store2")))
	if code != agent.ExitError || !strings.Contains(log.String(), "stop it or give another --state-dir") {
		t.Errorf("exit code %d, %s", code, log.String())
	}
	text, err := os.ReadFile(filepath.Join(dir, "state", "server"))
	if err != nil || strings.TrimSpace(string(text)) != ready["url"] {
		t.Errorf("the address of the running server is %q, %v; want %v", text, err, ready["url"])
	}
}

func TestRun_Refusals(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "users.conf")
	if err := os.WriteFile(config, []byte(`listen: "127.0.0.1:-1"
accounts { A { jetstream: enabled, users: [ {user: u, password: p} ] } }`), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		code       int
		args       []string
	}{
		{"no store", "--store-dir", agent.ExitUsage, nil},
		{"temp store", "--allow-temp-store", agent.ExitError, []string{"--store-dir", filepath.Join(dir, "a"), "--state-dir", filepath.Join(dir, "b"), "--listen", "127.0.0.1:0"}},
		{"bad flags", "--replicas", agent.ExitUsage, arguments(dir, "--replicas", "9")},
		{"bad address", `--listen "nowhere" is not HOST:PORT`, agent.ExitUsage, arguments(dir, "--listen", "nowhere")},
		{"no port", `--listen "127.0.0.1:x" is not HOST:PORT`, agent.ExitUsage, arguments(dir, "--listen", "127.0.0.1:x")},
		{"large port", `--listen "127.0.0.1:99999": the port is over 65535`, agent.ExitUsage, arguments(dir, "--listen", "127.0.0.1:99999")},
		{"huge port", "the port is over 65535", agent.ExitUsage, arguments(dir, "--listen", "127.0.0.1:99999999999")},
		{"other machine", "can't listen on 192.0.2.1:4222", agent.ExitError, arguments(dir, "--listen", "192.0.2.1:4222")},
		{"absent definitions", "read sandbox definitions", agent.ExitUsage, arguments(dir, "--config", filepath.Join(dir, "absent"))},
		{"user without a configuration", "--user is of use only with --server-config", agent.ExitUsage, arguments(dir, "--user", "u")},
		{"password without a configuration", "--password is of use only with --server-config", agent.ExitUsage, arguments(dir, "--password=p")},
		{"restore root is the store", "--restore-root", agent.ExitUsage, arguments(dir, "--restore-root", filepath.Join(dir, "store"))},
		{"sandbox root in the store", `store", where a restore could destroy`, agent.ExitUsage, arguments(dir, "--sandbox-root", filepath.Join(dir, "store", "jetstream", "x"))},
		{"root by a link", "--store-dir", agent.ExitUsage, arguments(dir, "--restore-root", filepath.Join(link, "store"))},
		{"root is the state dir", "--state-dir", agent.ExitUsage, arguments(dir, "--restore-root", filepath.Join(dir, "state"))},
		{"default root is the store", "--sandbox-root", agent.ExitUsage, arguments(dir, "--store-dir", filepath.Join(dir, "state", "sandboxes"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log strings.Builder
			code := program().Run(t.Context(), agent.IO{Out: io.Discard, Err: &log}, tc.args)
			if code != tc.code || !strings.Contains(log.String(), tc.want) {
				t.Errorf("exit code %d, want %d with %q:\n%s", code, tc.code, tc.want, log.String())
			}
		})
	}
	if _, err := os.Stat(filepath.Join(dir, "store")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused start made the store directory: %v", err)
	}
	t.Setenv("NATS_USER", "of another server") // is no flag
	_, stop := start(t, arguments(dir, "--sandbox-root", filepath.Join(dir, "boxes"), "--restore-root", filepath.Join(dir, "state", "restored", "x"))...)
	stop()
	ready, stop := start(t, "--store-dir", filepath.Join(dir, "s"), "--state-dir", filepath.Join(dir, "t"), "--allow-temp-store",
		"--server-config", config, "--user", "u", "--password", "p")
	if code := stop(); code != agent.ExitDone {
		t.Errorf("with a server configuration: exit code %d, %v", code, ready)
	}
}
