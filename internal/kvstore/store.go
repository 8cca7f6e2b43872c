package kvstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

// The lease durations that may be asked for.
const (
	DefaultLease = 30 * time.Second
	MinLease     = 3 * time.Second
	MaxLease     = 600 * time.Second
)

// Options say which store to open, and for whom.
type Options struct {
	Store    string
	Node     snapshot.NodeName // shown to those who find a lease held
	LeaseTTL time.Duration     // DefaultLease if 0; whole seconds, rounded up

	wrap     func(transport) transport // faults, in tests
	minLease time.Duration
	limits   limits
	now      func() time.Time
}

// Store keeps state in an existing bucket. It is safe for concurrent use and
// starts no goroutine that outlives a call.
type Store struct {
	kv       *bucket
	watch    jetstream.KeyValue // only to be woken, never to read
	id       string
	node     snapshot.NodeName
	reserve  int
	ttl      time.Duration
	minLease time.Duration
	now      func() time.Time
}

var (
	_ snapshot.Checkpoints     = (*Store)(nil)
	_ snapshot.Leases          = (*Store)(nil)
	_ snapshot.Instances       = (*Store)(nil)
	_ snapshot.ThreadArtifacts = (*Store)(nil)
)

// Open binds to the state bucket of a store; it never makes one. A missing
// bucket is StoreUnavailable, one of a newer format FormatUnsupported.
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Store, error) {
	if err := checkStoreName(o.Store); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	ttl, err := leaseSeconds(o.LeaseTTL, o.minLease)
	if err != nil {
		return nil, err
	}
	watch, err := js.KeyValue(ctx, BucketName(o.Store))
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, notInitialized(o.Store).Because(err)
	}
	if err != nil {
		return nil, fmt.Errorf("open store %q: %w", o.Store, streamError(err, o.Store))
	}
	status, err := watch.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("open store %q: %w", o.Store, streamError(err, o.Store))
	}
	reserve := maxReserve
	if full, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		c := full.StreamInfo().Config
		if err := checkStream(c); err != nil {
			return nil, err
		}
		reserve = reserveSize(c.MaxBytes)
	}
	b := newBucket(js, o.Store)
	b.limits = o.limits
	if o.wrap != nil {
		b.conn = o.wrap(b.conn)
	}
	info, err := b.readStoreInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("open store %q: %w", o.Store, err)
	}
	if info == nil {
		return nil, notInitialized(o.Store)
	}
	return &Store{kv: b, watch: watch, id: info.StoreID, node: o.Node, reserve: reserve, ttl: ttl, minLease: o.minLease, now: o.now}, nil
}

func (o Options) withDefaults() Options {
	if o.LeaseTTL == 0 {
		o.LeaseTTL = DefaultLease
	}
	if o.minLease == 0 {
		o.minLease = MinLease
	}
	if o.limits == (limits{}) {
		o.limits = defaultLimits
	}
	if o.now == nil {
		o.now = time.Now
	}
	return o
}

// StoreID is the identity that Init gave the store.
func (s *Store) StoreID() string { return s.id }

// newBucket binds the keys of a store to the connection and API prefix of js.
func newBucket(js jetstream.JetStream, store string) *bucket {
	o, name := js.Options(), BucketName(store)
	api := jetstream.DefaultAPIPrefix
	switch {
	case o.Domain != "":
		api = "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		api = o.APIPrefix
		if api[len(api)-1] != '.' {
			api += "."
		}
	}
	b := &bucket{conn: js.Conn(), maxPayload: js.Conn().MaxPayload, limits: defaultLimits, api: api,
		getSubject: api + "STREAM.MSG.GET.KV_" + name, delSubject: api + "STREAM.PURGE.KV_" + name, pre: "$KV." + name + "."}
	b.putPre = b.pre
	if api != jetstream.DefaultAPIPrefix {
		b.putPre = api + b.pre
	}
	return b
}

// bounded gives an operation an end also when its caller set none.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.kv.limits.whole,
		snapshot.Errorf(snapshot.StoreUnavailable, "the store did not finish the operation; check the NATS servers and send the request again"))
}

// outlive returns a context that goes on for a while after ctx is over, so
// that a caller who gave up still learns what became of its commit.
func (s *Store) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(s.kv.limits.grace, cancel) })
	return late, func() { stop(); cancel() }
}

// repeat makes attempts, each from a fresh read, until one has an answer. While
// a reply is unresolved they go on for a while after the caller gave up.
func (s *Store) repeat(ctx context.Context, unresolved func() bool, attempt func(context.Context) error) error {
	late, stop := s.outlive(ctx)
	defer stop()
	for try := 0; ; try++ {
		now := ctx
		if unresolved() {
			now = late
		}
		err := attempt(now)
		if !isAgain(err) {
			return err
		}
		if unresolved() {
			now = late
		}
		if pause(now, try) != nil {
			if errors.Is(err, errSilent) {
				return gaveUp(now, err)
			}
			return ended(now)
		}
	}
}

// nothingUnresolved is for operations whose attempts may simply be repeated.
func nothingUnresolved() bool { return false }

// cleanup is for the removal of what a caller who gave up leaves behind.
func (s *Store) cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.kv.limits.grace)
}

// inParallel runs all functions to their end and returns the error that counts
// most: one that is final before one that asks for another try.
func inParallel(fns ...func() error) error {
	errs := make([]error, len(fns))
	var others sync.WaitGroup
	for i, fn := range fns[1:] {
		others.Go(func() { errs[i+1] = fn() })
	}
	errs[0] = fns[0]() // here, where the stack has grown already
	others.Wait()
	var retry error
	for _, err := range errs {
		if err != nil && !isAgain(err) {
			return err
		}
		if err != nil {
			retry = err
		}
	}
	return retry
}
