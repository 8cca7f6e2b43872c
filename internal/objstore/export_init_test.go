package objstore

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// InitThrough is Init with fault between it and the server.
func InitThrough(ctx context.Context, js jetstream.JetStream, cfg Config, fault func(ctx context.Context, msg *nats.Msg, send Send) (*nats.Msg, error)) error {
	a := newAPI(js)
	send := a.request
	a.request = func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) { return fault(ctx, msg, send) }
	return a.ensureAll(ctx, cfg)
}
