package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Fetch opens an object that a reply names. The replica that is asked may not
// have it yet: that there is none is believed only if it is said for a while.
func Fetch(ctx context.Context, store jetstream.ObjectStore, name string) (jetstream.ObjectResult, error) {
	const tries, wait = 20, 50 * time.Millisecond
	for try := 1; ; try++ {
		body, err := store.Get(ctx, name)
		if !errors.Is(err, jetstream.ErrObjectNotFound) || try == tries {
			return body, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}
