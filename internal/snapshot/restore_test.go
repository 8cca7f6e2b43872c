package snapshot_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"sandkeep/internal/snapshot"
)

// A restore that loses its lease says so, and what became of the sandbox.
func TestRestore_LeaseLost(t *testing.T) {
	half := snapshot.Errorf(snapshot.Internal, "half changed").Because(snapshot.ErrHalfRestored)
	for name, tc := range map[string]struct {
		fault error
		want  snapshot.Code
	}{
		"taken back": {nil, snapshot.WriterLost},
		"half done":  {half, snapshot.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := saved(t)
				w.leases.renew = func(int) error { return snapshot.Errorf(snapshot.WriterLost, "taken over") }
				w.ws.during = func(ctx context.Context) error {
					<-ctx.Done()
					return errors.Join(tc.fault, ctx.Err())
				}
				_, err := w.Restore(t.Context(), snapshot.RestoreRequest{ThreadID: "t", Path: "box", Into: "sandbox", Mode: "exact"})
				if e := snapshot.AsError(err); e == nil || e.Code != tc.want {
					t.Errorf("the client hears %v, want %v", err, tc.want)
				}
			})
		})
	}
}
