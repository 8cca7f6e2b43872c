package tests

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// renewals are aimed at about the end of leases of the shortest kind: each
// round is a lease, a renewal and a rival who waits for the lease.
const (
	shortestLease = 3000
	roundsAtOnce  = 100
)

// race are rounds of which all leases end at about the same time.
type race struct {
	*server
	mine, rival client // each with a worker of its own
	rounds      []*round

	held, landed int // renewals that were answered with a lease, and refused ones that prolonged it all the same
}

type round struct {
	thread  string
	first   held
	renewed float64  // until when, by the answer
	f       *failure // of the renewal
	rival   held
}

func (x *race) all(do func(*round)) {
	var wg sync.WaitGroup
	for _, r := range x.rounds {
		wg.Go(func() { do(r) })
	}
	wg.Wait()
}

// run acquires all leases, and sends the renewals when ms before or after their
// nominal end, while the rivals wait.
func (x *race) run(wave int, at func() (ms float64), meanwhile func()) {
	x.rounds = nil
	for i := range roundsAtOnce {
		x.rounds = append(x.rounds, &round{thread: "w" + strconv.Itoa(wave) + "-" + strconv.Itoa(i)})
	}
	x.all(func(r *round) {
		r.first = ok[held](x.mine, "writer.acquire", object{"threadId": r.thread, "leaseDurationMs": shortestLease})
	})
	var rivals sync.WaitGroup
	rivals.Go(func() {
		x.all(func(r *round) {
			r.rival = ok[held](x.rival, "writer.acquire", object{"threadId": r.thread, "leaseDurationMs": shortestLease, "waitMs": 30_000})
			r.late(x)
		})
	})
	var aside sync.WaitGroup
	aside.Go(meanwhile)
	x.all(func(r *round) {
		<-after(time.Until(time.UnixMilli(int64(r.first.ExpiresAt + at()))))
		var msg *nats.Msg
		if msg, r.f = x.mine.try("writer.renew", r.first.Writer); r.f == nil {
			var reply struct{ ExpiresAt float64 }
			decodeStrict(x.t, msg.Data, &reply)
			r.renewed = reply.ExpiresAt
		}
	})
	aside.Wait()
	rivals.Wait()
}

// late has the first holder come back after the rival has got the lease, and
// then lets the rival use it.
func (r *round) late(x *race) {
	refused(x.rival, "writer.renew", r.first.Writer, fullCode("WRITER_LOST"))
	refused(x.rival, "checkpoint.append", appendBy(r.first.Writer, r.thread+"-late", ""), fullCode("WRITER_LOST"))
	ok[object](x.rival, "checkpoint.append", appendBy(r.rival.Writer, r.thread+"-1", ""))
	ok[empty](x.rival, "writer.release", r.rival.Writer)
}

// judge wants each renewal to have held its lease as long as it said, or to
// have been refused.
func (x *race) judge() {
	x.t.Helper()
	for _, r := range x.rounds {
		since := r.rival.ExpiresAt - shortestLease
		switch {
		case r.rival.Fence <= r.first.Fence:
			x.t.Errorf("%s: fence %d after %d", r.thread, r.rival.Fence, r.first.Fence)
		case r.f == nil && since < r.renewed:
			x.t.Errorf("%s: renewed until %.0f, but another had it at %.0f", r.thread, r.renewed, since)
		case r.f == nil:
			x.held++
		case r.f.Code != fullCode("WRITER_LOST"):
			x.t.Errorf("%s: the renewal answered %+v", r.thread, r.f)
		case since < r.first.ExpiresAt:
			x.t.Errorf("%s: held until %.0f, but another had it at %.0f", r.thread, r.first.ExpiresAt, since)
		case since > r.first.ExpiresAt+shortestLease/2:
			x.landed++
		}
	}
}

// between is a random number of milliseconds.
func between(low, high int) func() float64 {
	return func() float64 { return float64(low) + rand.Float64()*float64(high-low) }
}

// A renewal that comes when the lease is about to end holds it, or is refused:
// nobody is told that it has a lease that another gets.
func TestRenewalAtTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--no-agent", "--sync", "interval")
	s.worker(s.node, "--prefix", "rival")
	s.worker(s.node, "--prefix", "mine")
	x := &race{server: s, mine: s.with("mine"), rival: s.with("rival")}
	waves := 1
	if *long {
		waves = 20
	}
	for wave := range waves {
		x.run(wave, between(-1500, 300), func() {})
		x.judge()
	}
	if total := waves * roundsAtOnce; x.held == 0 || x.held == total {
		t.Errorf("%d of %d renewals held: none was at the end of the lease", x.held, total)
	}
	t.Logf("%d of %d renewals held", x.held, waves*roundsAtOnce)
}

// The same with renewals that are sent in time and are on their way until the
// lease ends. Every other wave the worker is stopped meanwhile: it finds the
// replies when the leases are long over.
func TestRenewalThatArrivesAtTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	const lead = 1500 // half a second before the last one
	s := startServer(t, "--no-agent", "--sync", "interval")
	s.worker(s.node, "--prefix", "rival")
	var onTheWay atomic.Int64
	way := between(lead-100, lead+400)
	g := newGate(t, s.url, func(m message) fate {
		if !m.renewal() {
			return fate{}
		}
		onTheWay.Add(1)
		return fate{request: after(time.Duration(way() * float64(time.Millisecond)))}
	})
	w := s.worker(s.node, "--prefix", "mine", "--server", g.url())
	x := &race{server: s, mine: s.with("mine"), rival: s.with("rival")}
	waves := 2
	if *long {
		waves = 40
	}
	for wave := range waves {
		before := onTheWay.Load()
		x.run(wave, func() float64 { return -lead }, func() {
			if wave%2 == 0 {
				return
			}
			eventually(t, "renewals on their way", func() bool { return onTheWay.Load() >= before+roundsAtOnce/2 })
			w.signal(syscall.SIGSTOP)
			<-after((lead + 400) * time.Millisecond)
			w.signal(syscall.SIGCONT)
		})
		x.judge()
	}
	if x.landed == 0 {
		t.Error("no renewal arrived before the server had ended the lease")
	}
	t.Logf("%d of %d renewals held, %d more arrived in time for the server", x.held, waves*roundsAtOnce, x.landed)
}
