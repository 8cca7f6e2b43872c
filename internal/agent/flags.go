package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sandkeep/internal/snapshot"
)

// Common are the flags of every command of both programs.
type Common struct {
	Prefix   string `default:"sandbox" placeholder:"NAME" help:"First token of all subjects (default: sandbox)."`
	Store    string `default:"sandbox" placeholder:"NAME" help:"Prefix of all bucket and stream names (default: sandbox)."`
	StateDir string `default:"${state_dir}" type:"path" placeholder:"DIR" help:"What this machine remembers: stat caches, the store's id, the embedded server's token (default: ${state_dir})."`
	Log
}

// Worker are the flags of programs that answer requests.
type Worker struct {
	Node        string        `default:"${node}" placeholder:"NAME" help:"Name of this node (default: the host name, ${node})."`
	SandboxRoot string        `type:"path" placeholder:"DIR" help:"Directory of local sandboxes (default: sandboxes in the state dir)."`
	RestoreRoot string        `type:"path" placeholder:"DIR" help:"Directory that restores write into (default: restored in the state dir)."`
	Lease       time.Duration `default:"30s" help:"Time to live of writer leases, 3s to 10m, whole seconds (default: 30s)."`
	Config      string        `type:"path" placeholder:"FILE" help:"Sandbox definitions, a JSON file."`
	Drain       time.Duration `default:"30s" help:"How long requests in work may take to end after SIGTERM (default: 30s)."`
	Profiling
	Policy
}

// Policy are the flags about what a save keeps, for the default definition.
type Policy struct {
	Include            []string `sep:"none" placeholder:"PATTERN" help:"Keep only what matches, in the .dockerignore dialect. Repeatable."`
	Exclude            []string `sep:"none" placeholder:"PATTERN" help:"Leave out what matches, besides the default exclusions. Repeatable."`
	NoDefaultExcludes  bool     `help:"Also keep node_modules and .env files."`
	IncludeCredentials bool     `help:"Also keep files that hold credentials by convention: .ssh, .npmrc, *.pem and the like."`
	Strict             bool     `help:"Fail a save that can't keep every entry as it is."`
}

func (p Policy) domain() snapshot.Policy {
	return snapshot.Policy{Include: p.Include, Exclude: p.Exclude, NoDefaultExcludes: p.NoDefaultExcludes,
		IncludeCredentials: p.IncludeCredentials, Strict: p.Strict}
}

// Buckets are the flags of programs that make buckets.
type Buckets struct {
	Replicas int   `placeholder:"N" help:"Replicas of the buckets, 1 to 5 (default: 1, or as they are)."`
	MaxBytes int64 `placeholder:"N" help:"Size limit of each bucket in bytes; 0 is none for new buckets and leaves others as they are (default: 0)."`
}

func (b Buckets) check() error {
	var faults []error
	if b.Replicas < 0 || b.Replicas > 5 {
		faults = append(faults, fmt.Errorf("--replicas %d is not 1 to 5", b.Replicas))
	}
	if b.MaxBytes < 0 {
		faults = append(faults, fmt.Errorf("--max-bytes %d is negative", b.MaxBytes))
	}
	return errors.Join(faults...)
}

var (
	prefixForm = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)
	storeForm  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
)

func (e Embedded) check() error {
	if e.Listen == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(e.Listen)
	n, bad := strconv.ParseInt(port, 10, 32)
	switch {
	case err == nil && (n > 65535 || errors.Is(bad, strconv.ErrRange) && n > 0):
		return fmt.Errorf("--listen %q: the port is over 65535", e.Listen)
	case err != nil || bad != nil || n < -1:
		return fmt.Errorf("--listen %q is not HOST:PORT", e.Listen)
	}
	return nil
}

// free finds out whether the server can listen where it shall.
func (e Embedded) free() error {
	if e.Listen == "" && e.ServerConfig != "" {
		return nil // the server will tell
	}
	at := cmp.Or(e.Listen, defaultListen)
	if strings.HasSuffix(at, ":-1") {
		return nil // a free port
	}
	l, err := net.Listen("tcp", at)
	switch {
	case err == nil:
		return l.Close()
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("another program listens on %s, perhaps a nats-embedded that runs already; stop it or give another --listen", at)
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e.Err // without the address
	}
	return fmt.Errorf("the server can't listen on %s (%w); give another --listen", at, err)
}

const defaultListen = "127.0.0.1:4222"

// CheckServer finds faults of the flags of a server, and an address that it
// can't have, before it makes anything.
func CheckServer(e Embedded, b Buckets) error {
	if err := usage(e.check(), b.check()); err != nil {
		return err
	}
	return e.free()
}

func (c Common) check() error {
	var faults []error
	if !prefixForm.MatchString(c.Prefix) {
		faults = append(faults, fmt.Errorf("--prefix %q is not made of letters, digits, '_' and '-', with dots between", c.Prefix))
	}
	if !storeForm.MatchString(c.Store) {
		faults = append(faults, fmt.Errorf("--store %q is not 1 to 64 letters, digits, '_' and '-'", c.Store))
	}
	if c.StateDir == "" {
		faults = append(faults, errors.New("there is no home directory to keep state in; give --state-dir"))
	}
	return errors.Join(faults...)
}

func (w Worker) check() error {
	var faults []error
	if err := snapshot.ValidateID("--node", w.Node); err != nil {
		faults = append(faults, errors.New(snapshot.AsError(err).Message)) // one fault of many
	}
	if w.Lease < 3*time.Second || w.Lease > 10*time.Minute || w.Lease%time.Second != 0 {
		faults = append(faults, fmt.Errorf("--lease %s is not 3s to 10m in whole seconds", w.Lease))
	}
	if w.Drain < 0 {
		faults = append(faults, fmt.Errorf("--drain %s is negative", w.Drain))
	}
	return errors.Join(faults...)
}

// usage makes the faults of several flag groups one usage error.
func usage(faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return &UsageError{Err: err}
	}
	return nil
}
