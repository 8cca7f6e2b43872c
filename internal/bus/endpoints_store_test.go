package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// captured is a domain for clients that capture checkpoints themselves.
type captured struct {
	bus.Service
	appended func(snapshot.AppendRequest) error
	put      func(snapshot.PutBlobRequest) error
	acquire  func(context.Context, snapshot.AcquireRequest) error
	held     func(any) error
}

func (s *captured) Append(_ context.Context, r snapshot.AppendRequest) (*snapshot.AppendReply, error) {
	return &snapshot.AppendReply{HeadID: r.Checkpoint.ID}, s.appended(r)
}
func (s *captured) DeleteHead(_ context.Context, r snapshot.DeleteHeadRequest) (snapshot.CheckpointID, error) {
	return snapshot.CheckpointID(strings.TrimPrefix(string(r.CheckpointID), "last")), s.held(r)
}
func (s *captured) ForkHeld(_ context.Context, r snapshot.ForkHeldRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
	return &snapshot.Checkpoint{ID: r.DestinationCheckpointID}, []snapshot.Warning{{Code: snapshot.WriterLost, Message: "w"}}, s.held(r)
}
func (s *captured) Diff(_ context.Context, r snapshot.DiffRequest, _ int64) (*snapshot.DiffReply, error) {
	if r.From == r.To {
		return &snapshot.DiffReply{}, nil
	}
	link := snapshot.Entry{Path: "l", Kind: snapshot.KindSymlink, Target: "<x>"}
	return &snapshot.DiffReply{Changes: []snapshot.Change{{Path: "l", Change: "added", To: &link}}, Next: "n"}, nil
}
func (s *captured) PutBlob(_ context.Context, r snapshot.PutBlobRequest) (*snapshot.Blob, error) {
	return &snapshot.Blob{Key: r.Kind, Size: 3}, s.put(r)
}
func (s *captured) HeadBlobs(_ context.Context, r snapshot.HeadBlobsRequest) (*snapshot.HeadBlobsReply, error) {
	reply := &snapshot.HeadBlobsReply{}
	for i, key := range r.Keys {
		reply.Present = append(reply.Present, snapshot.Blob{Key: key, Size: int64(i)})
	}
	return reply, nil
}
func (s *captured) GetBlob(_ context.Context, r snapshot.GetBlobRequest, _ int64) (*snapshot.GetBlobReply, error) {
	if r.Key == "large" {
		return &snapshot.GetBlobReply{Key: r.Key, Size: 5, Object: "b/o"}, nil
	}
	return &snapshot.GetBlobReply{Key: r.Key, Data: &[]byte{}}, nil
}
func (s *captured) References(context.Context, snapshot.ReferencesRequest, int64) (*snapshot.ReferencesReply, error) {
	return &snapshot.ReferencesReply{}, nil
}
func (s *captured) DeleteThread(context.Context, snapshot.ThreadRequest) (int64, error) {
	return 7, nil
}
func (s *captured) AcquireWriter(ctx context.Context, r snapshot.AcquireRequest) (*snapshot.Lease, error) {
	lease := &snapshot.Lease{Writer: snapshot.Writer{ThreadID: r.ThreadID, OwnerToken: ownerToken, Fence: 3}, ExpiresAt: 1.5, RenewAfterMs: 9}
	return lease, s.acquire(ctx, r)
}
func (s *captured) RenewWriter(_ context.Context, w snapshot.Writer) (snapshot.Millis, error) {
	return 2e15, s.held(w)
}
func (s *captured) ReleaseWriter(_ context.Context, w snapshot.Writer) error { return s.held(w) }
func (s *captured) AcquireLock(_ context.Context, r snapshot.AcquireLockRequest) (*snapshot.LockLease, error) {
	return &snapshot.LockLease{Lock: snapshot.Lock{Name: r.Name, OwnerToken: ownerToken, Fence: 4}, ExpiresAt: 1, RenewAfterMs: 9}, s.held(r)
}
func (s *captured) RenewLock(_ context.Context, l snapshot.Lock) (snapshot.Millis, error) {
	return 1, s.held(l)
}
func (s *captured) ReleaseLock(_ context.Context, l snapshot.Lock) error { return s.held(l) }
func (s *captured) Head(context.Context, snapshot.ThreadRequest) (snapshot.CheckpointID, error) {
	return "c", nil
}

