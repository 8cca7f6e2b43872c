package bus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"sandkeep/internal/snapshot"
)

// ClientOptions are those of a Client.
type ClientOptions struct {
	Prefix string // of subjects, DefaultPrefix
	Store  string // prefix of bucket names, DefaultPrefix
	// JetStream moves what is too large for a message.
	JetStream jetstream.JetStream
	// Patience is how long to wait for a worker to appear; a second.
	Patience time.Duration
}

// Client sends requests to workers.
type Client struct {
	ClientOptions
	nc *nats.Conn
}

// NewClient makes a client on a connection.
func NewClient(nc *nats.Conn, o ClientOptions) *Client {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	o.Store = cmp.Or(o.Store, DefaultPrefix)
	o.Patience = cmp.Or(o.Patience, time.Second)
	return &Client{ClientOptions: o, nc: nc}
}

// Subject is the full subject of an operation like "snapshot.save".
func (c *Client) Subject(name string) string { return c.Prefix + "." + name }

// Request sends a JSON object to a full subject and returns the reply's, byte
// for byte. An error reply is a *snapshot.Error. The context bounds it all.
func (c *Client) Request(ctx context.Context, subject string, payload []byte) ([]byte, error) {
	if int64(len(payload)) > c.nc.MaxPayload() {
		object, err := c.upload(ctx, payload)
		if err != nil {
			return nil, err
		}
		if payload, err = marshal(map[string]string{"$object": object}); err != nil {
			return nil, err
		}
	}
	msg, err := c.send(ctx, subject, payload)
	if err != nil {
		return nil, err
	}
	body, err := c.resolve(ctx, msg.Data)
	if err != nil {
		return nil, err
	}
	if fault := decodeFault(msg.Header, body); fault != nil {
		return nil, fault
	}
	return body, nil
}

// Call sends a request to an operation like "snapshot.save" and decodes the
// reply into reply, if that is not nil.
func (c *Client) Call(ctx context.Context, name string, request, reply any) error {
	payload, err := marshal(request)
	if err != nil {
		return err
	}
	body, err := c.Request(ctx, c.Subject(name), payload)
	if err != nil || reply == nil {
		return err
	}
	if err := json.Unmarshal(body, reply); err != nil {
		return fmt.Errorf("decode reply to %s: %w", name, err)
	}
	return nil
}

// send waits a little for a worker: around a restart there is none for a moment.
func (c *Client) send(ctx context.Context, subject string, payload []byte) (*nats.Msg, error) {
	for patience := time.Now().Add(c.Patience); ; {
		msg, err := c.nc.RequestWithContext(ctx, subject, payload)
		switch {
		case err == nil:
			return msg, nil
		case errors.Is(err, nats.ErrNoResponders) && time.Now().Before(patience):
			pause := time.NewTimer(50*time.Millisecond + rand.N(100*time.Millisecond))
			select {
			case <-pause.C:
				continue
			case <-ctx.Done():
				pause.Stop()
			}
		}
		return nil, sendFault(err, subject)
	}
}

func sendFault(err error, subject string) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return snapshot.Errorf(snapshot.StoreUnavailable, "no worker answers on %s; start one with `agent serve`", subject).Because(err)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout):
		return snapshot.Errorf(snapshot.Timeout, "there was no reply on %s in time; whether it was done is unknown, and with the same ids it can be sent again", subject).With("outcome", "unknown").Because(err)
	case errors.Is(err, context.Canceled):
		return snapshot.Errorf(snapshot.Canceled, "the request to %s was given up; what came of it is unknown", subject).With("outcome", "unknown").Because(err)
	case errors.Is(err, nats.ErrBadSubject):
		return snapshot.Errorf(snapshot.BadRequest, "%q is not a subject to send to", subject).Because(err)
	}
	return snapshot.Errorf(snapshot.StoreUnavailable, "the connection to the NATS server is gone; send the request again").Because(err)
}

// upload puts a request that is too large for a message.
func (c *Client) upload(ctx context.Context, payload []byte) (string, error) {
	if len(payload) > maxClaim {
		return "", snapshot.Errorf(snapshot.PayloadTooLarge, "the request has %d bytes; at most %d are allowed", len(payload), maxClaim)
	}
	bucket := c.Store + "-uploads"
	store, ctx, cancel, err := c.bucket(ctx, bucket)
	if err != nil {
		return "", err
	}
	defer cancel()
	name := nuid.Next()
	if _, err := store.Put(ctx, jetstream.ObjectMeta{Name: name}, bytes.NewReader(payload)); err != nil {
		return "", snapshot.Errorf(snapshot.StoreUnavailable, "the request, too large for a message, could not be put into bucket %s; send it again", bucket).Because(err)
	}
	return bucket + "/" + name, nil
}

// bucket opens an object bucket; the context gets a deadline, as the library
// cuts a whole transfer after five seconds without one.
func (c *Client) bucket(ctx context.Context, name string) (jetstream.ObjectStore, context.Context, context.CancelFunc, error) {
	if c.JetStream == nil {
		return nil, nil, nil, snapshot.Errorf(snapshot.PayloadTooLarge, "the request or its reply is too large for a message, and this client has no JetStream")
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	store, err := c.JetStream.ObjectStore(ctx, name)
	if err != nil {
		cancel()
		return nil, nil, nil, snapshot.Errorf(snapshot.StoreUnavailable, "bucket %s could not be opened; `agent init` makes it", name).Because(err)
	}
	return store, ctx, cancel, nil
}

// resolve fetches a reply that is {"$object": "<bucket>/<name>"}.
func (c *Client) resolve(ctx context.Context, reply []byte) ([]byte, error) {
	if !bytes.HasPrefix(reply, []byte(`{"$object":`)) {
		return reply, nil
	}
	var claim struct {
		Object string `json:"$object"`
	}
	if err := json.Unmarshal(reply, &claim); err != nil {
		return nil, fmt.Errorf("decode reply: %w", err)
	}
	bucket, name, _ := strings.Cut(claim.Object, "/")
	if bucket != c.Store+"-replies" {
		return nil, snapshot.Errorf(snapshot.Internal, "the reply lies in bucket %q, not in %q; check --store", bucket, c.Store+"-replies")
	}
	store, ctx, cancel, err := c.bucket(ctx, bucket)
	if err != nil {
		return nil, err
	}
	defer cancel()
	var out []byte
	body, err := Fetch(ctx, store, name)
	if err == nil {
		defer body.Close()
		out, err = io.ReadAll(body)
	}
	if err != nil {
		return nil, snapshot.Errorf(snapshot.StoreUnavailable, "the reply %s could not be fetched; send the request again", claim.Object).Because(err)
	}
	return out, nil
}
