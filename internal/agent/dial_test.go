package agent_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// stranger is a server that wants credentials and tells what clients show it.
func stranger(t *testing.T) (url string, shown <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines, done := make(chan string, 10), make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "INFO {\"server_id\":\"x\",\"version\":\"2.10.0\",\"auth_required\":true,\"headers\":true,\"max_payload\":1048576}\r\n")
			line, _ := bufio.NewReader(conn).ReadString('\n')
			lines <- line
			fmt.Fprint(conn, "-ERR 'Authorization Violation'\r\n")
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "nats://" + l.Addr().String(), lines
}

func saveContext(t *testing.T, config, name, url string) {
	t.Helper()
	at := filepath.Join(config, "nats", "context", name+".json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, fmt.Appendf(nil, `{"url":%q}`, url), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// The token is shown to the state directory's own server and to no other.
func TestDial_Token(t *testing.T) {
	clean(t)
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	dir := t.TempDir()
	s := startServer(t, dir)
	token, err := os.ReadFile(filepath.Join(dir, "state", "token"))
	if err != nil {
		t.Fatal(err)
	}
	url, shown := stranger(t)
	saveContext(t, config, "mine", s.URL)
	saveContext(t, config, "other", url)
	for _, o := range []bus.ConnectOptions{{}, {Server: s.URL}, {Server: strings.Replace(s.URL, "127.0.0.1", "localhost", 1)},
		{Server: strings.TrimPrefix(s.URL, "nats://")}, {Context: "mine"}, {Server: s.URL, Context: "other"}} {
		o.Timeout = time.Second
		link, err := agent.Dial(common(dir), o)
		if err != nil {
			t.Errorf("%q, context %q: %v", o.Server, o.Context, err)
			continue
		}
		link.Conn.Close()
	}
	for _, o := range []bus.ConnectOptions{{Server: url}, {Server: strings.Replace(url, "127.0.0.1", "localhost", 1)}, {Server: url + "," + s.URL},
		{Context: "other"}, {Server: url, Context: "mine"}} {
		o.Timeout = time.Second
		link, err := agent.Dial(common(dir), o)
		if err == nil {
			link.Conn.Close()
		}
		select {
		case line := <-shown:
			if strings.Contains(line, strings.TrimSpace(string(token))) {
				t.Errorf("%q, context %q: the token was shown: %s", o.Server, o.Context, line)
			}
		default:
			if err == nil { // of the two servers the own one was asked first
				t.Errorf("%q, context %q: connected without the token", o.Server, o.Context)
			}
		}
	}
}

func TestDial_Refused(t *testing.T) {
	clean(t)
	s := startServer(t, t.TempDir())
	host := strings.TrimPrefix(s.URL, "nats://")
	for _, o := range []bus.ConnectOptions{{Server: s.URL, Token: "hunter2"}, {Server: "nats://me:hunter2@" + host}} {
		o.NoContext, o.Timeout = true, time.Second
		_, err := agent.Dial(common(t.TempDir()), o)
		o.Daemon, o.Log = true, zerolog.Nop()
		link, dialed := agent.Dial(common(t.TempDir()), o)
		if dialed != nil {
			t.Fatal(dialed)
		}
		defer link.Conn.Close()
		_, awaited := link.Await(t.Context())
		for _, err := range []error{err, awaited} {
			if text := agent.Sentence(err); !errors.Is(err, snapshot.StoreUnavailable) || !strings.Contains(text, host+" refuses the credentials; give") || strings.Contains(text, "hunter2") {
				t.Errorf("%v: want %s named and the credentials refused, without them", err, s.URL)
			}
		}
	}
}

// Where nothing names a server, the message says that the own one is missed.
func TestDial_NothingRuns(t *testing.T) {
	clean(t)
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	l, err := agent.Dial(common(t.TempDir()), bus.ConnectOptions{Timeout: time.Second})
	if err == nil {
		l.Conn.Close()
		t.Skip("a server runs on this machine at the default address")
	}
	if text := agent.Sentence(err); !strings.HasPrefix(text, "the state directory's own server is not running, and ") {
		t.Errorf("the message is %q", text)
	}
	log := &lines{}
	l, err = agent.Dial(common(t.TempDir()), bus.ConnectOptions{Daemon: true, Log: zerolog.New(log), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	l.Conn.Close()
	if !strings.Contains(log.String(), "the state directory's own server is not running; waiting for the NATS server") {
		t.Errorf("the log says %s", log)
	}
}

// The files of a running server are not touched by one that can't start.
func TestStartServer_StateDirInUse(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	e := embedded(dir)
	e.StoreDir = filepath.Join(dir, "store2")
	_, err := agent.StartServer(common(dir), e, bus.ConnectOptions{}, zerolog.Nop())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", os.Getpid())) || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("a second server on the state directory: %v", err)
	}
	if _, err := os.Stat(e.StoreDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it made its store: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "state", "server")); err != nil || strings.TrimSpace(string(text)) != s.URL {
		t.Errorf("the address of the running server is %q, %v", text, err)
	}
}

// A start that fails lets the state directory go.
func TestStartServer_GivesTheLockBack(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	startServer(t, other)
	e := embedded(dir)
	e.StoreDir = embedded(other).StoreDir
	if _, err := agent.StartServer(common(dir), e, bus.ConnectOptions{}, zerolog.Nop()); err == nil {
		t.Fatal("two servers on one store")
	}
	startServer(t, dir)
}
