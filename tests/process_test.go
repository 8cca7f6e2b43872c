package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait for something that has to happen.
const patience = 60 * time.Second

// output keeps what a process writes.
type output struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// process is a program that a test started. The end of the test kills it.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout output
	stderr output
	done   chan struct{} // closed when it has ended
	quiet  bool          // the test tells itself what the program said
}

// environment is that of every program: nothing of the machine's own settings,
// and a home of the test's own.
func environment(t *testing.T, more ...string) []string {
	home := filepath.Join(t.TempDir(), "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, more...)
}

func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	return startIn(t, environment(t), program, args...)
}

func startIn(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	return startAs(t, nil, env, program, args...)
}

func startAs(t *testing.T, attr *syscall.SysProcAttr, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.SysProcAttr = attr
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", filepath.Base(program), err)
	}
	go func() {
		_ = p.cmd.Wait() // the exit code is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && !p.quiet {
			t.Logf("%s %s\nstderr: %s", filepath.Base(program), strings.Join(args, " "), lastLines(p.stderr.String(), 40))
		}
	})
	return p
}

func lastLines(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("send %v to process %d: %v", s, p.cmd.Process.Pid, err)
	}
}

// kill ends the process as a power cut would, and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// wait returns the exit code, -1 after a signal.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("process %d has not ended after %v", p.cmd.Process.Pid, patience)
		return -1
	}
}

// stop ends the process in the orderly way.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		p.t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// logged waits for a JSON log line with the message.
func (p *process) logged(message string) map[string]any {
	p.t.Helper()
	var found map[string]any
	eventually(p.t, "the log line "+message, func() bool {
		found = logLine(p.stderr.String(), message)
		if found == nil && p.ended() {
			p.t.Fatalf("the program ended with %d before it logged %q:\n%s", p.cmd.ProcessState.ExitCode(), message, p.stderr.String())
		}
		return found != nil
	})
	return found
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func logLine(log, message string) map[string]any {
	for line := range strings.Lines(log) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == message {
			return fields
		}
	}
	return nil
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	within(t, patience, what, holds)
}

func within(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); time.Now().Before(end); <-tick.C {
		if holds() {
			return
		}
	}
	t.Fatalf("waited %v for %s", limit, what)
}

// eventPatience is longer: a server that could not reach a stream's source tries
// again after up to two minutes.
const eventPatience = 5 * time.Minute

// run runs a program to its end.
func run(t *testing.T, program string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := start(t, program, args...)
	p.quiet = true
	code = p.wait()
	return code, p.stdout.String(), p.stderr.String()
}
