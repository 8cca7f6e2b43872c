package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/clustertest"
)

// node is what the workers of one node name share.
type node struct {
	name, sandboxes, restored string
}

func newNode(t *testing.T, name string) node {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { makeRemovable(dir) })
	n := node{name: name, sandboxes: filepath.Join(dir, "sandboxes"), restored: filepath.Join(dir, "restored")}
	for _, d := range []string{n.sandboxes, n.restored} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// makeRemovable gives the owner the right to remove what a tree has.
func makeRemovable(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) // a failure shows when the directory is removed
		}
		return nil
	})
}

func (n node) flags(state string) []string {
	return []string{"--node", n.name, "--sandbox-root", n.sandboxes, "--restore-root", n.restored,
		"--state-dir", state, "--log-format", "json"}
}

// sandbox makes an empty directory under the sandbox root.
func (n node) sandbox(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(n.sandboxes, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// server is a running nats-embedded, and a connection to it.
type server struct {
	client
	node
	proc               *process
	url                string
	storeDir, stateDir string
	flags              []string
	peers              []*member // the other servers of its cluster
}

// startServer runs nats-embedded with a worker of node "n1" on directories of
// its own and waits until it is ready. With -replicas 3 it has two peers.
func startServer(t *testing.T, flags ...string) *server {
	t.Helper()
	s := &server{client: client{t: t, prefix: "sandbox"}, node: newNode(t, "n1"), storeDir: t.TempDir(), stateDir: t.TempDir()}
	s.flags = append([]string{"--auth", "none"}, flags...)
	if clustertest.On() {
		s.join()
	}
	s.run()
	for _, p := range s.peers {
		p.proc.logged("ready")
	}
	return s
}

// run starts the program on the server's directories.
func (s *server) run() {
	s.t.Helper()
	args := append(s.node.flags(s.stateDir), "--store-dir", s.storeDir, "--allow-temp-store", "--listen", "127.0.0.1:0")
	s.proc = start(s.t, embeddedProgram, append(args, s.flags...)...)
	s.url, _ = s.proc.logged("ready")["url"].(string)
	if s.url == "" {
		s.t.Fatalf("the ready line has no url: %s", s.proc.stderr.String())
	}
	var login []nats.Option
	if token, err := os.ReadFile(filepath.Join(s.stateDir, "token")); err == nil {
		login = append(login, nats.Token(strings.TrimSpace(string(token))))
	}
	s.nc = connect(s.t, s.url, login...)
}

// connect opens a connection that the end of the test closes.
func connect(t *testing.T, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(options, nats.MaxReconnects(0))...)
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// worker runs a worker of its own process and waits until it is ready.
func (s *server) worker(n node, flags ...string) *process {
	s.t.Helper()
	args := append([]string{"serve", "--server", s.urls()}, n.flags(s.t.TempDir())...)
	p := start(s.t, agentProgram, append(args, flags...)...)
	p.logged("ready")
	if len(s.peers) > 0 {
		s.heard(p)
	}
	return p
}

// client sends requests as any NATS client would.
type client struct {
	t      *testing.T
	nc     *nats.Conn
	prefix string
}

// with is the same client under another prefix.
func (c client) with(prefix string) client {
	c.prefix = prefix
	return c
}

// object is a JSON object to send.
type object = map[string]any

// failure is the body of an error reply.
type failure struct {
	Code      string         `json:"code"`
	Message   string         `json:"message"`
	Retryable bool           `json:"retryable"`
	Details   map[string]any `json:"details"`
}

// encode takes a value, or JSON text as string or bytes.
func encode(t *testing.T, body any) []byte {
	t.Helper()
	switch b := body.(type) {
	case string:
		return []byte(b)
	case []byte:
		return b
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// send returns the raw reply.
func (c client) send(subject string, body any) *nats.Msg {
	c.t.Helper()
	msg, err := c.nc.Request(c.prefix+"."+subject, encode(c.t, body), patience)
	if err != nil {
		c.t.Fatalf("%s %.300s: %v", subject, encode(c.t, body), err)
	}
	return msg
}

// try sends a request and decodes an error reply; nil means success.
func (c client) try(subject string, body any) (*nats.Msg, *failure) {
	c.t.Helper()
	msg := c.send(subject, body)
	return msg, decodeFailure(c.t, msg)
}

// decodeFailure checks the shape of an error reply; nil for a good reply.
func decodeFailure(t *testing.T, msg *nats.Msg) *failure {
	t.Helper()
	number := msg.Header.Get("Nats-Service-Error-Code")
	var body struct {
		Error *failure `json:"error"`
	}
	if number == "" {
		return nil
	}
	decodeStrict(t, msg.Data, &body)
	f := body.Error
	if f == nil || f.Message == "" {
		t.Fatalf("an error reply without an error in its body: %s", msg.Data)
	}
	if want, ok := numbers[f.Code]; !ok || strconv.Itoa(want) != number {
		t.Errorf("code %q came with the number %s, want %d", f.Code, number, want)
	}
	if msg.Header.Get("Nats-Service-Error") == "" {
		t.Errorf("%s came without the header Nats-Service-Error", f.Code)
	}
	if f.Details == nil {
		t.Errorf("%s came without details: %s", f.Code, msg.Data)
	}
	return f
}

// decodeStrict refuses members that the test does not know, so that replies
// have no others.
func decodeStrict(t *testing.T, raw []byte, into any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("decode %.1000s: %v", raw, err)
	}
}

// ok sends a request that has to succeed and decodes its reply.
func ok[T any](c client, subject string, body any) T {
	c.t.Helper()
	msg, f := c.try(subject, body)
	if f != nil {
		c.t.Fatalf("%s %.300s: %s: %s %v", subject, encode(c.t, body), f.Code, f.Message, f.Details)
	}
	var out T
	decodeStrict(c.t, msg.Data, &out)
	return out
}

// refused sends a request that has to fail with the code.
func refused(c client, subject string, body any, code string) failure {
	c.t.Helper()
	msg, f := c.try(subject, body)
	if f == nil {
		c.t.Errorf("%s %.300s: answered %.300s, want %s", subject, encode(c.t, body), msg.Data, code)
		return failure{}
	}
	if f.Code != code {
		c.t.Errorf("%s %.300s: %s (%s), want %s", subject, encode(c.t, body), f.Code, f.Message, code)
	}
	return *f
}

// js is the JetStream of the server, for looking at the store from outside.
func (c client) js() jetstream.JetStream {
	c.t.Helper()
	js, err := jetstream.New(c.nc)
	if err != nil {
		c.t.Fatal(err)
	}
	return js
}

// bucket binds an object bucket.
func (c client) bucket(name string) jetstream.ObjectStore {
	c.t.Helper()
	b, err := c.js().ObjectStore(c.ctx(), name)
	if err != nil {
		c.t.Fatalf("bind bucket %s: %v", name, err)
	}
	return b
}

// ctx bounds one step of a test.
func (c client) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	c.t.Cleanup(cancel)
	return ctx
}

// upload puts a claim check for a request.
func (c client) upload(name string, data []byte) string {
	c.t.Helper()
	if _, err := c.bucket("sandbox-uploads").PutBytes(c.ctx(), name, data); err != nil {
		c.t.Fatalf("upload %s: %v", name, err)
	}
	return "sandbox-uploads/" + name
}

// fetch gets an object that a reply names.
func (c client) fetch(object string) []byte {
	c.t.Helper()
	bucket, name, found := strings.Cut(object, "/")
	if !found {
		c.t.Fatalf("object %q is not <bucket>/<name>", object)
	}
	var data []byte
	eventually(c.t, "the object "+object, func() bool {
		var err error
		data, err = c.bucket(bucket).GetBytes(c.ctx(), name)
		if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) { // a replica may not have it yet
			c.t.Fatalf("get %s: %v", object, err)
		}
		return err == nil
	})
	return data
}

// replyTo sends a request without waiting and returns where its reply goes.
func (c client) replyTo(subject string, body any) <-chan *nats.Msg {
	c.t.Helper()
	inbox, replies := nats.NewInbox(), make(chan *nats.Msg, 1)
	sub, err := c.nc.ChanSubscribe(inbox, replies)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := c.nc.PublishRequest(c.prefix+"."+subject, inbox, encode(c.t, body)); err != nil {
		c.t.Fatal(err)
	}
	if err := c.nc.FlushTimeout(patience); err != nil {
		c.t.Fatal(err)
	}
	return replies
}

// await waits for a reply of replyTo.
func await(t *testing.T, replies <-chan *nats.Msg) *nats.Msg {
	t.Helper()
	select {
	case msg := <-replies:
		return msg
	case <-time.After(patience):
		t.Fatalf("no reply after %v", patience)
		return nil
	}
}
