package bus_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandkeep/internal/snapshot"
)

const record = `"key":"k","provider":"p","providerSandboxId":"n/x","threadId":"t","updatedAt":1.5`

func TestRequest_Refused(t *testing.T) {
	w := newWorld(t, &service{}) // a request that reached it would be SANDBOX_INTERNAL
	const save, fork, upsert, put = "snapshot.save", "fork", "instance.upsert", "artifact.put"
	long := strings.Repeat("x", 501)
	for _, c := range []struct {
		subject, payload string
		code             snapshot.Code
		says             string
	}{
		// the shape
		{save, ``, snapshot.BadRequest, "empty"},
		{save, ` `, snapshot.BadRequest, "empty"},
		{save, `[]`, snapshot.BadRequest, "an array"},
		{save, `null`, snapshot.BadRequest, "null"},
		{save, `"x"`, snapshot.BadRequest, "a string"},
		{save, `{`, snapshot.BadRequest, "not one JSON value"},
		{save, `{"threadId":"t","runId":"r"} {}`, snapshot.BadRequest, "not one JSON value"},
		{save, `{"threadId":"t","runId":"r",}`, snapshot.BadRequest, "not one JSON value"},
		{save, "\ufeff" + `{"threadId":"t","runId":"r"}`, snapshot.BadRequest, "not one JSON value"},
		{save, `{"threadId":"t","runId":01}`, snapshot.BadRequest, "not one JSON value"},
		{save, "{\"threadId\":\"t\",\"runId\":\"\xff\"}", snapshot.BadRequest, "UTF-8"},
		{save, "{\"threadId\":\"t\",\"runId\":\"\xed\xa0\x80\"}", snapshot.BadRequest, "UTF-8"},
		{save, `{"threadId":"t","runId":"r","threadId":"t"}`, snapshot.BadRequest, `"threadId"`},
		{save, `{"threadId":"t","runId":"r","\u0074hreadId":"t"}`, snapshot.BadRequest, `"threadId"`},
		{save, `{"threadId":"t","runId":"r","labl":"x"}`, snapshot.BadRequest, `"labl"; known here are`},
		{save, `{"threadid":"t","runId":"r"}`, snapshot.BadRequest, `did you mean "threadId"`},
		{save, `{"threadId":"","runId":5,"Label":"x"}`, snapshot.BadRequest, `did you mean "label"`},
		{save, `{"threadId":"t","runId":"r","tenant":{"userID":"u"}}`, snapshot.BadRequest, `did you mean "tenant.userId"`},
		{save, `{"threadId":"t","runId":"r","tenant":{"userId":"u","userId":"u"}}`, snapshot.BadRequest, `"tenant.userId"`},
		{save, `{"threadId":"t","runId":"r","\ud800":"u"}`, snapshot.BadRequest, `unknown member`},
		{save, `{"threadId":{"a":1,"a":2},"runId":"r"}`, snapshot.BadRequest, "twice"},
		{save, `{"threadId":"t","runId":"r","":1}`, snapshot.BadRequest, `unknown member ""`},
		{save, `{"threadId":"t","runId":"r","label":` + strings.Repeat("[", 10001) + strings.Repeat("]", 10001) + `}`, snapshot.BadRequest, "not one JSON value"},
		{upsert, `{"record":{` + record + `,"env":{}}}`, snapshot.BadRequest, `"record.env"`},
		// identifiers, before other fields
		{save, `{"label":5}`, snapshot.InvalidID, "threadId is missing"},
		{save, `{"threadId":"t","label":5}`, snapshot.InvalidID, "runId is missing"},
		{save, `{"threadId":null,"runId":"r"}`, snapshot.InvalidID, "threadId is null"},
		{save, `{"threadId":5,"runId":"r"}`, snapshot.InvalidID, "threadId is a number"},
		{save, `{"threadId":["t"],"runId":"r"}`, snapshot.InvalidID, "threadId is an array"},
		{save, `{"threadId":"","runId":"r"}`, snapshot.InvalidID, "threadId is empty"},
		{save, `{"threadId":"` + long + `","runId":"r"}`, snapshot.InvalidID, "threadId has 501 bytes"},
		{save, `{"threadId":"\ud800","runId":"r"}`, snapshot.InvalidID, "threadId has an unpaired surrogate"},
		{save, `{"threadId":"\udc00\ud800","runId":"r"}`, snapshot.InvalidID, "threadId has an unpaired surrogate"},
		{save, `{"threadId":"t","runId":"r","checkpointId":""}`, snapshot.InvalidID, "checkpointId is empty"},
		{save, `{"threadId":"t","runId":"r","instanceKey":7,"waitMs":"x"}`, snapshot.InvalidID, "instanceKey is a number"},
		{fork, `{"threadId":"t"}`, snapshot.InvalidID, "destinationThreadId is missing"},
		{fork, `{"threadId":"t","destinationThreadId":"d","destinationCheckpointId":true}`, snapshot.InvalidID, "destinationCheckpointId is true or false"},
		{upsert, `{"record":{"key":"","provider":5}}`, snapshot.InvalidID, "record.key is empty"},
		{upsert, `{"record":{` + strings.Replace(record, `"threadId":"t"`, `"threadId":"\ud800"`, 1) + `},"expectedRevision":"x"}`, snapshot.InvalidID, "record.threadId"},
		{"instance.get", `{}`, snapshot.InvalidID, "key is missing"},
		{"instance.list", `{"threadId":""}`, snapshot.InvalidID, "threadId is empty"},
		// other fields
		{save, `{"threadId":"t","runId":"r","label":5}`, snapshot.BadRequest, "label is a number; it must be a string"},
		{save, `{"threadId":"t","runId":"r","label":"\ud800x"}`, snapshot.BadRequest, "label has an unpaired surrogate"},
		{save, `{"threadId":"t","runId":"r","tenant":"x"}`, snapshot.BadRequest, "tenant is a string; it must be an object"},
		{save, `{"threadId":"t","runId":"r","tenant":{"userId":1}}`, snapshot.BadRequest, "tenant.userId is a number"},
		{save, `{"threadId":"t","runId":"r","waitMs":1.5}`, snapshot.BadRequest, "waitMs is 1.5, which is not whole"},
		{save, `{"threadId":"t","runId":"r","waitMs":-1}`, snapshot.BadRequest, "waitMs is -1, which is negative"},
		{save, `{"threadId":"t","runId":"r","waitMs":9007199254740992}`, snapshot.BadRequest, "waitMs"},
		{save, `{"threadId":"t","runId":"r","waitMs":1e999999999999}`, snapshot.BadRequest, "out of range"},
		{save, `{"threadId":"t","runId":"r","waitMs":1e-1}`, snapshot.BadRequest, "not whole"},
		{save, `{"threadId":"t","runId":"r","waitMs":"5"}`, snapshot.BadRequest, "waitMs is a string"},
		{save, `{"threadId":"t","runId":"r","timeoutMs":0}`, snapshot.BadRequest, "timeoutMs is 0"},
		{save, `{"threadId":"t","runId":"r","timeoutMs":3600001}`, snapshot.BadRequest, "1 to 3600000"},
		{save, `{"threadId":"t","runId":"r","include":["file"]}`, snapshot.BadRequest, `include has "file"`},
		{save, `{"threadId":"t","runId":"r","include":"files"}`, snapshot.BadRequest, "include is a string"},
		{save, `{"threadId":"t","runId":"r","include":["\ud800"]}`, snapshot.BadRequest, `include has`},
		{fork, `{"threadId":"t","destinationThreadId":"d","createdAt":1e999}`, snapshot.BadRequest, "createdAt is 1e999; it must be a finite number"},
		{upsert, `{}`, snapshot.BadRequest, "record is missing"},
		{upsert, `{"record":null}`, snapshot.BadRequest, "record is null"},
		{upsert, `{"record":{"key":"k","threadId":"t","provider":"p","providerSandboxId":"x"}}`, snapshot.BadRequest, "record.updatedAt is missing"},
		{"restore", `{"threadId":"t"}`, snapshot.BadRequest, "path is missing"},
		{"thread.save", `{"threadId":"t"}`, snapshot.BadRequest, "messages is missing"},
		{"thread.save", `{"threadId":"t","messages":{}}`, snapshot.BadRequest, "messages is an object"},
		{"thread.save", `{"threadId":"t","messages":null}`, snapshot.BadRequest, "messages is null"},
		{"thread.save", "{\"threadId\":\"t\",\"messages\":[\"\xff\"]}", snapshot.BadRequest, "UTF-8"},
		{put, `{"threadId":"t","runId":"r","artifactId":"a","name":"n","mimeType":"m"}`, snapshot.BadRequest, "either as data or as object"},
		{put, `{"threadId":"t","runId":"r","artifactId":"a","name":"n","mimeType":"m","data":"","object":"b/x"}`, snapshot.BadRequest, "either as data or as object"},
		{put, `{"threadId":"t","runId":"r","artifactId":"a","name":"n","mimeType":"m","data":"YQ"}`, snapshot.BadRequest, "data is not base64"},
		{put, `{"threadId":"t","runId":"r","artifactId":"a","name":"n","mimeType":"m","data":"YR=="}`, snapshot.BadRequest, "data is not base64"},
		{put, `{"threadId":"t","runId":"r","artifactId":"a","name":"n","mimeType":"m","data":"YWJ\nj"}`, snapshot.BadRequest, "line break"},
		{put, `{"threadId":"t","runId":"r","artifactId":"a","name":"n","mimeType":"m","data":"__8="}`, snapshot.BadRequest, "data is not base64"},
		{save, `{"$object":"sandbox-uploads/x","threadId":"t"}`, snapshot.BadRequest, "alone"},
		{save, `{"$object":5}`, snapshot.BadRequest, "$object is a number"},
		{save, `{"$object":""}`, snapshot.BadRequest, "$object is empty"},
		{save, `{"$object":null}`, snapshot.InvalidID, "threadId is missing"},
	} {
		name := c.payload
		if len(name) > 80 {
			name = name[:80]
		}
		t.Run(c.subject+" "+name, func(t *testing.T) {
			_, err := w.ask(t, c.subject, c.payload)
			e := asError(t, err)
			if e.Code != c.code || !strings.Contains(e.Message, c.says) {
				t.Errorf("got %s: %s\nwant %s: …%s…", e.Code, e.Message, c.code, c.says)
			}
		})
	}
}

