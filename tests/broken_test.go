package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

const unavailable = "SANDBOX_STORE_UNAVAILABLE"

// Without one of its buckets a store says so, in what needs that bucket; no
// worker starts on it, and none makes it anew.
func TestMissingBuckets(t *testing.T) {
	t.Parallel()
	for stream, rows := range map[string][]errorRow{
		"KV_sandbox-state": {{"checkpoint.head", object{"threadId": "t"}, ""}, {"snapshot.save", object{"threadId": "t", "runId": "r2"}, ""},
			{"thread.delete", object{"threadId": "t"}, ""}, {"instance.list", object{}, ""}},
		"OBJ_sandbox-packs": {{"snapshot.save", object{"threadId": "t", "runId": "r2"}, ""}, {"restore", object{"threadId": "t", "path": "out"}, ""},
			{"thread.save", object{"threadId": "t", "messages": []string{strings.Repeat("long", 100_000)}}, ""}},
		"OBJ_sandbox-artifacts": {{"artifact.put", artifactBody(nil), ""}, {"artifact.read", object{"threadId": "t", "checkpointId": "t-1", "artifactId": "art"}, ""}},
		"OBJ_sandbox-files":     {{"blob.put", object{"kind": "file", "data": "AAAA"}, ""}, {"blob.head", object{"keys": []string{fileKey("00")}}, ""}},
		"OBJ_sandbox-uploads":   {{"thread.save", object{"$object": "sandbox-uploads/x"}, ""}},
	} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, "--no-agent")
			w := s.worker(s.node)
			s.fullThread()
			w.stop()
			s.worker(s.node) // what it has read so far must not help
			if err := s.js().DeleteStream(s.ctx(), stream); err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				if f := refused(s.client, row.subject, row.body, unavailable); !f.Retryable {
					t.Errorf("%s: %+v", row.subject, f)
				}
			}
			args := append([]string{"serve", "--server", s.url}, s.node.flags(t.TempDir())...)
			if code, _, stderr := run(t, agentProgram, args...); code != 6 || !strings.Contains(stderr, "init") {
				t.Errorf("a worker ended with %d: %s", code, stderr)
			}
			if _, err := s.js().Stream(s.ctx(), stream); !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Errorf("somebody made %s anew: %v", stream, err)
			}
		})
	}
}

func fileKey(b string) string { return "sandbox-files/sha256/" + strings.Repeat(b, 32) }

// A worker that knew another store under the name does not start.
func TestStoreOfAnotherID(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--no-agent")
	args := append([]string{"serve", "--server", s.url}, s.node.flags(t.TempDir())...)
	w := start(t, agentProgram, args...)
	w.logged("ready")
	s.fullThread()
	w.stop()
	raw := s.record("store")
	for change, word := range map[string]string{`{"format":1,"storeId":"01SOMEBODYELSE"}`: "01SOMEBODYELSE", `{"format":2,"storeId":"x"}`: "format 2",
		`{"format":1}`: "damaged", `not JSON`: "damaged"} {
		s.replace("store", []byte(change))
		if code, _, stderr := run(t, agentProgram, args...); code == 0 || !strings.Contains(stderr, word) {
			t.Errorf("with %s a worker ended with %d: %s", change, code, stderr)
		}
	}
	s.replace("store", raw)
	start(t, agentProgram, args...).logged("ready")
	s.save("t", "r2")
}

// record reads what stands under a key of the state.
func (c client) record(key string) []byte {
	c.t.Helper()
	e, err := c.keys().Get(c.ctx(), key)
	if err != nil {
		c.t.Fatalf("read %s: %v", key, err)
	}
	return e.Value()
}

func (c client) replace(key string, value []byte) {
	c.t.Helper()
	if _, err := c.keys().Put(c.ctx(), key, value); err != nil {
		c.t.Fatalf("write %s: %v", key, err)
	}
}

func (c client) keys() jetstream.KeyValue {
	c.t.Helper()
	kv, err := c.js().KeyValue(c.ctx(), "sandbox-state")
	if err != nil {
		c.t.Fatal(err)
	}
	return kv
}

