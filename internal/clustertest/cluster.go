package clustertest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"sandkeep/internal/leaktest"
)

const (
	memberEnv = "CLUSTERTEST_CONFIG" // makes a test program one server of the cluster
	accounts  = 500                  // one for each test that asks
)

// shared is the cluster of all tests of a package.
var shared struct {
	once  sync.Once
	err   error
	stop  func()
	hosts []string
	mu    sync.Mutex // guards next
	next  int
}

// Main is a TestMain for tests that call URL: it runs them, ends their cluster,
// and looks for goroutines left over.
func Main(m *testing.M) {
	if config := os.Getenv(memberEnv); config != "" {
		serve(config)
		return
	}
	goleak.VerifyTestMain(tests{m}, leaktest.Known()...)
}

type tests struct{ m *testing.M }

func (t tests) Run() int {
	code := t.m.Run()
	if shared.stop != nil {
		shared.stop()
	}
	return code
}

// serve runs a server until the tests end, also if they are killed.
func serve(config string) {
	o, err := server.ProcessConfigFile(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	o.NoSigs = true
	srv, err := server.NewServer(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	srv.Start()
	_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that is awaited
	srv.Shutdown()
	srv.WaitForShutdown()
	_ = os.RemoveAll(o.StoreDir) // what is left lies in the temp folder
}

// URL lets clients into the cluster, started by the first call, as an account
// of the test's own: what others store there it does not see.
func URL(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() { shared.err = startCluster() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	shared.mu.Lock()
	n := shared.next
	shared.next++
	shared.mu.Unlock()
	if n >= accounts {
		t.Fatalf("more than %d tests asked for an account", accounts)
	}
	url := accountURL(n)
	t.Cleanup(func() {
		if err := empty(url); err != nil {
			t.Errorf("remove the streams of the test: %v", err)
		}
	})
	return url
}

func accountURL(n int) string {
	var urls []string
	for i := range shared.hosts { // each account begins with another server
		urls = append(urls, fmt.Sprintf("nats://a%d:secret@%s", n, shared.hosts[(n+i)%len(shared.hosts)]))
	}
	return strings.Join(urls, ",")
}

func startCluster() error {
	dir, err := os.MkdirTemp("", "cluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // the servers have read it
	configs, err := writeConfigs(dir, "accounts {\n"+accountLines()+"}\n")
	if err != nil {
		return err
	}
	var stops []func()
	shared.stop = func() {
		for _, stop := range stops {
			stop()
		}
	}
	for _, config := range configs {
		stop, err := startMember(config)
		if err != nil {
			return err
		}
		stops = append(stops, stop)
	}
	return ready(accountURL(0))
}

func accountLines() string {
	var b strings.Builder
	for i := range accounts {
		fmt.Fprintf(&b, "a%d { jetstream: enabled, users: [{user: a%d, password: secret}] }\n", i, i)
	}
	return b.String()
}

// startMember runs this program as a server.
func startMember(config string) (stop func(), err error) {
	store, err := os.MkdirTemp("", filepath.Base(config)+"-")
	if err != nil {
		return nil, err
	}
	host, err := freeAddress()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(config, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "listen: %q\njetstream { store_dir: %q, max_file_store: 4TB, max_memory_store: 4TB }\n", host, store); err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr = append(os.Environ(), memberEnv+"="+config), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	shared.hosts = append(shared.hosts, host)
	return func() { _ = in.Close(); _ = cmd.Wait() }, cmd.Start()
}

// ready waits until the cluster makes streams.
func ready(url string) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // no server tells when it is ready
		err := makeStream(url)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func makeStream(url string) error {
	nc, js, err := open(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // requests without a leader get no answer
	defer cancel()
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "ready", Replicas: 3})
	return err
}

func open(url string) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	return nc, js, err
}

// empty removes the streams of an account.
func empty(url string) error {
	nc, js, err := open(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		if err := js.DeleteStream(ctx, name); err != nil {
			return err
		}
	}
	return names.Err()
}