func TestRequest_Taken(t *testing.T) {
	var got snapshot.SaveRequest
	w := newWorld(t, &service{save: func(_ context.Context, r snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error) {
		got = r
		return &snapshot.Checkpoint{}, nil, nil
	}})
	plain := snapshot.SaveRequest{ThreadID: "t", RunID: "r"}
	with := func(change func(*snapshot.SaveRequest)) snapshot.SaveRequest {
		r := plain
		change(&r)
		return r
	}
	wait := func(n int64) snapshot.SaveRequest {
		return with(func(r *snapshot.SaveRequest) { r.WaitMs = n })
	}
	odd := strings.Repeat("é", 250)
	for payload, want := range map[string]snapshot.SaveRequest{
		`{"threadId":"t","runId":"r"}`:                           plain,
		"\n{ \"threadId\":\"t\",\"runId\":\"r\" }\t":             plain,
		`{"thre\u0061dId":"t","runId":"r"}`:                      plain,
		`{"threadId":"t","runId":"r","label":null}`:              plain,
		`{"threadId":"t","runId":"r","tenant":null}`:             plain,
		`{"threadId":"t","runId":"r","checkpointId":null}`:       plain,
		`{"threadId":"t","runId":"r","waitMs":null}`:             plain,
		`{"threadId":"t","runId":"r","waitMs":-0}`:               plain,
		`{"threadId":"t","runId":"r","waitMs":0e9999999999}`:     plain,
		`{"threadId":"t","runId":"r","waitMs":5.0}`:              wait(5),
		`{"threadId":"t","runId":"r","waitMs":1e3}`:              wait(1000),
		`{"threadId":"t","runId":"r","waitMs":1.5E+1}`:           wait(15),
		`{"threadId":"t","runId":"r","waitMs":50e-1}`:            wait(5),
		`{"threadId":"t","runId":"r","waitMs":120}`:              wait(120),
		`{"threadId":"t","runId":"r","waitMs":0.09e2}`:           wait(9),
		`{"threadId":"t","runId":"r","timeoutMs":5000}`:          plain,
		`{"threadId":"t","runId":"r","$object":null}`:            plain,
		`{"threadId":"` + odd + `","runId":" .*>/\ud83d\ude00"}`: with(func(r *snapshot.SaveRequest) { r.ThreadID, r.RunID = snapshot.ThreadID(odd), " .*>/😀" }),
		`{"threadId":"t","runId":"r","tenant":{"orgId":"o"}}`:    with(func(r *snapshot.SaveRequest) { r.Tenant.OrgID = "o" }),
		`{"threadId":"t","runId":"r","include":["files"]}`:       with(func(r *snapshot.SaveRequest) { r.Include = snapshot.Include{"files"} }),
		`{"threadId":"t","runId":"r","waitMs":9007199254740991}`: wait(1<<53 - 1),
	} {
		got = snapshot.SaveRequest{}
		if _, err := w.ask(t, "snapshot.save", payload); err != nil {
			t.Errorf("%s: %v", payload, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", payload, diff)
		}
	}
}

func TestRequest_ExpectedRevision(t *testing.T) {
	var got *int64
	w := newWorld(t, &service{upsert: func(_ context.Context, _ snapshot.Instance, n *int64) (uint64, error) {
		got = n
		return 7, nil
	}})
	if reply := w.mustAsk(t, "instance.upsert", `{"record":{`+record+`},"expectedRevision":0}`); reply != `{"revision":7}` || got == nil || *got != 0 {
		t.Errorf("reply %s, expected revision %v", reply, got)
	}
	if w.mustAsk(t, "instance.upsert", `{"record":{`+record+`},"expectedRevision":null}`); got != nil {
		t.Errorf("null is not absent: %v", *got)
	}
}

// Messages go in and out byte for byte, whatever JSON text they are.
func TestMessages_ByteForByte(t *testing.T) {
	var kept snapshot.Messages
	w := newWorld(t, &service{
		saveThread: func(_ context.Context, r snapshot.SaveThreadRequest) (int64, error) { kept = r.Messages; return 3, nil },
		load: func(_ context.Context, r snapshot.ThreadRequest) (*snapshot.LoadThreadReply, error) {
			return &snapshot.LoadThreadReply{ThreadID: r.ThreadID, Messages: kept, Revision: 3}, nil
		},
	})
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	messages := []string{`{"b":1, "a" : 2,"b":3}`, `"\ud800"`, `{"\udfff":"\ud800\ud800"}`, `1.0`, `-0`, `1e400`, `"<&>\u2028"`, `null`, `""`, `"$object"`, `{"$object":"x"}`, deep}
	reply := w.mustAsk(t, "thread.save", `{"threadId":"t","messages":[ `+strings.Join(messages, " ,\n")+` ]}`)
	if reply != `{"revision":3}` {
		t.Errorf("reply %s", reply)
	}
	got := w.mustAsk(t, "thread.load", `{"threadId":"t"}`)
	if want := `{"threadId":"t","messages":[` + strings.Join(messages, ",") + `],"revision":3}`; got != want {
		t.Errorf("got  %.300s\nwant %.300s", got, want)
	}
	w.mustAsk(t, "thread.save", `{"threadId":"t","messages":[]}`)
	if got := w.mustAsk(t, "thread.load", `{"threadId":"t"}`); got != `{"threadId":"t","messages":[],"revision":3}` {
		t.Errorf("got %s", got)
	}
}

func TestArtifactPut_Bytes(t *testing.T) {
	var got []string
	w := newWorld(t, &service{put: func(_ context.Context, r snapshot.PutArtifactRequest) (*snapshot.Artifact, error) {
		for range 2 { // it can be read again
			body, err := r.Open()
			if err != nil {
				return nil, err
			}
			b, err := io.ReadAll(body)
			got = append(got, string(b))
			if err := body.Close(); err != nil {
				return nil, err
			}
			if err != nil {
				return nil, err
			}
		}
		return &snapshot.Artifact{ID: r.ArtifactID}, nil
	}})
	w.buckets(t)
	store, err := w.js.ObjectStore(t.Context(), "sandbox-uploads")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.PutString(t.Context(), "up", "large"); err != nil {
		t.Fatal(err)
	}
	const rest = `"threadId":"t","runId":"r","artifactId":"a","name":"n","mimeType":"m"`
	w.mustAsk(t, "artifact.put", `{`+rest+`,"data":""}`)
	w.mustAsk(t, "artifact.put", `{`+rest+`,"data":"YWI=","object":null}`)
	w.mustAsk(t, "artifact.put", `{`+rest+`,"object":"sandbox-uploads/up"}`)
	if want := []string{"", "", "ab", "ab", "large", "large"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := w.ask(t, "artifact.put", `{`+rest+`,"object":"sandbox-uploads/none"}`); asError(t, err).Code != snapshot.MissingBlob {
		t.Errorf("missing upload: %v", err)
	}
}

// A conversation has a bound that is not its size: each message takes memory.
func TestMessages_Most(t *testing.T) {
	taken := 0
	w := newWorld(t, &service{saveThread: func(_ context.Context, r snapshot.SaveThreadRequest) (int64, error) {
		taken = len(r.Messages)
		return 1, nil
	}})
	w.buckets(t)
	most := `[0` + strings.Repeat(`,0`, snapshot.MaxMessages-1)
	w.mustAsk(t, "thread.save", `{"threadId":"t","messages":`+most+`]}`)
	if taken != snapshot.MaxMessages {
		t.Errorf("%d messages came", taken)
	}
	_, err := w.ask(t, "thread.save", `{"threadId":"t","messages":`+most+`,0]}`)
	if e := asError(t, err); e.Code != snapshot.PayloadTooLarge || !strings.Contains(e.Message, "more than 1000000 messages") {
		t.Error(err)
	}
}