// newStore is a world whose domain takes everything, unless the test changes that.
func newStore(t *testing.T, c *captured, change ...func(*bus.Options)) *world {
	t.Helper()
	set := func(o *bus.Options) { o.Service = c }
	if c.appended == nil {
		c.appended = func(snapshot.AppendRequest) error { return nil }
	}
	if c.put == nil {
		c.put = func(snapshot.PutBlobRequest) error { return nil }
	}
	if c.acquire == nil {
		c.acquire = func(context.Context, snapshot.AcquireRequest) error { return nil }
	}
	if c.held == nil {
		c.held = func(any) error { return nil }
	}
	return newWorld(t, &service{}, append([]func(*bus.Options){set}, change...)...)
}

const (
	ownerToken = "owner-token-canary"
	writer     = `{"threadId":"t","ownerToken":"` + ownerToken + `","fence":3}`
	lock       = `{"name":"l","ownerToken":"` + ownerToken + `","fence":4}`
	artifact   = `{"artifactId":"a","name":"n","mimeType":"m","size":1,"blobKey":"b","createdAt":1}`
	lists      = `"files":[],"conversation":[],"artifacts":[]`
	plainNew   = `"id":"c","threadId":"t","createdAt":1.5,"reason":"named"`
)

// appendOf is an append with these members of the checkpoint.
func appendOf(checkpoint string) string {
	return `{"checkpoint":{` + checkpoint + `},"expectedHeadId":null,"writer":` + writer + `}`
}

