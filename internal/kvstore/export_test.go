package kvstore

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

// Round sends one request to the store and returns its reply.
type Round func(ctx context.Context, m *nats.Msg) (*nats.Msg, error)

func (r Round) RequestMsgWithContext(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	return r(ctx, m)
}

// Through lets every request of the store go through a function.
func (o Options) Through(f func(Round) Round) Options {
	o.wrap = func(t transport) transport { return f(t.RequestMsgWithContext) }
	return o
}

// Short allows leases from a second on.
func (o Options) Short(ttl time.Duration) Options {
	o.minLease, o.LeaseTTL = time.Second, ttl
	return o
}

// Clock sets the clock by which leases are renewed.
func (o Options) Clock(now func() time.Time) Options {
	o.now = now
	return o
}

// Impatient bounds a call, a read or write with its retries, an operation, and
// the resolving of a lost commit reply.
func (o Options) Impatient(call, patience, whole, grace time.Duration) Options {
	o.limits = limits{call: call, patience: patience, whole: whole, grace: grace, silence: call, reread: 50 * time.Millisecond}
	return o
}

// RarelyLooking lets waiters depend on their watch.
func (o Options) RarelyLooking() Options {
	o.limits = defaultLimits
	o.limits.reread = time.Hour
	return o
}

// WatchElsewhere lets waiters hear only what happens in another bucket.
func (s *Store) WatchElsewhere(kv jetstream.KeyValue) { s.watch = kv }

// MarkDeleted writes the tombstone that the removal of a thread leaves.
func (s *Store) MarkDeleted(ctx context.Context, id snapshot.ThreadID) error {
	th, err := s.readThread(ctx, id)
	if err == nil {
		_, err = s.putThread(ctx, th, threadState{Deleted: true, Fence: th.seq, Gen: th.Gen + 1})
	}
	return err
}

// ChangeLimit does what Init does with a limit, each request through a function.
func ChangeLimit(ctx context.Context, js jetstream.JetStream, store string, maxBytes int64, f func(Round) Round) error {
	b := newBucket(js, store)
	b.conn = f(b.conn.RequestMsgWithContext)
	return b.resize(ctx, StreamName(store), 0, maxBytes)
}

// The keys of a store.
var (
	ThreadKey   = threadKey
	SlotKey     = slotKey
	PointerKey  = pointerKey
	WriterKey   = writerKey
	LockKey     = lockKey
	InstanceKey = instanceKey
	ReserveKey  = reserveKey
)