// A record of a newer format, or one that is damaged, is neither read as
// something else nor written over.
func TestRecordsOfANewerFormat(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.fullThread()
	key := ok[attached](s.client, "instance.attach", object{"threadId": "t", "name": "work"}).Key
	rows := map[string][]errorRow{
		"thread.t": {{"checkpoint.head", object{"threadId": "t"}, ""}, {"snapshot.save", object{"threadId": "t", "runId": "r2"}, ""}, {"thread.load", object{"threadId": "t"}, ""},
			{"thread.save", object{"threadId": "t", "messages": []int{}}, ""}, {"writer.acquire", object{"threadId": "t"}, ""}, {"thread.delete", object{"threadId": "t"}, ""}},
		"log.t.1": {{"checkpoint.get", object{"checkpointId": "t-1"}, ""}, {"checkpoint.list", object{"threadId": "t"}, ""}, {"restore", object{"threadId": "t", "path": "out"}, ""},
			{"snapshot.save", object{"threadId": "t", "runId": "r2"}, ""}, {"fork", object{"threadId": "t", "destinationThreadId": "f"}, ""}},
		"checkpoint.t-1":  {{"checkpoint.get", object{"checkpointId": "t-1"}, ""}, {"file.read", object{"checkpointId": "t-1", "path": "small"}, ""}},
		"instance." + key: {{"instance.get", object{"key": key}, ""}, {"snapshot.save", object{"threadId": "t", "runId": "r2"}, ""}, {"instance.list", object{}, ""}},
	}
	for key, rows := range rows {
		good, thread := s.record(key), s.record("thread.t")
		for _, bad := range [][]byte{withMember(t, good), good[:len(good)-1], []byte("[]"), {}} {
			s.replace(key, bad)
			if key != "thread.t" {
				s.replace("thread.t", thread) // a slot is older than its thread
			}
			for _, row := range rows {
				refused(s.client, row.subject, row.body, fullCode("FORMAT_UNSUPPORTED"))
			}
			if now := s.record(key); !bytes.Equal(now, bad) {
				t.Errorf("%s was written over: %s", key, now)
			}
		}
		s.replace(key, good)
		s.replace("thread.t", thread)
	}
	s.save("t", "r2")
	if n := len(s.chain("t")); n != 2 {
		t.Errorf("%d checkpoints", n)
	}
}

func withMember(t *testing.T, record []byte) []byte {
	t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal(record, &members); err != nil {
		t.Fatal(err)
	}
	members["format"] = json.RawMessage("2")
	return encode(t, members)
}

// rechunk replaces the chunks of an object and leaves its info as it is.
func (c client) rechunk(bucket, name string, change func([][]byte) [][]byte) {
	c.t.Helper()
	info, err := c.bucket(bucket).GetInfo(c.ctx(), name)
	if err != nil {
		c.t.Fatal(err)
	}
	stream, err := c.js().Stream(c.ctx(), "OBJ_"+bucket)
	if err != nil {
		c.t.Fatal(err)
	}
	subject, chunks := "$O."+bucket+".C."+info.NUID, [][]byte{}
	for seq := uint64(1); ; seq++ {
		msg, err := stream.GetMsg(c.ctx(), seq, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			c.t.Fatal(err)
		}
		chunks, seq = append(chunks, msg.Data), msg.Sequence
	}
	if err := stream.Purge(c.ctx(), jetstream.WithPurgeSubject(subject)); err != nil {
		c.t.Fatal(err)
	}
	for _, chunk := range change(chunks) {
		if _, err := c.js().Publish(c.ctx(), subject, chunk); err != nil {
			c.t.Fatal(err)
		}
	}
}

func flipped(at func(n int) int) func([][]byte) [][]byte {
	return func(chunks [][]byte) [][]byte {
		whole := bytes.Join(chunks, nil)
		whole[at(len(whole))] ^= 1
		out := [][]byte{}
		for _, chunk := range chunks {
			out, whole = append(out, whole[:len(chunk)]), whole[len(chunk):]
		}
		return out
	}
}

// damages are what can become of an object, with the code of reading it.
var damages = map[string]struct {
	change func([][]byte) [][]byte
	codes  [2]string // of files, of artifacts
}{
	"last chunk gone":    {func(c [][]byte) [][]byte { return c[:len(c)-1] }, [2]string{"MISSING_BLOB", "INVALID_ARTIFACT_BYTES"}},
	"first chunk gone":   {func(c [][]byte) [][]byte { return c[1:] }, [2]string{"MISSING_BLOB", "INVALID_ARTIFACT_BYTES"}},
	"no bytes":           {func([][]byte) [][]byte { return nil }, [2]string{"MISSING_BLOB", "INVALID_ARTIFACT_BYTES"}},
	"first byte":         {flipped(func(int) int { return 0 }), [2]string{"INVALID_BLOB", "INVALID_ARTIFACT_BYTES"}},
	"byte in the middle": {flipped(func(n int) int { return n / 2 }), [2]string{"INVALID_BLOB", "INVALID_ARTIFACT_BYTES"}},
	"last byte":          {flipped(func(n int) int { return n - 1 }), [2]string{"INVALID_BLOB", "INVALID_ARTIFACT_BYTES"}},
	"chunks turned":      {func(c [][]byte) [][]byte { return [][]byte{c[1], c[0]} }, [2]string{"INVALID_BLOB", "INVALID_ARTIFACT_BYTES"}},
	"a chunk twice":      {func(c [][]byte) [][]byte { return [][]byte{c[0], c[0], c[1]} }, [2]string{"INVALID_BLOB", "INVALID_ARTIFACT_BYTES"}},
}