func TestStore_Refused(t *testing.T) {
	w := newStore(t, &captured{appended: func(snapshot.AppendRequest) error { return errors.New("a bad request came through") }})
	const add, fork, entry = "checkpoint.append", "checkpoint.fork", snapshot.InvalidEntry
	inFiles := func(items string) string {
		return appendOf(plainNew + `,"files":[` + items + `],"conversation":[],"artifacts":[]`)
	}
	inArtifacts := func(items string) string {
		return appendOf(plainNew + `,"files":[],"conversation":[],"artifacts":[` + items + `]`)
	}
	foreign := func(request string) string {
		return strings.Replace(request, `"writer":{"threadId":"t"`, `"writer":{"threadId":"u"`, 1)
	}
	const held = `"sourceThreadId":"s","sourceCheckpointId":"c","destinationThreadId":"t","destinationCheckpointId":"d","writer":` + writer
	file := `{"path":"p","kind":"file"}`
	for _, c := range []struct {
		subject, payload string
		code             snapshot.Code
		says             string
	}{
		// the shape
		{add, inFiles(file + `,{"path":"p","Kind":"x"}`), entry, `unknown member "checkpoint.files[1].Kind"; did you mean "checkpoint.files[1].kind"`},
		{add, inFiles(file + `,{"path":"p","path":"p","kind":"x"}`), entry, `"checkpoint.files[1].path" is there twice`},
		{add, inFiles(`{"path":"p","kind":"file","uid":0}`), entry, `"checkpoint.files[0].uid"; known here are blobKey, kind`},
		{add, inArtifacts(artifact + `,{"id":"a"}`), entry, `"checkpoint.artifacts[1].id"`},
		{add, inFiles(`{"path":{"a":1,"a":2},"kind":"x"}`), entry, `inside "checkpoint.files[0].path"`},
		{add, inFiles(`[{"a":1,"a":2}]`), entry, `inside "checkpoint.files[0]"`},
		{add, appendOf(`"id":"","threadId":"t","stats":{}`), entry, `"checkpoint.stats"`},
		{add, appendOf(`"id":"c","id":"d"`), entry, `"checkpoint.id" is there twice`},
		{add, `{"checkpoint":{"id":""},"checkpoint":{}}`, entry, `"checkpoint" is there twice`},
		{add, `{"checkpoint":{"id":""},"head":1}`, snapshot.BadRequest, `"head"`},
		{add, strings.Replace(appendOf(`"id":""`), `"fence"`, `"Fence"`, 1), snapshot.BadRequest, `did you mean "writer.fence"`},
		// identifiers
		{add, appendOf(`"threadId":"t"`), snapshot.InvalidID, "checkpoint.id is missing"},
		{add, appendOf(`"id":"c","threadId":5`), snapshot.InvalidID, "checkpoint.threadId is a number"},
		{add, appendOf(plainNew + `,"parentCheckpointId":"","files":5`), snapshot.InvalidID, "checkpoint.parentCheckpointId is empty"},
		{add, appendOf(plainNew + `,"sourceRunId":true,"files":5`), snapshot.InvalidID, "checkpoint.sourceRunId is true or false"},
		{add, inArtifacts(artifact + `,{"name":5}`), snapshot.InvalidID, "checkpoint.artifacts[1].artifactId is missing"},
		{add, foreign(inArtifacts(`{"artifactId":""}`)), snapshot.InvalidID, "checkpoint.artifacts[0].artifactId is empty"},
		{add, inArtifacts(`{"artifactId":"\ud800"}`), snapshot.InvalidID, "checkpoint.artifacts[0].artifactId has an unpaired surrogate"},
		{add, `{"checkpoint":{` + plainNew + `},"writer":` + writer + `}`, snapshot.InvalidID, "expectedHeadId is missing; it must be a string of 1 to 500 bytes, or null for none"},
		{add, `{"checkpoint":{` + plainNew + `},"expectedHeadId":"","writer":` + writer + `}`, snapshot.InvalidID, "expectedHeadId is empty"},
		{add, `{"checkpoint":{` + plainNew + `},"expectedHeadId":null,"writer":{"ownerToken":5}}`, snapshot.InvalidID, "writer.threadId is missing"},
		{fork, strings.Replace(`{`+held+`}`, `"sourceCheckpointId":"c"`, `"sourceCheckpointId":null`, 1), snapshot.InvalidID, "sourceCheckpointId is null"},
		{"writer.renew", `{"ownerToken":5}`, snapshot.InvalidID, "threadId is missing"},
		{"lock.acquire", `{"name":"","waitMs":"x"}`, snapshot.InvalidID, "name is empty"},
		{"checkpoint.diff", `{"from":"a","limit":"x"}`, snapshot.InvalidID, "to is missing"},
		// what is between the identifiers, before other fields
		{add, foreign(appendOf(plainNew)), snapshot.WriterLost, "acquire the lease of that thread"},
		{add, foreign(inFiles(`5`)), snapshot.WriterLost, "acquire"},
		{fork, `{` + strings.Replace(held, `"s"`, `"t"`, 1) + `,"createdAt":"x"}`, snapshot.ForkSourceThreadMismatch, ""},
		// other fields
		{add, `{"checkpoint":5,"expectedHeadId":null,"writer":` + writer + `}`, entry, "checkpoint is a number; it must be an object"},
		{add, `{"expectedHeadId":null,"writer":` + writer + `}`, entry, "checkpoint is missing"},
		{add, `{"checkpoint":{` + plainNew + `},"expectedHeadId":null}`, entry, "checkpoint.files is missing; it must be an array of objects"},
		{add, appendOf(plainNew + `,"files":[],"conversation":[]`), entry, "checkpoint.artifacts is missing"},
		{add, appendOf(plainNew + `,"files":[],"artifacts":[]`), entry, "checkpoint.conversation is missing"},
		{add, appendOf(plainNew + `,"files":null,"conversation":[],"artifacts":[]`), entry, "checkpoint.files is null"},
		{add, appendOf(plainNew + `,"files":{},"conversation":[],"artifacts":[]`), entry, "checkpoint.files is an object"},
		{add, appendOf(plainNew + `,"files":[],"conversation":null,"artifacts":[]`), entry, "checkpoint.conversation is null"},
		{add, appendOf(`"id":"c","threadId":"t","reason":"named",` + lists), entry, "checkpoint.createdAt is missing"},
		{add, appendOf(`"id":"c","threadId":"t","createdAt":1e999,"reason":"named",` + lists), entry, "checkpoint.createdAt is 1e999"},
		{add, inFiles(file + `,5`), entry, "checkpoint.files[1] is a number; it must be an object"},
		{add, inFiles(file + `,null`), entry, "checkpoint.files[1] is null"},
		{add, inFiles(file + `,` + file + `,` + file + `,{"kind":"x"}`), entry, "checkpoint.files[3].path is missing"},
		{add, inFiles(`{"path":"\ud800","kind":"x"}`), entry, "checkpoint.files[0].path has an unpaired surrogate"},
		{add, inFiles(`{"path":"p","kind":"x","mtime":"1"}`), entry, "checkpoint.files[0].mtime is a string; it must be a number"},
		{add, inFiles(`{"path":"p","kind":"x","size":1.5}`), entry, "checkpoint.files[0].size is 1.5, which is not whole"},
		{add, inFiles(`{"path":"p","kind":"x","mode":-1}`), entry, "checkpoint.files[0].mode is -1"},
		{add, inArtifacts(`"a"`), entry, "checkpoint.artifacts[0] is a string"},
		{add, inArtifacts(`{"artifactId":"a","name":5}`), entry, "checkpoint.artifacts[0].name is a number"},
		{add, strings.Replace(appendOf(plainNew+`,`+lists), `"fence":3`, `"fence":-1`, 1), snapshot.BadRequest, "writer.fence is -1"},
		{add, strings.Replace(appendOf(plainNew+`,`+lists), `"writer":`, `"requireBlobs":1,"writer":`, 1), snapshot.BadRequest, "requireBlobs is a number"},
		{"checkpoint.delete-head", `{"threadId":"t","checkpointId":"c"}`, snapshot.BadRequest, "writer is missing"},
		{"writer.renew", `{"threadId":"t","fence":1}`, snapshot.BadRequest, "ownerToken is missing"},
		{"lock.release", `{"name":"l","ownerToken":"x"}`, snapshot.BadRequest, "fence is missing"},
		{"blob.head", `{}`, snapshot.BadRequest, "keys is missing; it must be an array of at most 1000 strings"},
		{"blob.head", `{"keys":"k"}`, snapshot.BadRequest, "keys is a string"},
		{"blob.head", `{"keys":["k",5]}`, snapshot.BadRequest, "keys has a number at [1]"},
		{"blob.head", `{"keys":["\ud800"]}`, snapshot.BadRequest, "keys has an unpaired surrogate escape at [0]"},
		{"blob.head", `{"keys":["k"` + strings.Repeat(`,"k"`, 1000) + `]}`, snapshot.BadRequest, "more than 1000"},
		{"blob.put", `{"kind":"file"}`, snapshot.BadRequest, "either as data or as object"},
		{"blob.put", `{"kind":"file","data":"","object":"b/o"}`, snapshot.BadRequest, "either as data or as object"},
		{"blob.put", `{"data":"YQ=="}`, snapshot.BadRequest, "kind is missing"},
	} {
		t.Run(c.subject+" "+c.says, func(t *testing.T) {
			_, err := w.ask(t, c.subject, c.payload)
			e := asError(t, err)
			if e.Code != c.code || !strings.Contains(e.Message, c.says) {
				t.Errorf("%.200s\ngot %s: %s\nwant %s: …%s…", c.payload, e.Code, e.Message, c.code, c.says)
			}
		})
	}
}

