package tests

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
)

// corpus has valid requests of every subject, about things that no witness is.
var corpus = map[string][]string{
	"snapshot.save": {`{"threadId":"a","runId":"r","label":"l","sandbox":"default","tenant":{"userId":"u","orgId":"o"},"adapterName":"x","checkpointId":"ca","waitMs":5,"include":["files","conversation"],"timeoutMs":5000}`,
		`{"threadId":"a","runId":"r","instanceKey":"ka"}`},
	"fork":            {`{"threadId":"a","checkpointId":"a-1","destinationThreadId":"fa","destinationCheckpointId":"cfa","createdAt":1.5,"waitMs":5,"include":["files"]}`},
	"restore":         {`{"threadId":"a","checkpointId":"a-1","path":"x/y","into":"restore","node":"n1"}`, `{"threadId":"a","path":"z","into":"sandbox"}`},
	"file.read":       {`{"checkpointId":"a-1","path":"file","offset":1,"length":2}`},
	"artifact.read":   {`{"threadId":"a","checkpointId":"a-1","artifactId":"art","maxInlineBytes":3}`},
	"artifact.put":    {`{"threadId":"a","runId":"r","artifactId":"art","name":"n","mimeType":"m","data":"AAAA","createdAt":1}`, `{"threadId":"a","runId":"r","artifactId":"b","name":"n","mimeType":"m","object":"sandbox-uploads/x"}`},
	"artifact.list":   {`{"threadId":"a","after":"YQ","limit":1}`},
	"artifact.delete": {`{"threadId":"a","artifactId":"art"}`},
	"thread.load":     {`{"threadId":"a"}`},
	"thread.save":     {`{"threadId":"a","messages":[{"a":[1,2,"\ud800"]},null],"expectedRevision":1}`, `{"$object":"sandbox-uploads/x"}`},
	"thread.delete":   {`{"threadId":"da"}`},
	"checkpoint.get":  {`{"checkpointId":"a-1","include":["files","conversation"]}`},
	"checkpoint.list": {`{"threadId":"a","include":["files"],"limit":2}`},
	"checkpoint.head": {`{"threadId":"a"}`}, "checkpoint.files": {`{"checkpointId":"a-1","prefix":"dir","limit":1,"after":"Zg"}`},
	"checkpoint.append":      {`{"checkpoint":{"id":"pa","threadId":"a","parentCheckpointId":null,"createdAt":1,"reason":"named","label":"l","sourceRunId":"r","files":[{"path":"f","kind":"file","blobKey":"` + emptyKey + `","size":0,"mode":420,"mtime":1.25},{"path":"l","kind":"symlink","target":"f"}],"conversation":[1],"artifacts":[]},"expectedHeadId":null,"writer":{"threadId":"a","ownerToken":"t","fence":1},"requireBlobs":false}`},
	"checkpoint.delete-head": {`{"threadId":"a","checkpointId":"a-1","writer":{"threadId":"a","ownerToken":"t","fence":1}}`},
	"checkpoint.fork":        {`{"sourceThreadId":"a","sourceCheckpointId":"a-1","destinationThreadId":"ga","destinationCheckpointId":"cga","createdAt":1,"writer":{"threadId":"ga","ownerToken":"t","fence":1}}`},
	"checkpoint.diff":        {`{"from":"a-1","to":"a-1","limit":3,"after":"Zg"}`},
	"blob.put":               {`{"kind":"file","data":"AAAA"}`, `{"kind":"artifact","object":"sandbox-uploads/x"}`},
	"blob.head":              {`{"keys":["` + emptyKey + `"]}`}, "blob.get": {`{"key":"` + emptyKey + `","checkpointId":"a-1","maxInlineBytes":0}`},
	"blob.references": {`{"threadId":"a","limit":5}`, `{}`},
	"writer.acquire":  {`{"threadId":"wa","leaseDurationMs":3000,"waitMs":1}`}, "writer.renew": {`{"threadId":"wa","ownerToken":"t","fence":1}`}, "writer.release": {`{"threadId":"wa","ownerToken":"t","fence":1}`},
	"lock.acquire": {`{"name":"la","leaseDurationMs":3000,"waitMs":1}`}, "lock.renew": {`{"name":"la","ownerToken":"t","fence":1}`}, "lock.release": {`{"name":"la","ownerToken":"t","fence":1}`},
	"instance.get": {`{"key":"ka"}`}, "instance.delete": {`{"key":"ka","expectedRevision":1}`}, "instance.list": {`{"threadId":"a","limit":1}`},
	"instance.upsert": {`{"record":{"key":"ka","provider":"local","providerSandboxId":"n1/a","latestSnapshotId":"a-1","threadId":"a","latestRunId":"r","updatedAt":1},"expectedRevision":0}`},
	"instance.attach": {`{"threadId":"a","name":"a","node":"n1","sandbox":"default","tenant":{"userId":"u"},"runId":"r"}`},
	"node.n1.restore": {`{"threadId":"a","path":"q"}`},
}

