package tests

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// crashPoints are spread over all that a save writes.
const crashPoints = 20

// bench is a thread with one checkpoint and a changed sandbox, and a worker of
// its own to save it. Workers have a prefix each, so that it is known which
// one a request goes to.
type bench struct {
	*server
	thread string
	dir    string
	old    checkpoint
	trees  map[string]map[string]item // by checkpoint
}

const shortLease = "3s"

func newBench(s *server, name string) *bench {
	s.t.Helper()
	b := &bench{server: s, thread: name, dir: s.sandbox(s.t, name), trees: map[string]map[string]item{}}
	b.client = s.with(name)
	tree := build(s.t, b.dir)
	tree.code(200)
	w := b.saver(name)
	b.attach(name, name)
	b.old = ok[checkpoint](b.client, "snapshot.save", object{"threadId": name, "runId": "r1", "checkpointId": name + "-old"})
	w.stop()
	b.trees[b.old.ID] = readTree(s.t, b.dir)
	for i := range 120 {
		tree.file(fmt.Sprintf("src/%02d/new-%03d.go", i%20, i), tree.noise(30_000), 0o644)
	}
	tree.must(tree.root.RemoveAll("src/19"))
	return b
}

// saver runs a worker that listens under the prefix.
func (b *bench) saver(prefix string) *process {
	b.t.Helper()
	return b.worker(b.node, "--lease", shortLease, "--prefix", prefix)
}

func (b *bench) newID() string { return b.thread + "-new" }

func (b *bench) request() object {
	return object{"threadId": b.thread, "runId": "r2", "checkpointId": b.newID(), "waitMs": 20_000}
}

// writes calls at for every message that is written to the store for a save of
// this thread's worker: everything, as each bench has a server of its own.
func (b *bench) writes(at func(n int64)) (stop func()) {
	b.t.Helper()
	var n atomic.Int64
	var subs []*nats.Subscription
	nc := connect(b.t, b.url) // its own goroutine, so that nothing else delays it
	for _, subject := range []string{"$KV.>", "$O.>"} {
		sub, err := nc.Subscribe(subject, func(*nats.Msg) { at(n.Add(1)) })
		if err != nil {
			b.t.Fatal(err)
		}
		subs = append(subs, sub)
	}
	if err := nc.Flush(); err != nil {
		b.t.Fatal(err)
	}
	return func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe()
		}
	}
}

// countWrites saves a bench of its own to learn how many writes a save has.
func countWrites(t *testing.T) int64 {
	t.Helper()
	b := newBench(startServer(t, "--no-agent"), "measure")
	w := b.saver(b.thread)
	var total atomic.Int64
	stop := b.writes(func(n int64) { total.Store(n) })
	defer stop()
	ok[checkpoint](b.client, "snapshot.save", b.request())
	w.stop()
	return total.Load()
}

// killAt kills the worker when it has sent its n-th write, which may or may not
// be stored then.
func (b *bench) killAt(n int64, subject string, body object) {
	b.t.Helper()
	w := b.saver(b.thread)
	var once sync.Once
	hit := make(chan struct{})
	stop := b.writes(func(seen int64) {
		if seen >= n {
			once.Do(func() { _ = w.cmd.Process.Signal(syscall.SIGKILL); close(hit) })
		}
	})
	defer stop()
	reply := b.replyTo(subject, body)
	select {
	case <-hit:
		<-w.done
	case <-reply: // fewer writes than measured: after the save, then
		w.kill()
	}
}

// check is what has to hold after a crash at any point.
func (b *bench) check(point string) {
	b.t.Helper()
	w := b.saver(b.thread)
	b.trees[b.newID()] = readTree(b.t, b.dir)
	b.checkHead(point)
	saved := ok[checkpoint](b.client, "snapshot.save", b.request())
	if saved.ID != b.newID() || deref(saved.Parent) != b.old.ID {
		b.t.Errorf("%s: the next save gave %+v", point, saved)
	}
	if chain := b.chain(b.thread); len(chain) != 2 {
		b.t.Errorf("%s: chain is %q", point, chain)
	}
	sameTree(b.t, point+": the next save", b.trees[b.newID()], b.restoreTree(b.thread, saved.ID, "next"))
	w.stop()
}

