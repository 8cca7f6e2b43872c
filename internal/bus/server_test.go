package bus_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

func run(t *testing.T, o bus.ServerOptions) *bus.Server {
	t.Helper()
	s, err := bus.StartServer(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	return s
}

func TestServer_OneAStore(t *testing.T) {
	o := bus.ServerOptions{StoreDir: filepath.Join(t.TempDir(), "a", "b"), AllowTempStore: true, Listen: "127.0.0.1:0"}
	s := run(t, o)
	_, err := bus.StartServer(o)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d on host ", os.Getpid())) {
		t.Errorf("the second server: %v", err)
	}
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	again := run(t, o)
	if err := again.Shutdown(); err != nil {
		t.Error(err)
	}
}

func TestServer_TempStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	_, err := bus.StartServer(bus.ServerOptions{StoreDir: dir, Listen: "127.0.0.1:0"})
	if err == nil || !strings.Contains(err.Error(), "--allow-temp-store") {
		t.Errorf("temp folder: %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused directory was made")
	}
	if _, err := os.Stat("/dev/shm"); err == nil {
		if _, err := bus.StartServer(bus.ServerOptions{StoreDir: "/dev/shm/none", Listen: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), "in memory") {
			t.Errorf("tmpfs: %v", err)
		}
	}
	if _, err := bus.StartServer(bus.ServerOptions{}); err == nil {
		t.Error("it started without a store directory")
	}
}

// A stream with reserved space loads again, and data outlives the server.
func TestServer_Restart(t *testing.T) {
	o := bus.ServerOptions{StoreDir: t.TempDir(), AllowTempStore: true, Listen: "127.0.0.1:0"}
	for i := range 2 {
		s := run(t, o)
		js, err := bus.JetStream(connect(t, s), bus.ConnectOptions{Embedded: s})
		if err != nil {
			t.Fatal(err)
		}
		kv, err := js.CreateOrUpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			_, err = kv.PutString(t.Context(), "k", "v")
		} else {
			_, err = kv.Get(t.Context(), "k")
		}
		if err != nil {
			t.Error(err)
		}
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	}
}

func TestServer_PortInUse(t *testing.T) {
	s := startServer(t)
	o := bus.ServerOptions{StoreDir: t.TempDir(), AllowTempStore: true, Listen: strings.TrimPrefix(s.ClientURL(), "nats://")}
	if _, err := bus.StartServer(o); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %v", err)
	}
	o.Listen = "127.0.0.1:0" // and the store is free again
	run(t, o)
	for _, bad := range []string{"127.0.0.1", "127.0.0.1:x", ":::"} {
		if _, err := bus.StartServer(bus.ServerOptions{StoreDir: t.TempDir(), AllowTempStore: true, Listen: bad}); err == nil {
			t.Errorf("listen address %q was taken", bad)
		}
	}
	if _, err := bus.StartServer(bus.ServerOptions{StoreDir: t.TempDir(), AllowTempStore: true, Sync: "never"}); err == nil {
		t.Error("sync never was taken")
	}
}

func TestServer_TokenAndLog(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("s3cret-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := run(t, bus.ServerOptions{StoreDir: t.TempDir(), AllowTempStore: true, Listen: "127.0.0.1:0", Token: "s3cret-token", Log: func(_ zerolog.Level, text string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, text)
	}})
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	_, err := bus.Connect(bus.ConnectOptions{Server: s.ClientURL()})
	if e := asError(t, err); !strings.Contains(e.Message, "refuses the credentials") {
		t.Errorf("without a token: %v", err)
	}
	for name, o := range map[string]bus.ConnectOptions{
		"token":          {Server: s.ClientURL(), Token: "s3cret-token"},
		"user":           {Server: s.ClientURL(), User: "s3cret-token"},
		"file":           {Server: s.ClientURL(), TokenFile: file},
		"embedded token": {Embedded: s, Token: "s3cret-token"},
		"embedded file":  {Embedded: s, TokenFile: file},
		"url":            {Server: strings.Replace(s.ClientURL(), "nats://", "nats://s3cret-token@", 1), TokenFile: "none"},
	} {
		nc, err := bus.Connect(o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		nc.Close()
	}
	if _, err := bus.Connect(bus.ConnectOptions{Server: s.ClientURL(), Token: "other", TokenFile: file}); err == nil {
		t.Error("a given token was overruled by the file")
	}
	mu.Lock()
	defer mu.Unlock()
	if all := strings.Join(lines, "\n"); !strings.Contains(all, "Server is ready") || strings.Contains(all, "s3cret") {
		t.Errorf("log: %s", all)
	}
}

