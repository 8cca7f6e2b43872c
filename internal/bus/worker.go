package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"

	"sandkeep/internal/snapshot"
)

// ServiceName is the name of the micro service and its queue group.
const ServiceName = "sandbox"

// Defaults of Options.
const (
	DefaultPrefix  = "sandbox"
	DefaultVersion = "0.0.0-dev"
)

// Options are what a worker is made of. Service, Redactor, Transfer and Node
// are required.
type Options struct {
	Service  Service
	Redactor snapshot.Redactor
	Transfer Transfer
	Node     snapshot.NodeName
	Prefix   string
	Version  string // SemVer
	Log      zerolog.Logger
	// APIPrefix is that of JetStream's API if it is not the usual one.
	APIPrefix string
	Heavy     Limits // saves, forks, restores; 16 run, 256 wait
	Light     Limits // reads and small writes; 64 run, 1024 wait
	Leases    Limits // acquires of leases and locks; 256 run, 256 wait
	// ClaimBytes bounds the requests that came as objects and are in memory; at
	// least the size of the largest, 64 MiB, and 256 MiB if it is 0.
	ClaimBytes int64
}

func (o Options) withDefaults() Options {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	o.Version = cmp.Or(o.Version, DefaultVersion)
	// Requests wait for the store and the disk more than for a core.
	o.Heavy = cmp.Or(o.Heavy, Limits{16, 256})
	o.Light = cmp.Or(o.Light, Limits{64, 1024})
	o.Leases = cmp.Or(o.Leases, Limits{256, 256})
	o.ClaimBytes = cmp.Or(o.ClaimBytes, 4*maxClaim)
	return o
}

var prefixPattern = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

func (o Options) validate() error {
	var errs []error
	if !prefixPattern.MatchString(o.Prefix) {
		errs = append(errs, fmt.Errorf("prefix %q is not made of letters, digits, - and _ in parts joined by dots", o.Prefix))
	}
	if err := o.Node.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Worker answers requests until it is stopped.
type Worker struct {
	Options
	nc     *nats.Conn
	svc    micro.Service
	rows   map[string]endpoint // by subject without prefix
	counts map[string]*counters
	heavy  *pool
	light  *pool
	leases *pool               // acquires: those that wait must not keep the holder's own requests waiting
	claims *semaphore.Weighted // bytes of requests that came as objects
	base   context.Context     // of all requests
	cancel context.CancelFunc
	once   sync.Once // of the stop
}

// Serve starts a worker on the connection. It is ready when it returns: the
// endpoint snapshot-save is added last. Ending ctx ends all requests at once;
// the worker must be stopped even then.
func Serve(ctx context.Context, nc *nats.Conn, o Options) (*Worker, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	w := &Worker{Options: o, nc: nc, rows: map[string]endpoint{}, counts: map[string]*counters{nodeEndpoint: {}},
		heavy: newPool(o.Heavy), light: newPool(o.Light), leases: newPool(o.Leases), claims: semaphore.NewWeighted(o.ClaimBytes)}
	for _, e := range endpoints() {
		w.rows[e.name], w.counts[e.id()] = e, &counters{}
	}
	w.base, w.cancel = context.WithCancel(ctx)
	if err := w.register(); err != nil {
		w.cancel()
		return nil, fmt.Errorf("start service: %w", err)
	}
	return w, nil
}

func (w *Worker) register() error {
	before := w.nc.LastError()
	svc, err := micro.AddService(w.nc, micro.Config{
		Name: ServiceName, Version: w.Version, QueueGroup: ServiceName,
		Description:  "durable, forkable checkpoints of sandboxes",
		Metadata:     map[string]string{"node": string(w.Node), "prefix": w.Prefix},
		StatsHandler: func(e *micro.Endpoint) any { return w.counts[e.Name].snapshot() },
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			w.Log.Error().Str("subject", err.Subject).Str("cause", w.Redactor.Text(err.Description)).Msg("subscription fault")
		},
	})
	if err != nil {
		return err
	}
	w.svc = svc
	err = svc.AddEndpoint(nodeEndpoint, micro.HandlerFunc(w.acceptRelayed), micro.WithEndpointSubject(nodeSubject(w.Prefix, w.Node)+".>"))
	for _, e := range endpoints() {
		if err == nil {
			err = svc.AddEndpoint(e.id(), w.handler(e), micro.WithEndpointSubject(w.Prefix+"."+e.name), micro.WithEndpointMetadata(map[string]string{"pool": e.poolName()}))
		}
	}
	if err == nil {
		err = w.nc.Flush()
	}
	if err == nil {
		err = lacking(refusedSince(w.nc, before))
	}
	if err != nil {
		return errors.Join(err, svc.Stop())
	}
	return nil
}

func (e endpoint) poolName() string {
	switch {
	case e.heavy:
		return "heavy"
	case e.waits:
		return "leases"
	}
	return "light"
}

func (w *Worker) pool(e endpoint) *pool {
	switch {
	case e.heavy:
		return w.heavy
	case e.waits:
		return w.leases
	}
	return w.light
}

// verbSubscriptions is how many control subjects micro listens to.
const verbSubscriptions = 9

// stopGrace bounds what a stop does after its time is over.
const stopGrace = 5 * time.Second

// Stop ends the worker: no new requests, then wait for those that it has until
// ctx ends, then cancel the rest and let them release what they hold. Requests
// that were already delivered are answered. The connection stays open; drain
// it afterwards. A second call does nothing.
func (w *Worker) Stop(ctx context.Context) (err error) {
	w.once.Do(func() { err = w.end(ctx) })
	return err
}

func (w *Worker) end(ctx context.Context) error {
	defer w.cancel()
	subs := w.nc.NumSubscriptions()
	err := w.svc.Stop()
	w.awaitQueued(ctx, subs-len(w.rows)-1-verbSubscriptions)
	pools := []*pool{w.heavy, w.light, w.leases}
	for _, p := range pools {
		p.close()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, p := range pools {
			p.wait()
		}
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
	}
	w.cancel()
	select {
	case <-done:
		return errors.Join(err, fmt.Errorf("requests were given up when the time for the stop was over: %w", ctx.Err()))
	case <-time.After(stopGrace):
		return errors.Join(err, fmt.Errorf("requests did not end %v after they were given up", stopGrace))
	}
}

// awaitQueued waits until the handlers have seen what was delivered before the
// stop: micro drains its subscriptions but can't be asked when that is done, so
// their going is watched. Others may subscribe meanwhile, so the wait is
// bounded; what comes later is refused as busy, not lost.
func (w *Worker) awaitQueued(ctx context.Context, remaining int) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := w.nc.FlushWithContext(ctx); err != nil {
		return
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for w.nc.NumSubscriptions() > remaining {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
