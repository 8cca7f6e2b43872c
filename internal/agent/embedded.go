package agent

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"

	"github.com/gofrs/flock"
	"github.com/rs/zerolog"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// Embedded are the flags of the NATS server in this process.
type Embedded struct {
	StoreDir       string `required:"" type:"path" placeholder:"DIR" help:"Where JetStream keeps everything."`
	AllowTempStore bool   `help:"Allow a store directory in memory or in the temp folder."`
	Listen         string `placeholder:"HOST:PORT" help:"Where clients connect; port 0 is a free one (default: 127.0.0.1:4222, or as the server configuration says)."`
	Sync           string `default:"always" enum:"always,interval" help:"When writes reach the disk: ${enum}; always survives a power cut (default: always)."`
	Auth           string `default:"token" enum:"token,none" help:"Who may connect: ${enum}; the token is in the state dir, where agent finds it (default: token)."`
	ServerConfig   string `type:"path" placeholder:"FILE" help:"A nats-server configuration, for TLS, accounts, leaf nodes, clusters."`
}

// Server is a running embedded server with a connection to it.
type Server struct {
	Link
	server *bus.Server
	state  stateDir
	lock   *flock.Flock // of the state directory
}

// StartServer starts the embedded server, the only one on its state directory.
// With a server configuration, who tells how this process authenticates.
func StartServer(c Common, e Embedded, who bus.ConnectOptions, log zerolog.Logger) (*Server, error) {
	if err := usage(c.check()); err != nil {
		return nil, err
	}
	state, err := openStateDir(c.StateDir)
	if err != nil {
		return nil, err
	}
	lock, err := state.lock()
	if err != nil {
		return nil, err
	}
	s, err := startServer(state, e, who, log)
	if err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	s.lock = lock
	return s, nil
}

func startServer(state stateDir, e Embedded, who bus.ConnectOptions, log zerolog.Logger) (*Server, error) {
	var err error
	o := bus.ServerOptions{StoreDir: e.StoreDir, AllowTempStore: e.AllowTempStore, Listen: e.Listen, Sync: e.Sync, ConfigFile: e.ServerConfig,
		Log: func(level zerolog.Level, text string) { serverLine(log, level, text) }}
	if e.Auth == "token" {
		if o.Token, err = state.token(); err != nil {
			return nil, err
		}
	}
	server, err := bus.StartServer(o)
	if err != nil {
		return nil, err
	}
	if e.ServerConfig == "" {
		who = bus.ConnectOptions{} // the variables are about other servers
	}
	if e.Auth == "token" {
		who.TokenFile = state.file(tokenFile)
	}
	who.Embedded, who.Log = server, log
	l, err := linkEmbedded(who)
	if err == nil {
		l.URL = reachable(server.ClientURL())
		err = state.write(serverFile, l.URL)
	}
	if err != nil {
		return nil, errors.Join(err, server.Shutdown())
	}
	return &Server{Link: l, server: server, state: state}, nil
}

// serverLine logs a line of the server, which is chatty at its info level.
func serverLine(log zerolog.Logger, level zerolog.Level, text string) {
	if level == zerolog.InfoLevel {
		level = zerolog.DebugLevel
	}
	log.WithLevel(level).Str("part", "nats-server").Msg(text)
}

// linkEmbedded connects for good, but fails at once if the server refuses: a
// daemon's connection would go on trying.
func linkEmbedded(o bus.ConnectOptions) (Link, error) {
	probe, err := bus.Connect(o)
	if _, ok := errors.AsType[*bus.SettingError](err); ok {
		return Link{}, err
	}
	if err != nil {
		return Link{}, snapshot.Errorf(snapshot.StoreUnavailable,
			"the server does not let its own worker in; with --server-config give --creds, --nkey, or --user and --password").Because(err)
	}
	probe.Close()
	o.Daemon = true
	return link(o)
}

// reachable names this machine where the server listens on all addresses: to
// no other host would agent show the token.
func reachable(clientURL string) string {
	u, err := url.Parse(clientURL)
	if err != nil {
		return clientURL
	}
	if ip := net.ParseIP(u.Hostname()); ip != nil && ip.IsUnspecified() {
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	}
	return u.String()
}

// Init makes the store of the server.
func (s *Server) Init(ctx context.Context, c Common, e Embedded, b Buckets) error {
	makeStore := InitStore
	if e.ServerConfig != "" {
		makeStore = InitCluster
	}
	_, err := makeStore(ctx, s.Link, c, b)
	return err
}

// Shutdown closes the connection and stops the server.
func (s *Server) Shutdown() error {
	err := Drain(s.Conn)
	if e := os.Remove(s.state.file(serverFile)); e != nil && !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, s.server.Shutdown(), s.lock.Unlock())
}
