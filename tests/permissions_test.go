package tests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// secured runs a server with a configuration and a worker as the user "worker".
// Each password is the user's name with "-secret" behind it.
func secured(t *testing.T, conf string) (url string, n node) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "server.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	var env []string
	for _, user := range []string{"admin", "worker", "client", "reader"} {
		env = append(env, strings.ToUpper(user)+`_PASSWORD="`+user+`-secret"`)
	}
	p := startIn(t, environment(t, env...), embeddedProgram, "--no-agent", "--store-dir", filepath.Join(dir, "store"), "--allow-temp-store",
		"--state-dir", filepath.Join(dir, "state"), "--listen", "127.0.0.1:0", "--server-config", path, "--user", "admin", "--password", "admin-secret", "--log-format", "json")
	url, _ = p.logged("ready")["url"].(string)
	n = newNode(t, "n1")
	args := append([]string{"serve", "--server", url, "--user", "worker", "--password", "worker-secret"}, n.flags(t.TempDir())...)
	start(t, agentProgram, args...).logged("ready")
	return url, n
}

func as(t *testing.T, url, user string) client {
	t.Helper()
	return client{t: t, nc: connect(t, url, nats.UserInfo(user, user+"-secret")), prefix: "sandbox"}
}

// TestOperating_EventPermissions reads the events with the permissions of
// docs/operating.md: those of a client, and those of one that reads nothing else.
func TestOperating_EventPermissions(t *testing.T) {
	t.Parallel()
	reader := find(t, "docs/operating.md", "conf", "events").text
	conf := strings.Replace(find(t, "docs/operating.md", "conf", "permissions").text, "users = [", "users = [\n"+reader, 1)
	url, _ := secured(t, conf)
	ok[revision](as(t, url, "client"), "thread.save", object{"threadId": "t", "messages": []int{1}})
	for _, user := range []string{"client", "reader"} {
		c := as(t, url, user)
		c.pullsEvents("sandbox.event.thread.t")
		ordered, err := c.js().OrderedConsumer(c.ctx(), "sandbox-events", jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatalf("%s: ordered consumer: %v", user, err)
		}
		if m, err := ordered.Next(jetstream.FetchMaxWait(patience)); err != nil || !strings.HasPrefix(m.Subject(), "sandbox.event.") {
			t.Errorf("%s: ordered consumer: %v", user, err)
		}
	}
	for _, subject := range []string{"sandbox.checkpoint.head", "sandbox.event.thread.t", "$KV.sandbox-state.thread.t", "$JS.API.CONSUMER.CREATE.KV_sandbox-state.c", "$JS.API.STREAM.PURGE.sandbox-events"} {
		as(t, url, "reader").mayNotPublish(subject)
	}
	for _, subject := range []string{"$KV.sandbox-state.thread.t", "$JS.API.STREAM.PURGE.sandbox-events", "$JS.API.STREAM.DELETE.sandbox-events", "$JS.API.STREAM.PURGE.KV_sandbox-state"} {
		as(t, url, "client").mayNotPublish(subject)
	}
}

// pullsEvents reads, with a durable pull consumer of its own and by acknowledging
// each event, until one comes of the subject.
func (c client) pullsEvents(subject string) {
	c.t.Helper()
	consumer, err := c.js().CreateConsumer(c.ctx(), "sandbox-events", jetstream.ConsumerConfig{Durable: "mine"})
	if err != nil {
		c.t.Fatal(err)
	}
	for seen := false; !seen; {
		m, err := consumer.Next(jetstream.FetchMaxWait(patience))
		if err != nil {
			c.t.Fatalf("no event of %s: %v", subject, err)
		}
		if err := m.DoubleAck(c.ctx()); err != nil {
			c.t.Fatalf("acknowledge: %v", err)
		}
		seen = m.Subject() == subject
	}
	if info, err := consumer.Info(c.ctx()); err != nil || info.AckFloor.Consumer == 0 {
		c.t.Errorf("the consumer: %+v, %v", info, err)
	}
	if err := c.js().DeleteConsumer(c.ctx(), "sandbox-events", "mine"); err != nil {
		c.t.Error(err)
	}
}

func (c client) mayNotPublish(subject string) {
	c.t.Helper()
	refusals := make(chan error, 10)
	c.nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refusals <- err })
	if err := errors.Join(c.nc.Publish(subject, []byte("{}")), c.nc.FlushTimeout(patience)); err != nil {
		c.t.Fatal(err)
	}
	select {
	case err := <-refusals:
		if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
			c.t.Errorf("%s: %v", subject, err)
		}
	case <-time.After(patience):
		c.t.Errorf("it may publish on %s", subject)
	}
}

var workerBlock = regexp.MustCompile(`(?s)\{user: worker, password: \$WORKER_PASSWORD, (.*?\n    \}\})`)