// checkHead wants the old or the new checkpoint, all of it.
func (b *bench) checkHead(point string) {
	b.t.Helper()
	head := b.head(b.thread)
	want, known := b.trees[head]
	if !known {
		b.t.Fatalf("%s: head is %q", point, head)
	}
	sameTree(b.t, point+": the head", want, b.restoreTree(b.thread, head, "head"))
}

// A worker may die at any point of a save.
func TestCrashOfTheWorkerAnywhereInASave(t *testing.T) {
	t.Parallel()
	total := countWrites(t)
	t.Logf("a save has %d writes", total)
	atOnce(t, crashPoints, func(t *testing.T, i int64) {
		n := 1 + i*total/crashPoints
		b := newBench(startServer(t, "--no-agent"), fmt.Sprintf("crash%d", i))
		b.killAt(n, "snapshot.save", b.request())
		b.check(fmt.Sprintf("killed at write %d of %d", n, total))
	})
}

// The same for a fork: the new thread is empty or has all of it.
func TestCrashOfTheWorkerAnywhereInAFork(t *testing.T) {
	t.Parallel()
	atOnce(t, 6, func(t *testing.T, i int64) {
		b := newBench(startServer(t, "--no-agent"), "source")
		w := b.saver(b.thread)
		ok[revision](b.client, "thread.save", object{"threadId": b.thread, "messages": []string{"one", "two"}})
		b.save(b.thread, "r2")
		w.stop()
		body := object{"threadId": b.thread, "destinationThreadId": "fork", "destinationCheckpointId": "root", "waitMs": 20_000}
		b.killAt(1+i, "fork", body)
		b.saver(b.thread)
		messages := len(ok[thread](b.client, "thread.load", object{"threadId": "fork"}).Messages)
		if head := b.head("fork"); (head == "root") != (messages == 2) || head == "" && messages > 0 {
			t.Errorf("killed at write %d: the head is %q, with %d messages", i+1, head, messages)
		}
		if root := ok[checkpoint](b.client, "fork", body); root.ID != "root" || len(b.chain("fork")) != 1 {
			t.Errorf("the retry gave %+v", root)
		}
		sameTree(t, "the fork", readTree(t, b.dir), b.restoreTree("fork", "", "fork"))
	})
}

// atOnce runs subtests that mostly wait for leases to end, more of them at a
// time than there are processors.
func atOnce(t *testing.T, n int64, test func(*testing.T, int64)) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			t.Run(fmt.Sprint(i), func(t *testing.T) { test(t, i) })
			return nil // failures are those of the subtests
		})
	}
	_ = group.Wait()
}

// The server may die as well, with the worker in it: what was acknowledged is
// there when it is back.
func TestCrashOfTheServerAnywhereInASave(t *testing.T) {
	t.Parallel()
	total := countWrites(t)
	atOnce(t, 5, func(t *testing.T, i int64) {
		n := 1 + i*total/5
		s := startServer(t, "--lease", shortLease)
		dir := s.sandbox(t, "work")
		tree := build(t, dir)
		tree.code(200)
		s.attach("work", "work")
		b := &bench{server: s, thread: "work", dir: dir, trees: map[string]map[string]item{}}
		b.old = s.save("work", "r1")
		b.trees[b.old.ID] = readTree(t, dir)
		tree.file("new", tree.noise(3<<20), 0o644)
		b.trees[b.newID()] = readTree(t, dir)
		b.killServerAt(n)
		b.checkHead(fmt.Sprintf("killed at write %d", n))
		saved := ok[checkpoint](s.client, "snapshot.save", b.request())
		sameTree(t, "the next save", b.trees[saved.ID], s.restoreTree("work", saved.ID, "next"))
		if chain := s.chain("work"); len(chain) != 2 {
			t.Errorf("chain is %q", chain)
		}
	})
}

// killServerAt kills server and worker at the n-th write and starts them again.
func (b *bench) killServerAt(n int64) {
	b.t.Helper()
	var once sync.Once
	hit, proc := make(chan struct{}), b.proc
	stop := b.writes(func(seen int64) {
		if seen >= n {
			once.Do(func() { _ = proc.cmd.Process.Signal(syscall.SIGKILL); close(hit) })
		}
	})
	defer stop()
	reply := b.replyTo("snapshot.save", b.request())
	select {
	case <-hit:
	case <-reply:
	}
	proc.kill()
	b.run()
}
