package tests

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
)

// What was sent before SIGTERM is answered.
func TestTermAnswersWhatIsQueued(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--no-agent")
	w := s.worker(s.node)
	var replies []<-chan *nats.Msg
	for i := range 6 {
		th := fmt.Sprint("t", i)
		build(t, s.sandbox(t, th)).code(60)
		s.attach(th, th)
	}
	for i := range 90 {
		th := fmt.Sprint("t", i%6)
		switch i / 6 % 3 {
		case 0:
			replies = append(replies, s.replyTo("snapshot.save", object{"threadId": th, "runId": fmt.Sprint(i), "waitMs": 20_000}))
		case 1:
			replies = append(replies, s.replyTo("thread.save", object{"threadId": th, "messages": []int{i}}))
		default:
			replies = append(replies, s.replyTo("checkpoint.list", object{"threadId": th}))
		}
	}
	w.signal(syscall.SIGTERM)
	saved := 0
	for i, ch := range replies {
		msg := await(t, ch)
		if len(msg.Data) == 0 {
			t.Fatalf("request %d: %v", i, msg.Header)
		}
		switch f := decodeFailure(t, msg); {
		case f == nil && i/6%3 == 0:
			saved++
		case f != nil && !f.Retryable:
			t.Errorf("request %d: %+v", i, f)
		}
	}
	if code := w.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	s.worker(s.node)
	stored := 0
	for i := range 6 {
		stored += len(s.chain(fmt.Sprint("t", i)))
	}
	if saved != stored || saved == 0 {
		t.Errorf("%d saves were acknowledged, %d are stored", saved, stored)
	}
	// Leases were released: nobody has to wait for them.
	s.save("t0", "afterwards")
}

// waiting starts a worker with a save that waits for a lease which a stopped
// worker holds.
func waiting(t *testing.T, flags ...string) (w *process, reply <-chan *nats.Msg) {
	t.Helper()
	b := newBench(startServer(t, "--no-agent"), "held")
	holder := b.worker(b.node, "--prefix", b.thread, "--lease", "5m")
	if _, paused := b.pauseAt(holder, 4); !paused {
		t.Fatal("the save was over before it could be paused")
	}
	w = b.worker(b.node, append([]string{"--prefix", "waiter"}, flags...)...)
	reply = b.with("waiter").replyTo("snapshot.save", object{"threadId": b.thread, "runId": "r", "waitMs": 300_000, "timeoutMs": 300_000})
	ok[headOf](b.with("waiter"), "checkpoint.head", object{"threadId": b.thread}) // so that the save was taken
	return w, reply
}

func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	w, reply := waiting(t, "--drain", "1s")
	w.signal(syscall.SIGTERM)
	if f := decodeFailure(t, await(t, reply)); f == nil || !f.Retryable {
		t.Errorf("the save was answered with %+v", f)
	}
	w.wait()
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	w, _ := waiting(t, "--drain", "10m")
	w.signal(syscall.SIGTERM)
	eventually(t, "the end after a second signal", func() bool {
		if !w.ended() {
			w.signal(syscall.SIGTERM)
		}
		return w.ended()
	})
	if code := w.wait(); code == 0 {
		t.Errorf("exit code %d after requests were given up", code)
	}
}

func TestSecondServerOnOneStore(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "work")).file("file", []byte("x"), 0o644)
	s.attach("t", "work")
	s.save("t", "r1")
	code, _, stderr := run(t, embeddedProgram, append(newNode(t, "n2").flags(t.TempDir()), "--auth", "none", "--store-dir", s.storeDir, "--allow-temp-store", "--listen", "127.0.0.1:0")...)
	if code == 0 || !strings.Contains(stderr, fmt.Sprint(s.proc.cmd.Process.Pid)) {
		t.Errorf("exit code %d, and process %d is not named: %s", code, s.proc.cmd.Process.Pid, stderr)
	}
	s.save("t", "r2")
	s.proc.stop()
	s.run()
	if n := len(s.chain("t")); n != 2 {
		t.Errorf("%d checkpoints after a restart", n)
	}
}

func TestStoreThatDoesNotLast(t *testing.T) {
	t.Parallel()
	dirs := []string{filepath.Join(t.TempDir(), "store")}
	if shm, err := os.MkdirTemp("/dev/shm", "store-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(shm) })
		dirs = append(dirs, shm)
	}
	for _, dir := range dirs {
		code, _, stderr := run(t, embeddedProgram, append(newNode(t, "n1").flags(t.TempDir()), "--auth", "none", "--store-dir", dir, "--listen", "127.0.0.1:0")...)
		if code == 0 || !strings.Contains(stderr, "--allow-temp-store") {
			t.Errorf("%s: exit code %d, %s", dir, code, stderr)
		}
		if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
			t.Errorf("%s: a refused start left %v", dir, left)
		}
	}
	if code, _, stderr := run(t, embeddedProgram, "--listen", "127.0.0.1:0"); code != 2 {
		t.Errorf("without --store-dir: exit code %d, %s", code, stderr)
	}
}

func TestTokenOfTheEmbeddedServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--auth", "token")
	token := s.token()
	if nc, err := nats.Connect(s.url, nats.MaxReconnects(0)); err == nil {
		nc.Close()
		t.Error("a client without the token was let in")
	}
	build(t, s.sandbox(t, "work")).file("file", []byte("x"), 0o644)
	s.attach("t", "work")
	cp := s.save("t", "r")
	code, stdout, stderr := run(t, agentProgram, "head", "--server", s.url, "--state-dir", s.stateDir, "t")
	if code != 0 || !strings.Contains(stdout, cp.ID) {
		t.Errorf("agent head: exit code %d, %q, %s", code, stdout, stderr)
	}
	if code, _, _ = run(t, agentProgram, "head", "--server", s.url, "--state-dir", t.TempDir(), "t"); code != 6 {
		t.Errorf("agent head without the token: exit code %d, want 6", code)
	}
	if strings.Contains(s.proc.stderr.String()+s.proc.stdout.String(), token) {
		t.Error("the token is in the log")
	}
	s.proc.stop()
	s.run()
	if head := s.head("t"); head != cp.ID || s.token() != token {
		t.Errorf("after a restart the head is %q, want %q, and the token another one", head, cp.ID)
	}
}

// token reads the token from the state directory, where nobody else may.
func (s *server) token() (token string) {
	s.t.Helper()
	err := filepath.WalkDir(s.stateDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.Contains(d.Name(), "token") {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm() != 0o600 {
			s.t.Errorf("%s has mode %v", d.Name(), info.Mode())
		}
		raw, err := os.ReadFile(path)
		token = strings.TrimSpace(string(raw))
		return err
	})
	if err != nil || len(token) < 20 {
		s.t.Fatalf("the token is %q: %v", token, err)
	}
	return token
}
