package bus

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"sandkeep/internal/snapshot"
)

// rightsTimeout bounds the look at what the user may do.
const rightsTimeout = 10 * time.Second

// Rights are the names that decide what a worker publishes and hears.
type Rights struct {
	Prefix string // of subjects
	Store  string // prefix of bucket names
}

// Check finds out, without changing anything, whether the connection's user may
// do what a worker does, and names what is refused. The subjects of requests
// are left to Serve.
func (r Rights) Check(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, rightsTimeout)
	defer cancel()
	nc := js.Conn()
	probes := r.probes(apiPrefix(js.Options()))
	refused, err := refusal(ctx, nc, probes...)
	if err == nil && refused != "" { // that is the last one
		refused, err = refusals(ctx, nc, probes)
	}
	if err == nil && refused == "" {
		refused, err = r.answer(ctx, nc)
	}
	if err != nil {
		return snapshot.Errorf(snapshot.StoreUnavailable, "the NATS server does not answer; check it and start again").Because(err)
	}
	return lacking(refused)
}

// lacking is the error for refused permissions, if any.
func lacking(refused string) error {
	if refused == "" {
		return nil
	}
	return snapshot.Errorf(snapshot.StoreUnavailable, "the worker's NATS user lacks a permission: %s; docs/operating.md lists those of a worker", refused)
}

// refusal sends messages and returns the last permission that the server
// refuses, "" if none: it does so before it answers the flush.
func refusal(ctx context.Context, nc *nats.Conn, msgs ...*nats.Msg) (string, error) {
	before := nc.LastError()
	for _, m := range msgs {
		if err := nc.PublishMsg(m); err != nil {
			return "", err
		}
	}
	err := nc.FlushWithContext(ctx)
	return refusedSince(nc, before), err
}

// refusedSince is the newest refusal after the connection's error before.
func refusedSince(nc *nats.Conn, before error) string {
	err := nc.LastError()
	if !errors.Is(err, nats.ErrPermissionViolation) || err == before {
		return ""
	}
	_, what, _ := strings.Cut(err.Error(), "Violation for ")
	return what
}

// refusals sends one message after the other, to name all that are refused.
func refusals(ctx context.Context, nc *nats.Conn, msgs []*nats.Msg) (string, error) {
	var all []string
	for _, m := range msgs {
		refused, err := refusal(ctx, nc, m)
		if err != nil {
			return "", err
		}
		if refused != "" {
			all = append(all, refused)
		}
	}
	return strings.Join(all, ", "), nil
}

// badPurge says what to keep in two ways, of which the API takes one.
const badPurge = `{"seq":1,"keep":1}`

// probes are messages to all that a worker publishes to, none with an effect:
// streams refuse what is for another stream, the API what is not well formed.
func (r Rights) probes(api string) (msgs []*nats.Msg) {
	add := func(subject, body string) {
		msgs = append(msgs, &nats.Msg{Subject: subject, Data: []byte(body), Header: nats.Header{jetstream.ExpectedStreamHeader: {"none"}}})
	}
	read := func(stream string) {
		add(api+"STREAM.INFO."+stream, "")
		add(api+"STREAM.MSG.GET."+stream, "")
	}
	add(r.Prefix+".node.probe", "") // a node listens one part deeper
	state, put := r.Store+"-state", "$KV."
	if api != jetstream.DefaultAPIPrefix {
		put = api + put
	}
	add(put+state+".probe", "")
	read("KV_" + state)
	add(api+"STREAM.PURGE.KV_"+state, badPurge)
	add(api+"CONSUMER.CREATE.KV_"+state+".probe", "{}")
	add(api+"CONSUMER.DELETE.KV_"+state+".probe", "probe") // an empty one would delete
	for _, bucket := range []string{"-uploads", "-packs", "-artifacts", "-files", "-replies"} {
		stream := "OBJ_" + r.Store + bucket
		read(stream)
		add(api+"DIRECT.GET."+stream, "")
		if bucket == "-uploads" {
			continue // that is for clients
		}
		add("$O."+r.Store+bucket+".C.probe", "")
		add(api+"STREAM.MSG.DELETE."+stream, "")
		add(api+"STREAM.PURGE."+stream, badPurge)
	}
	return msgs
}

// answer sends a request that only this connection hears, answers it, and
// returns what of that is refused. No node listens there, and the group is that
// of the service, since a permission may be for the group alone.
func (r Rights) answer(ctx context.Context, nc *nats.Conn) (string, error) {
	inbox := nc.NewInbox()
	replies, refused, err := listen(ctx, nc, inbox+".*", "")
	if err != nil || refused != "" {
		return refused, err
	}
	defer replies.Unsubscribe()
	subject := r.Prefix + ".node." + nuid.Next()
	requests, refused, err := listen(ctx, nc, subject, ServiceName)
	if err != nil || refused != "" {
		return "", err // Serve finds out whether it may listen where it has to
	}
	defer requests.Unsubscribe()
	refused, err = refusal(ctx, nc, &nats.Msg{Subject: subject, Reply: inbox + ".1"})
	if err != nil || refused != "" {
		return refused, err
	}
	request, err := requests.NextMsgWithContext(ctx)
	if err != nil {
		return "", err
	}
	return refusal(ctx, nc, &nats.Msg{Subject: request.Reply})
}

// listen subscribes, in a queue group unless it is "", or returns what of that
// is refused.
func listen(ctx context.Context, nc *nats.Conn, subject, group string) (sub *nats.Subscription, refused string, err error) {
	before := nc.LastError()
	if sub, err = nc.QueueSubscribeSync(subject, group); err != nil {
		return nil, "", err
	}
	err = nc.FlushWithContext(ctx)
	if refused = refusedSince(nc, before); err != nil || refused != "" {
		_ = sub.Unsubscribe() // the server has none
	}
	return sub, refused, err
}

func apiPrefix(o jetstream.JetStreamOptions) string {
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}
