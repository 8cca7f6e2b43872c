package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/clustertest"
	"sandkeep/internal/snapshot"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

func TestExitCode(t *testing.T) {
	want := map[snapshot.Code]int{
		snapshot.BadRequest: 1, snapshot.InvalidID: 1, snapshot.InvalidEntry: 1, snapshot.InvalidPath: 1, snapshot.ParentMismatch: 1,
		snapshot.ReuseNone: 1, snapshot.MissingSandbox: 1, snapshot.ForeignCheckpointArtifact: 1, snapshot.ForkSourceThreadMismatch: 1,
		snapshot.CheckpointNotFound: 4, snapshot.MissingCheckpointArtifact: 4, snapshot.ForkSourceNotFound: 4, snapshot.MissingReusableSandbox: 4,
		snapshot.MissingArtifactBlob: 4, snapshot.MissingEntry: 4, snapshot.OperationNotFound: 4,
		snapshot.StaleHead: 5, snapshot.DuplicateID: 5, snapshot.NotHead: 5, snapshot.WriterLost: 5, snapshot.ForkDestinationNotEmpty: 5,
		snapshot.ThreadDeleted: 5, snapshot.LockLost: 5, snapshot.StaleRevision: 5, snapshot.WriterConflict: 5, snapshot.LockConflict: 5,
		snapshot.PayloadTooLarge: 1, snapshot.InvalidWorkspace: 1, snapshot.UnsupportedEntry: 1, snapshot.UnreadableEntry: 1,
		snapshot.WorkspaceChanged: 1, snapshot.WorkspaceTooLarge: 1, snapshot.DestinationNotEmpty: 1, snapshot.FormatUnsupported: 1, snapshot.Internal: 1,
		snapshot.MissingBlob: 7, snapshot.InvalidBlob: 7, snapshot.InvalidArtifactBytes: 7,
		snapshot.StoreUnavailable: 6, snapshot.NodeUnreachable: 6, snapshot.Busy: 6, snapshot.Timeout: 6, snapshot.Canceled: 6, snapshot.StoreFull: 6,
	}
	for _, code := range snapshot.Codes() {
		err := fmt.Errorf("wrapped: %w", snapshot.Errorf(code, "x").Because(nats.ErrTimeout))
		if got, ok := want[code]; !ok || agent.ExitCode(err) != got {
			t.Errorf("%s: exit code %d, want %d", code, agent.ExitCode(err), got)
		}
	}
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {errors.New("x"), 1}, {&agent.UsageError{Err: errors.New("x")}, 2}, {nats.ErrNoServers, 6}, {nats.ErrNoResponders, 6},
		{context.DeadlineExceeded, 6}, {agent.ErrInterrupted, 130}, {errors.Join(agent.ErrInterrupted, snapshot.Errorf(snapshot.Busy, "x")), 130},
	} {
		if got := agent.ExitCode(tc.err); got != tc.want {
			t.Errorf("%v: exit code %d, want %d", tc.err, got, tc.want)
		}
	}
}

// probe is a program that shows how its flags were read.
type probe struct {
	agent.Common
	agent.Worker
	agent.Buckets
	bus.ConnectOptions
	seen func(*probe)
	fail error
}

func (p *probe) Run(ctx context.Context) error {
	p.seen(p)
	if p.fail == nil {
		return ctx.Err()
	}
	return p.fail
}

func run(t *testing.T, ctx context.Context, p *probe, args ...string) (int, string) {
	t.Helper()
	var stderr strings.Builder
	std := agent.IO{In: strings.NewReader(""), Out: io.Discard, Err: &stderr}
	code := agent.Program{Name: "probe", CLI: p}.Run(ctx, std, args)
	return code, stderr.String()
}

// clean takes the variables away that would change what a test sees.
func clean(t *testing.T) {
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, "SANDBOX_") || strings.HasPrefix(name, "NATS_") || name == "XDG_STATE_HOME" {
			t.Setenv(name, "") // restored at the end
			os.Unsetenv(name)
		}
	}
}

