package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// agent runs the command line against the server.
func (s *server) agent(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	return run(s.t, agentProgram, append(args, "--server", s.url, "--state-dir", s.stateDir)...)
}

// exitRows run in order on one server.
var exitRows = []struct {
	code int
	args []string
	says string // on stdout, or on stderr of a failure
}{
	{0, []string{"request", "sandbox.checkpoint.head", `{"threadId":"full"}`}, `{"checkpointId":"cp-full"}`},
	{0, []string{"request", "checkpoint.head", `{"threadId":"nobody"}`}, `{"checkpointId":null}`},
	{1, []string{"request", "sandbox.checkpoint.head", `{"thread":"full"}`}, "SANDBOX_BAD_REQUEST"},
	{1, []string{"request", "sandbox.checkpoint.head", `not JSON`}, "SANDBOX_BAD_REQUEST"},
	{1, []string{"request", "sandbox.checkpoint.head", `{"threadId":""}`}, "SANDBOX_SNAPSHOT_INVALID_ID"},
	{4, []string{"request", "sandbox.file.read", `{"checkpointId":"none","path":"x"}`}, "SANDBOX_SNAPSHOT_CHECKPOINT_NOT_FOUND"},
	{5, []string{"request", "sandbox.thread.save", `{"threadId":"full","messages":[],"expectedRevision":9}`}, "SANDBOX_STALE_REVISION"},
	{1, []string{"request", "sandbox.no.such.subject", `{}`}, `"retryable":false`},
	{6, []string{"request", "sandbox.restore", `{"threadId":"full","path":"x","node":"ghost"}`}, "SANDBOX_NODE_UNREACHABLE"},
	{7, []string{"request", "sandbox.artifact.read", `{"threadId":"other","checkpointId":"cp-other","artifactId":"art"}`}, "SANDBOX_SNAPSHOT_INVALID_ARTIFACT_BYTES"},
	{2, []string{"request"}, ""},
	{2, []string{"head", "full", "--no-such-flag"}, "no-such-flag"},
	{2, []string{"no-such-command"}, ""},
	{2, []string{"head"}, "thread"},
	{2, []string{"head", "full", "--timeout", "soon"}, "timeout"},
	{0, []string{"head", "full"}, "cp-full"},
	{0, []string{"head", "full", "--json"}, `{"checkpointId":"cp-full"}`},
	{0, []string{"log", "full"}, "cp-full"},
	{0, []string{"ls", "cp-full"}, "dir/file.txt"},
	{4, []string{"ls", "cp-full", "dir/none"}, "SANDBOX_SNAPSHOT_MISSING_ENTRY"},
	{0, []string{"cat", "cp-full", "dir/file.txt"}, "of full"},
	{4, []string{"cat", "cp-full", "dir/none"}, "SANDBOX_SNAPSHOT_MISSING_ENTRY"},
	{0, []string{"save", "full", "--id", "second"}, "second"},
	{0, []string{"save", "full", "--id", "second"}, "second"},
	{5, []string{"save", "other", "--id", "cp-full"}, "SANDBOX_SNAPSHOT_DUPLICATE_ID"},
	{4, []string{"save", "nobody"}, "SANDBOX_SNAPSHOT_MISSING_REUSABLE_SANDBOX"},
	{7, []string{"artifact", "read", "other", "cp-other", "art"}, "SANDBOX_SNAPSHOT_INVALID_ARTIFACT_BYTES"},
	{0, []string{"fork", "full", "branch", "--checkpoint", "cp-full"}, ""},
	{5, []string{"fork", "full", "branch"}, "SANDBOX_SNAPSHOT_FORK_DESTINATION_NOT_EMPTY"},
	{0, []string{"restore", "branch", "out"}, ""},
	{1, []string{"restore", "branch", "out"}, "SANDBOX_SNAPSHOT_DESTINATION_NOT_EMPTY"},
	{0, []string{"artifact", "read", "full", "cp-full", "art"}, "bytes of full"},
	{0, []string{"artifact", "list", "full"}, "art.txt"},
	{0, []string{"thread", "load", "talk"}, `"hello"`},
	{0, []string{"instance", "list"}, "full"},
	{0, []string{"instance", "attach", "third", "box"}, ""},
	{0, []string{"version"}, "0.0.0-dev"},
	{6, []string{"head", "full", "--prefix", "nobody-listens"}, ""},
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	s := startServer(t, configFile(t, definitions)...)
	s.populate()
	key := ok[artifactPage](s.client, "artifact.list", object{"threadId": "other"}).Artifacts[0].BlobKey
	s.damage("sandbox-artifacts", strings.TrimPrefix(key, "sandbox-artifacts/"), nil)
	for _, row := range exitRows {
		code, stdout, stderr := s.agent(row.args...)
		said := stdout
		if row.code != 0 {
			said += stderr
		}
		if code != row.code || !strings.Contains(said, row.says) {
			t.Errorf("agent %q: exit code %d, want %d, and %q in\n%s%s", row.args, code, row.code, row.says, stdout, stderr)
		}
		if row.code != 0 && strings.TrimSpace(stderr) == "" {
			t.Errorf("agent %q: nothing on stderr", row.args)
		}
	}
	if got := readTree(t, filepath.Join(s.restored, "out"))["dir/file.txt"]; got.Kind != "file" {
		t.Errorf("agent restore made %+v", got)
	}
}