func TestAppend_Taken(t *testing.T) {
	var got snapshot.AppendRequest
	w := newStore(t, &captured{appended: func(r snapshot.AppendRequest) error { got = r; return nil }})
	point := func(id snapshot.CheckpointID) *snapshot.CheckpointID { return &id }
	number := func(n json.Number) *json.Number { return &n }
	size, yes, key, target := int64(5), true, "k", "x"
	base := func(change func(*snapshot.AppendRequest)) snapshot.AppendRequest {
		r := snapshot.AppendRequest{Writer: snapshot.Writer{ThreadID: "t", OwnerToken: ownerToken, Fence: 3},
			Checkpoint: snapshot.NewCheckpoint{ID: "c", ThreadID: "t", CreatedAt: 1.5, Reason: "named",
				Files: []snapshot.NewEntry{}, Conversation: snapshot.Messages{}, Artifacts: []snapshot.Artifact{}}}
		change(&r)
		return r
	}
	for payload, want := range map[string]snapshot.AppendRequest{
		appendOf(plainNew + `,` + lists): base(func(*snapshot.AppendRequest) {}),
		appendOf(plainNew + `,"parentCheckpointId":null,"label":null,"sourceRunId":null,"files": [ ] ,"conversation":[],"artifacts":[]`): base(func(*snapshot.AppendRequest) {}),
		`{"checkpoint":{` + plainNew + `,"parentCheckpointId":"p",` + lists + `},"expectedHeadId":"h","requireBlobs":true,"writer":` + writer + `}`: base(func(r *snapshot.AppendRequest) {
			r.Checkpoint.Parent, r.ExpectedHeadID, r.RequireBlobs = point("p"), point("h"), &yes
		}),
		appendOf(plainNew + `,"files":[{"path":"a","kind":"file","blobKey":"k","size":5.0,"mode":null,"mtime":-1700000000000.123456},
			{"kind":"symlink","p\u0061th":"b","target":"x"}],"conversation":[{"a":1, "a":"\ud800"} ],"artifacts":[` + artifact + `]`): base(func(r *snapshot.AppendRequest) {
			r.Checkpoint.Files = []snapshot.NewEntry{
				{Path: "a", Kind: "file", BlobKey: &key, Size: &size, Mtime: number("-1700000000000.123456")}, {Path: "b", Kind: "symlink", Target: &target}}
			r.Checkpoint.Conversation = snapshot.Messages{json.RawMessage(`{"a":1, "a":"\ud800"}`)}
			r.Checkpoint.Artifacts = []snapshot.Artifact{{ID: "a", Name: "n", MimeType: "m", Size: 1, BlobKey: "b", CreatedAt: 1}}
		}),
	} {
		if reply := w.mustAsk(t, "checkpoint.append", payload); reply != `{"headId":"c"}` {
			t.Errorf("reply %s", reply)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", payload, diff)
		}
	}
}