func TestServer_ConfigFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	text := `port: -1, host: "127.0.0.1", max_payload: 65536, jetstream { store_dir: "` + dir + `/wrong" }, authorization { user: u, password: p }`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := bus.ServerOptions{StoreDir: filepath.Join(dir, "right"), AllowTempStore: true, ConfigFile: file, Token: "unused"}
	s := run(t, o)
	nc, err := bus.Connect(bus.ConnectOptions{Embedded: s, User: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if nc.MaxPayload() != 65536 {
		t.Errorf("max payload %d", nc.MaxPayload())
	}
	js, err := bus.JetStream(nc, bus.ConnectOptions{Embedded: s})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AccountInfo(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "wrong")); err == nil {
		t.Error("the store is where the configuration says")
	}
	o.ConfigFile, o.StoreDir = file+".none", filepath.Join(dir, "other")
	if _, err := bus.StartServer(o); err == nil {
		t.Error("it started without its configuration")
	}
}

// parse fills connection options as a program does.
func parse(t *testing.T, args ...string) bus.ConnectOptions {
	t.Helper()
	var cli struct {
		bus.ConnectOptions `embed:""`
	}
	p, err := kong.New(&cli)
	if err == nil {
		_, err = p.Parse(args)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cli.ConnectOptions
}

// Flags go before variables, variables before the context.
func TestConnect_Precedence(t *testing.T) {
	server := func(name string) *bus.Server {
		dir := t.TempDir()
		file := filepath.Join(dir, "nats.conf")
		text := `server_name: ` + name + `, port: -1, host: "127.0.0.1", authorization { users: [ {user: good, password: pw}, {user: ctx, password: pw} ] }`
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return run(t, bus.ServerOptions{StoreDir: dir, AllowTempStore: true, ConfigFile: file})
	}
	flag, env, saved := server("flag"), server("env"), server("saved")
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	contexts := filepath.Join(config, "nats", "context")
	if err := os.MkdirAll(contexts, 0o700); err != nil {
		t.Fatal(err)
	}
	text := `{"url":"` + saved.ClientURL() + `","user":"ctx","password":"pw","inbox_prefix":"_INBOX_ctx"}`
	if err := os.WriteFile(filepath.Join(contexts, "c1.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	connected := func(o bus.ConnectOptions) string {
		t.Helper()
		nc, err := bus.Connect(o)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		return nc.ConnectedServerName() + " " + nc.Opts.User + " " + nc.Opts.InboxPrefix
	}
	if got := connected(parse(t, "--context", "c1")); got != "saved ctx _INBOX_ctx" {
		t.Errorf("context: %s", got)
	}
	t.Setenv("NATS_URL", env.ClientURL())
	t.Setenv("NATS_CONTEXT", "c1")
	if got := connected(parse(t)); got != "env ctx _INBOX_ctx" {
		t.Errorf("variable: %s", got)
	}
	if got := connected(parse(t, "-s", flag.ClientURL(), "--user", "good", "--password", "pw", "--inbox-prefix", "_I")); got != "flag good _I" {
		t.Errorf("flag: %s", got)
	}
	t.Setenv("SANDBOX_SERVER", flag.ClientURL())
	if got := connected(parse(t)); got != "flag ctx _INBOX_ctx" {
		t.Errorf("own variable: %s", got)
	}
	_, err := bus.Connect(parse(t, "--context", "none"))
	if _, ok := errors.AsType[*bus.SettingError](err); !ok {
		t.Errorf("unknown context: %v", err)
	}
}

// What no server can be reached with is named by its flag, or by its place, and
// is no server that doesn't answer.
func TestConnect_Settings(t *testing.T) {
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	contexts := filepath.Join(config, "nats", "context")
	if err := os.MkdirAll(contexts, 0o700); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(config, "garbage")
	for name, text := range map[string]string{garbage: "s3cret", filepath.Join(contexts, "c1.json"): `{"url":"nats://127.0.0.1:1","creds":"/none.creds"}`,
		filepath.Join(contexts, "c2.json"): `{"url":"nats://h1,nats://me:s3cret"}`} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	here, given := "nats://me:s3cret@127.0.0.1:1", "the address in --server, SANDBOX_SERVER or NATS_URL"
	for _, row := range []struct {
		o    bus.ConnectOptions
		says string
	}{
		{bus.ConnectOptions{Creds: "/none.creds"}, `--creds "/none.creds" can't be used: open /none.creds: no such file`},
		{bus.ConnectOptions{Creds: config}, "--creds"},
		{bus.ConnectOptions{Creds: garbage}, "--creds"},
		{bus.ConnectOptions{Context: "c1"}, `the file "/none.creds", creds of the nats context, can't be used`},
		{bus.ConnectOptions{NKey: "/none"}, "--nkey"},
		{bus.ConnectOptions{NKey: garbage}, "--nkey"},
		{bus.ConnectOptions{JWT: "s3cret", Seed: "s3cret"}, "--jwt and --seed"},
		{bus.ConnectOptions{TLSCA: "/none"}, "--tlsca"},
		{bus.ConnectOptions{TLSCert: "/none", TLSKey: "/none"}, "--tlscert"},
		{bus.ConnectOptions{TLSCert: "/none"}, "give both"},
		{bus.ConnectOptions{Server: "http://me:s3cret@h"}, given + " does not begin with nats://, tls://, ws://, wss://,"},
		{bus.ConnectOptions{Server: here + ",http://me:s3cret@h"}, "address 2 of 2 in --server, SANDBOX_SERVER or NATS_URL does not begin with nats://"},
		{bus.ConnectOptions{Server: "nats://me:s3cret@h:99999"}, given + " is not a URL"},
		{bus.ConnectOptions{Server: "nats://"}, given + " is not a URL"},
		{bus.ConnectOptions{Server: "nats://me:s3cret,more@h"}, "address 1 of 2 in --server, SANDBOX_SERVER or NATS_URL is not a URL like nats://host:4222; a password in it has %2C for a comma"},
		{bus.ConnectOptions{Server: "nats://me:more,s3cret://x@h"}, "address 1 of 2"},
		{bus.ConnectOptions{Server: "nats://me:1,s3cret://x@h"}, "address 2 of 2"},
		{bus.ConnectOptions{Context: "c2"}, "address 2 of 2 in the nats context is not a URL"},
	} {
		if row.o.Server == "" && row.o.Context == "" {
			row.o.Server = "nats://127.0.0.1:1"
		}
		for _, row.o.Daemon = range []bool{false, true} {
			_, err := bus.Connect(row.o)
			if _, ok := errors.AsType[*bus.SettingError](err); !ok || !strings.Contains(err.Error(), row.says) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%+v: %v, want %s", row.o, err, row.says)
			}
		}
	}
}

func TestConnect_NoServer(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	_, err := bus.Connect(bus.ConnectOptions{Server: "nats://me:s3cret@127.0.0.1:1,127.0.0.1:2"})
	if e := asError(t, err); e.Code != snapshot.StoreUnavailable || !strings.Contains(e.Message, "nats://127.0.0.1:1,127.0.0.1:2") {
		t.Errorf("got %v", err)
	}
	_, bad := bus.Connect(bus.ConnectOptions{Server: "nats://me:s3cret@127.0.0.1:port"})
	o := bus.ConnectOptions{Server: "nats://me:s3cret@h", Password: "s3cret", Seed: "s3cret", Token: "s3cret", JWT: "s3cret"}
	comma := bus.ConnectOptions{Server: "nats://h1,nats://me:s3cret,s3cret,more@h2"}
	if got := comma.String(); got != "connection to nats://h1,h2" {
		t.Errorf("with a comma in the password: %s", got)
	}
	if all := fmt.Sprintf("%v %+v %#v %s %v %v", o, o, o, o, err, bad); strings.Contains(all, "s3cret") {
		t.Errorf("a secret shows: %s", all)
	}
}

// A server of this machine may name others of its cluster, to which the token
// of the token file must never be shown.
func TestConnect_TokenStaysHere(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with the connection
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, `INFO {"server_id":"s","version":"2.15.3","proto":1,"max_payload":1048576,"connect_urls":["203.0.113.9:4222"]}`+"\r\n")
		for lines := bufio.NewScanner(c); lines.Scan(); {
			if lines.Text() == "PING" {
				fmt.Fprint(c, "PONG\r\n")
			}
		}
	}()
	nc, err := bus.Connect(bus.ConnectOptions{Server: "nats://" + l.Addr().String(), TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if found := nc.DiscoveredServers(); len(found) > 0 {
		t.Errorf("the token would be shown to %v", found)
	}
}

// A daemon may be started before its server, and outlives it.
func TestConnect_Daemon(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	s := startServer(t)
	o := bus.ServerOptions{StoreDir: t.TempDir(), AllowTempStore: true, Listen: strings.TrimPrefix(s.ClientURL(), "nats://")}
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	log := &logBuffer{}
	nc, err := bus.Connect(bus.ConnectOptions{Server: "nats://" + o.Listen, Daemon: true, Log: zerolog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	again := run(t, o)
	eventually(t, "the connection", func() bool { return nc.Status() == nats.CONNECTED })
	if err := again.Shutdown(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log line", func() bool { return strings.Contains(log.String(), "disconnected") })
}
