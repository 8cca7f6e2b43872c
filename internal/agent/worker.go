package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"

	"sandkeep/internal/bus"
	"sandkeep/internal/kvstore"
	"sandkeep/internal/objstore"
	"sandkeep/internal/sandbox"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/workspace"
)

// Setup is a worker before it has a connection: its flags are checked, its
// definitions loaded, its secrets known to its log.
type Setup struct {
	Log      zerolog.Logger
	common   Common
	flags    Worker
	state    stateDir
	config   *sandbox.Config
	redactor *workspace.Redactor
	store    []string       // the directory of the server in this process, if there is one
	records  *kvstore.Store // since Start
}

// NewSetup checks all flags at once. The log goes to w. What is in the store
// directory of a server in this process is never captured or restored into.
func NewSetup(c Common, f Worker, w io.Writer, storeDir ...string) (*Setup, error) {
	config, err := f.definitions()
	if err := usage(c.check(), f.check(), err); err != nil {
		return nil, err
	}
	state, err := openStateDir(c.StateDir)
	if err != nil {
		return nil, err
	}
	f.SandboxRoot = cmp.Or(f.SandboxRoot, state.file(workspace.DefaultSandboxes))
	f.RestoreRoot = cmp.Or(f.RestoreRoot, state.file(workspace.DefaultRestored))
	if err := usage(f.checkRoots(state, storeDir)); err != nil {
		return nil, err
	}
	if f.SandboxRoot, err = root(f.SandboxRoot); err != nil {
		return nil, err
	}
	if f.RestoreRoot, err = root(f.RestoreRoot); err != nil {
		return nil, err
	}
	redactor, err := workspace.NewRedactor(config.Secrets())
	if err != nil {
		return nil, fmt.Errorf("take secrets: %w", err)
	}
	return &Setup{Log: c.Logger(w, redactor), common: c, flags: f, state: state, config: config, redactor: redactor, store: storeDir}, nil
}

// checkRoots refuses roots in which a restore could destroy what the worker
// itself lives on.
func (w Worker) checkRoots(state stateDir, storeDir []string) error {
	own := workspace.Options{StateDir: string(state), Forbidden: storeDir}
	var faults []error
	for _, root := range [][2]string{{"--sandbox-root", w.SandboxRoot}, {"--restore-root", w.RestoreRoot}} {
		owner, flag := own.Owner(root[1]), "--store-dir"
		if owner == own.StateDir {
			flag = "--state-dir"
		}
		if owner != "" {
			faults = append(faults, fmt.Errorf("%s %q is, or lies in, %s %q, where a restore could destroy what the worker needs; give a directory of its own",
				root[0], root[1], flag, owner))
		}
	}
	return errors.Join(faults...)
}

// root makes a root directory.
func root(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("make root directory: %w", err)
	}
	return dir, nil
}

func (w Worker) definitions() (*sandbox.Config, error) {
	config := sandbox.Default()
	if w.Config != "" {
		var err error
		if config, err = sandbox.Load(w.Config); err != nil {
			return nil, err
		}
	}
	return config, config.AddPolicy(w.domain())
}

// Start opens the store and answers requests from then on. Ending ctx ends the
// opening only: stop the worker.
func (s *Setup) Start(ctx context.Context, l Link) (*bus.Worker, error) {
	node := snapshot.NodeName(s.flags.Node)
	if err := (bus.Rights{Prefix: s.common.Prefix, Store: s.common.Store}).Check(ctx, l.JS); err != nil {
		return nil, err
	}
	state, err := found(ctx, func() (*kvstore.Store, error) {
		return kvstore.Open(ctx, l.JS, kvstore.Options{Store: s.common.Store, Node: node, LeaseTTL: s.flags.Lease})
	})
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	if err := s.state.checkStore(s.common.Store, state.StoreID()); err != nil {
		return nil, err
	}
	s.records = state
	objects, err := found(ctx, func() (*objstore.Store, error) {
		return objstore.Open(ctx, l.JS, objstore.Options{Store: s.common.Store})
	})
	if err != nil {
		return nil, fmt.Errorf("open objects: %w", err)
	}
	trees, err := workspace.New(workspace.Options{SandboxRoot: s.flags.SandboxRoot, RestoreRoot: s.flags.RestoreRoot,
		StateDir: string(s.state), Forbidden: s.store, Redactor: s.redactor, Undone: s.undone})
	if err != nil {
		return nil, err
	}
	sandboxes, err := sandbox.New(s.config, node, s.flags.SandboxRoot)
	if err != nil {
		return nil, err
	}
	service := snapshot.New(snapshot.Options{
		Checkpoints: bus.YieldCheckpoints(state), Leases: bus.YieldLeases(state), Instances: state, Artifacts: state, Objects: objects, Workspaces: trees,
		Sandboxes: sandboxes, Redactor: s.redactor, Node: node, Now: time.Now, NewID: func() string { return ulid.Make().String() },
	})
	return bus.Serve(context.WithoutCancel(ctx), l.Conn, bus.Options{Service: service, Redactor: s.redactor, Transfer: objects, Node: node,
		APIPrefix: l.JS.Options().APIPrefix, Prefix: s.common.Prefix, Version: Version, Log: s.Log})
}