func TestStore_Replies(t *testing.T) {
	w := newStore(t, &captured{})
	lease := func(who, fence string) string {
		return `{` + who + `,"ownerToken":"` + ownerToken + `","fence":` + fence + `,"expiresAt":1`
	}
	const fork = `{"sourceThreadId":"s","sourceCheckpointId":"c","destinationThreadId":"t","destinationCheckpointId":"<d>","createdAt":1,"writer":` + writer + `}`
	for _, c := range [][3]string{
		{"checkpoint.delete-head", `{"threadId":"t","checkpointId":"lastp","writer":` + writer + `}`, `{"headId":"p"}`},
		{"checkpoint.delete-head", `{"threadId":"t","checkpointId":"last","writer":` + writer + `}`, `{"headId":null}`},
		{"checkpoint.diff", `{"from":"a","to":"b"}`, `{"changes":[{"path":"l","change":"added","to":{"path":"l","kind":"symlink","target":"<x>"}}],"next":"n"}`},
		{"checkpoint.diff", `{"from":"a","to":"a"}`, `{"changes":[]}`},
		{"blob.put", `{"kind":"file","data":""}`, `{"key":"file","size":3}`},
		{"blob.head", `{"keys":[]}`, `{"present":[]}`},
		{"blob.head", `{"keys":["b","a"]}`, `{"present":[{"key":"b","size":0},{"key":"a","size":1}]}`},
		{"blob.get", `{"key":"k"}`, `{"key":"k","size":0,"data":""}`},
		{"blob.get", `{"key":"large","checkpointId":"c","maxInlineBytes":0}`, `{"key":"large","size":5,"object":"b/o"}`},
		{"blob.references", `{}`, `{"references":[]}`},
		{"thread.delete", `{"threadId":"t"}`, `{"checkpoints":7}`},
		{"writer.acquire", `{"threadId":"t","leaseDurationMs":3000,"waitMs":1}`, lease(`"threadId":"t"`, "3") + `.5,"renewAfterMs":9}`},
		{"writer.renew", writer, `{"expiresAt":2000000000000000}`},
		{"writer.release", writer, `{}`},
		{"lock.acquire", `{"name":"l"}`, lease(`"name":"l"`, "4") + `,"renewAfterMs":9}`},
		{"lock.renew", lock, `{"expiresAt":1}`},
		{"lock.release", lock, `{}`},
	} {
		if got := w.mustAsk(t, c[0], c[1]); got != c[2] {
			t.Errorf("%s %s: got %s, want %s", c[0], c[1], got, c[2])
		}
	}
	got := w.mustAsk(t, "checkpoint.fork", fork)
	if !strings.HasPrefix(got, `{"checkpoint":{"id":"<d>",`) || !strings.HasSuffix(got, `},"warnings":[{"code":"SANDBOX_SNAPSHOT_WRITER_LOST","message":"w"}]}`) {
		t.Errorf("fork: %s", got)
	}
}