// TestOperating_MissingPermission takes one permission after the other from a
// worker. It names it and ends, and has changed nothing.
func TestOperating_MissingPermission(t *testing.T) {
	t.Parallel()
	conf := find(t, "docs/operating.md", "conf", "permissions").text
	rights := workerBlock.FindStringSubmatch(conf)[1]
	const responses = `allow_responses: {max: 10, expires: "1h"}`
	type lack struct{ from, to, says string }
	lacks := []lack{{responses, "", `Publish to "_INBOX.`}, {`["sandbox.>", `, `["sandbox.node.>", "sandbox.snapshot.>", `, `Subscription to "sandbox.`},
		{`["sandbox.>", "$SRV.>", "_INBOX.>"]`, `["sandbox.>", "$SRV.>", "_INBOX.>"], deny: ["sandbox.fork"]`, `Subscription to "sandbox.fork"`}}
	for _, quoted := range regexp.MustCompile(`"[^"]+[>*]"`).FindAllString(rights, -1) {
		lacks = append(lacks, lack{quoted, `"none.` + fmt.Sprint(len(lacks)) + `"`, strings.TrimRight(quoted, `>*"`)})
	}
	for i, l := range lacks {
		user := fmt.Sprintf(`{user: w%d, password: "w%d-secret", %s`, i, i, strings.Replace(rights, l.from, l.to, 1))
		conf = strings.Replace(conf, "users = [", "users = [\n"+user, 1)
	}
	url, n := secured(t, conf)
	before := sequences(as(t, url, "admin"))
	for i, l := range lacks {
		args := append([]string{"serve", "--server", url, "--user", fmt.Sprintf("w%d", i), "--password", fmt.Sprintf("w%d-secret", i)}, n.flags(t.TempDir())...)
		code, _, stderr := run(t, agentProgram, args...)
		said := lastLines(strings.TrimSpace(stderr), 1)
		if code != 6 || !strings.Contains(said, "lacks a permission") || !strings.Contains(said, l.says) || logLine(stderr, "ready") != nil {
			t.Errorf("without %s: exit code %d, want 6 and %s in %q", l.from, code, l.says, said)
		}
	}
	if after := sequences(as(t, url, "admin")); after != before {
		t.Errorf("the streams were %s and are %s", before, after)
	}
}

// sequences are the ends of all streams.
func sequences(c client) (text string) {
	c.t.Helper()
	list := c.js().ListStreams(c.ctx())
	for s := range list.Info() {
		if s.Config.Name != "sandbox-events" { // it follows the state
			text += fmt.Sprintf("%s %d %d, ", s.Config.Name, s.State.Msgs, s.State.LastSeq)
		}
	}
	if err := list.Err(); err != nil {
		c.t.Fatal(err)
	}
	return text
}

// TestOperating_Accounts keeps clients in another account than the store: they
// are served, and can neither reach JetStream nor have a reply written over a record.
func TestOperating_Accounts(t *testing.T) {
	t.Parallel()
	url, n := secured(t, find(t, "docs/operating.md", "conf", "accounts").text)
	c, admin := as(t, url, "client"), as(t, url, "admin")
	build(t, n.sandbox(t, "box")).code(20)
	c.attach("t", "box")
	cp := c.save("t", "r")
	if got := c.head("t"); got != cp.ID {
		t.Errorf("the head is %q, want %q", got, cp.ID)
	}
	ok[restored](c, "restore", object{"threadId": "t", "path": "copy"})
	refused(c, "checkpoint.head", object{}, fullCode("INVALID_ID"))
	kv, err := admin.js().KeyValue(admin.ctx(), "sandbox-state")
	if err != nil {
		t.Fatal(err)
	}
	before, err := kv.Get(admin.ctx(), "thread.t")
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"sandbox.checkpoint.head", "$SRV.PING.sandbox", "$JS.API.STREAM.INFO.KV_sandbox-state", "$JS.API.STREAM.PURGE.KV_sandbox-state"} {
		if err := c.nc.PublishRequest(subject, "$KV.sandbox-state.thread.t", []byte(`{"threadId":"t"}`)); err != nil {
			t.Fatal(err)
		}
		msg, err := c.nc.Request(subject, nil, patience)
		if strings.HasPrefix(subject, "$") && !errors.Is(err, nats.ErrNoResponders) && (err != nil || !strings.Contains(string(msg.Data), "not enabled for account")) {
			t.Errorf("%s: %v, %v", subject, msg, err)
		}
	}
	after, err := kv.Get(admin.ctx(), "thread.t")
	if err != nil || after.Revision() != before.Revision() {
		t.Errorf("the thread's state is %q, was %q: %v", after.Value(), before.Value(), err)
	}
}
