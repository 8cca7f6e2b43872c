package bus_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// check looks at the permissions that nc has for a worker.
func check(t *testing.T, nc *nats.Conn) error {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return bus.Rights{Prefix: "sandbox", Store: "sandbox"}.Check(t.Context(), js)
}

// audit is the server's word on a request to JetStream's API.
type audit struct {
	Client   struct{ ID uint64 }
	Subject  string
	Response string
}

// audits returns one for each request that fn makes on nc. Direct reads have none.
func audits(t *testing.T, s *bus.Server, nc *nats.Conn, fn func()) (all []audit) {
	t.Helper()
	observer := connect(t, s)
	listen := func(subject string) *nats.Subscription {
		t.Helper()
		sub, err := observer.SubscribeSync(subject)
		if err != nil {
			t.Fatal(err)
		}
		return sub
	}
	requests, advisories := listen("$JS.API.>"), listen("$JS.EVENT.ADVISORY.API")
	next := func(sub *nats.Subscription) *nats.Msg {
		t.Helper()
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatalf("%s: %v", sub.Subject, err)
		}
		return m
	}
	for _, step := range []func(){func() {}, fn} {
		step()
		if err := observer.Flush(); err != nil { // then it has all that came before
			t.Fatal(err)
		}
	}
	id, err := nc.GetClientID()
	if err != nil {
		t.Fatal(err)
	}
	want, _, _ := requests.Pending()
	for range want {
		if strings.HasPrefix(next(requests).Subject, "$JS.API.DIRECT.") {
			want--
		}
	}
	for len(all) < want {
		var a audit
		if err := json.Unmarshal(next(advisories).Data, &a); err != nil {
			t.Fatal(err)
		}
		if a.Client.ID == id { // the others are of what was before
			all = append(all, a)
		}
	}
	return all
}

// JetStream does nothing of what the look at the permissions sends: a consumer
// that is called as the one of a probe stays, and no stream is purged.
func TestRights_NoEffect(t *testing.T) {
	s := startServer(t)
	js, err := jetstream.New(connect(t, s))
	if err != nil {
		t.Fatal(err)
	}
	state, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KV_sandbox-state", Subjects: []string{"$KV.sandbox-state.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []string{"uploads", "packs", "artifacts", "files", "replies"} {
		if _, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "sandbox-" + bucket}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := state.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "probe"}); err != nil {
		t.Fatal(err)
	}
	nc := connect(t, s)
	all := audits(t, s, nc, func() {
		if err := check(t, nc); err != nil {
			t.Error(err)
		}
	})
	refused := 0
	for _, a := range all {
		switch {
		case strings.Contains(a.Response, `"error":`):
			refused++
		case !strings.HasPrefix(a.Subject, "$JS.API.STREAM.INFO."):
			t.Errorf("%s is done: %s", a.Subject, a.Response)
		}
	}
	told, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("each start counts %d errors of the JetStream API", refused); !strings.Contains(string(told), want) {
		t.Errorf("docs/operating.md does not say that %s", want)
	}
	if _, err := state.Consumer(t.Context(), "probe"); err != nil {
		t.Errorf("the consumer: %v", err)
	}
}

// users are a worker whose subscriptions are allowed in the queue group of the
// service only, one that may listen to no other subject of nodes than its own,
// and one that may not answer.
const users = `authorization {
  may = ["sandbox.node.>", "$KV.>", "$O.>", "$JS.API.>"]
  users = [
    {user: group, password: pw, permissions: {publish: {allow: $may}, subscribe: {allow: ["sandbox.> sandbox", "$SRV.>", "_INBOX.>"]}, allow_responses: true}}
    {user: narrow, password: pw, permissions: {publish: {allow: $may}, subscribe: {allow: ["sandbox.>", "$SRV.>", "_INBOX.>"], deny: ["sandbox.node.*"]}, allow_responses: true}}
    {user: mute, password: pw, permissions: {publish: {allow: $may}, subscribe: {allow: ["sandbox.>", "$SRV.>", "_INBOX.>"]}}}
  ]
}`

// The look refuses nobody whom Serve takes, finds out who can't answer even if
// another worker of the node could, and that worker hears nothing of it.
func TestRights_Answer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server.conf")
	if err := os.WriteFile(file, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := bus.StartServer(bus.ServerOptions{StoreDir: t.TempDir(), AllowTempStore: true, Sync: bus.SyncInterval, Listen: "127.0.0.1:0", ConfigFile: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	as := func(user string) *nats.Conn {
		t.Helper()
		nc, err := nats.Connect(s.ClientURL(), nats.UserInfo(user, "pw"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	w := &world{server: s, log: &logBuffer{}}
	for _, user := range []string{"group", "narrow"} {
		nc := as(user)
		if err := check(t, nc); err != nil {
			t.Errorf("%s: %v", user, err)
		}
		w.serve(t, nc, "n1", &service{})
	}
	for range 5 { // whichever of the two would take a request
		if e := asError(t, check(t, as("mute"))); e.Code != snapshot.StoreUnavailable || !strings.Contains(e.Message, `Publish to "_INBOX.`) {
			t.Errorf("mute: %v", e)
		}
	}
	if log := w.log.String(); log != "" {
		t.Errorf("the workers heard of it: %s", log)
	}
}
