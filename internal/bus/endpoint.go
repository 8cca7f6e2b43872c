package bus

import (
	"context"
	"strings"
	"time"

	"sandkeep/internal/snapshot"
)

// Limits of the time that a request may take.
const (
	heavyTimeout = 10 * time.Minute
	lightTimeout = 30 * time.Second
	maxTimeout   = time.Hour
)

// op is a row of the table of endpoints: what a subject takes and does.
type op[T any] struct {
	name  string // the subject without its prefix
	heavy bool   // moves contents: runs apart from reads
	// wait, if there is one, tells how many ms it may stand and wait for a lease:
	// it waits apart from everything that the lease's holder may ask for meanwhile.
	wait func(T) int64
	// node, if there is one, finds the node that must run the request, "" for any.
	node func(context.Context, Service, T) (snapshot.NodeName, error)
	run  func(context.Context, *call, T) (any, error)
}

// endpoint is an op without its type.
type endpoint struct {
	name   string
	heavy  bool
	waits  bool
	decode func(data []byte) (task, error)
}

// task is a decoded request. With a claim it has nothing else.
type task struct {
	claim   string
	request any
	timeout time.Duration // 0: none given
	wait    time.Duration // comes on top of the default timeout
	node    func(context.Context, Service) (snapshot.NodeName, error)
	run     func(context.Context, *call) (any, error)
}

// id is the endpoint's name: micro allows no dots.
func (e endpoint) id() string { return strings.ReplaceAll(e.name, ".", "-") }

// defaultTimeout is the time of a request that gives none. The wait that it
// asks for comes on top.
func (e endpoint) defaultTimeout(wait time.Duration) time.Duration {
	if e.heavy {
		return heavyTimeout
	}
	return min(lightTimeout+wait, maxTimeout)
}

func (o op[T]) row() endpoint {
	shapeOf([]any{new(T), new(common)}) // a type that can't be decoded shows at start
	return endpoint{name: o.name, heavy: o.heavy, waits: o.wait != nil, decode: o.decode}
}

func (o op[T]) decode(data []byte) (task, error) {
	var req T
	var c common
	if err := decode(data, &req, &c); err != nil {
		return task{}, err
	}
	if c.Claim != nil && *c.Claim == "" {
		return task{}, snapshot.Errorf(snapshot.BadRequest, `$object is empty; it must be "<bucket>/<name>"`)
	}
	if c.Claim != nil {
		return task{claim: *c.Claim}, nil
	}
	t := task{request: req, run: func(ctx context.Context, cl *call) (any, error) { return o.run(ctx, cl, req) }}
	if o.wait != nil {
		t.wait = time.Duration(min(o.wait(req), maxTimeout.Milliseconds())) * time.Millisecond
	}
	if o.node != nil {
		t.node = func(ctx context.Context, svc Service) (snapshot.NodeName, error) { return o.node(ctx, svc, req) }
	}
	if c.TimeoutMs == nil {
		return t, nil
	}
	if *c.TimeoutMs < 1 || *c.TimeoutMs > maxTimeout.Milliseconds() {
		return task{}, snapshot.Errorf(snapshot.BadRequest, "timeoutMs is %d; it may be 1 to %d", *c.TimeoutMs, maxTimeout.Milliseconds())
	}
	t.timeout = time.Duration(*c.TimeoutMs) * time.Millisecond
	return t, nil
}