func TestBlobPut_Bytes(t *testing.T) {
	var got []string
	w := newStore(t, &captured{put: func(r snapshot.PutBlobRequest) error {
		for range 2 { // it can be read again
			body, err := r.Open()
			if err != nil {
				return err
			}
			b, err := io.ReadAll(body)
			if err := errors.Join(err, body.Close()); err != nil {
				return err
			}
			got = append(got, r.Kind+" "+string(b))
		}
		return nil
	}})
	w.buckets(t)
	store, err := w.js.ObjectStore(t.Context(), "sandbox-uploads")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.PutString(t.Context(), "up", "large"); err != nil {
		t.Fatal(err)
	}
	w.mustAsk(t, "blob.put", `{"kind":"file","data":"YWI=","object":null}`)
	w.mustAsk(t, "blob.put", `{"kind":"artifact","object":"sandbox-uploads/up"}`)
	if want := []string{"file ab", "file ab", "artifact large", "artifact large"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := w.ask(t, "blob.put", `{"kind":"file","object":"sandbox-uploads/none"}`); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("missing upload: %v", err)
	}
}

// An append over the size of a message travels as an object.
func TestAppend_Claim(t *testing.T) {
	files := 0
	w := newStore(t, &captured{appended: func(r snapshot.AppendRequest) error { files = len(r.Checkpoint.Files); return nil }})
	w.buckets(t)
	item := `{"path":"` + strings.Repeat("x", 100) + `","kind":"dir"}`
	const n = 20_000
	list := item + strings.Repeat(","+item, n-1)
	w.mustAsk(t, "checkpoint.append", appendOf(plainNew+`,"files":[`+list+`],"conversation":[],"artifacts":[]`))
	if files != n {
		t.Errorf("%d entries came, want %d", files, n)
	}
	_, err := w.ask(t, "checkpoint.append", appendOf(plainNew+`,"files":[`+list+`,{}],"conversation":[],"artifacts":[]`))
	if e := asError(t, err); e.Code != snapshot.InvalidEntry || !strings.Contains(e.Message, "checkpoint.files[20000].path") {
		t.Errorf("got %v", err)
	}
}

