package bus

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"
)

// Ways to sync the store.
const (
	SyncAlways   = "always"   // an acknowledged write survives a power cut
	SyncInterval = "interval" // the server's own interval
)

// ServerOptions are those of the embedded server. StoreDir is required.
type ServerOptions struct {
	StoreDir       string
	AllowTempStore bool   // allow tmpfs and the temp folder
	Listen         string // host:port, a port of 0 or -1 is a free one; "" is 127.0.0.1:4222
	Sync           string // "" is SyncAlways
	Token          string // that clients must show; not used if the configuration has its own authorization
	ConfigFile     string // a nats-server configuration; store, JetStream and sync are as here all the same
	StartTimeout   time.Duration
	Log            func(level zerolog.Level, text string)
}

// Server is a NATS server with JetStream in this process. It is the only one
// on its store directory.
type Server struct {
	server *server.Server
	lock   *storeLock
	disk   *diskGuard
}

// StartServer starts the server and returns when clients can connect.
func StartServer(o ServerOptions) (*Server, error) {
	if o.StoreDir == "" {
		return nil, errors.New("the embedded server needs a store directory; give --store-dir")
	}
	dir, err := filepath.Abs(o.StoreDir)
	if err != nil {
		return nil, fmt.Errorf("find store directory: %w", err)
	}
	if err := checkStoreDir(dir, o.AllowTempStore); err != nil {
		return nil, err
	}
	opts, err := o.serverOptions(dir)
	if err != nil {
		return nil, err
	}
	lock, err := lockStore(dir)
	if err != nil {
		return nil, err
	}
	s, err := healAndRun(opts, o)
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	return &Server{server: s, lock: lock, disk: guardDisk(s, dir)}, nil
}

func (o ServerOptions) serverOptions(dir string) (*server.Options, error) {
	opts := &server.Options{}
	if o.ConfigFile != "" {
		var err error
		if opts, err = server.ProcessConfigFile(o.ConfigFile); err != nil {
			return nil, fmt.Errorf("read server configuration: %w", err)
		}
	}
	if o.Listen != "" || o.ConfigFile == "" {
		if err := listenOn(opts, o.Listen); err != nil {
			return nil, err
		}
	}
	switch o.Sync {
	case "", SyncAlways:
		opts.SyncAlways = true
	case SyncInterval:
		opts.SyncAlways = false
	default:
		return nil, fmt.Errorf("sync is %q; it may be %q or %q", o.Sync, SyncAlways, SyncInterval)
	}
	opts.JetStream, opts.StoreDir = true, dir
	opts.NoSigs, opts.DisableJetStreamBanner = true, true
	if opts.JetStreamMaxStore <= 0 {
		opts.JetStreamMaxStore = storeLimit(dir)
	}
	if !hasAuthorization(opts) {
		opts.Authorization = o.Token
	}
	return opts, nil
}

func listenOn(opts *server.Options, listen string) error {
	if listen == "" {
		listen = "127.0.0.1:4222"
	}
	host, text, err := net.SplitHostPort(listen)
	port, errPort := strconv.Atoi(text)
	if err := errors.Join(err, errPort); err != nil {
		return fmt.Errorf("read listen address %q, which must be host:port: %w", listen, err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	opts.Host, opts.Port = host, port
	return nil
}

func hasAuthorization(o *server.Options) bool {
	return o.Username != "" || o.Authorization != "" || len(o.Users) > 0 || len(o.Nkeys) > 0 || len(o.Accounts) > 0 ||
		len(o.TrustedOperators) > 0 || len(o.TrustedKeys) > 0 || o.AuthCallout != nil
}

func healAndRun(opts *server.Options, o ServerOptions) (*server.Server, error) {
	healed, err := healStreams(opts.StoreDir)
	if err != nil {
		return nil, err
	}
	for _, name := range healed {
		if o.Log != nil {
			o.Log(zerolog.WarnLevel, fmt.Sprintf("wrote the checksum of the description of stream %s, which a crash had kept from being written", name))
		}
	}
	return runServer(opts, o)
}

func runServer(opts *server.Options, o ServerOptions) (*server.Server, error) {
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	logger := &serverLog{log: o.Log}
	s.SetLogger(logger, opts.Debug, opts.Trace)
	s.Start() // returns after JetStream has recovered its store
	timeout := o.StartTimeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	for deadline := time.Now().Add(timeout); !s.ReadyForConnections(50 * time.Millisecond); {
		fatal := logger.fatal.Load()
		if fatal == nil && time.Now().Before(deadline) {
			continue
		}
		s.Shutdown()
		s.WaitForShutdown()
		if fatal != nil {
			return nil, fmt.Errorf("start server: %s", *fatal)
		}
		return nil, fmt.Errorf("start server: it takes no connections after %v", timeout)
	}
	return s, nil
}

// ClientURL is where clients connect.
func (s *Server) ClientURL() string { return s.server.ClientURL() }

// Shutdown stops the server, waits until its store is closed, and lets another
// server have it.
func (s *Server) Shutdown() error {
	s.disk.close()
	s.server.Shutdown()
	s.server.WaitForShutdown()
	return s.lock.release()
}

// serverLog hands the server's log lines on and keeps the fatal one.
type serverLog struct {
	log   func(zerolog.Level, string)
	fatal atomic.Pointer[string]
}

func (l *serverLog) write(level zerolog.Level, format string, v []any) {
	if l.log != nil {
		l.log(level, fmt.Sprintf(format, v...))
	}
}

func (l *serverLog) Noticef(format string, v ...any) { l.write(zerolog.InfoLevel, format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.write(zerolog.WarnLevel, format, v) }
func (l *serverLog) Errorf(format string, v ...any)  { l.write(zerolog.ErrorLevel, format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.write(zerolog.DebugLevel, format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.write(zerolog.TraceLevel, format, v) }
func (l *serverLog) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.fatal.CompareAndSwap(nil, &text)
	l.write(zerolog.ErrorLevel, format, v)
}

// storeLimit is what JetStream may use: what it uses already and 95 % of what
// is free. The server's own default, a share of the free space alone, can
// refuse to load its streams again on a full disk.
func storeLimit(dir string) int64 {
	var used int64
	_ = filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return nil // gone or unreadable: not counted
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			used += info.Size()
		}
		return nil
	})
	return used + freeSpace(dir)/100*95
}
