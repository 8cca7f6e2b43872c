package tests

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// gate is a network between a worker and its server on which a test decides
// when each message of the worker goes on, and when its reply comes back.
type gate struct {
	t        *testing.T
	listener net.Listener
	server   string
	decide   func(message) fate // called for one message at a time

	mu      sync.Mutex // guards decide, replies and ends
	replies map[string]<-chan struct{}
	ends    []net.Conn
	over    chan struct{} // closed at the end of the test
	done    sync.WaitGroup
}

// message is one that a worker publishes; data begins with its headers.
type message struct {
	subject string
	data    []byte
}

// fate is when a message goes on and when its reply does: at once if nil.
type fate struct{ request, reply <-chan struct{} }

// lost is when a message goes on that does not arrive.
var lost = make(chan struct{})

func newGate(t *testing.T, url string, decide func(message) fate) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{t: t, listener: listener, server: strings.TrimPrefix(url, "nats://"), decide: decide,
		replies: map[string]<-chan struct{}{}, over: make(chan struct{})}
	g.done.Go(g.accept)
	t.Cleanup(func() {
		close(g.over)
		listener.Close()
		g.mu.Lock()
		for _, end := range g.ends {
			end.Close()
		}
		g.mu.Unlock()
		g.done.Wait()
	})
	return g
}

func (g *gate) url() string { return "nats://" + g.listener.Addr().String() }

func (g *gate) accept() {
	for {
		worker, err := g.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", g.server)
		if err != nil {
			worker.Close()
			continue
		}
		g.mu.Lock()
		g.ends = append(g.ends, worker, server)
		g.mu.Unlock()
		g.done.Go(func() { g.carry(worker, server, g.outward) })
		g.done.Go(func() { g.carry(server, worker, g.homeward) })
	}
}

// carry takes frames of the NATS protocol from one end to the other until
// either is closed. Those that have to wait are overtaken by the rest.
func (g *gate) carry(from, to net.Conn, when func(words []string, data []byte) <-chan struct{}) {
	defer to.Close()
	var mu sync.Mutex // frames are written whole
	write := func(frame []byte) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := to.Write(frame)
		return err
	}
	r := bufio.NewReaderSize(from, 64<<10)
	for {
		frame, words, data, err := readFrame(r)
		if err != nil {
			return
		}
		open := when(words, data)
		if open == nil {
			if write(frame) != nil {
				return
			}
			continue
		}
		g.done.Go(func() {
			select {
			case <-open:
				_ = write(frame) // whoever carries on sees that the end is closed
			case <-g.over:
			}
		})
	}
}

// readFrame reads a line and the data after it, if it is one of a message.
func readFrame(r *bufio.Reader) (frame []byte, words []string, data []byte, err error) {
	if frame, err = r.ReadBytes('\n'); err != nil {
		return nil, nil, nil, err
	}
	words = strings.Fields(string(frame))
	if len(words) < 3 || !strings.HasSuffix(words[0], "PUB") && !strings.HasSuffix(words[0], "MSG") {
		return frame, nil, nil, nil
	}
	n, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return nil, nil, nil, err
	}
	data = make([]byte, n+len("\r\n"))
	_, err = io.ReadFull(r, data)
	return bytes.Join([][]byte{frame, data}, nil), words, data, err
}

// outward is when a message of the worker goes on to the server.
func (g *gate) outward(words []string, data []byte) <-chan struct{} {
	if len(words) == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.decide(message{words[1], data})
	if f.reply != nil {
		g.replies[words[2]] = f.reply
	}
	return f.request
}

// homeward is when a message of the server goes on to the worker.
func (g *gate) homeward(words []string, _ []byte) <-chan struct{} {
	if len(words) == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.replies[words[1]]
}

// upload tells whether the message brings a part of a checkpoint's contents.
func (m message) upload() bool { return strings.HasPrefix(m.subject, "$O.") && !m.probe() }

// probe tells whether the message only asks for a permission, with no effect.
func (m message) probe() bool { return strings.HasSuffix(m.subject, ".probe") }

// write tells whether the message changes the store.
func (m message) write() bool {
	return m.upload() || strings.HasPrefix(m.subject, "$KV.") && !m.probe()
}

// lease tells whether the message writes a thread's lease, renewal whether the
// lease was there before, release whether it gives it up.
func (m message) lease() bool   { return strings.HasPrefix(m.subject, "$KV.sandbox-state.writer.") }
func (m message) renewal() bool { return m.lease() && bytes.Contains(m.data, []byte(`"fence":`)) }
func (m message) release() bool { return m.lease() && bytes.Contains(m.data, []byte("KV-Operation: ")) }

// slot tells whether the message writes a checkpoint's record.
func (m message) slot() bool { return strings.HasPrefix(m.subject, "$KV.sandbox-state.log.") }

// leaseRead tells whether the message asks for a thread's lease.
func (m message) leaseRead() bool {
	return strings.Contains(m.subject, "STREAM.MSG.GET.") && bytes.Contains(m.data, []byte(`"$KV.sandbox-state.writer.`))
}