// An owner token lets its reader act as the writer: whatever goes wrong, it is
// in no error, header or log line.
func TestOwnerTokens_InNothing(t *testing.T) {
	var mode string
	fail := func(request any) error {
		switch mode {
		case "code":
			return snapshot.Errorf(snapshot.WriterLost, "%v lost it: %+v", request, request).Because(fmt.Errorf("cause %+v", request))
		case "unknown":
			return fmt.Errorf("disk of %v: %#v", request, request)
		}
		panic(request)
	}
	c := &captured{held: fail, appended: func(r snapshot.AppendRequest) error { return fail(r) },
		acquire: func(context.Context, snapshot.AcquireRequest) error {
			return fail(snapshot.Writer{ThreadID: "t", OwnerToken: ownerToken})
		}}
	w := newStore(t, c, func(o *bus.Options) { o.Log = o.Log.Level(zerolog.TraceLevel) })
	const token = `"` + ownerToken + `"`
	requests := map[string]string{
		"checkpoint.append":      appendOf(plainNew + `,` + lists),
		"checkpoint.delete-head": `{"threadId":"t","checkpointId":"c","writer":` + writer + `}`,
		"checkpoint.fork":        `{"sourceThreadId":"s","sourceCheckpointId":"c","destinationThreadId":"t","destinationCheckpointId":"d","createdAt":1,"writer":` + writer + `}`,
		"writer.acquire":         `{"threadId":"t"}`,
		"writer.renew":           writer,
		"writer.release":         writer,
		"lock.acquire":           `{"name":"l"}`,
		"lock.renew":             lock,
		"lock.release":           lock,
	}
	said := func(subject, payload string) string {
		t.Helper()
		msg, err := w.nc.Request("sandbox."+subject, []byte(payload), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if msg.Header.Get("Nats-Service-Error-Code") == "" {
			t.Errorf("%s %s is good", subject, payload)
		}
		return string(msg.Data) + fmt.Sprint(msg.Header)
	}
	for subject, payload := range requests {
		for _, mode = range []string{"code", "unknown", "panic"} {
			if all := said(subject, payload); strings.Contains(all, ownerToken) {
				t.Errorf("%s, %s: %s", subject, mode, all)
			}
		}
		for _, spoil := range [][2]string{
			{token, `[` + token + `]`}, {token, `{` + token + `:1}`}, {token, `{"a":` + token + `}`}, {token, token[:len(token)-1] + `\ud800"`},
			{token, token[:len(token)-1] + "\xff\""}, {token, token + `,"ownerToken":` + token}, {token, token + ` x`}, {token, token[1:]},
			{`"fence":`, `"fence":"x","fence":`}, {`"fence":`, `"fence":-`}, {`"fence":`, `"Fence":`}, {`"fence":`, `"timeoutMs":0,"fence":`}, {`}`, ``},
		} {
			if bad := strings.Replace(payload, spoil[0], spoil[1], 1); bad != payload {
				if all := said(subject, bad); strings.Contains(all, ownerToken) {
					t.Errorf("%s %s: %s", subject, bad, all)
				}
			}
		}
	}
	if log := w.log.String(); strings.Contains(log, ownerToken) || !strings.Contains(log, "panicked") {
		i := strings.Index(log, ownerToken)
		t.Errorf("the log has the token: %s", log[max(0, i-500):min(len(log), max(i, 0)+200)])
	}
}

// Acquires that wait keep nobody waiting: least of all the holder, who is to
// release what they wait for.
func TestPools_HolderPassesWaiters(t *testing.T) {
	waiting, free := make(chan struct{}, 2), make(chan struct{})
	c := &captured{acquire: func(ctx context.Context, _ snapshot.AcquireRequest) error {
		waiting <- struct{}{}
		select {
		case <-free:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	w := newStore(t, c, func(o *bus.Options) {
		o.Heavy, o.Light = bus.Limits{Running: 1, Waiting: 1}, bus.Limits{Running: 1, Waiting: 1}
		o.Leases = bus.Limits{Running: 1}
	})
	acquire := w.askLater(t, "writer.acquire", `{"threadId":"t","waitMs":10000}`)
	<-waiting
	if _, err := w.ask(t, "writer.acquire", `{"threadId":"t","waitMs":10000}`); !errors.Is(err, snapshot.Busy) {
		t.Errorf("an acquire too many: %v", err)
	}
	w.mustAsk(t, "checkpoint.head", `{"threadId":"t"}`)
	w.mustAsk(t, "writer.renew", writer)
	w.mustAsk(t, "checkpoint.append", appendOf(plainNew+`,`+lists))
	w.mustAsk(t, "writer.release", writer)
	close(free)
	if err := <-acquire; err != nil {
		t.Error(err)
	}
}

// A wait comes on top of the time that a request has by itself, up to an hour.
func TestAcquire_Timeout(t *testing.T) {
	var left time.Duration
	w := newStore(t, &captured{acquire: func(ctx context.Context, _ snapshot.AcquireRequest) error {
		end, _ := ctx.Deadline()
		left = time.Until(end)
		return nil
	}})
	for payload, most := range map[string]time.Duration{
		`{"threadId":"t"}`:                                     30 * time.Second,
		`{"threadId":"t","waitMs":600000}`:                     630 * time.Second,
		`{"threadId":"t","waitMs":9007199254740991}`:           time.Hour,
		`{"threadId":"t","waitMs":600000,"timeoutMs":2000000}`: 2000 * time.Second,
	} {
		w.mustAsk(t, "writer.acquire", payload)
		if left > most || left < most-20*time.Second {
			t.Errorf("%s has %v, want %v", payload, left, most)
		}
	}
}
