package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// held is a lease, a lock and a destination of a fork that somebody holds until
// freed is closed.
type held struct {
	snapshot.Leases
	snapshot.Checkpoints
	freed    chan struct{}
	waiting  chan struct{}
	renewals atomic.Int64
	lost     atomic.Bool
}

func newHeld() *held { return &held{freed: make(chan struct{}), waiting: make(chan struct{}, 10)} }

func (h *held) wait(ctx context.Context, wait time.Duration, conflict snapshot.Code) error {
	if wait == 0 {
		return snapshot.Errorf(conflict, "held")
	}
	h.waiting <- struct{}{}
	select {
	case <-h.freed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *held) Acquire(ctx context.Context, thread snapshot.ThreadID, wait time.Duration) (snapshot.Lease, error) {
	err := h.wait(ctx, wait, snapshot.WriterConflict)
	return snapshot.Lease{Writer: snapshot.Writer{ThreadID: thread}, RenewAfterMs: 1, ExpiresAt: 1}, err
}

func (h *held) Renew(context.Context, snapshot.Writer) (snapshot.Millis, error) {
	if h.lost.Load() {
		return 0, snapshot.Errorf(snapshot.WriterLost, "lost")
	}
	return snapshot.Millis(h.renewals.Add(1) + 1), nil
}

func (h *held) Lock(ctx context.Context, _ snapshot.LockName, wait time.Duration, fn func(context.Context) error) error {
	if err := h.wait(ctx, wait, snapshot.LockConflict); err != nil {
		return err
	}
	return fn(ctx)
}

func (h *held) Fork(ctx context.Context, _ *snapshot.Record, wait time.Duration) error {
	return h.wait(ctx, wait, snapshot.WriterConflict)
}

// waits are the ways in which a request waits for somebody else. Each returns
// when its request has what it waited for, and its turn.
var waits = map[string]func(context.Context, *held) (snapshot.Millis, error){
	"lease": func(ctx context.Context, h *held) (snapshot.Millis, error) {
		lease, err := bus.YieldLeases(h).Acquire(ctx, "t", time.Minute)
		return lease.ExpiresAt, err
	},
	"lock": func(ctx context.Context, h *held) (snapshot.Millis, error) {
		ran := errors.New("ran")
		err := bus.YieldLeases(h).Lock(ctx, "l", time.Minute, func(context.Context) error { return ran })
		if errors.Is(err, ran) {
			err = nil
		}
		return 0, err
	},
	"fork": func(ctx context.Context, h *held) (snapshot.Millis, error) {
		return 0, bus.YieldCheckpoints(h).Fork(ctx, nil, time.Minute)
	},
}

// Who waits for a lease, lock or destination keeps no other request from running,
// and goes on when it has its turn again.
func TestYield(t *testing.T) {
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			const waiters = 3
			h, inside, open := newHeld(), make(chan struct{}, waiters), make(chan struct{})
			w := newWorld(t, &service{save: func(ctx context.Context, r snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
				if r.ThreadID != "t" {
					return &snapshot.Checkpoint{ID: "c"}, nil, nil
				}
				_, err := wait(ctx, h)
				inside <- struct{}{}
				<-open
				return &snapshot.Checkpoint{ID: "c"}, nil, err
			}, head: func(context.Context, snapshot.ThreadRequest) (snapshot.CheckpointID, error) { return "c", nil }},
				func(o *bus.Options) { o.Heavy = bus.Limits{Running: 1} })
			var replies []<-chan error
			for range waiters {
				replies = append(replies, w.askLater(t, "snapshot.save", `{"threadId":"t","runId":"r","waitMs":60000}`))
			}
			for range waiters { // there is room for them besides the one that may run
				<-h.waiting
			}
			w.mustAsk(t, "snapshot.save", `{"threadId":"other","runId":"r"}`)
			close(h.freed)
			<-inside
			for range 20 { // others had the time to come in as well
				w.mustAsk(t, "checkpoint.head", `{"threadId":"t"}`)
			}
			if len(inside) > 0 {
				t.Error("more run at once than may")
			}
			close(open)
			for _, r := range replies {
				if err := <-r; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A lease that came before the turn is renewed until the turn comes, and one that
// is lost meanwhile ends the request.
func TestYield_LeaseBeforeTurn(t *testing.T) {
	for name, lost := range map[string]bool{"kept": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			h, open := newHeld(), make(chan struct{})
			running := make(chan struct{}, 1)
			w := newWorld(t, &service{save: func(ctx context.Context, r snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
				if r.ThreadID != "t" {
					running <- struct{}{}
					<-open
					return &snapshot.Checkpoint{ID: "c"}, nil, nil
				}
				until, err := waits["lease"](ctx, h)
				if err == nil && until < 2 {
					err = fmt.Errorf("the lease ends at %v, as at first", until)
				}
				return &snapshot.Checkpoint{ID: "c"}, nil, err
			}}, func(o *bus.Options) { o.Heavy = bus.Limits{Running: 1} })
			reply := w.askLater(t, "snapshot.save", `{"threadId":"t","runId":"r","waitMs":60000}`)
			<-h.waiting
			other := w.askLater(t, "snapshot.save", `{"threadId":"other","runId":"r"}`)
			<-running
			h.lost.Store(lost)
			close(h.freed)
			if lost {
				if err := <-reply; err == nil || !strings.Contains(err.Error(), string(snapshot.WriterLost)) {
					t.Errorf("the save: %v", err)
				}
				close(open)
			} else {
				eventually(t, "renewals", func() bool { return h.renewals.Load() > 1 })
				close(open)
				if err := <-reply; err != nil {
					t.Error(err)
				}
			}
			if err := <-other; err != nil {
				t.Error(err)
			}
		})
	}
}
