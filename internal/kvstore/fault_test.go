package kvstore_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
)

// keyOf is the key that a request writes, with "purge-" before it if it removes
// it without a marker, "" for a read.
func keyOf(m *nats.Msg) string {
	if strings.Contains(m.Subject, ".STREAM.PURGE.") {
		var req struct{ Filter string }
		if json.Unmarshal(m.Data, &req) != nil {
			return ""
		}
		return "purge-" + strings.SplitN(req.Filter, ".", 3)[2]
	}
	rest, ok := strings.CutPrefix(m.Subject, "$KV.")
	_, key, _ := strings.Cut(rest, ".")
	if !ok {
		return ""
	}
	return key
}

func kindOf(key string) string { kind, _, _ := strings.Cut(key, "."); return kind }

// mode is what becomes of one write and of its process.
type mode struct {
	name string
	send bool // the write reaches the store now
	late bool // it reaches the store later
	die  bool // the process sends nothing more
}

var modes = []mode{
	{name: "dies before", die: true},
	{name: "dies after", send: true, die: true},
	{name: "dies, lands late", late: true, die: true},
	{name: "reply lost", send: true},
	{name: "request lost"},
	{name: "lands late", late: true},
}

// fault lets the nth write of a kind of key go wrong. Its fields may be read
// when the operation is over.
type fault struct {
	kind string
	nth  int
	mode
	then   func() // called after the fault, before the process goes on
	cancel context.CancelFunc

	mu    sync.Mutex // guards what follows
	count map[string]int
	dead  bool
	fired bool
	held  []*nats.Msg
}

func (f *fault) through(next kvstore.Round) kvstore.Round {
	return func(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
		f.mu.Lock()
		hit := f.hits(keyOf(m))
		dead := f.dead
		f.mu.Unlock()
		if dead && !hit {
			return nil, nats.ErrConnectionClosed
		}
		if !hit {
			return next(ctx, m)
		}
		if f.late {
			c := nats.NewMsg(m.Subject)
			c.Header, c.Data = m.Header, m.Data
			f.mu.Lock()
			f.held = append(f.held, c)
			f.mu.Unlock()
		}
		if f.send {
			_, _ = next(context.WithoutCancel(ctx), m)
		}
		if f.die && f.cancel != nil {
			f.cancel()
		}
		if f.then != nil {
			f.then()
		}
		return nil, nats.ErrTimeout
	}
}

// hits counts a write and reports whether it is the one that goes wrong.
func (f *fault) hits(key string) bool {
	if key == "" || f.dead {
		return false
	}
	if f.count == nil {
		f.count = map[string]int{}
	}
	kind := kindOf(key)
	f.count[kind]++
	if kind != f.kind || f.count[kind] != f.nth {
		return false
	}
	f.fired, f.dead = true, f.die
	return true
}

// deliver lets what was held reach the store at last.
func (f *fault) deliver(t *testing.T, w *world) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.held {
		if _, err := w.nc.RequestMsg(m, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	f.held = nil
}

// impatient gives up soon on a dead process, but not before a busy machine has read a key.
func impatient() kvstore.Options {
	return options().Impatient(5*time.Second, 5*time.Second, 20*time.Second, 100*time.Millisecond)
}

// chain reads a thread and checks that list, head and get agree and that every
// parent is the one before.
func chain(t *testing.T, s *kvstore.Store, id snapshot.ThreadID) []snapshot.CheckpointID {
	t.Helper()
	recs, err := s.List(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.State(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	ids := []snapshot.CheckpointID{}
	parent := snapshot.CheckpointID("")
	for _, rec := range recs {
		if rec.Parent != parent || rec.Thread != id {
			t.Fatalf("checkpoint %q of %q has parent %q after %q", rec.ID, rec.Thread, rec.Parent, parent)
		}
		found, err := s.Get(t.Context(), rec.ID)
		if err != nil || found == nil || found.Nonce != rec.Nonce {
			t.Fatalf("get %q: %v, %v", rec.ID, found, err)
		}
		parent = rec.ID
		ids = append(ids, rec.ID)
	}
	if st.Head != parent || st.Depth != int64(len(recs)) {
		t.Fatalf("head %q at depth %d of chain %v", st.Head, st.Depth, ids)
	}
	return ids
}

// free ends whatever lease there is, as an expiry would.
func (w *world) free(t *testing.T, id snapshot.ThreadID) {
	t.Helper()
	if err := w.kv(t).Purge(t.Context(), kvstore.WriterKey(id)); err != nil {
		t.Fatal(err)
	}
}

func acquire(t *testing.T, s *kvstore.Store, id snapshot.ThreadID) snapshot.Writer {
	t.Helper()
	l, err := s.Acquire(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	return l.Writer
}
