package agent

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/jsm.go/natscontext"
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
// embedded server of the state directory. No other server is shown its token.
func Dial(c Common, o bus.ConnectOptions) (Link, error) {
	own := ""
	if c.StateDir != "" {
		state, err := stateDir(c.StateDir), error(nil)
		if own, err = state.read(serverFile); err != nil {
			return Link{}, err
		}
		if sameServers(cmp.Or(o.Server, contextServer(o), own), own) {
			o.TokenFile = state.file(tokenFile)
		}
	}
	lost := !named(o)
	if own != "" && o.Server == "" && o.Context == "" {
		o.Server, o.NoContext, lost = own, true, true
	}
	o.Timeout = min(o.Timeout, connectTimeout)
	l, err := link(o)
	if e, ok := errors.AsType[*snapshot.Error](err); ok && lost && (own == "" || errors.Is(err, nats.ErrNoServers)) {
		told := *e
		told.Message = notRunning + ", and " + e.Message
		return l, &told
	}
	if err == nil && o.Daemon && !l.Conn.IsConnected() {
		waiting(o, l, lost)
	}
	return l, err
}

// waiting tells why a daemon does nothing yet.
func waiting(o bus.ConnectOptions, l Link, lost bool) {
	text := "waiting for the NATS server"
	if lost {
		text = notRunning + "; " + text
	}
	o.Log.Warn().Str("url", l.URL).Msg(text)
}

const notRunning = "the state directory's own server is not running"

// named tells whether anything says which server is meant.
func named(o bus.ConnectOptions) bool {
	return o.Server != "" || o.Context != "" || !o.NoContext && natscontext.SelectedContext() != ""
}

// contextServer is the server of the context that is asked for, if any.
func contextServer(o bus.ConnectOptions) string {
	if o.Context == "" {
		return ""
	}
	saved, err := natscontext.New(o.Context, true)
	if err != nil {
		return "" // told when it is used
	}
	return saved.ServerURL()
}

// sameServers tells whether all URLs of a list are of one server.
func sameServers(list, server string) bool {
	want := address(server)
	for u := range strings.SplitSeq(list, ",") {
		if want == "" || address(u) != want {
			return false
		}
	}
	return true
}

// address is the host and port of a URL, "" if it is none.
func address(server string) string {
	server = strings.TrimSpace(server)
	if server == "" {
		return ""
	}
	if !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	host := strings.ToLower(u.Hostname())
	if host == "localhost" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, cmp.Or(u.Port(), "4222"))
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
	return Link{Conn: nc, JS: js, URL: cmp.Or(nc.ConnectedUrlRedacted(), strings.Join(nc.Servers(), ","))}, nil
}

// Await waits until the connection is made; a daemon may be up before its server.
func (l Link) Await(ctx context.Context) (Link, error) {
	changed := l.Conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	for !l.Conn.IsConnected() {
		if l.Conn.IsClosed() {
			return l, bus.Refused(l.URL, l.Conn.LastError())
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
