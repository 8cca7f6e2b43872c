package bus

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"sandkeep/internal/snapshot"
)

// call is one request on its way.
type call struct {
	svc      Service
	transfer Transfer
	name     string // subject without its prefix
	reply    string
	data     []byte
	relayed  bool // comes from another worker: never passed on again
	timeout  time.Duration
	maxReply int64 // bytes of a reply that fits a message
	maxData  int64 // bytes that fit a reply in base64
	request  any   // and answer: for the log
	answer   any
	release  func() // of the room for a request that came as an object
	warnings []snapshot.Warning
	counts   *counters
	started  time.Time
	id       string
}

// Headers between workers.
const (
	hopHeader     = "Sandbox-Hop"        // the node that passed the request on
	timeoutHeader = "Sandbox-Timeout-Ms" // what is left of its time
	idHeader      = "Sandbox-Request-Id" // under which both log it
)

// Bounds of a request or reply that travels as an object.
const (
	maxClaim     = 64 << 20
	claimTimeout = 2 * time.Minute
)

// replySlack is kept free in a message for headers and warnings.
const replySlack = 2 << 10

// entryRoom is kept free beside the data of a file: a path of 4,096 bytes,
// each byte escaped.
const entryRoom = 32 << 10

func (w *Worker) newCall(name string, r micro.Request, counts *counters) *call {
	maxReply := max(w.nc.MaxPayload()-replySlack, 512)
	c := &call{svc: w.Service, transfer: w.Transfer, name: name, reply: r.Reply(), data: r.Data(), counts: counts,
		relayed: r.Headers().Get(hopHeader) != "", maxReply: maxReply, maxData: (maxReply - min(entryRoom, maxReply/2)) / 4 * 3,
		started: time.Now(), id: nuid.Next()}
	if ms, err := strconv.ParseInt(r.Headers().Get(timeoutHeader), 10, 64); err == nil && c.relayed {
		c.timeout = min(time.Duration(ms)*time.Millisecond, maxTimeout)
	}
	if id := r.Headers().Get(idHeader); c.relayed && len(id) == len(c.id) {
		c.id = id
	}
	counts.begin()
	return c
}

func (w *Worker) handler(e endpoint) micro.HandlerFunc {
	counts := w.counts[e.id()]
	return func(r micro.Request) { w.accept(e, w.newCall(e.name, r, counts)) }
}

// accept runs on the subscription's goroutine, one request after the other, so
// it only decodes and admits.
func (w *Worker) accept(e endpoint, c *call) {
	decoded, err := w.guard(c, func() (any, error) { return e.decode(c.data) })
	if err != nil {
		w.respond(c, nil, err)
		return
	}
	t, p := decoded.(task), w.pool(e)
	c.request = t.request
	room := p
	if t.wait > 0 { // a crowd that waits for a lease must not keep its holder's requests out
		room = w.leases
	}
	if !room.admit(func() { w.work(e, p, t, c) }) {
		w.respond(c, nil, snapshot.Errorf(snapshot.Busy, "the worker has no room for %s now; send it again after retryAfterMs", c.name).With("retryAfterMs", 1000))
	}
}

// work runs on a goroutine of the pool.
func (w *Worker) work(e endpoint, p *pool, t task, c *call) {
	msg, err := w.guard(c, func() (any, error) {
		if t.claim != "" {
			fetched, done, err := w.unclaim(e, t.claim)
			defer done()
			if err != nil {
				return nil, err
			}
			t, c.request, c.release = fetched, fetched.request, done
		}
		reply, err := w.perform(e, p, &t, c)
		if err != nil {
			return nil, err
		}
		return w.goodReply(c, reply)
	})
	if err != nil {
		w.respond(c, nil, err)
		return
	}
	w.respond(c, msg.(*nats.Msg), nil)
}

// perform runs the task here or on its node, within the request's time.
func (w *Worker) perform(e endpoint, p *pool, t *task, c *call) (reply any, err error) {
	c.timeout = cmp.Or(c.timeout, t.timeout, e.defaultTimeout(t.wait))
	ctx, cancel := context.WithDeadline(w.base, c.started.Add(c.timeout))
	defer cancel()
	node, err := w.elsewhere(ctx, t, c)
	switch {
	case err != nil:
	case node != "":
		c.letGo(t)
		reply, err = w.relay(c, node)
	default:
		reply, err = p.run(ctx, func(ctx context.Context) (any, error) { return t.run(ctx, c) })
	}
	if err != nil && ctx.Err() != nil && snapshot.AsError(err) == nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return reply, err
}

// letGo forgets a request that came as an object, all but its ids for the log,
// before it is passed on as the small message that it came with: the other node
// may have no room for it as long as its own wait for room here.
func (c *call) letGo(t *task) {
	if c.release == nil {
		return
	}
	ids := map[string]string{}
	about(c.request, nil, func(key, id string) { ids[key] = id })
	*t, c.request = task{}, ids
	c.release()
}

// unclaim fetches a request that was put as an object. It may be large, and
// stays in memory until done is called, once or more often: all of them together
// have a bound.
func (w *Worker) unclaim(e endpoint, claim string) (t task, done func(), err error) {
	done = func() {}
	ctx, cancel := context.WithTimeout(w.base, claimTimeout)
	defer cancel()
	body, size, err := w.Transfer.OpenUpload(ctx, claim)
	if err != nil {
		return t, done, err
	}
	defer body.Close()
	if size < 0 || size > maxClaim {
		return t, done, snapshot.Errorf(snapshot.PayloadTooLarge, "the request %q has more than %d bytes; send less at a time", claim, maxClaim)
	}
	if err := w.claims.Acquire(ctx, size); err != nil {
		if w.base.Err() != nil {
			return t, done, w.base.Err()
		}
		return t, done, snapshot.Errorf(snapshot.Busy, "the worker has as many large requests as it takes; send this one again after retryAfterMs").
			With("retryAfterMs", 1000).Because(err)
	}
	done = sync.OnceFunc(func() { w.claims.Release(size) })
	t, err = read(e, claim, body, size)
	return t, done, err
}

// read decodes a request that was put as an object of that size.
func read(e endpoint, claim string, body io.Reader, size int64) (task, error) {
	data := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	n, err := data.ReadFrom(io.LimitReader(body, size+1))
	if err != nil {
		return task{}, fmt.Errorf("read request %q: %w", claim, err)
	}
	if n != size {
		return task{}, snapshot.Errorf(snapshot.BadRequest, "the object %q does not have the %d bytes that it tells; put the request again", claim, size)
	}
	t, err := e.decode(data.Bytes())
	if err == nil && t.claim != "" {
		err = snapshot.Errorf(snapshot.BadRequest, "the object %q holds another $object; put the request itself there", claim)
	}
	return t, err
}

// guard turns a panic into an error; the worker lives on.
func (w *Worker) guard(c *call, fn func() (any, error)) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			w.Log.Error().Str("subject", c.name).Str("req_id", c.id).Str("stack", w.Redactor.Text(string(debug.Stack()))).Msg("handler panicked")
			reply, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	return fn()
}
