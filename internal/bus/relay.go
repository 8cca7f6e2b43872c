package bus

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"sandkeep/internal/snapshot"
)

// nodeEndpoint takes the requests that other workers pass on to this node.
const nodeEndpoint = "node"

// relayGrace is how much longer than the other worker this one waits, so that
// a timeout is told by the one that knows what came of the request.
const relayGrace = 5 * time.Second

func nodeSubject(prefix string, node snapshot.NodeName) string {
	return prefix + ".node." + snapshot.EscapeToken(string(node))
}

// acceptRelayed runs what came to the node's own subject here, whatever it
// says about nodes: a request is passed on once at most.
func (w *Worker) acceptRelayed(r micro.Request) {
	name := strings.TrimPrefix(r.Subject(), nodeSubject(w.Prefix, w.Node)+".")
	c := w.newCall(name, r, w.counts[nodeEndpoint])
	c.relayed = true
	e, ok := w.rows[name]
	if !ok {
		w.respond(c, nil, snapshot.Errorf(snapshot.BadRequest, "node %q has no operation %q; its service info lists them", w.Node, name))
		return
	}
	w.accept(e, c)
}

// elsewhere names the other node that must run the task, or "".
func (w *Worker) elsewhere(ctx context.Context, t *task, c *call) (snapshot.NodeName, error) {
	if t.node == nil || c.relayed {
		return "", nil
	}
	node, err := t.node(ctx, w.Service)
	if node == w.Node {
		node = ""
	}
	return node, err
}

// relay passes the request on as it came and returns the reply as it came.
func (w *Worker) relay(c *call, node snapshot.NodeName) (any, error) {
	left := c.timeout - time.Since(c.started)
	msg := &nats.Msg{Subject: nodeSubject(w.Prefix, node) + "." + c.name, Data: c.data, Header: nats.Header{}}
	msg.Header.Set(hopHeader, snapshot.EscapeToken(string(w.Node)))
	msg.Header.Set(idHeader, c.id)
	msg.Header.Set(timeoutHeader, strconv.FormatInt(max(left.Milliseconds(), 1), 10))
	ctx, cancel := context.WithTimeout(w.base, left+relayGrace)
	defer cancel()
	reply, err := w.nc.RequestMsgWithContext(ctx, msg)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, snapshot.Errorf(snapshot.NodeUnreachable, "no worker listens on node %q; start one there and send the request again", node).With("node", node)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return nil, snapshot.AsError(err).With("node", node).With("outcome", "unknown")
	case errors.Is(err, nats.ErrMaxPayload): // because of the headers
		return nil, snapshot.Errorf(snapshot.PayloadTooLarge, "the request leaves no room to be passed on to node %q; send it as an object", node).With("node", node)
	case err != nil:
		return nil, snapshot.Errorf(snapshot.StoreUnavailable, "the request could not be passed on to node %q; send it again", node).With("node", node).Because(err)
	}
	return reply, nil
}
