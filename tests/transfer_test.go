package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// claim is a reply that is too large for a message.
type claim struct {
	Object string `json:"$object"`
}

func TestClaimChecks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	long := strings.Repeat("a long message ", 200_000)
	body := encode(t, object{"threadId": "t", "messages": []string{long}})
	if int64(len(body)) <= s.nc.MaxPayload() {
		t.Fatalf("%d bytes fit into a message", len(body))
	}
	got := ok[revision](s.client, "thread.save", object{"$object": s.upload("requests/1", body)})
	if got.Revision != 1 {
		t.Errorf("revision %d", got.Revision)
	}
	reply := ok[claim](s.client, "thread.load", object{"threadId": "t"})
	if !strings.HasPrefix(reply.Object, "sandbox-replies/") {
		t.Fatalf("the reply is %+v", reply)
	}
	var loaded thread
	decodeStrict(t, s.fetch(reply.Object), &loaded)
	var text string
	if err := json.Unmarshal(loaded.Messages[0], &text); err != nil || text != long {
		t.Errorf("the message came back with %d bytes: %v", len(text), err)
	}
}

func TestFaultsOfClaimChecks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for what, row := range map[string]struct {
		body object
		code string
	}{
		"not alone":   {object{"$object": s.upload("a", []byte(`{"threadId":"t"}`)), "threadId": "t"}, badRequest},
		"nested":      {object{"$object": s.upload("b", []byte(`{"$object":"sandbox-uploads/a"}`))}, badRequest},
		"bad request": {object{"$object": s.upload("c", []byte(`{"threadId":"t","x":1}`))}, badRequest},
		"bad id":      {object{"$object": s.upload("d", []byte(`{"threadId":""}`))}, invalidID},
		"not JSON":    {object{"$object": s.upload("e", []byte(`{`))}, badRequest},
		"no name":     {object{"$object": "sandbox-uploads"}, badRequest},
		"not text":    {object{"$object": 7}, badRequest},
		"too large":   {object{"$object": s.upload("f", bytes.Repeat([]byte(" "), 64<<20+1))}, "SANDBOX_PAYLOAD_TOO_LARGE"},
	} {
		t.Run(what, func(t *testing.T) {
			c := s.client
			c.t = t
			refused(c, "thread.load", row.body, row.code)
		})
	}
	for _, name := range []string{"sandbox-uploads/absent", "no-such-bucket/x", "../x", "sandbox-state/thread"} {
		for _, subject := range []string{"thread.load", "artifact.put"} {
			body := object{"$object": name}
			if subject == "artifact.put" {
				body = artifactBody(object{"data": nil, "object": name})
			}
			_, f := s.try(subject, body)
			if f == nil || numbers[f.Code] >= 500 {
				t.Errorf("%s with %s: %+v", subject, name, f)
			}
		}
	}
}

func TestLargeArtifacts(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "box")).file("file", []byte("x"), 0o644)
	s.attach("t", "box")
	large := bytes.Repeat(allBytes(), 20_000)
	put := ok[artifact](s.client, "artifact.put", artifactBody(object{"threadId": "t", "artifactId": "large", "data": nil, "object": s.upload("large", large)}))
	if put.Size != int64(len(large)) || !strings.HasPrefix(put.BlobKey, "sandbox-artifacts/sha256/") {
		t.Errorf("the artifact is %+v", put)
	}
	s.putArtifact("t", "small", "few bytes")
	s.putArtifact("t", "none", "")
	cp := ok[checkpoint](s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "checkpointId": "c"})
	if len(cp.Artifacts) != 3 {
		t.Errorf("artifacts %+v", cp.Artifacts)
	}
	read := func(id string, more object) artifactData {
		t.Helper()
		got := ok[artifactData](s.client, "artifact.read", changed(object{"threadId": "t", "checkpointId": "c", "artifactId": id}, more))
		if want := map[string][]byte{"large": large, "small": []byte("few bytes"), "none": nil}[id]; !bytes.Equal(s.fetch(got.Object), want) {
			t.Errorf("the object of %s has other bytes", id)
		}
		return got
	}
	if got := read("large", nil); got.Data != nil {
		t.Errorf("%d bytes came inline", len(*got.Data))
	}
	if got := read("small", nil); got.Data == nil || string(*got.Data) != "few bytes" {
		t.Errorf("small came as %+v", got)
	}
	if got := read("small", object{"maxInlineBytes": 8}); got.Data != nil {
		t.Errorf("9 bytes came inline, 8 were allowed")
	}
	if got := read("none", object{"maxInlineBytes": 0}); got.Data == nil || len(*got.Data) != 0 {
		t.Errorf("an empty artifact came as %+v", got)
	}
}

