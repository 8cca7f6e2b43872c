package agent

import (
	"context"
	"time"

	"sandkeep/internal/kvstore"
)

// BucketsOf are replicas and limit of a store as they are; all of its buckets
// have the same. They are zero if it is not there or can't be looked at: InitStore
// says why.
func BucketsOf(ctx context.Context, l Link, store string) Buckets {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stream, err := l.JS.Stream(ctx, kvstore.StreamName(store))
	if err != nil {
		return Buckets{}
	}
	c := stream.CachedInfo().Config
	return Buckets{Replicas: c.Replicas, MaxBytes: max(c.MaxBytes, 0)}
}