// With --json a failure is the error reply, on stdout as well.
func TestErrorReplyOnStdout(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, args := range [][]string{{"request", "sandbox.file.read", `{"checkpointId":"none","path":"x"}`}, {"cat", "none", "x", "--json"}} {
		code, stdout, _ := s.agent(args...)
		var reply struct{ Error failure }
		if err := json.Unmarshal([]byte(stdout), &reply); err != nil || code != 4 || reply.Error.Code != fullCode("CHECKPOINT_NOT_FOUND") {
			t.Errorf("agent %q: exit code %d, %v, %s", args, code, err, stdout)
		}
	}
}

func TestCommandWithoutServer(t *testing.T) {
	t.Parallel()
	code, _, stderr := run(t, agentProgram, "head", "t", "--server", "nats://127.0.0.1:1", "--state-dir", t.TempDir())
	if code != 6 || stderr == "" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	for flag, value := range map[string]string{"--server": "http://127.0.0.1:4222", "--creds": "/no/such/file.creds", "--context": "none"} {
		said := value
		if flag == "--server" { // an address can hold a password
			said = "does not begin with nats://"
		}
		for _, command := range []string{"head t", "init", "serve"} {
			code, _, stderr := run(t, agentProgram, append(strings.Fields(command), flag, value, "--state-dir", t.TempDir())...)
			if code != 2 || !strings.Contains(stderr, strings.TrimPrefix(flag, "--")) || !strings.Contains(stderr, said) {
				t.Errorf("%s %s: exit code %d, want 2, %s", flag, value, code, stderr)
			}
		}
	}
	s := startServer(t, "--no-agent", "--store", "other")
	code, _, stderr = s.agent("serve", "--store", "missing", "--node", "n")
	if code == 0 || !strings.Contains(stderr, "init") {
		t.Errorf("a worker without its store: exit code %d, %s", code, stderr)
	}
	if code, _, stderr = s.agent("init", "--store", "missing"); code != 0 {
		t.Errorf("agent init: exit code %d, %s", code, stderr)
	}
	if code, _, stderr = s.agent("init", "--store", "missing"); code != 0 {
		t.Errorf("agent init again: exit code %d, %s", code, stderr)
	}
	s.worker(s.node, "--store", "missing").stop()
}

func TestInterruptedCommand(t *testing.T) {
	t.Parallel()
	b := newBench(startServer(t, "--no-agent"), "held")
	w := b.saver(b.thread)
	w.signal(syscall.SIGSTOP) // so that the request stays without an answer
	p := start(t, agentProgram, "head", b.thread, "--server", b.url, "--state-dir", b.stateDir, "--prefix", b.thread)
	sub, err := b.nc.SubscribeSync(b.thread + ".checkpoint.head")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.NextMsg(patience); err != nil {
		t.Fatalf("the request of the command: %v", err)
	}
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != 130 {
		t.Errorf("exit code %d, want 130\n%s", code, p.stderr.String())
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := build(t, dir)
	b.code(50)
	b.file("run.sh", []byte("#!/bin/sh\n"), 0o755)
	b.file(".git/config", []byte("[remote \"o\"]\n\turl = https://u:password@example.org/x\n"), 0o644)
	b.file("node_modules/x/index.js", []byte("x"), 0o644)
	b.link("link", "../outside")
	b.dir("empty", 0o700)
	before := readTree(t, dir)
	for _, args := range [][]string{{"demo", dir}, {"demo"}} {
		code, stdout, stderr := demo(t, args...)
		if code != 0 || !strings.Contains(stdout, "\nEqual: ") {
			t.Errorf("agent %q: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	code, stdout, _ := demo(t, "demo", dir, "--json")
	var report struct{ Equal bool }
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 || !report.Equal {
		t.Errorf("agent demo --json: exit code %d, %v, %s", code, err, stdout)
	}
	sameTree(t, "the directory after the demo", before, readTree(t, dir))
}

// demo runs the command with a folder for temporary files of its own, and looks
// that it leaves nothing there.
func demo(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	tmp := t.TempDir()
	p := startIn(t, environment(t, "TMPDIR="+tmp), agentProgram, args...)
	p.quiet = true
	code = p.wait()
	if left := readTree(t, tmp); len(left) > 0 {
		t.Errorf("agent %q left %v", args, left)
	}
	return code, p.stdout.String(), p.stderr.String()
}

// All faults of a command line are told at once, before anything is made.
func TestFaultsOfTheCommandLine(t *testing.T) {
	t.Parallel()
	store := filepath.Join(t.TempDir(), "store")
	for _, flags := range [][]string{
		{"--lease", "1s"}, {"--lease", "1h"}, {"--prefix", "a..b"}, {"--prefix", "a b"}, {"--store", "a.b"}, {"--node", ""},
		{"--replicas", "9"}, {"--sync", "sometimes"}, {"--auth", "guess"}, {"--listen", "nowhere"}, {"--exclude", "["},
	} {
		args := append([]string{"--store-dir", store, "--allow-temp-store", "--listen", "127.0.0.1:0", "--state-dir", t.TempDir()}, flags...)
		code, _, stderr := run(t, embeddedProgram, args...)
		if code != 2 {
			t.Errorf("%q: exit code %d, want 2\n%s", flags, code, stderr)
		}
		if _, err := os.Stat(store); err == nil {
			t.Errorf("%q: a refused start made the store", flags)
			os.RemoveAll(store)
		}
	}
}
