package agent

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// connectTimeout bounds the making of a connection, whatever a request may take.
const connectTimeout = 5 * time.Second

// Link is a connection and the JetStream behind it.
type Link struct {
	Conn *nats.Conn
	JS   jetstream.JetStream
	URL  string // for people, without credentials
}

// Dial connects as the flags say. Without a server or context it finds the
// embedded server that runs on this machine, and always its token.
func Dial(c Common, o bus.ConnectOptions) (Link, error) {
	if c.StateDir != "" {
		state := stateDir(c.StateDir)
		o.TokenFile = state.file(tokenFile)
		url, err := state.read(serverFile)
		if err != nil {
			return Link{}, err
		}
		if o.Server == "" && o.Context == "" && url != "" {
			o.Server, o.NoContext = url, true
		}
	}
	o.Timeout = min(o.Timeout, connectTimeout)
	return link(o)
}

func link(o bus.ConnectOptions) (Link, error) {
	nc, err := bus.Connect(o)
	if err != nil {
		return Link{}, err
	}
	js, err := bus.JetStream(nc, o)
	if err != nil {
		nc.Close()
		return Link{}, err
	}
	return Link{Conn: nc, JS: js, URL: nc.ConnectedUrlRedacted()}, nil
}

// Await waits until the connection is made; a daemon may be up before its server.
func (l Link) Await(ctx context.Context) (Link, error) {
	changed := l.Conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	for !l.Conn.IsConnected() {
		if l.Conn.IsClosed() {
			return l, snapshot.Errorf(snapshot.StoreUnavailable, "the NATS server refuses the connection; check --server and the credentials").Because(l.Conn.LastError())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return l, ctx.Err()
		}
	}
	l.URL = l.Conn.ConnectedUrlRedacted()
	return l, nil
}
