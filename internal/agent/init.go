package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
)

// InitStore makes the buckets of a store where they are missing and returns
// its id. A store that this machine knows is never made anew: without its
// buckets the checkpoints are lost, and an empty store would hide that.
func InitStore(ctx context.Context, l Link, c Common, b Buckets) (string, error) {
	if err := usage(c.check(), b.check()); err != nil {
		return "", err
	}
	state, err := openStateDir(c.StateDir)
	if err != nil {
		return "", err
	}
	known, err := state.read(storeFile(c.Store))
	if err != nil {
		return "", err
	}
	if known != "" {
		if err := findStore(ctx, l, c.Store, known); err != nil {
			return "", err
		}
	}
	if err := roomy(ctx, l, c.Store, b.MaxBytes); err != nil {
		return "", err
	}
	id, err := kvstore.Init(ctx, l.JS, kvstore.Config{Store: c.Store, Prefix: c.Prefix, Replicas: b.Replicas, MaxBytes: b.MaxBytes})
	if err != nil {
		return "", err
	}
	if err := objstore.Init(ctx, l.JS, objstore.Config{Store: c.Store, Replicas: b.Replicas, MaxBytes: b.MaxBytes}); err != nil {
		return "", err
	}
	return id, state.checkStore(c.Store, id)
}

// roomy refuses a limit that is lower than before and than what a bucket holds,
// before any is changed: nothing would be lost, but nothing more stored.
func roomy(ctx context.Context, l Link, store string, maxBytes int64) error {
	if maxBytes == 0 {
		return nil
	}
	for _, name := range append(objstore.StreamNames(store), kvstore.StreamName(store)) {
		stream, err := l.JS.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return snapshot.Errorf(snapshot.StoreUnavailable, "stream %s can't be looked at; check the NATS servers, and that they have JetStream for this account", name).Because(err)
		}
		limit, held := stream.CachedInfo().Config.MaxBytes, int64(stream.CachedInfo().State.Bytes)
		if held > maxBytes && (limit <= 0 || limit > maxBytes) {
			return snapshot.Errorf(snapshot.BadRequest, "stream %s holds %d bytes, more than --max-bytes %d; give more than that; nothing was changed", name, held, maxBytes)
		}
	}
	return nil
}

// findStore checks that a known store is there, with all of its buckets.
func findStore(ctx context.Context, l Link, store, known string) error {
	state, err := kvstore.Open(ctx, l.JS, kvstore.Options{Store: store})
	if err != nil {
		if errors.Is(err, snapshot.StoreUnavailable) {
			return otherStore(store, known, "none").Because(err)
		}
		return err
	}
	if state.StoreID() != known {
		return otherStore(store, known, fmt.Sprintf("the id %s", state.StoreID()))
	}
	_, err = objstore.Open(ctx, l.JS, objstore.Options{Store: store})
	return err
}

// InitCluster is InitStore for a server that may still be looking for the
// others of its cluster: it tries again for a while.
func InitCluster(ctx context.Context, l Link, c Common, b Buckets) (string, error) {
	const patience, pause = 2 * time.Minute, 500 * time.Millisecond
	for end := time.Now().Add(patience); ; {
		id, err := InitStore(ctx, l, c, b)
		if !errors.Is(err, snapshot.StoreUnavailable) || time.Now().After(end) {
			return id, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return "", err
		}
	}
}