// A damaged pack or artifact is an error, never data; what lies elsewhere stays
// readable; saving the same content again heals what it needs.
func TestDamagedObjects(t *testing.T) {
	t.Parallel()
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, "--no-agent")
			w := s.worker(s.node)
			_, before := s.fullThread()
			tree := build(t, s.sandbox(t, "broken"))
			tree.file("file", tree.noise(700_000), 0o644) // two chunks
			s.attach("broken", "broken")
			put := artifactBody(object{"threadId": "broken", "data": tree.noise(700_000)})
			art := ok[artifact](s.client, "artifact.put", put)
			old := s.objects("sandbox-packs")
			ok[checkpoint](s.client, "snapshot.save", object{"threadId": "broken", "runId": "r", "checkpointId": "broken"})
			w.stop()
			for pack, size := range s.objects("sandbox-packs") {
				if old[pack] == 0 && size > 600_000 {
					s.rechunk("sandbox-packs", pack, damage.change)
				}
			}
			s.rechunk("sandbox-artifacts", strings.TrimPrefix(art.BlobKey, "sandbox-artifacts/"), damage.change)
			s.worker(s.node)
			s.damaged(damage.codes, before)
			ok[artifact](s.client, "artifact.put", put)
			healed := s.save("broken", "r2")
			want := readTree(t, filepath.Join(s.sandboxes, "broken"))
			sameTree(t, "the next save", want, s.restoreTree("broken", healed.ID, "healed"))
			sameTree(t, "the damaged checkpoint, healed", want, s.restoreTree("broken", "broken", "old"))
			ok[artifactData](s.client, "artifact.read", object{"threadId": "broken", "checkpointId": "broken", "artifactId": "art"})
		})
	}
}

func (s *server) damaged(codes [2]string, before map[string]string) {
	s.t.Helper()
	for range 2 {
		if f := s.unreadable("broken"); f.Code != fullCode(codes[0]) {
			s.t.Errorf("reading gave %+v, want %s", f, codes[0])
		}
		refused(s.client, "artifact.read", object{"threadId": "broken", "checkpointId": "broken", "artifactId": "art"}, fullCode(codes[1]))
	}
	code := map[string]string{"MISSING_BLOB": "MISSING_ARTIFACT_BLOB", "INVALID_BLOB": "INVALID_ARTIFACT_BYTES"}[codes[0]]
	f := refused(s.client, "snapshot.save", object{"threadId": "broken", "runId": "r2"}, fullCode(code))
	if s.head("broken") != "broken" {
		s.t.Errorf("the head moved to %q, with %+v", s.head("broken"), f)
	}
	s.worksOnAFullStore("whole", before)
	if err := os.RemoveAll(filepath.Join(s.restored, "whole")); err != nil {
		s.t.Error(err)
	}
}

// A save does not take a pack for granted because its parent has it: one that
// is gone is stored anew, also if nobody has read it meanwhile.
func TestSaveOverALostPack(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.fullThread()
	for name := range s.objects("sandbox-packs") {
		s.rechunk("sandbox-packs", name, func([][]byte) [][]byte { return nil })
	}
	s.save("t", "r2")
	s.save("gone", "r2")
	for _, th := range []string{"t", "gone"} {
		sameTree(t, th, readTree(t, filepath.Join(s.sandboxes, "work")), s.restoreTree(th, th+"-1", "out-"+th))
	}
}

// objects are the names and sizes of a bucket's objects.
func (c client) objects(bucket string) map[string]uint64 {
	c.t.Helper()
	list, err := c.bucket(bucket).List(c.ctx())
	if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
		c.t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, info := range list {
		out[info.Name] = info.Size
	}
	return out
}
