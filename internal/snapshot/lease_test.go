package snapshot_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sandkeep/internal/snapshot"
)

// silentLeases last for ttl. They lose replies to renewals for as long as these
// are waited for.
type silentLeases struct {
	snapshot.Leases
	ttl     time.Duration
	loses   func(nth int) bool
	renewed int
}

func (l *silentLeases) Acquire(ctx context.Context, id snapshot.ThreadID, wait time.Duration) (snapshot.Lease, error) {
	return l.AcquireFor(ctx, id, l.ttl, wait)
}

func (l *silentLeases) Renew(ctx context.Context, w snapshot.Writer) (snapshot.Millis, error) {
	l.renewed++
	until, err := l.Leases.Renew(ctx, w)
	if l.loses(l.renewed) {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return until, err
}

// TestSave_LostRenewalReplies waits for replies that never come, with the
// shortest lease there is, the default one and the longest.
func TestSave_LostRenewalReplies(t *testing.T) {
	for _, tc := range []struct {
		name  string
		loses func(nth int) bool
		want  snapshot.Code                         // "" for success
		ends  func(ttl time.Duration) time.Duration // of the last lease that the holder knows of
	}{
		{"the first", func(nth int) bool { return nth == 1 }, "", nil},
		{"every other one", func(nth int) bool { return nth%2 == 1 }, "", nil},
		{"all", func(int) bool { return true }, snapshot.WriterLost, func(ttl time.Duration) time.Duration { return ttl }},
		{"all but the first", func(nth int) bool { return nth > 1 }, snapshot.WriterLost, func(ttl time.Duration) time.Duration { return ttl/3 + ttl }},
	} {
		for _, ttl := range []time.Duration{3 * time.Second, 30 * time.Second, 600 * time.Second} {
			t.Run(tc.name+" of "+ttl.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.attach(t, "t")
					w.Leases = &silentLeases{Leases: w.mem, ttl: ttl, loses: tc.loses}
					w.ws.during = blockFor(3 * ttl)
					began := time.Now()
					_, _, err := w.Save(t.Context(), save("c"))
					if tc.want == "" && err != nil || !errors.Is(err, tc.want) && tc.want != "" {
						t.Errorf("got %v, want %q", err, tc.want)
					}
					if gone := time.Since(began); tc.want != "" && gone >= tc.ends(ttl) { // virtual time
						t.Errorf("the capture went on for %v", gone)
					}
				})
			})
		}
	}
}