const emptyKey = "sandbox-files/sha256/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// tokens are put where a mutation wants something odd.
var tokens = []string{`null`, `true`, `-1`, `0`, `1e400`, `1.5`, `9007199254740993`, `99999999999999999999`, `""`, `"\ud800"`, `"\u0000"`, `[]`, `{}`, `[[[[]]]]`,
	`{"$object":"sandbox-uploads/x"}`, `"../../etc"`, `"a/b"`, `"*"`, `">"`, `"$KV.sandbox-state.>"`, `"sandbox-packs/x"`, "\"\xff\"", `"Zg"`, strings.Repeat("[", 2000), `"` + strings.Repeat("é", 300) + `"`}

// mutator makes requests from the corpus.
type mutator struct {
	rand     *rand.Rand
	subjects []string
}

func newMutator(seed uint64) *mutator {
	m := &mutator{rand: rand.New(rand.NewPCG(seed, 7))}
	for subject := range corpus {
		m.subjects = append(m.subjects, subject)
	}
	slices.Sort(m.subjects)
	return m
}

func pick[T any](m *mutator, from []T) T { return from[m.rand.IntN(len(from))] }

// next is a request; the body never names the witness.
func (m *mutator) next() (subject string, body []byte) {
	for {
		subject = pick(m, m.subjects)
		body = []byte(pick(m, corpus[subject]))
		if m.rand.IntN(20) == 0 { // that of another subject
			body = []byte(pick(m, corpus[pick(m, m.subjects)]))
		}
		for range m.rand.IntN(4) {
			body = m.mutate(body)
		}
		if !bytes.Contains(body, []byte("witness")) { // chance would not spell it with escapes either
			return subject, body
		}
	}
}

func (m *mutator) mutate(body []byte) []byte {
	at := m.rand.IntN(len(body) + 1)
	end := min(len(body), at+1+m.rand.IntN(8))
	switch m.rand.IntN(9) {
	case 0: // a byte
		if at < len(body) {
			body[at] ^= byte(1 + m.rand.IntN(255))
		}
		return body
	case 1:
		return slices.Insert(body, at, byte(m.rand.IntN(256)))
	case 2:
		return slices.Delete(body, at, end)
	case 3: // twice
		return slices.Insert(body, at, slices.Clone(body[at:end])...)
	case 4:
		return body[:at]
	case 5: // garbage
		out := make([]byte, m.rand.IntN(200))
		for i := range out {
			out[i] = byte(m.rand.Uint32())
		}
		return out
	}
	return m.member(body)
}

// member changes a value, name or member as a whole.
func (m *mutator) member(body []byte) []byte {
	parts := bytes.SplitAfter(body, []byte(","))
	i := m.rand.IntN(len(parts))
	name, _, found := bytes.Cut(parts[i], []byte(":"))
	switch n := m.rand.IntN(5); {
	case n == 0:
		parts = slices.Delete(parts, i, i+1)
	case n == 1:
		parts = slices.Insert(parts, i, slices.Clone(parts[i]))
	case n == 2 && found:
		parts[i] = append(bytes.ToUpper(name), parts[i][len(name):]...)
	case found:
		tail := parts[i][len(parts[i])-1:]
		parts[i] = fmt.Appendf(nil, "%s:%s%s", name, pick(m, tokens), tail)
	}
	return bytes.Join(parts, nil)
}

