package tests

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// line is a network between a worker and its server that can be cut.
type line struct {
	t        *testing.T
	listener net.Listener
	server   string
	deafAt   atomic.Int64 // after so many writes nothing comes back; 0: never
	writes   atomic.Int64
	mu       sync.Mutex // guards conns
	conns    []net.Conn
	done     sync.WaitGroup
}

func newLine(t *testing.T, url string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{t: t, listener: listener, server: strings.TrimPrefix(url, "nats://")}
	l.done.Go(l.accept)
	t.Cleanup(func() { listener.Close(); l.cut(); l.done.Wait() })
	return l
}

func (l *line) url() string { return "nats://" + l.listener.Addr().String() }

func (l *line) accept() {
	for {
		worker, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.server)
		if err != nil {
			worker.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, worker, server)
		l.mu.Unlock()
		l.done.Go(func() { l.pass(worker, server) })
	}
}

// pass carries both ways until either end is closed.
func (l *line) pass(worker, server net.Conn) {
	l.done.Go(func() {
		_, _ = io.Copy(ear{l, worker}, server)
		worker.Close()
	})
	_, _ = io.Copy(mouth{l, server}, worker)
	server.Close()
}

// mouth counts the writes to the store on their way to the server.
type mouth struct {
	l  *line
	to io.Writer
}

func (m mouth) Write(p []byte) (int, error) {
	m.l.writes.Add(int64(bytes.Count(p, []byte("PUB $KV.")) + bytes.Count(p, []byte("PUB $O."))))
	return m.to.Write(p)
}

// ear loses what comes back once the line is deaf.
type ear struct {
	l  *line
	to io.Writer
}

func (e ear) Write(p []byte) (int, error) {
	if at := e.l.deafAt.Load(); at > 0 && e.l.writes.Load() >= at {
		return len(p), nil
	}
	return e.to.Write(p)
}

// cut breaks all connections; new ones work.
func (l *line) cut() {
	l.deafAt.Store(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
	l.conns = nil
}

// lose sends a request to a worker of its own, whose line goes deaf with the
// n-th write and breaks when the server has that. It returns the answer.
func (b *bench) lose(n int64, prefix, subject string, body object) *failure {
	b.t.Helper()
	l := newLine(b.t, b.url)
	b.worker(b.node, "--prefix", prefix, "--lease", "10s", "--server", l.url())
	l.writes.Store(0)
	l.deafAt.Store(n)
	var once sync.Once
	stop := b.writes(func(seen int64) {
		if seen >= n {
			once.Do(l.cut)
		}
	})
	defer stop()
	return decodeFailure(b.t, await(b.t, b.with(prefix).replyTo(subject, body)))
}

// The acknowledgement of any write of a save may be lost with the connection.
// What the save answers is what has become of it.
func TestLostReplyToAnyWriteOfASave(t *testing.T) {
	t.Parallel()
	total := countWrites(t)
	points := int64(crashPoints / 2)
	if *long {
		points = crashPoints
	}
	atOnce(t, points, func(t *testing.T, i int64) {
		b := newBench(startServer(t, "--no-agent"), "lost")
		b.answerIsTrue(b.lose(1+i*total/points, b.thread, "snapshot.save", b.request()))
	})
}

// answerIsTrue compares the answer to a save with the chain, and goes on.
func (b *bench) answerIsTrue(f *failure) {
	b.t.Helper()
	b.trees[b.newID()] = readTree(b.t, b.dir)
	chain := b.chain(b.thread)
	stored := len(chain) == 2 && chain[1] == b.newID()
	switch {
	case f == nil && !stored:
		b.t.Errorf("the save was acknowledged, the chain is %q", chain)
	case f != nil && stored && f.Details["outcome"] != "unknown":
		b.t.Errorf("the save is stored and was answered with %+v", f)
	case f != nil && !f.Retryable && f.Code != fullCode("WRITER_LOST"):
		b.t.Errorf("the save was answered with %+v", f)
	}
	b.checkHead("after the lost reply")
	saved := ok[checkpoint](b.client, "snapshot.save", b.request())
	sameTree(b.t, "the retry", b.trees[saved.ID], b.restoreTree(b.thread, saved.ID, "retry"))
	if chain := b.chain(b.thread); len(chain) != 2 {
		b.t.Errorf("after the retry the chain is %q", chain)
	}
}

// The same for a fork, which takes no lease at first: all or nothing, and a
// retry under the same ids is answered whatever had become of the first try.
func TestLostReplyToAnyWriteOfAFork(t *testing.T) {
	t.Parallel()
	atOnce(t, 6, func(t *testing.T, i int64) {
		b := newBench(startServer(t, "--no-agent"), "lost")
		body := object{"threadId": b.thread, "checkpointId": b.old.ID, "destinationThreadId": "fork", "destinationCheckpointId": "root", "waitMs": 20_000}
		f := b.lose(1+i, b.thread, "fork", body)
		if head := b.head("fork"); (f == nil) != (head != "") && (f == nil || f.Details["outcome"] != "unknown") {
			t.Errorf("the fork answered %+v, the head is %q", f, head)
		}
		if root := ok[checkpoint](b.client, "fork", body); root.ID != "root" || len(b.chain("fork")) != 1 {
			t.Errorf("the retry gave %+v", root)
		}
	})
}
