package bus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

const saveOf = `{"threadId":%q,"runId":"r"}`

func TestService_Discovery(t *testing.T) {
	w := newWorld(t, &service{head: func(context.Context, snapshot.ThreadRequest) (snapshot.CheckpointID, error) { return "", nil }})
	w.mustAsk(t, "checkpoint.head", `{"threadId":"t"}`)
	_, _ = w.ask(t, "checkpoint.head", `{}`) // the error is counted below
	var info micro.Info
	var stats micro.Stats
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		subjects := []string{"$SRV." + verb, "$SRV." + verb + ".sandbox"}
		if info.ID != "" {
			subjects = append(subjects, "$SRV."+verb+".sandbox."+info.ID)
		}
		for _, subject := range subjects {
			msg, err := w.nc.Request(subject, nil, 5*time.Second)
			if err != nil {
				t.Fatalf("%s: %v", subject, err)
			}
			switch verb {
			case "INFO":
				err = json.Unmarshal(msg.Data, &info)
			case "STATS":
				err = json.Unmarshal(msg.Data, &stats)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if info.Name != "sandbox" || info.Version != "0.0.0-dev" || info.Metadata["node"] != "n1" {
		t.Errorf("info: %+v", info.ServiceIdentity)
	}
	for _, e := range info.Endpoints {
		name := strings.ReplaceAll(strings.TrimPrefix(e.Subject, "sandbox."), ".", "-")
		if e.Subject == "sandbox.node.n1.>" {
			name = "node"
		}
		if e.Name != name || e.QueueGroup != "sandbox" {
			t.Errorf("endpoint %+v, want name %s", e, name)
		}
	}
	if last := info.Endpoints[len(info.Endpoints)-1].Name; len(info.Endpoints) != 35 || last != "snapshot-save" {
		t.Errorf("%d endpoints, the last is %s", len(info.Endpoints), last)
	}
	i := slices.IndexFunc(stats.Endpoints, func(e *micro.EndpointStats) bool { return e.Name == "checkpoint-head" })
	var data bus.EndpointData
	if err := json.Unmarshal(stats.Endpoints[i].Data, &data); err != nil {
		t.Fatal(err)
	}
	if data.Codes["ok"] != 1 || data.Codes[string(snapshot.InvalidID)] != 1 || data.InFlight != 0 || data.MaxMs <= 0 || data.TotalMs < data.MaxMs {
		t.Errorf("stats data %+v", data)
	}
}

func TestServe_BadOptions(t *testing.T) {
	nc := connect(t, startServer(t))
	for _, o := range []bus.Options{{Node: ""}, {Node: "n", Prefix: "a.*"}, {Node: "n", Prefix: ".a"}, {Node: "n", Version: "one"}} {
		if w, err := bus.Serve(t.Context(), nc, o); err == nil {
			t.Errorf("%+v was taken: %v", o, w)
		}
	}
}

// Every code reaches the client with its number, its sentence and its details.
func TestError_EachCode(t *testing.T) {
	var fail error
	w := newWorld(t, &service{save: func(context.Context, snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
		return nil, nil, fail
	}})
	for _, code := range snapshot.Codes() {
		fail = fmt.Errorf("save thread: %w", snapshot.Errorf(code, "it is <so>\nand so").With("actualHead", "c1"))
		msg, err := w.nc.Request("sandbox.snapshot.save", fmt.Appendf(nil, saveOf, "t"), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"error":{"code":"%s","message":"it is <so>\nand so","retryable":%v,"details":{"actualHead":"c1"}}}`, code, code.Retryable())
		if string(msg.Data) != want {
			t.Errorf("got %s, want %s", msg.Data, want)
		}
		if h := msg.Header; h.Get("Nats-Service-Error") != "it is <so> and so" || h.Get("Nats-Service-Error-Code") != fmt.Sprint(code.Status()) {
			t.Errorf("headers %v", h)
		}
		if _, err := w.ask(t, "snapshot.save", fmt.Sprintf(saveOf, "t")); !errors.Is(err, code) || asError(t, err).Details["actualHead"] != "c1" {
			t.Errorf("client got %v", err)
		}
	}
	fail = snapshot.Errorf(snapshot.NotHead, "no details")
	msg, err := w.nc.Request("sandbox.snapshot.save", fmt.Appendf(nil, saveOf, "t"), 5*time.Second)
	if err != nil || !strings.Contains(string(msg.Data), `"details":{}`) {
		t.Errorf("got %s, %v", msg.Data, err)
	}
}

func TestError_UnknownAndPanic(t *testing.T) {
	w := newWorld(t, &service{save: func(_ context.Context, r snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
		switch r.ThreadID {
		case "panic":
			panic("boom " + canary)
		case "no reply":
			return nil, nil, nil // which can't be encoded
		}
		return nil, nil, errors.New("disk /secret/path " + canary)
	}})
	for _, thread := range []string{"unknown", "panic", "no reply", "unknown"} {
		_, err := w.ask(t, "snapshot.save", fmt.Sprintf(saveOf, thread))
		e := asError(t, err)
		id, _ := e.Details["id"].(string)
		if e.Code != snapshot.Internal || id == "" || strings.Contains(e.Message, "secret") || strings.Contains(e.Message, "boom") {
			t.Errorf("%s: %v", thread, e)
		}
		eventually(t, "the log line with the id", func() bool { return strings.Contains(w.log.String(), `"id":"`+id+`"`) })
	}
	log := w.log.String()
	if !strings.Contains(log, "/secret/path") || !strings.Contains(log, "handler panicked") || !strings.Contains(log, "worker_test.go") {
		t.Errorf("the log lacks the causes: %s", log)
	}
	if strings.Contains(log, canary) {
		t.Error("the log has the secret")
	}
}

// A secret in an error, its details, its cause or a warning does not leave.
func TestRedaction(t *testing.T) {
	w := newWorld(t, &service{save: func(_ context.Context, r snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
		if r.ThreadID == "good" {
			return &snapshot.Checkpoint{ID: "c"}, []snapshot.Warning{{Code: snapshot.WriterLost, Message: "token " + canary}}, nil
		}
		return nil, nil, snapshot.Errorf(snapshot.StaleHead, "head %s", canary).With(canary, canary).Because(errors.New(canary))
	}})
	for _, payload := range []string{fmt.Sprintf(saveOf, "good"), fmt.Sprintf(saveOf, "bad"), `{"threadId":"t","` + canary + `":1}`} {
		msg, err := w.nc.Request("sandbox.snapshot.save", []byte(payload), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		all := string(msg.Data) + fmt.Sprint(msg.Header) + w.log.String()
		if strings.Contains(all, canary) || !strings.Contains(all, "[redacted]") {
			t.Errorf("%s: %s", payload, all)
		}
	}
	var out bytes.Buffer
	if _, err := bus.RedactLog(&out, redactor{}).Write([]byte(`{"a":"` + canary + `"}`)); err != nil || strings.Contains(out.String(), canary) {
		t.Errorf("log line %s, %v", out.String(), err)
	}
}

func TestReply_Shapes(t *testing.T) {
	var warnings []snapshot.Warning
	w := newWorld(t, &service{
		save: func(context.Context, snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
			return &snapshot.Checkpoint{ID: "c", ThreadID: "<t>", Reason: "automatic", Conversation: snapshot.Messages{json.RawMessage(`{"a":1, "a":2}`)}}, warnings, nil
		},
		head: func(_ context.Context, r snapshot.ThreadRequest) (snapshot.CheckpointID, error) {
			return snapshot.CheckpointID(strings.TrimPrefix(string(r.ThreadID), "none")), nil
		},
		checkpoint: func(context.Context, snapshot.GetCheckpointRequest) (*snapshot.Checkpoint, error) { return nil, nil },
		readFile: func(context.Context, snapshot.ReadFileRequest, int64) (*snapshot.ReadFileReply, error) {
			return &snapshot.ReadFileReply{Entry: snapshot.Entry{Path: "l", Kind: snapshot.KindSymlink, Target: "<x>"}, EOF: true}, nil
		},
	})
	for _, c := range [][3]string{
		{"checkpoint.head", `{"threadId":"none"}`, `{"checkpointId":null}`},
		{"checkpoint.head", `{"threadId":"c<>"}`, `{"checkpointId":"c<>"}`},
		{"checkpoint.get", `{"checkpointId":"c"}`, `{"checkpoint":null}`},
		{"instance.get", `{"key":"k"}`, `{"record":null,"revision":0}`},
		{"instance.delete", `{"key":"k"}`, `{}`},
		{"instance.list", `{}`, `{"records":[]}`},
		{"artifact.delete", `{"threadId":"t","artifactId":"a"}`, `{}`},
		{"file.read", `{"checkpointId":"c","path":"l"}`, `{"entry":{"path":"l","kind":"symlink","target":"<x>"},"data":"","eof":true}`},
	} {
		if got := w.mustAsk(t, c[0], c[1]); got != c[2] {
			t.Errorf("%s %s: got %s, want %s", c[0], c[1], got, c[2])
		}
	}
	plain := w.mustAsk(t, "snapshot.save", fmt.Sprintf(saveOf, "t"))
	if !strings.HasSuffix(plain, `"conversation":[{"a":1, "a":2}]}`) || !strings.Contains(plain, `"threadId":"<t>"`) {
		t.Errorf("reply %s", plain)
	}
	warnings = []snapshot.Warning{{Code: snapshot.WriterLost, Message: "not released"}}
	want := strings.TrimSuffix(plain, "}") + `,"warnings":[{"code":"SANDBOX_SNAPSHOT_WRITER_LOST","message":"not released"}]}`
	if got := w.mustAsk(t, "snapshot.save", fmt.Sprintf(saveOf, "t")); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A client that may not write to the store can't have a reply written there.
func TestReply_NeverIntoTheStore(t *testing.T) {
	w := newWorld(t, &service{head: func(context.Context, snapshot.ThreadRequest) (snapshot.CheckpointID, error) { return "c", nil }},
		func(o *bus.Options) { o.APIPrefix = "hub.API" })
	api, err := w.nc.SubscribeSync("hub.API.>")
	if err != nil {
		t.Fatal(err)
	}
	kv, err := w.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "sandbox-state"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "thread.t", "state"); err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{`{"threadId":"t"}`, `{}`} {
		for _, reply := range []string{"$KV.sandbox-state.thread.t", "hub.API.STREAM.PURGE.KV_sandbox-state"} {
			if err := w.nc.PublishRequest("sandbox.checkpoint.head", reply, []byte(payload)); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.mustAsk(t, "checkpoint.head", `{"threadId":"t"}`)
	if err := errors.Join(w.worker.Stop(t.Context()), w.nc.Flush()); err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(t.Context(), "thread.t"); err != nil || string(e.Value()) != "state" {
		t.Errorf("the state is %v, %v", e, err)
	}
	if n, _, err := api.Pending(); n > 0 || err != nil {
		t.Errorf("%d replies went to JetStream's API: %v", n, err)
	}
}

// What does not fit a message travels as an object, both ways, and errors too.
func TestClaimCheck(t *testing.T) {
	large := strings.Repeat("x", 3<<19)
	var kept snapshot.Messages
	w := newWorld(t, &service{
		saveThread: func(_ context.Context, r snapshot.SaveThreadRequest) (int64, error) { kept = r.Messages; return 1, nil },
		load: func(_ context.Context, r snapshot.ThreadRequest) (*snapshot.LoadThreadReply, error) {
			if r.ThreadID == "bad" {
				return nil, snapshot.Errorf(snapshot.UnreadableEntry, "many paths").With("paths", []string{large})
			}
			return &snapshot.LoadThreadReply{ThreadID: r.ThreadID, Messages: kept}, nil
		},
	})
	_, err := w.ask(t, "thread.save", `{"threadId":"t","messages":["`+large+`"]}`)
	if asError(t, err).Code != snapshot.StoreUnavailable {
		t.Errorf("without buckets: %v", err)
	}
	w.buckets(t)
	w.mustAsk(t, "thread.save", `{"threadId":"t","messages":["`+large+`"]}`)
	if got, want := w.mustAsk(t, "thread.load", `{"threadId":"t"}`), `{"threadId":"t","messages":["`+large+`"],"revision":0}`; got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	_, err = w.ask(t, "thread.load", `{"threadId":"bad"}`)
	if e := asError(t, err); e.Code != snapshot.UnreadableEntry || len(e.Details["paths"].([]any)) != 1 {
		t.Errorf("large error: %.200v", err)
	}
	store, err := w.js.ObjectStore(t.Context(), "sandbox-uploads")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		body string
		code snapshot.Code
	}{
		"wrong":  {`{"threadId":""}`, snapshot.InvalidID},
		"nested": {`{"$object":"sandbox-uploads/wrong"}`, snapshot.BadRequest},
		"empty":  {`{"$object":""}`, snapshot.BadRequest},
		"null":   {`{"$object":null}`, snapshot.InvalidID},
	} {
		if _, err := store.PutString(t.Context(), name, c.body); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ask(t, "thread.load", `{"$object":"sandbox-uploads/`+name+`"}`); !errors.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.ask(t, "thread.load", `{"$object":"sandbox-uploads/huge"}`); !errors.Is(err, snapshot.PayloadTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if _, err := w.ask(t, "thread.load", `{"$object":"sandbox-uploads/none"}`); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("missing: %v", err)
	}
	if _, err := w.ask(t, "thread.save", strings.Repeat(" ", 64<<20+1)); !errors.Is(err, snapshot.PayloadTooLarge) {
		t.Errorf("too large for an upload: %v", err)
	}
}

// uploads are requests of 100 bytes.
type uploads struct {
	bus.Transfer
	request string
	opened  *atomic.Int32
}

func newUploads(request string) uploads { return uploads{request: request, opened: new(atomic.Int32)} }

func (u uploads) OpenUpload(context.Context, string) (io.ReadCloser, int64, error) {
	u.opened.Add(1)
	return io.NopCloser(strings.NewReader(fmt.Sprintf("%-100s", u.request))), 100, nil
}

// Requests that travel as objects are large: few are in memory at once, however
// many may run, and small ones wait for none of them.
func TestClaimCheck_FewAtOnce(t *testing.T) {
	const asked, most = 6, 4
	inMemory, open := make(chan struct{}, asked), make(chan struct{})
	w := newWorld(t, &service{
		load: func(context.Context, snapshot.ThreadRequest) (*snapshot.LoadThreadReply, error) {
			inMemory <- struct{}{}
			<-open
			return &snapshot.LoadThreadReply{}, nil
		},
		head: func(context.Context, snapshot.ThreadRequest) (snapshot.CheckpointID, error) { return "c", nil },
	}, func(o *bus.Options) { o.Transfer, o.ClaimBytes = newUploads(`{"threadId":"t"}`), most*100+99 })
	var replies []<-chan error
	for range asked {
		replies = append(replies, w.askLater(t, "thread.load", `{"$object":"sandbox-uploads/x"}`))
	}
	for range most {
		<-inMemory
	}
	w.mustAsk(t, "checkpoint.head", `{"threadId":"t"}`) // it comes behind them and waits for none
	if len(inMemory) > 0 {
		t.Error("there are more in memory")
	}
	close(open)
	for _, r := range replies {
		if err := <-r; err != nil {
			t.Error(err)
		}
	}
}

// A log line says what the request was about: ids that came with it, that were
// chosen for it, or that stand in its writer, and how long it took.
func TestLog_Lines(t *testing.T) {
	w := newWorld(t, &service{
		save: func(_ context.Context, r snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
			if r.RunID == "bad" {
				return nil, nil, errors.New("no idea")
			}
			return &snapshot.Checkpoint{ID: "chosen", ThreadID: r.ThreadID}, nil, nil
		},
		checkpoint: func(context.Context, snapshot.GetCheckpointRequest) (*snapshot.Checkpoint, error) { return nil, nil },
	})
	for _, c := range []struct {
		subject, payload string
		want             map[string]string
	}{
		{"snapshot.save", `{"threadId":"t","runId":"r"}`, map[string]string{"thread": "t", "checkpoint": "chosen", "level": "info"}},
		{"snapshot.save", `{"threadId":"` + canary + `","runId":"r"}`, map[string]string{"thread": "[redacted]"}},
		{"snapshot.save", `{"threadId":"t","runId":"bad","checkpointId":"mine"}`, map[string]string{"checkpoint": "mine", "code": "SANDBOX_INTERNAL", "id": "*", "error": "*", "level": "error"}},
		{"checkpoint.get", `{"checkpointId":"c"}`, map[string]string{"checkpoint": "c", "level": "debug"}},
		{"snapshot.save", `{"threadId":1}`, map[string]string{"code": "SANDBOX_SNAPSHOT_INVALID_ID"}},
	} {
		before := len(w.log.String())
		_, _ = w.ask(t, c.subject, c.payload)
		var line map[string]any
		eventually(t, "a log line", func() bool { return json.Unmarshal([]byte(w.log.String()[before:]), &line) == nil })
		for key, want := range c.want {
			if got, _ := line[key].(string); got != want && (want != "*" || got == "") {
				t.Errorf("%s %s: %s is %q, want %q", c.subject, c.payload, key, got, want)
			}
		}
		text, _ := line["dur"].(string)
		if _, err := time.ParseDuration(text); err != nil || line["subject"] != c.subject || line["req_id"] == "" {
			t.Errorf("%s %s: the line is %v", c.subject, c.payload, line)
		}
	}
}

func TestLog_Phases(t *testing.T) {
	w := newWorld(t, &service{save: func(context.Context, snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
		return &snapshot.Checkpoint{ID: "c", Coverage: snapshot.Coverage{Phases: map[string]snapshot.Phase{"scan": {Ms: 1.5, Count: 2, Bytes: 3}}}}, nil, nil
	}})
	w.mustAsk(t, "snapshot.save", fmt.Sprintf(saveOf, "1"))
	eventually(t, "a line with the phases", func() bool {
		return strings.Contains(w.log.String(), `"scan":{"ms":1.5,"count":2,"bytes":3}`) && strings.Contains(w.log.String(), "save phases")
	})
}

// The room that a read is given fits a reply, whatever the path.
func TestFileRead_Fits(t *testing.T) {
	path := strings.Repeat("\x01", snapshot.MaxPathBytes)
	w := newWorld(t, &service{readFile: func(_ context.Context, _ snapshot.ReadFileRequest, n int64) (*snapshot.ReadFileReply, error) {
		return &snapshot.ReadFileReply{Entry: snapshot.Entry{Path: path, Kind: snapshot.KindFile}, Data: make([]byte, n)}, nil
	}})
	msg, err := w.nc.Request("sandbox.file.read", []byte(`{"checkpointId":"c","path":"p"}`), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(msg.Data)) < w.nc.MaxPayload()*9/10 || bytes.HasPrefix(msg.Data, []byte(`{"$object"`)) {
		t.Errorf("reply of %d bytes: %.100s", len(msg.Data), msg.Data)
	}
}

// gate holds saves until it is opened.
type gate struct {
	open    chan struct{}
	waiting atomic.Int32
}

func (g *gate) save(ctx context.Context, r snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
	g.waiting.Add(1)
	select {
	case <-g.open:
		return &snapshot.Checkpoint{ID: snapshot.CheckpointID(r.ThreadID)}, nil, nil
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("wait: %w", ctx.Err())
	}
}

func (w *world) askLater(t *testing.T, name, payload string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	sub, err := w.nc.SubscribeSync(w.nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.nc.PublishRequest(w.client.Subject(name), sub.Subject, []byte(payload)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	wg.Go(func() {
		msg, err := sub.NextMsg(10 * time.Second)
		if err == nil && msg.Header.Get("Nats-Service-Error-Code") != "" {
			err = errors.New(string(msg.Data))
		}
		done <- err
	})
	return done
}

func TestPools_ReadsPassSaves(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := newWorld(t, &service{save: g.save, head: func(context.Context, snapshot.ThreadRequest) (snapshot.CheckpointID, error) { return "c", nil }},
		func(o *bus.Options) { o.Heavy = bus.Limits{Running: 2, Waiting: 1} })
	replies := make(chan error, 4)
	var asked sync.WaitGroup
	for i := range cap(replies) {
		save := w.askLater(t, "snapshot.save", fmt.Sprintf(saveOf, fmt.Sprint(i)))
		asked.Go(func() { replies <- <-save })
	}
	defer asked.Wait()
	if err := <-replies; err == nil || !strings.Contains(err.Error(), string(snapshot.Busy)) || !strings.Contains(err.Error(), "retryAfterMs") {
		t.Errorf("the one of four saves for which there is no room: %v", err)
	}
	eventually(t, "two running saves", func() bool { return g.waiting.Load() == 2 })
	w.mustAsk(t, "checkpoint.head", `{"threadId":"t"}`)
	if n := g.waiting.Load(); n != 2 {
		t.Errorf("%d saves run at once", n)
	}
	close(g.open)
	for range cap(replies) - 1 {
		if err := <-replies; err != nil {
			t.Errorf("a save for which there is room: %v", err)
		}
	}
}

func TestTimeout(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := newWorld(t, &service{save: g.save, restore: func(ctx context.Context, _ snapshot.RestoreRequest) (*snapshot.RestoreReply, error) {
		<-ctx.Done()
		return nil, errors.New("some library gave up")
	}}, func(o *bus.Options) { o.Heavy = bus.Limits{Running: 1, Waiting: 5} })
	for name, payload := range map[string]string{
		"snapshot.save": `{"threadId":"t","runId":"r","timeoutMs":1}`,
		"restore":       `{"threadId":"t","path":"p","timeoutMs":1}`,
	} {
		if _, err := w.ask(t, name, payload); !errors.Is(err, snapshot.Timeout) {
			t.Errorf("%s: %v", name, err)
		}
	}
	first := w.askLater(t, "snapshot.save", fmt.Sprintf(saveOf, "a"))
	eventually(t, "a running save", func() bool { return g.waiting.Load() >= 1 })
	if _, err := w.ask(t, "snapshot.save", `{"threadId":"t","runId":"r","timeoutMs":20}`); !errors.Is(err, snapshot.Timeout) {
		t.Errorf("a save that waits for its turn: %v", err)
	}
	close(g.open)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// Requests that were delivered before the stop are answered, later ones find
// nobody, and the worker can be asked to stop twice.
func TestStop_AnswersQueued(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := newWorld(t, &service{save: g.save}, func(o *bus.Options) { o.Heavy = bus.Limits{Running: 2, Waiting: 20} })
	var saves []<-chan error
	for i := range 12 {
		saves = append(saves, w.askLater(t, "snapshot.save", fmt.Sprintf(saveOf, fmt.Sprint(i))))
	}
	eventually(t, "running saves", func() bool { return g.waiting.Load() == 2 })
	other := connect(t, w.server)
	stopped := make(chan error, 1)
	go func() { stopped <- w.worker.Stop(t.Context()) }()
	eventually(t, "the end of the service", func() bool {
		_, err := other.Request("$SRV.PING.sandbox", nil, time.Second)
		return errors.Is(err, nats.ErrNoResponders)
	})
	if _, err := w.ask(t, "snapshot.save", fmt.Sprintf(saveOf, "late")); asError(t, err).Code != snapshot.StoreUnavailable {
		t.Errorf("a late save: %v", err)
	}
	close(g.open)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	for i, s := range saves {
		if err := <-s; err != nil {
			t.Errorf("save %d: %v", i, err)
		}
	}
}

// When the time for the stop is over, what still runs is canceled and answered.
func TestStop_GivesUp(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := newWorld(t, &service{save: g.save})
	one := w.askLater(t, "snapshot.save", fmt.Sprintf(saveOf, "t"))
	eventually(t, "a running save", func() bool { return g.waiting.Load() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.worker.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("stop: %v", err)
	}
	if err := <-one; err == nil || !strings.Contains(err.Error(), string(snapshot.Canceled)) {
		t.Errorf("the save: %v", err)
	}
}

// So is what waits for others to be gone from memory.
func TestStop_GivesUpClaims(t *testing.T) {
	g, u := &gate{open: make(chan struct{})}, newUploads(fmt.Sprintf(saveOf, "t"))
	w := newWorld(t, &service{save: g.save}, func(o *bus.Options) { o.Transfer, o.ClaimBytes = u, 100 })
	var saves []<-chan error
	for range 3 {
		saves = append(saves, w.askLater(t, "snapshot.save", `{"$object":"sandbox-uploads/x"}`))
	}
	eventually(t, "a running save and two that wait", func() bool { return g.waiting.Load() == 1 && u.opened.Load() == 3 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.worker.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("stop: %v", err)
	}
	for _, s := range saves {
		if err := <-s; err == nil || !strings.Contains(err.Error(), string(snapshot.Canceled)) {
			t.Errorf("a save: %v", err)
		}
	}
}

func TestClient_NoWorker(t *testing.T) {
	nc := connect(t, startServer(t))
	c := bus.NewClient(nc, bus.ClientOptions{Patience: 20 * time.Millisecond})
	_, err := c.Request(t.Context(), c.Subject("snapshot.save"), []byte(`{}`))
	if e := asError(t, err); e.Code != snapshot.StoreUnavailable || !strings.Contains(e.Message, "no worker answers on sandbox.snapshot.save; start one with `agent serve`") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Request(t.Context(), "", nil); !errors.Is(err, snapshot.BadRequest) {
		t.Errorf("an empty subject: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	sub, err := nc.SubscribeSync("sandbox.fork")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	_, err = c.Request(ctx, c.Subject("fork"), []byte(`{}`))
	if e := asError(t, err); e.Code != snapshot.Timeout || e.Details["outcome"] != "unknown" {
		t.Errorf("no reply: %v", err)
	}
}

func TestClient_Call(t *testing.T) {
	w := newWorld(t, &service{head: func(context.Context, snapshot.ThreadRequest) (snapshot.CheckpointID, error) { return "c1", nil }})
	var reply struct{ CheckpointID string }
	if err := w.client.Call(t.Context(), "checkpoint.head", snapshot.ThreadRequest{ThreadID: "t"}, &reply); err != nil || reply.CheckpointID != "c1" {
		t.Errorf("got %+v, %v", reply, err)
	}
}
