package bus

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// A server that can't write to its disk turns JetStream off until it is started
// again: neither reads nor writes are answered then. So the disk is watched, and
// when little is free, however that came about, the accounts may only write a
// part of it: larger writes are refused as those to a full store, reads go on,
// and there is room for the small writes that deletes and leases take.
const (
	diskLook    = 100 * time.Millisecond
	diskLeast   = 16 << 20 // room that is kept on the smallest disk
	diskMost    = 1 << 30  // and on the largest
	diskShare   = 50       // of a disk between them one part in so many
	diskRefused = 2 << 20  // with less free nothing is written at all
)

// diskGuard limits the accounts of a server while its disk is nearly full.
type diskGuard struct {
	server  *server.Server
	free    func() int64
	reserve int64
	tight   map[string]server.JetStreamAccountLimits // by account: what it may do otherwise
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// guardDisk watches the disk of dir until the guard is closed.
func guardDisk(s *server.Server, dir string) *diskGuard {
	reserve := min(max(diskSize(dir)/diskShare, diskLeast), diskMost)
	g := newDiskGuard(s, reserve, func() int64 { return freeSpace(dir) })
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.look()
	g.done.Go(func() { g.watch(ctx) })
	return g
}

func newDiskGuard(s *server.Server, reserve int64, free func() int64) *diskGuard {
	return &diskGuard{server: s, free: free, reserve: reserve, tight: map[string]server.JetStreamAccountLimits{}}
}

func (g *diskGuard) watch(ctx context.Context) {
	tick := time.NewTicker(diskLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.look()
		case <-ctx.Done():
			return
		}
	}
}

func (g *diskGuard) close() {
	g.stop()
	g.done.Wait()
}

// look tightens the limits of all accounts, or gives them theirs back.
func (g *diskGuard) look() {
	free := g.free()
	if free >= g.reserve && len(g.tight) == 0 {
		return
	}
	info, err := g.server.Jsz(&server.JSzOptions{Accounts: true})
	if err != nil {
		return // JetStream is off
	}
	for _, detail := range info.AccountDetails {
		if a, err := g.server.LookupAccount(detail.Name); err == nil {
			g.limit(a, free)
		}
	}
}

// limit does one account. Limits by tier belong to an operator and stay.
func (g *diskGuard) limit(a *server.Account, free int64) {
	usage := a.JetStreamUsage()
	if len(usage.Tiers) > 0 {
		return
	}
	own, isTight := g.tight[a.Name]
	if free >= g.reserve {
		if isTight && setLimit(a, own, own.MaxStore) == nil {
			delete(g.tight, a.Name)
		}
		return
	}
	if !isTight {
		own = usage.Limits
		g.tight[a.Name] = own
	}
	most := int64(usage.Store) + max(free-diskRefused, 0)/4
	if own.MaxStore >= 0 {
		most = min(most, own.MaxStore)
	}
	if free <= diskRefused || setLimit(a, own, most) != nil { // a server alone reserves the limits of its accounts
		_ = setLimit(a, own, 0) // it is tried again at the next look
	}
}

func setLimit(a *server.Account, l server.JetStreamAccountLimits, most int64) error {
	l.MaxStore = most
	return a.UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": l})
}