// undone logs what was done to a directory that nobody has asked for.
func (s *Setup) undone(u workspace.Undone) {
	path := u.Dir
	for _, root := range []string{s.flags.SandboxRoot, s.flags.RestoreRoot} {
		if below, err := filepath.Rel(root, u.Dir); err == nil && filepath.IsLocal(below) {
			path = below
		}
	}
	s.Log.Warn().Str("path", path).Int("entries", u.Entries).Strs("kept", u.Kept).Msg("a restore that broke off was undone")
}

// found opens a part of the store. A server of a cluster that has yet to make a
// new stream, or to recover an old one, may answer first, that there is none:
// so that is believed only if it is said again and again.
func found[S any](ctx context.Context, open func() (S, error)) (S, error) {
	const tries, wait = 6, 200 * time.Millisecond
	for try := 1; ; try++ {
		s, err := open()
		gone := errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound)
		if !gone || try == tries {
			return s, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return s, err
		}
	}
}

// Serve answers requests until ctx ends, then takes no new ones, finishes those
// that it has within --drain and closes the connection.
func (s *Setup) Serve(ctx context.Context, l Link) error {
	profiles, stopProfiles, err := s.flags.serveProfiles()
	if err != nil {
		return err
	}
	defer stopProfiles()
	closed, back := l.Conn.StatusChanged(nats.CLOSED), l.Conn.StatusChanged(nats.CONNECTED)
	worker, err := s.Start(ctx, l)
	if err != nil && ctx.Err() != nil {
		return nil // a signal came first
	}
	if err != nil {
		return err
	}
	if profiles != "" {
		s.Log.Warn().Str("url", "http://"+profiles+"/debug/pprof/").Msg("profiles are served")
	}
	s.Log.Info().Str("url", l.URL).Str("node", s.flags.Node).Str("version", Version).
		Str("sandboxRoot", s.flags.SandboxRoot).Str("restoreRoot", s.flags.RestoreRoot).Msg("ready")
	stopSweeping := s.sweeping(ctx)
	defer stopSweeping()
	if err = s.watch(ctx, l, closed, back); err == nil {
		s.Log.Info().Stringer("drain", s.flags.Drain).Msg("stopping")
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.flags.Drain)
	defer cancel()
	if e := worker.Stop(limit); e != nil {
		s.Log.Warn().Err(e).Msg("requests given up")
	}
	return errors.Join(err, Drain(l.Conn))
}

// lookPause is between two looks at a server that is back but does not answer.
const lookPause = 2 * time.Second

// watch returns when ctx ends, or with a reason to stop: the connection was
// closed for good, or the server that is back has another store.
func (s *Setup) watch(ctx context.Context, l Link, closed, back <-chan nats.Status) error {
	var look <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-closed:
			return snapshot.Errorf(snapshot.StoreUnavailable, "the NATS server at %s closed the connection; check the credentials", l.URL).Because(l.Conn.LastError())
		case <-back:
			look = time.After(0)
		case <-look:
			look = nil
			state, err := kvstore.Open(ctx, l.JS, kvstore.Options{Store: s.common.Store})
			if err != nil {
				look = time.After(lookPause) // requests are told meanwhile
			} else if err := s.state.checkStore(s.common.Store, state.StoreID()); err != nil {
				return err
			}
		}
	}
}

// sweepInterval is also the grace of what a sweep may remove.
const sweepInterval = time.Hour

// sweeping removes the records that deleted threads and dead writers leave, once
// in an interval, until the returned function is called.
func (s *Setup) sweeping(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait := rand.N(sweepInterval) // not all workers at once
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if err := s.records.Sweep(ctx, sweepInterval); err != nil && ctx.Err() == nil {
				s.Log.Warn().Err(err).Msg("sweep did not get through")
			}
			wait = sweepInterval
		}
	}()
	return func() { cancel(); <-done }
}

// drainTime bounds the delivery of replies that are already sent.
const drainTime = 5 * time.Second

// Drain sends what is buffered and closes the connection.
func Drain(nc *nats.Conn) error {
	if nc.IsClosed() {
		return nil
	}
	nc.SetDisconnectErrHandler(nil) // this one is meant
	closed := nc.StatusChanged(nats.CLOSED)
	if err := nc.Drain(); err != nil {
		nc.Close()
		return fmt.Errorf("drain connection: %w", err)
	}
	select {
	case <-closed:
	case <-time.After(drainTime):
		nc.Close()
	}
	return nil
}
