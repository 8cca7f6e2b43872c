package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/leaktest"
	"sandkeep/internal/snapshot"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// machine is a state directory, with a server and a worker on it if started.
type machine struct {
	t   *testing.T
	dir string
}

func newMachine(t *testing.T) *machine {
	for _, pair := range os.Environ() {
		if name, value, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "SANDBOX_") || strings.HasPrefix(name, "NATS_") {
			t.Setenv(name, value) // restored at the end
			os.Unsetenv(name)
		}
	}
	m := &machine{t: t, dir: t.TempDir()}
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(m.dir, "config")) // no selected nats context
	t.Setenv("SANDBOX_STATE_DIR", filepath.Join(m.dir, "state"))
	return m
}

func (m *machine) common() agent.Common {
	return agent.Common{Prefix: "sandbox", Store: "sandbox", StateDir: filepath.Join(m.dir, "state")}
}

// server starts a server with a store, without a worker.
func (m *machine) server() *agent.Server {
	m.t.Helper()
	e := agent.Embedded{StoreDir: filepath.Join(m.dir, "store"), AllowTempStore: true, Listen: "127.0.0.1:0", Sync: "interval", Auth: "token"}
	server, err := agent.StartServer(m.common(), e, bus.ConnectOptions{}, zerolog.Nop())
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = server.Shutdown() })
	if err := server.Init(m.t.Context(), m.common(), e, agent.Buckets{}); err != nil {
		m.t.Fatal(err)
	}
	return server
}

func (m *machine) start() *machine {
	m.t.Helper()
	server := m.server()
	setup, err := agent.NewSetup(m.common(), agent.Worker{Node: "n1", Lease: 30 * time.Second}, io.Discard)
	if err != nil {
		m.t.Fatal(err)
	}
	worker, err := setup.Start(m.t.Context(), server.Link)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = worker.Stop(context.Background()) })
	return m
}