func TestProgram_Flags(t *testing.T) {
	clean(t)
	t.Setenv("HOME", "/home/somebody")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want func(*probe) bool
	}{
		{"defaults", nil, nil, func(p *probe) bool {
			return p.Prefix == "sandbox" && p.Store == "sandbox" && p.Node == host && p.StateDir == "/home/somebody/.local/state/sandkeep" &&
				p.Lease == 30*time.Second && p.Drain == 30*time.Second && p.LogLevel == "info" && p.Timeout == 5*time.Minute && p.Replicas == 0
		}},
		{"XDG", map[string]string{"XDG_STATE_HOME": "/x"}, nil, func(p *probe) bool { return p.StateDir == "/x/sandkeep" }},
		{"relative XDG", map[string]string{"XDG_STATE_HOME": "x"}, nil, func(p *probe) bool { return p.StateDir == "/home/somebody/.local/state/sandkeep" }},
		{"own variables", map[string]string{"SANDBOX_NODE": "n", "SANDBOX_STATE_DIR": "/s", "SANDBOX_LEASE": "5s", "SANDBOX_NO_DEFAULT_EXCLUDES": "true",
			"SANDBOX_EXCLUDE": "a,b", "SANDBOX_TIMEOUT": "7s", "SANDBOX_MAX_BYTES": "10", "SANDBOX_SERVER": "s"}, nil, func(p *probe) bool {
			return p.Node == "n" && p.StateDir == "/s" && p.Lease == 5*time.Second && p.NoDefaultExcludes && len(p.Exclude) == 1 && p.Exclude[0] == "a,b" &&
				p.Timeout == 7*time.Second && p.MaxBytes == 10 && p.Server == "s"
		}},
		{"nats variables", map[string]string{"NATS_URL": "u", "NATS_CREDS": "c", "NATS_CONTEXT": "x", "NATS_CERT": "t", "NATS_TIMEOUT": "1s"}, nil, func(p *probe) bool {
			return p.Server == "u" && p.Creds == "c" && p.ConnectOptions.Context == "x" && p.TLSCert == "t" && p.Timeout == 5*time.Minute
		}},
		{"own before nats", map[string]string{"NATS_URL": "u", "SANDBOX_SERVER": "s"}, nil, func(p *probe) bool { return p.Server == "s" }},
		{"flags before all", map[string]string{"NATS_URL": "u", "SANDBOX_NODE": "n"}, []string{"-s", "f", "--node", "g", "--exclude", "a,b", "--exclude", "c"},
			func(p *probe) bool { return p.Server == "f" && p.Node == "g" && len(p.Exclude) == 2 }},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			ok := false
			code, text := run(t, t.Context(), &probe{seen: func(p *probe) { ok = tc.want(p) }}, tc.args...)
			if code != 0 || !ok {
				t.Errorf("exit code %d, %s, flags as wanted: %t", code, text, ok)
			}
		})
	}
}

func TestProgram_ExitCodes(t *testing.T) {
	clean(t)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	none := func(*probe) {}
	for _, tc := range []struct {
		name string
		ctx  context.Context
		p    probe
		args []string
		want int
		text string
	}{
		{"unknown flag", t.Context(), probe{seen: none}, []string{"--nope"}, 2, "--help"},
		{"bad duration", t.Context(), probe{seen: none}, []string{"--lease", "x"}, 2, "--lease"},
		{"bad enum", t.Context(), probe{seen: none}, []string{"--log-level", "loud"}, 2, "loud"},
		{"interrupted", stopped, probe{seen: none}, nil, 130, "interrupted"},
		{"interrupted in a request", stopped, probe{seen: none, fail: snapshot.Errorf(snapshot.Canceled, "x").Because(context.Canceled)}, nil, 130, "interrupted"},
		{"canceled by the worker", t.Context(), probe{seen: none, fail: snapshot.Errorf(snapshot.Canceled, "gone")}, nil, 6, "gone (SANDBOX_CANCELED)"},
		{"cause is not shown", t.Context(), probe{seen: none, fail: snapshot.Errorf(snapshot.Internal, "seen").Because(errors.New("hidden"))}, nil, 1, "seen (SANDBOX_INTERNAL)\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, text := run(t, tc.ctx, &tc.p, tc.args...)
			if code != tc.want || !strings.Contains(text, tc.text) || strings.Contains(text, "hidden") {
				t.Errorf("exit code %d, %q; want %d, %q", code, text, tc.want, tc.text)
			}
		})
	}
}

func TestNewSetup_AllFaultsAtOnce(t *testing.T) {
	config := filepath.Join(t.TempDir(), "c.json")
	if err := os.WriteFile(config, []byte(`{"definitions": {"default": {"reuse": "x"}}, "more": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := agent.NewSetup(agent.Common{Prefix: "a b", Store: "x.y"},
		agent.Worker{Node: "", Lease: 1500 * time.Millisecond, Drain: -1, Config: config}, io.Discard)
	if agent.ExitCode(err) != agent.ExitUsage {
		t.Fatalf("NewSetup: %v, want a usage error", err)
	}
	for _, want := range []string{"--prefix", "--store", "--state-dir", "--node", "--lease", "--drain", `"more"`, `"x"`} {
		if text := agent.Sentence(err); !strings.Contains(text, want) {
			t.Errorf("%s is not named in: %s", want, text)
		}
	}
}
