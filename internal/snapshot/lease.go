package snapshot

import (
	"context"
	"errors"
	"time"
)

// cleanupTime bounds what is done after the caller's context has ended.
const cleanupTime = 5 * time.Second

// leaseMargin is how long before its end a holder stops trusting its lease.
const leaseMargin = time.Second

// waitTime is a waitMs as a duration; the request's deadline ends it earlier.
func waitTime(ms int64) time.Duration {
	return time.Duration(min(ms, time.Hour.Milliseconds())) * time.Millisecond
}

// hold keeps a writer lease alive in the background. Its context ends when the
// lease is lost.
type hold struct {
	leases Leases
	now    func() time.Time
	lease  Lease
	ttl    time.Duration
	end    time.Time // the holder's own deadline
	cancel context.CancelCauseFunc
	done   chan struct{}
	lost   error // set before done is closed
}

// holdLease starts the renewals of a lease that was just acquired, perhaps
// after a wait: its end counts from when the last try was sent.
func (s *Service) holdLease(ctx context.Context, lease Lease) (context.Context, *hold) {
	ctx, cancel := context.WithCancelCause(ctx)
	interval := time.Duration(lease.RenewAfterMs) * time.Millisecond
	h := &hold{leases: s.Leases, now: s.Now, lease: lease, ttl: 3 * interval, cancel: cancel, done: make(chan struct{})}
	now := s.Now()
	left := time.Duration(lease.ExpiresAt-Millis(now.UnixMilli())) * time.Millisecond
	h.end = now.Add(min(left, h.ttl) - leaseMargin)
	go func() {
		defer close(h.done)
		if h.lost = h.run(ctx, interval); h.lost != nil {
			cancel(h.lost)
		}
	}()
	return ctx, h
}

// run renews at the interval, one renewal at a time, until ctx ends or the
// lease is lost.
func (h *hold) run(ctx context.Context, interval time.Duration) error {
	wait := time.NewTimer(interval)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		}
		sent := h.now()
		err := h.renew(ctx, max(h.end.Sub(sent), leaseMargin)/2) // leaves time for another try
		switch {
		case err == nil:
			wait.Reset(interval)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, WriterLost) || h.over():
			return Errorf(WriterLost, "the writer lease of thread %q was lost during the save; nothing was changed, save again", h.lease.ThreadID).With("threadId", h.lease.ThreadID).Because(err)
		default: // one lost renewal reply is not a lost lease
			wait.Reset(min(interval/4, time.Second, h.end.Sub(h.now())) - h.now().Sub(sent))
		}
	}
}

// renew waits for an answer so long.
func (h *hold) renew(ctx context.Context, wait time.Duration) error {
	sent := h.now()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if _, err := h.leases.Renew(ctx, h.lease.Writer); err != nil {
		return err
	}
	h.end = sent.Add(h.ttl - leaseMargin)
	return nil
}

// over compares wall clocks too: a monotonic clock stands still while a machine sleeps.
func (h *hold) over() bool {
	now := h.now()
	return !now.Before(h.end) || !now.Round(0).Before(h.end.Round(0))
}

// stop ends the renewals and tells whether the lease was lost before.
func (h *hold) stop() error {
	h.cancel(context.Canceled)
	<-h.done
	return h.lost
}

// confirm asks the store once more if the holder's own clock says that the
// lease is over, as after a pause of the process. Call it after stop.
func (h *hold) confirm(ctx context.Context) error {
	if !h.over() {
		return nil
	}
	return h.renew(ctx, leaseMargin)
}

// release gives the lease up, also when ctx has ended.
func (h *hold) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	return h.leases.Release(ctx, h.lease.Writer)
}