func (m *machine) write(name, text string, mode os.FileMode) {
	m.t.Helper()
	at := filepath.Join(m.dir, "state", "sandboxes", name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

// run is one use of the command line.
func (m *machine) run(stdin string, args ...string) (code int, stdout, stderr string) {
	m.t.Helper()
	var out, log bytes.Buffer
	std := agent.IO{In: strings.NewReader(stdin), Out: &out, Err: &log}
	code = agent.Program{Name: "agent", Description: description, CLI: &cli{}}.Run(m.t.Context(), std, args)
	return code, out.String(), log.String()
}

// want runs a command that must end with code and print a text.
func (m *machine) want(code int, text string, args ...string) string {
	m.t.Helper()
	got, stdout, stderr := m.run("", args...)
	if got != code || !strings.Contains(stdout+stderr, text) {
		m.t.Errorf("agent %q: exit code %d, want %d with %q\n%s%s", args, got, code, text, stdout, stderr)
	}
	return stdout
}

func TestCommands(t *testing.T) {
	m := newMachine(t).start()
	m.write("box/sub/f", "hello\n", 0o644)
	m.write("box/run", "#!/bin/sh\n", 0o755)
	m.write("box/odd\x1b[31mname", "x", 0o600)
	box := filepath.Join(m.dir, "state", "sandboxes", "box")
	for _, err := range []error{os.Symlink("sub/f", filepath.Join(box, "link")), os.Mkdir(filepath.Join(box, "empty"), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}

	m.want(0, "n1/box", "instance", "attach", "t", "box")
	m.want(1, "SANDBOX_SNAPSHOT_INVALID_PATH", "instance", "attach", "t", "../box")
	m.want(0, "c1\n", "save", "t", "--run", "r", "--label", "first", "--id", "c1")
	m.want(0, "c1\n", "save", "t", "--run", "r", "--label", "first", "--id", "c1")
	m.want(5, "SANDBOX_SNAPSHOT_DUPLICATE_ID", "save", "t", "--run", "other", "--id", "c1")
	m.want(4, "SANDBOX_SNAPSHOT_MISSING_REUSABLE_SANDBOX", "save", "unknown")
	m.want(1, "SANDBOX_SNAPSHOT_MISSING_SANDBOX", "save", "t", "--sandbox", "nope")
	m.want(2, "--nope", "save", "t", "--nope")
	m.want(0, "first", "log", "t")
	m.want(0, "c1\n", "head", "t")
	m.want(4, "no checkpoint", "head", "unknown")
	m.want(4, `thread "unknown" has no checkpoint`, "log", "unknown")
	m.want(0, `{"checkpoints":[]}`, "log", "unknown", "--json")
	if out := m.want(0, "0755", "ls", "c1"); strings.Contains(out, "\x1b") || !strings.Contains(out, `\x1b`) {
		t.Errorf("ls prints control characters: %q", out)
	}
	if out := m.want(0, "sub/f", "ls", "c1", "sub"); strings.Contains(out, "run") {
		t.Errorf("ls of a directory has more: %q", out)
	}
	m.want(4, `nothing at or under "none"`, "ls", "c1", "none")
	if out := m.want(4, `nothing at or under "none"`, "ls", "c1", "none", "--json"); out != "{\"entries\":[]}\n" {
		t.Errorf("ls --json of nothing prints %q", out)
	}
	m.want(0, "sub/f", "ls", "c1", "sub/f")
	m.want(0, "empty/", "ls", "c1", "empty")
	m.want(0, "hello\n", "cat", "c1", "sub/f")
	m.want(4, "SANDBOX_SNAPSHOT_MISSING_ENTRY", "cat", "c1", "nothing")
	m.want(1, `"link" is a link to "sub/f"`, "cat", "c1", "link")
	m.want(1, `"empty" is a directory`, "cat", "c1", "empty")
	m.want(1, `"sub" is a directory`, "cat", "c1", "sub")
	m.want(0, "thread u", "fork", "t", "u", "--checkpoint", "c1", "--id", "u1")
	m.want(5, "SANDBOX_SNAPSHOT_FORK_DESTINATION_NOT_EMPTY", "fork", "t", "u")
	m.want(0, "into out on node n1, 3 files", "restore", "u", "out")
	m.want(1, "SANDBOX_SNAPSHOT_DESTINATION_NOT_EMPTY", "restore", "u", "out")
	m.want(1, "; --exact makes an existing directory equal", "restore", "u", "out")
	m.want(1, "if it is the thread's own sandbox (", "restore", "u", "box", "--into", "sandbox")
	m.want(0, "0 files", "restore", "u", "out", "--exact")
	m.want(0, "into part on node n1, 1 file", "restore", "u", "part", "--only", "sub/f")
	m.want(0, "into part3 on node n1, 1 file", "restore", "u", "part3", "--only", "sub/")
	m.want(4, "SANDBOX_SNAPSHOT_MISSING_ENTRY", "restore", "u", "part2", "--only", "nothing")
	m.want(2, "--only is empty", "restore", "u", "part2", "--only", "")
	m.want(1, "SANDBOX_SNAPSHOT_INVALID_PATH", "restore", "u", "part2", "--only", "/")
	m.want(6, "SANDBOX_NODE_UNREACHABLE", "restore", "u", "out2", "--node", "n2")
	got, err := os.ReadFile(filepath.Join(m.dir, "state", "restored", "out", "sub", "f"))
	if err != nil || string(got) != "hello\n" {
		t.Errorf("the restored file: %q, %v", got, err)
	}
}

// A variable that is there for another program changes no request: with an id
// that stays, every save would be a retry of the first.
func TestCommands_ForeignVariables(t *testing.T) {
	m := newMachine(t).start()
	m.write("box/f", "x", 0o644)
	for _, name := range []string{"ID", "RUN", "LABEL", "SANDBOX", "KEY", "NAME", "NODE", "WAIT", "CHECKPOINT", "CERT", "CA", "INTO", "KIND"} {
		t.Setenv("SANDBOX_"+name, "foreign")
	}
	m.want(0, "n1/box", "instance", "attach", "t", "box")
	m.want(0, "", "save", "t")
	m.want(0, "", "save", "t")
	if out := m.want(0, "", "log", "t"); strings.Count(out, "\n") != 2 || strings.Contains(out, "foreign") {
		t.Errorf("two saves are %q", out)
	}
	m.want(0, "into out on node n1", "restore", "t", "out")
	t.Setenv("SANDBOX_SAVE_ID", "mine")
	m.want(0, "mine\n", "save", "t")
}

func TestCommands_Artifacts(t *testing.T) {
	m := newMachine(t).start()
	m.write("box/f", "x", 0o644)
	large := strings.Repeat("0123456789abcdef", 100_000)
	file := filepath.Join(m.dir, "large.json")
	if err := os.WriteFile(file, []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	m.want(0, "", "instance", "attach", "t", "box")
	if code, _, text := m.run("small", "artifact", "put", "t", "a", "-", "--name", "a.txt"); code != 0 {
		t.Errorf("put from stdin: %d %s", code, text)
	}
	m.want(0, "sandbox-artifacts/sha256/", "artifact", "put", "t", "b", file)
	m.want(0, "application/json", "artifact", "list", "t")
	m.want(0, "", "save", "t", "--id", "c")
	if out := m.want(0, "", "artifact", "read", "t", "c", "a"); out != "small" {
		t.Errorf("small artifact = %q", out)
	}
	if out := m.want(0, "", "artifact", "read", "t", "c", "b"); out != large {
		t.Errorf("large artifact has %d bytes, want %d", len(out), len(large))
	}
	m.want(4, "SANDBOX_SNAPSHOT_MISSING_CHECKPOINT_ARTIFACT", "artifact", "read", "t", "c", "nope")
	m.want(0, "", "artifact", "delete", "t", "a")
	if out := m.want(0, "", "artifact", "list", "t"); strings.Contains(out, "a.txt") {
		t.Errorf("the artifact is still listed: %s", out)
	}
}

func TestCommands_Records(t *testing.T) {
	m := newMachine(t).start()
	record := `{"key":"k","provider":"p","providerSandboxId":"i","threadId":"t","updatedAt":1}`
	m.want(0, "revision", "instance", "upsert", record, "--expected-revision", "0")
	m.want(5, "SANDBOX_STALE_REVISION", "instance", "upsert", record, "--expected-revision", "0")
	m.want(2, "not JSON", "instance", "upsert", "{")
	m.want(1, "SANDBOX_BAD_REQUEST", "instance", "upsert", `{"key":"k","unknown":1}`)
	m.want(0, "thread t, p sandbox i", "instance", "get", "k")
	m.want(0, "k\n", "instance", "list", "--thread", "t")
	m.want(0, "", "instance", "delete", "k")
	m.want(4, "no instance record", "instance", "get", "k")

	messages := `[ {"a": "<b>\ud800", "a": 1},	"two" ]`
	if code, out, text := m.run(messages, "thread", "save", "t", "-"); code != 0 || out != "revision 1\n" {
		t.Errorf("thread save: %d %q %s", code, out, text)
	}
	if code, _, text := m.run(messages, "thread", "save", "t", "-", "--expected-revision", "9"); code != 5 {
		t.Errorf("thread save with another revision: %d %s", code, text)
	}
	if code, _, text := m.run("no JSON", "thread", "save", "t", "-"); code != 2 {
		t.Errorf("thread save of no JSON: %d %s", code, text)
	}
	if out := m.want(0, "", "thread", "load", "t"); out != "{\"a\": \"<b>\\ud800\", \"a\": 1}\n\"two\"\n" {
		t.Errorf("thread load prints %q", out)
	}
}

func TestCommands_JSON(t *testing.T) {
	m := newMachine(t).start()
	m.write("box/f", "x", 0o644)
	m.want(0, `"providerSandboxId":"n1/box"`, "--json", "instance", "attach", "t", "box")
	for _, args := range [][]string{{"save", "t", "--id", "c"}, {"log", "t"}, {"ls", "c"}, {"head", "t"}, {"cat", "c", "f"}, {"head", "unknown"}, {"instance", "get", "k"}} {
		out := m.want(0, "", append([]string{"--json"}, args...)...)
		if !json.Valid([]byte(out)) {
			t.Errorf("%q prints no JSON: %s", args, out)
		}
	}
	code, out, text := m.run("", "save", "unknown", "--json")
	var reply struct {
		Error struct {
			Code      string
			Retryable bool
			Message   string
		}
	}
	if err := json.Unmarshal([]byte(out), &reply); err != nil || code != 4 || reply.Error.Code != "SANDBOX_SNAPSHOT_MISSING_REUSABLE_SANDBOX" || text == "" {
		t.Errorf("an error with --json: %d %q %q %v", code, out, text, err)
	}
}

func TestRequest(t *testing.T) {
	m := newMachine(t).start()
	for _, subject := range []string{"checkpoint.head", "sandbox.checkpoint.head"} {
		if out := m.want(0, "", "request", subject, `{"threadId": "t"}`); out != "{\"checkpointId\":null}\n" {
			t.Errorf("%s prints %q", subject, out)
		}
	}
	if code, out, _ := m.run(`{"threadId": "t"}`, "request", "checkpoint.head", "-"); code != 0 || out != "{\"checkpointId\":null}\n" {
		t.Errorf("from stdin: %d %q", code, out)
	}
	m.want(1, `"code":"SANDBOX_BAD_REQUEST"`, "request", "checkpoint.head", `{"thread": "t"}`)
	m.want(1, `"code":"SANDBOX_SNAPSHOT_INVALID_ID"`, "request", "checkpoint.head")
	m.want(1, `"code":"SANDBOX_BAD_REQUEST","details":{}`, "request", "no.such.subject")
	m.want(1, `"retryable":false`, "request", "no.such.subject")
	m.want(1, "no worker serves sandbox.snapshot.sav; the nearest that is served is sandbox.snapshot.save (", "request", "snapshot.sav")
	m.want(6, "the nearest that is served is sandbox.checkpoint.head (SANDBOX_STORE_UNAVAILABLE", "--prefix", "sandbx", "head", "t") // its worker may come
}

// What people read has the names that they typed, what programs read those of
// the wire.
func TestMessages_InFlags(t *testing.T) {
	m := newMachine(t).start()
	m.want(1, `thread "destinationThreadId" can't be forked into itself; choose another <destination> (`, "fork", "destinationThreadId", "destinationThreadId")
	m.want(2, "agent: <thread> is empty; give 1 to 500 bytes of Unicode text\n", "save", "")
	m.want(2, "agent: --id has 501 bytes; at most 500 are allowed\n", "save", "t", "--id", strings.Repeat("x", 501))
	m.want(4, "`agent log` shows those of a thread", "ls", "none")
	m.want(4, "attach one with `agent instance attach`", "save", "none")
	m.want(2, "agent: --run is empty;", "artifact", "put", "t", "a", os.DevNull, "--run", "")
	if out := m.want(1, "choose another <destination>", "fork", "t", "t", "--json"); !strings.Contains(out, "choose another destinationThreadId") {
		t.Errorf("with --json: %s", out)
	}
	m.want(1, "agent: threadId is empty;", "request", "checkpoint.head", `{"threadId":""}`)
}

// Times are told as they are given, before anybody is asked.
func TestNegativeTimes(t *testing.T) {
	m := newMachine(t)
	m.want(2, "agent: --wait -1s is negative\n", "save", "t", "--wait=-1s")
	m.want(2, "agent: --wait -1.5s is negative\n", "fork", "t", "u", "--wait=-1500ms")
	m.want(2, "--ttl -1s is negative\n", "lock", "acquire", "l", "--ttl=-1s", "--wait=-1s")
	m.want(2, "agent: --timeout -1s is negative\n", "head", "t", "--timeout=-1s")
	m.want(2, "agent: --timeout is 0;", "head", "t", "--timeout", "0")
	m.want(2, "agent: --wait -5s is negative\n", "save", "t", "--wait", "-5s")
	m.want(2, "agent: --timeout -1.5h is negative\n", "--timeout", "-1.5h", "head", "t")
}

// Whatever fails, a program reads the same object.
func TestErrors_JSON(t *testing.T) {
	m := newMachine(t)
	server := m.server()
	for _, tc := range []struct {
		code int
		want snapshot.Code
		args []string
	}{
		{6, snapshot.StoreUnavailable, []string{"--server", "nats://127.0.0.1:1", "head", "t"}},
		{6, snapshot.StoreUnavailable, []string{"--server", "nats://127.0.0.1:1", "init"}},
		{6, snapshot.StoreUnavailable, []string{"--server", server.URL, "--token", "wrong", "log", "t"}},
		{6, snapshot.StoreUnavailable, []string{"head", "t"}}, // nobody serves
		{1, snapshot.BadRequest, []string{"init", "--replicas", "3"}},
	} {
		code, out, text := m.run("", append([]string{"--json"}, tc.args...)...)
		var reply struct {
			Error struct {
				Code      snapshot.Code
				Message   string
				Retryable *bool
				Details   map[string]any
			}
		}
		err := json.Unmarshal([]byte(out), &reply) // one document
		if e := reply.Error; err != nil || code != tc.code || e.Code != tc.want || e.Message == "" || e.Retryable == nil || e.Details == nil || text == "" {
			t.Errorf("%q: %d %q %q %v", tc.args, code, out, text, err)
		}
	}
	m.want(6, `{"error":{"code":"SANDBOX_STORE_UNAVAILABLE"`, "--server", "nats://127.0.0.1:1", "request", "checkpoint.head")
	if _, out, _ := m.run("", "--server", "nats://127.0.0.1:1", "head", "t"); out != "" {
		t.Errorf("without --json: %q", out)
	}
}

func TestUnavailable(t *testing.T) {
	m := newMachine(t)
	own := "the state directory's own server is not running, and "
	if _, _, text := m.run("", "--server", "nats://127.0.0.1:1", "head", "t"); strings.Contains(text, own) {
		t.Errorf("about another server: %s", text)
	}
	if err := os.MkdirAll(filepath.Join(m.dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "state", "server"), []byte("nats://127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.want(6, own+"no NATS server answers at nats://127.0.0.1:1;", "head", "t")
	m.want(6, "no NATS server answers", "--server", "nats://127.0.0.1:1", "head", "t")
	m.want(6, "no NATS server answers", "--server", "nats://127.0.0.1:1", "init")
	m.want(0, "0.0.0-dev", "version")
}

func TestWithTimeout(t *testing.T) {
	for request, want := range map[string]string{
		`{}`: `{"timeoutMs":9000}`, ` { } `: `{"timeoutMs":9000}`, `{"a":{}}`: `{"a":{},"timeoutMs":9000}`, "{\"a\":1}\n": `{"a":1,"timeoutMs":9000}`,
	} {
		if got := string(withTimeout([]byte(request), 10*time.Second)); got != want {
			t.Errorf("withTimeout(%s) = %s, want %s", request, got, want)
		}
	}
	if got := string(withTimeout([]byte(`{}`), 9*time.Hour)); got != `{"timeoutMs":3600000}` {
		t.Errorf("the longest timeout: %s", got)
	}
	if got := string(withTimeout([]byte(`{}`), time.Microsecond)); got != `{"timeoutMs":1}` {
		t.Errorf("the least timeout: %s", got)
	}
}