// Whatever is sent, each request gets a good reply or an error of the table,
// the worker lives, and what the request does not name stays as it is.
func TestRandomRequests(t *testing.T) {
	t.Parallel()
	total, seed := 3000, uint64(1)
	if *long {
		total = 100_000
	}
	s := startServer(t)
	key := s.witness()
	before, leases := s.witnessState(key)
	m := newMutator(seed)
	codes := map[string]int{}
	for done := 0; done < total; {
		n := min(500, total-done)
		s.barrage(m, n, codes)
		done += n
		if s.proc.ended() {
			t.Fatalf("the worker ended after %d requests", done)
		}
		after, still := s.witnessState(key)
		if diff := cmp.Diff(before, after); diff != "" || leases != still {
			t.Fatalf("after %d requests the witness has changed (-before +after):\n%s\n%s\n%s", done, diff, leases, still)
		}
	}
	t.Logf("%d requests, seed %d: %v", total, seed, codes)
	if codes["SANDBOX_INTERNAL"] > 0 || strings.Contains(s.proc.stderr.String(), "panicked") {
		t.Errorf("faults of the worker's own: %s", lastLines(s.proc.stderr.String(), 20))
	}
	s.save("witness", "after")
}

// barrage sends requests from several connections at once and counts the codes.
func (s *server) barrage(m *mutator, n int, codes map[string]int) {
	s.t.Helper()
	type request struct {
		subject string
		body    []byte
	}
	requests := make(chan request, n)
	for range n {
		subject, body := m.next()
		requests <- request{subject, body}
	}
	close(requests)
	var mu sync.Mutex
	var senders sync.WaitGroup
	for range 8 {
		senders.Go(func() {
			for r := range requests {
				msg, err := s.nc.Request(s.prefix+"."+r.subject, r.body, patience)
				mu.Lock()
				s.judge(r.subject, r.body, msg, err, codes)
				mu.Unlock()
			}
		})
	}
	senders.Wait()
}

func (s *server) judge(subject string, body []byte, msg *nats.Msg, err error, codes map[string]int) {
	code := "good"
	switch {
	case err != nil:
		s.t.Errorf("%s %q: %v", subject, body, err)
		return
	case msg.Header.Get("Nats-Service-Error-Code") != "":
		f := decodeFailure(s.t, msg)
		if code = f.Code; numbers[f.Code] == 0 || code == "SANDBOX_INTERNAL" || code == "SANDBOX_TIMEOUT" && !bytes.Contains(body, []byte("timeoutMs")) {
			s.t.Errorf("%s %q: %+v", subject, body, f)
		}
	case len(msg.Data) == 0 || msg.Data[0] != '{':
		s.t.Errorf("%s %q: answered %.200q", subject, body, msg.Data)
	}
	codes[code]++
}

// witness makes what no request names.
func (s *server) witness() (key string) {
	s.t.Helper()
	for _, th := range []string{"a", "witness"} {
		build(s.t, s.sandbox(s.t, th)).file("file", []byte("of "+th), 0o644)
		key = s.attach(th, th).Key
		s.putArtifact(th, "art", "bytes of "+th)
		ok[revision](s.client, "thread.save", object{"threadId": th, "messages": []string{th}})
		ok[checkpoint](s.client, "snapshot.save", object{"threadId": th, "runId": "r1", "checkpointId": th + "-1"})
	}
	ok[held](s.client, "lock.acquire", object{"name": "witness", "leaseDurationMs": 600_000})
	ok[held](s.client, "writer.acquire", object{"threadId": "witness held", "leaseDurationMs": 600_000})
	return key
}

// witnessState is all that a client can see of the witness.
func (s *server) witnessState(key string) (state map[string]string, leases string) {
	s.t.Helper()
	state = map[string]string{}
	for what, value := range s.state("witness") {
		if strings.HasSuffix(what, " witness") {
			state[what] = value
		}
	}
	state["instance"] = string(s.send("instance.get", object{"key": key}).Data)
	state["artifact"] = string(s.send("artifact.read", object{"threadId": "witness", "checkpointId": "witness-1", "artifactId": "art"}).Data)
	state["file"] = s.content("witness-1", "file")
	for path, it := range readTree(s.t, filepath.Join(s.sandboxes, "witness")) {
		state["sandbox "+path] = it.Kind + it.Bytes
	}
	return state, string(s.record("lock.witness")) + string(s.record("writer.witness=20held"))
}

// held is the reply to an acquire.
type held struct {
	Writer
	Name         string  `json:"name,omitempty"`
	ExpiresAt    float64 `json:"expiresAt"`
	RenewAfterMs int64   `json:"renewAfterMs"`
}

// Writer is what a holder shows.
type Writer struct {
	ThreadID   string `json:"threadId,omitempty"`
	OwnerToken string `json:"ownerToken"`
	Fence      int64  `json:"fence"`
}