// pages reads a list to its end.
func pages[P any, T any](c client, subject string, body object, rows func(P) ([]T, string)) (all []T, n int) {
	c.t.Helper()
	for after := ""; ; {
		req := changed(object{"after": after}, body)
		if after == "" {
			delete(req, "after")
		}
		got, next := rows(ok[P](c, subject, req))
		if limit, given := body["limit"].(int); given && len(got) > limit || len(got) > 1000 {
			c.t.Errorf("%s: a page has %d rows", subject, len(got))
		}
		all, n = append(all, got...), n+1
		if after = next; after == "" {
			return all, n
		}
	}
}

func artifactRows(p artifactPage) ([]artifact, string)       { return p.Artifacts, p.Next }
func instanceRows(p instancePage) ([]instance, string)       { return p.Records, p.Next }
func checkpointRows(p checkpointPage) ([]checkpoint, string) { return p.Checkpoints, p.Next }

// Equal times sort by the bytes of the identifiers, which is not the order of
// UTF-16.
func TestListsAreInOrderAndPaged(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ids := []string{"B", "a", "z", "\u00e9", "\uff5e", "\U0001f9ea", "z\x00", "Z"}
	for _, id := range ids {
		ok[artifact](s.client, "artifact.put", artifactBody(object{"threadId": "t", "artifactId": id, "createdAt": 1.5}))
	}
	ok[artifact](s.client, "artifact.put", artifactBody(object{"threadId": "t", "artifactId": "first", "createdAt": 0}))
	slices.Sort(ids)
	for _, limit := range []int{1, 2, 1000} {
		all, _ := pages(s.client, "artifact.list", object{"threadId": "t", "limit": limit}, artifactRows)
		var got []string
		for _, a := range all {
			got = append(got, a.ID)
		}
		if diff := cmp.Diff(append([]string{"first"}, ids...), got); diff != "" {
			t.Errorf("by %d (-want +got):\n%s", limit, diff)
		}
	}
}

func TestNoListExceedsAMessage(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "box")).file("file", []byte("x"), 0o644)
	s.attach("t", "box")
	long := strings.Repeat("\u0001", 3500) // six bytes each on the wire
	for i := range 120 {
		ok[artifact](s.client, "artifact.put", artifactBody(object{"threadId": "t", "artifactId": fmt.Sprint(i), "name": long}))
	}
	all, n := pages(s.client, "artifact.list", object{"threadId": "t", "limit": 1000}, artifactRows)
	if len(all) != 120 || n < 3 {
		t.Errorf("%d artifacts in %d pages", len(all), n)
	}
	for i := range 3 {
		ok[checkpoint](s.client, "snapshot.save", object{"threadId": "few", "runId": "r", "instanceKey": s.attach("few", "box").Key, "label": fmt.Sprint(i, long)})
	}
	if cps, _ := pages(s.client, "checkpoint.list", object{"threadId": "few"}, checkpointRows); len(cps) != 3 {
		t.Errorf("%d checkpoints", len(cps))
	}
	odd := strings.Repeat("\u0001", 500)
	for i := range 300 {
		ok[revision](s.client, "instance.upsert", object{"record": object{"key": fmt.Sprint(i, odd)[:500], "provider": odd, "providerSandboxId": odd,
			"threadId": "many", "latestRunId": odd, "latestSnapshotId": odd, "updatedAt": i}})
	}
	recs, n := pages(s.client, "instance.list", object{"threadId": "many", "limit": 1000}, instanceRows)
	if len(recs) != 300 || n < 5 {
		t.Errorf("%d records in %d pages", len(recs), n)
	}
	for i, rec := range recs {
		if int(rec.UpdatedAt) != i {
			t.Fatalf("record %d is that of %v: not in order of revision", i, rec.UpdatedAt)
		}
	}
}

// A page may have a tree that is larger than a message: then it is claimed.
func TestManyFilesInOneReply(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "box"))
	for i := range 700 {
		b.file(fmt.Sprintf("%03d/%s", i, strings.Repeat("\u0001", 250)), nil, 0o644)
	}
	s.attach("t", "box")
	reply := ok[claim](s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "include": []string{"files"}})
	var cp checkpoint
	decodeStrict(t, s.fetch(reply.Object), &cp)
	if cp.Files == nil || len(*cp.Files) != 700 {
		t.Errorf("the reply has %+v", cp.Stats)
	}
	all, n := pages(s.client, "checkpoint.files", object{"checkpointId": cp.ID, "limit": 1000}, func(p entryPage) ([]entry, string) { return p.Entries, p.Next })
	if len(all) != 700 || n < 2 {
		t.Errorf("%d entries in %d pages", len(all), n)
	}
}
