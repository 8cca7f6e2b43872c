package tests

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// cycleThreads have a client each.
const cycleThreads = 8

// cycle takes, renews and gives back a lease so many times on each thread. It
// returns the mean time of an acquire.
func (s *server) cycle(each int) time.Duration {
	var acquiring atomic.Int64
	var clients sync.WaitGroup
	for i := range cycleThreads {
		clients.Go(func() {
			id, fence := fmt.Sprint("cycled-", i), int64(0)
			for range each {
				began := time.Now()
				l := ok[held](s.client, "writer.acquire", object{"threadId": id})
				acquiring.Add(int64(time.Since(began)))
				if l.Fence <= fence {
					s.t.Errorf("fence %d after %d", l.Fence, fence)
				}
				fence = l.Fence
				ok[struct{ ExpiresAt float64 }](s.client, "writer.renew", l.Writer)
				ok[empty](s.client, "writer.release", l.Writer)
			}
		})
	}
	clients.Wait()
	return time.Duration(acquiring.Load() / int64(each*cycleThreads))
}

// counted is the same, and counts what is asked of the state bucket meanwhile.
func (s *server) counted(each int) (acquire time.Duration, reads, writes int) {
	s.t.Helper()
	count := func(subject string) (stop func() int) {
		sub, err := s.nc.SubscribeSync(subject)
		if err == nil {
			err = sub.SetPendingLimits(-1, -1)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		return func() int {
			if err := s.nc.FlushTimeout(patience); err != nil {
				s.t.Fatal(err)
			}
			n, _, err := sub.Pending()
			if err != nil {
				s.t.Fatal(err)
			}
			_ = sub.Unsubscribe()
			return n
		}
	}
	wrote, read := count("$KV.sandbox-state.>"), count("$JS.API.STREAM.MSG.GET.KV_sandbox-state")
	acquire = s.cycle(each)
	return acquire, read(), wrote()
}

// stateBucket is what the state bucket holds.
func (s *server) stateBucket() jetstream.StreamState {
	s.t.Helper()
	stream, err := s.js().Stream(s.ctx(), "KV_sandbox-state")
	if err != nil {
		s.t.Fatal(err)
	}
	return stream.CachedInfo().State
}

// stateFiles is what its files take on the disk, in bytes.
func (s *server) stateFiles() (n int64) {
	s.t.Helper()
	_ = filepath.WalkDir(s.storeDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, "/KV_sandbox-state/") {
			return nil // also what is removed meanwhile
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	if n == 0 {
		s.t.Fatal("the state bucket has no files")
	}
	return n
}

// However many leases come and go, the bucket holds what it held before, and an
// acquire asks as much of it.
func TestLeaseCyclesLeaveNothing(t *testing.T) {
	t.Parallel()
	const (
		counted  = 25      // cycles of each thread at the beginning, and at the end
		digits   = 24      // by which a thread's state may grow: its fence counts all writes
		maxFiles = 8 << 20 // the server removes what was overwritten now and then
	)
	each := 50
	if *long {
		each = 20_000/cycleThreads - 2*counted
	}
	s := startServer(t)
	s.cycle(1)
	before := s.stateBucket()
	first, reads, writes := s.counted(counted)
	s.cycle(each)
	last, readsThen, writesThen := s.counted(counted)
	after, files := s.stateBucket(), s.stateFiles()
	n := 4 * counted * cycleThreads
	most := n + n/20 // a request without an answer is sent again
	if min(reads, writes, readsThen, writesThen) < n || max(reads, writes, readsThen, writesThen) > most {
		t.Errorf("%d reads and %d writes of the bucket became %d and %d, want %d to %d", reads, writes, readsThen, writesThen, n, most)
	}
	if after.Msgs != before.Msgs || after.NumSubjects != before.NumSubjects || after.Bytes > before.Bytes+digits*cycleThreads || files > maxFiles {
		t.Errorf("%d keys of %d messages with %d bytes became %d of %d with %d, in files of %d bytes",
			before.NumSubjects, before.Msgs, before.Bytes, after.NumSubjects, after.Msgs, after.Bytes, files)
	}
	t.Logf("%d cycles, %d messages written: %d bytes in %d messages became %d in %d, in files of %d bytes; an acquire takes %.1f times what it took at first",
		(each+2*counted)*cycleThreads, after.LastSeq-before.LastSeq, before.Bytes, before.Msgs, after.Bytes, after.Msgs, files, float64(last)/float64(first))
}
