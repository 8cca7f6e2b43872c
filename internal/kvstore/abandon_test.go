package kvstore_test

import (
	"context"
	"errors"
	"testing"
)

// Who gives up while its lease is being written leaves none behind, also if the
// write lands after it has looked, as on replicas it may.
func TestAcquire_GivenUpWhileItsWriteIsOnTheWay(t *testing.T) {
	for _, kind := range []string{"writer", "lock"} {
		for _, first := range []bool{true, false} { // the key was there before
			w := newWorld(t)
			healthy := w.open(t, options())
			if !first {
				if err := healthy.Release(t.Context(), acquire(t, healthy, "t")); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			f := &fault{kind: kind, nth: 1, mode: mode{late: true}, then: cancel}
			s := w.open(t, impatient().Through(f.through))
			take := func(ctx context.Context) (err error) {
				if kind == "lock" {
					_, err = s.AcquireLock(ctx, "l", 0, 0)
				} else {
					_, err = s.Acquire(ctx, "t", 0)
				}
				return err
			}
			if err := take(ctx); !f.fired || !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: fired %t, %v", kind, f.fired, err)
			}
			f.deliver(t, w)
			if err := take(t.Context()); err != nil {
				t.Errorf("%s, taken before: %t: %v", kind, !first, err)
			}
		}
	}
}
