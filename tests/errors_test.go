package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// definitions is a configuration with one definition for each rule.
const definitions = `{"definitions": {
	"default": {},
	"never": {"reuse": "none"},
	"aged": {"snapshotMaxAge": "24h"},
	"strict": {"strict": true}
}}`

// configFile writes sandbox definitions and returns the flags that name them.
func configFile(t *testing.T, text string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "definitions.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--config", path}
}

// populate makes threads in every state that a request can meet: "full" has
// everything, "other" a checkpoint too, "talk" only a conversation, "arts" only
// an artifact.
func (s *server) populate() {
	s.t.Helper()
	for thread, text := range map[string]string{"full": "of full", "other": "of other"} {
		b := build(s.t, s.sandbox(s.t, thread))
		b.file("dir/file.txt", []byte(text), 0o644)
		s.attach(thread, thread)
		s.putArtifact(thread, "art", "bytes "+text)
		ok[revision](s.client, "thread.save", object{"threadId": thread, "messages": []string{text}})
		ok[checkpoint](s.client, "snapshot.save", object{"threadId": thread, "runId": "r", "label": "l", "checkpointId": "cp-" + thread})
	}
	ok[revision](s.client, "thread.save", object{"threadId": "talk", "messages": []string{"hello"}})
	s.putArtifact("arts", "art", "alone")
	s.unusable()
}

// unusable makes threads whose instance record leads to no sandbox.
func (s *server) unusable() {
	s.t.Helper()
	gone := s.sandbox(s.t, "gone")
	s.attach("gone", "gone")
	if err := os.Remove(gone); err != nil {
		s.t.Fatal(err)
	}
	s.sandbox(s.t, "box")
	for _, row := range []struct {
		thread, definition string
		change             object
	}{
		{"docker", "default", object{"provider": "docker"}},
		{"stolen", "default", object{"threadId": "other"}},
		{"away", "default", object{"providerSandboxId": "no-such-node/box"}},
		{"aged", "aged", object{"updatedAt": 1}},
	} {
		at := ok[attached](s.client, "instance.attach", object{"threadId": row.thread, "name": "box", "sandbox": row.definition})
		record := object{"key": at.Key, "provider": at.Record.Provider, "providerSandboxId": at.Record.ProviderSandboxID,
			"threadId": row.thread, "updatedAt": at.Record.UpdatedAt}
		for k, v := range row.change {
			record[k] = v
		}
		ok[revision](s.client, "instance.upsert", object{"record": record})
	}
	pipes := s.sandbox(s.t, "pipes")
	for _, name := range []string{"one", "two"} {
		if err := syscall.Mkfifo(filepath.Join(pipes, name), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	ok[attached](s.client, "instance.attach", object{"threadId": "pipes", "name": "pipes", "sandbox": "strict"})
}

func (c client) putArtifact(thread, id, data string) artifact {
	c.t.Helper()
	return ok[artifact](c, "artifact.put", object{"threadId": thread, "runId": "r", "artifactId": id, "name": id + ".txt", "mimeType": "text/plain", "data": []byte(data)})
}

// state is everything that a client can see of some threads, and what restores
// have written. Records of instances are left without what a run notes in them.
func (s *server) state(threads ...string) map[string]string {
	s.t.Helper()
	out := map[string]string{}
	for _, th := range threads {
		for _, subject := range []string{"checkpoint.list", "checkpoint.head", "thread.load", "artifact.list"} {
			req := object{"threadId": th}
			if subject == "checkpoint.list" {
				req["include"] = []string{"files", "conversation"}
			}
			out[subject+" "+th] = string(s.send(subject, req).Data)
		}
	}
	for _, rec := range ok[instancePage](s.client, "instance.list", object{}).Records {
		rec.LatestRunID, rec.UpdatedAt = nil, 0
		raw, _ := json.Marshal(rec)
		out["instance "+rec.Key] = string(raw)
	}
	for path, it := range readTree(s.t, s.restored) {
		out["restored "+path] = it.Kind + it.Bytes
	}
	return out
}

type errorRow struct {
	subject string
	body    object
	code    string
}

// short codes of the table: SANDBOX_SNAPSHOT_ in front, or SANDBOX_ after "-".
func fullCode(short string) string {
	if rest, ok := strings.CutPrefix(short, "-"); ok {
		return "SANDBOX_" + rest
	}
	return "SANDBOX_SNAPSHOT_" + short
}

var errorRows = []errorRow{
	{"snapshot.save", object{"runId": "r"}, "INVALID_ID"},
	{"snapshot.save", object{"threadId": "full"}, "INVALID_ID"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "checkpointId": ""}, "INVALID_ID"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "instanceKey": ""}, "INVALID_ID"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "sandbox": "unheard-of"}, "MISSING_SANDBOX"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "sandbox": "never"}, "REUSE_NONE"},
	{"snapshot.save", object{"threadId": "new", "runId": "r"}, "MISSING_REUSABLE_SANDBOX"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "tenant": object{"userId": "somebody"}}, "MISSING_REUSABLE_SANDBOX"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "instanceKey": "no such key"}, "MISSING_REUSABLE_SANDBOX"},
	{"snapshot.save", object{"threadId": "gone", "runId": "r"}, "MISSING_REUSABLE_SANDBOX"},
	{"snapshot.save", object{"threadId": "docker", "runId": "r"}, "MISSING_REUSABLE_SANDBOX"},
	{"snapshot.save", object{"threadId": "stolen", "runId": "r"}, "MISSING_REUSABLE_SANDBOX"},
	{"snapshot.save", object{"threadId": "aged", "runId": "r", "sandbox": "aged"}, "MISSING_REUSABLE_SANDBOX"},
	{"snapshot.save", object{"threadId": "away", "runId": "r"}, "-NODE_UNREACHABLE"},
	{"snapshot.save", object{"threadId": "pipes", "runId": "r", "sandbox": "strict"}, "UNSUPPORTED_ENTRY"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "label": "l", "checkpointId": "cp-other"}, "DUPLICATE_ID"},
	{"snapshot.save", object{"threadId": "full", "runId": "r2", "label": "l", "checkpointId": "cp-full"}, "DUPLICATE_ID"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "checkpointId": "cp-full"}, "DUPLICATE_ID"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "label": 7}, "-BAD_REQUEST"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "waitMs": -1}, "-BAD_REQUEST"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "timeoutMs": "soon"}, "-BAD_REQUEST"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "include": []string{"everything"}}, "-BAD_REQUEST"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "tenant": "me"}, "-BAD_REQUEST"},
	{"snapshot.save", object{"threadId": "full", "runId": "r", "tenant": object{"user": "me"}}, "-BAD_REQUEST"},

	{"fork", object{"destinationThreadId": "new"}, "INVALID_ID"},
	{"fork", object{"threadId": "full"}, "INVALID_ID"},
	{"fork", object{"threadId": "full", "destinationThreadId": "full"}, "FORK_SOURCE_THREAD_MISMATCH"},
	{"fork", object{"threadId": "full", "checkpointId": "none", "destinationThreadId": "new"}, "FORK_SOURCE_NOT_FOUND"},
	{"fork", object{"threadId": "talk", "destinationThreadId": "new"}, "FORK_SOURCE_NOT_FOUND"},
	{"fork", object{"threadId": "full", "checkpointId": "cp-other", "destinationThreadId": "new"}, "FORK_SOURCE_THREAD_MISMATCH"},
	{"fork", object{"threadId": "full", "destinationThreadId": "other"}, "FORK_DESTINATION_NOT_EMPTY"},
	{"fork", object{"threadId": "full", "destinationThreadId": "talk"}, "FORK_DESTINATION_NOT_EMPTY"},
	{"fork", object{"threadId": "full", "destinationThreadId": "arts"}, "FORK_DESTINATION_NOT_EMPTY"},
	{"fork", object{"threadId": "full", "destinationThreadId": "new", "destinationCheckpointId": "cp-full"}, "FORK_DESTINATION_NOT_EMPTY"},
	{"fork", object{"threadId": "full", "destinationThreadId": "new", "destinationCheckpointId": "cp-other"}, "FORK_DESTINATION_NOT_EMPTY"},
	{"fork", object{"threadId": "full", "destinationThreadId": "new", "createdAt": "yesterday"}, "-BAD_REQUEST"},

	{"restore", object{"path": "out"}, "INVALID_ID"},
	{"restore", object{"threadId": "full", "path": "out", "node": ""}, "INVALID_ID"},
	{"restore", object{"threadId": "full"}, "-BAD_REQUEST"},
	{"restore", object{"threadId": "full", "path": "out", "into": "anywhere"}, "-BAD_REQUEST"},
	{"restore", object{"threadId": "full", "path": ""}, "INVALID_PATH"},
	{"restore", object{"threadId": "full", "path": "../out"}, "INVALID_PATH"},
	{"restore", object{"threadId": "full", "path": "/out"}, "INVALID_PATH"},
	{"restore", object{"threadId": "full", "path": "a//b"}, "INVALID_PATH"},
	{"restore", object{"threadId": "full", "path": "a/./b"}, "INVALID_PATH"},
	{"restore", object{"threadId": "full", "path": "nul\x00"}, "INVALID_PATH"},
	{"restore", object{"threadId": "full", "path": `back\slash`}, "INVALID_PATH"},
	{"restore", object{"threadId": "full", "path": "c:/out"}, "INVALID_PATH"},
	{"restore", object{"threadId": "full", "path": strings.Repeat("x/", 2048) + "x"}, "INVALID_PATH"},
	{"restore", object{"threadId": "talk", "path": "out"}, "CHECKPOINT_NOT_FOUND"},
	{"restore", object{"threadId": "full", "path": "out", "checkpointId": "none"}, "CHECKPOINT_NOT_FOUND"},
	{"restore", object{"threadId": "full", "path": "out", "checkpointId": "cp-other"}, "CHECKPOINT_NOT_FOUND"},
	{"restore", object{"threadId": "full", "path": "taken"}, "DESTINATION_NOT_EMPTY"},
	{"restore", object{"threadId": "full", "path": "other", "into": "sandbox"}, "DESTINATION_NOT_EMPTY"},
	{"restore", object{"threadId": "full", "path": "out", "node": "no such node"}, "-NODE_UNREACHABLE"},

	{"file.read", object{"path": "dir/file.txt"}, "INVALID_ID"},
	{"file.read", object{"checkpointId": "cp-full"}, "-BAD_REQUEST"},
	{"file.read", object{"checkpointId": "none", "path": "dir/file.txt"}, "CHECKPOINT_NOT_FOUND"},
	{"file.read", object{"checkpointId": "cp-full", "path": "dir/file"}, "MISSING_ENTRY"},
	{"file.read", object{"checkpointId": "cp-full", "path": "dir/../dir/file.txt"}, "INVALID_PATH"},
	{"file.read", object{"checkpointId": "cp-full", "path": "dir/file.txt", "offset": -1}, "-BAD_REQUEST"},
	{"file.read", object{"checkpointId": "cp-full", "path": "dir/file.txt", "length": -1}, "-BAD_REQUEST"},
	{"file.read", object{"checkpointId": "cp-full", "path": "dir/file.txt", "length": 1.5}, "-BAD_REQUEST"},

	{"artifact.read", object{"threadId": "full", "checkpointId": "cp-full"}, "INVALID_ID"},
	{"artifact.read", object{"threadId": "full", "checkpointId": "none", "artifactId": "art"}, "MISSING_CHECKPOINT_ARTIFACT"},
	{"artifact.read", object{"threadId": "full", "checkpointId": "cp-full", "artifactId": "none"}, "MISSING_CHECKPOINT_ARTIFACT"},
	{"artifact.read", object{"threadId": "full", "checkpointId": "cp-other", "artifactId": "art"}, "FOREIGN_CHECKPOINT_ARTIFACT"},
	{"artifact.read", object{"threadId": "full", "checkpointId": "cp-full", "artifactId": "art", "maxInlineBytes": -1}, "-BAD_REQUEST"},

	{"artifact.put", artifactBody(object{"runId": nil}), "INVALID_ID"},
	{"artifact.put", artifactBody(object{"artifactId": ""}), "INVALID_ID"},
	{"artifact.put", artifactBody(object{"name": nil}), "-BAD_REQUEST"},
	{"artifact.put", artifactBody(object{"mimeType": nil}), "-BAD_REQUEST"},
	{"artifact.put", artifactBody(object{"data": nil}), "-BAD_REQUEST"},
	{"artifact.put", artifactBody(object{"data": "not base64!"}), "-BAD_REQUEST"},
	{"artifact.put", artifactBody(object{"object": "sandbox-uploads/x"}), "-BAD_REQUEST"},
	{"artifact.put", artifactBody(object{"createdAt": "now"}), "-BAD_REQUEST"},
	{"artifact.list", object{}, "INVALID_ID"},
	{"artifact.list", object{"threadId": "full", "limit": 0}, "-BAD_REQUEST"},
	{"artifact.list", object{"threadId": "full", "limit": 1001}, "-BAD_REQUEST"},
	{"artifact.list", object{"threadId": "full", "after": "not a cursor"}, "-BAD_REQUEST"},
	{"artifact.delete", object{"threadId": "full"}, "INVALID_ID"},

	{"thread.load", object{}, "INVALID_ID"},
	{"thread.save", object{"messages": []string{}}, "INVALID_ID"},
	{"thread.save", object{"threadId": "full"}, "-BAD_REQUEST"},
	{"thread.save", object{"threadId": "full", "messages": "text"}, "-BAD_REQUEST"},
	{"thread.save", object{"threadId": "full", "messages": []string{}, "expectedRevision": 0}, "-STALE_REVISION"},
	{"thread.save", object{"threadId": "full", "messages": []string{}, "expectedRevision": 2}, "-STALE_REVISION"},
	{"thread.save", object{"threadId": "new", "messages": []string{}, "expectedRevision": 1}, "-STALE_REVISION"},
	{"thread.save", object{"threadId": "full", "messages": []string{}, "expectedRevision": -1}, "-BAD_REQUEST"},

	{"checkpoint.get", object{}, "INVALID_ID"},
	{"checkpoint.get", object{"checkpointId": "cp-full", "include": "files"}, "-BAD_REQUEST"},
	{"checkpoint.list", object{}, "INVALID_ID"},
	{"checkpoint.list", object{"threadId": "full", "limit": 0}, "-BAD_REQUEST"},
	{"checkpoint.list", object{"threadId": "full", "after": "!"}, "-BAD_REQUEST"},
	{"checkpoint.head", object{}, "INVALID_ID"},
	{"checkpoint.files", object{}, "INVALID_ID"},
	{"checkpoint.files", object{"checkpointId": "none"}, "CHECKPOINT_NOT_FOUND"},
	{"checkpoint.files", object{"checkpointId": "cp-full", "prefix": "../x"}, "INVALID_PATH"},
	{"checkpoint.files", object{"checkpointId": "cp-full", "limit": 1001}, "-BAD_REQUEST"},
	{"checkpoint.files", object{"checkpointId": "cp-full", "after": "*"}, "-BAD_REQUEST"},

	{"instance.get", object{}, "INVALID_ID"},
	{"instance.upsert", object{}, "-BAD_REQUEST"},
	{"instance.upsert", object{"record": recordBody(object{"key": ""})}, "INVALID_ID"},
	{"instance.upsert", object{"record": recordBody(object{"threadId": nil})}, "INVALID_ID"},
	{"instance.upsert", object{"record": recordBody(object{"provider": nil})}, "-BAD_REQUEST"},
	{"instance.upsert", object{"record": recordBody(object{"updatedAt": "now"})}, "-BAD_REQUEST"},
	{"instance.upsert", object{"record": recordBody(object{"extra": 1})}, "-BAD_REQUEST"},
	{"instance.upsert", object{"record": recordBody(nil), "expectedRevision": 1}, "-STALE_REVISION"},
	{"instance.delete", object{}, "INVALID_ID"},
	{"instance.delete", object{"key": "kept", "expectedRevision": 1}, "-STALE_REVISION"},
	{"instance.list", object{"limit": 0}, "-BAD_REQUEST"},
	{"instance.list", object{"threadId": ""}, "INVALID_ID"},
	{"instance.list", object{"after": "?"}, "-BAD_REQUEST"},
	{"instance.attach", object{"name": "full"}, "INVALID_ID"},
	{"instance.attach", object{"threadId": "new"}, "-BAD_REQUEST"},
	{"instance.attach", object{"threadId": "new", "name": ""}, "INVALID_PATH"},
	{"instance.attach", object{"threadId": "new", "name": ".."}, "INVALID_PATH"},
	{"instance.attach", object{"threadId": "new", "name": "full/dir"}, "INVALID_PATH"},
	{"instance.attach", object{"threadId": "new", "name": "absent"}, "MISSING_REUSABLE_SANDBOX"},
	{"instance.attach", object{"threadId": "new", "name": "link"}, "MISSING_REUSABLE_SANDBOX"},
	{"instance.attach", object{"threadId": "new", "name": "file"}, "MISSING_REUSABLE_SANDBOX"},
	{"instance.attach", object{"threadId": "new", "name": "full", "sandbox": "unheard-of"}, "MISSING_SANDBOX"},
	{"instance.attach", object{"threadId": "new", "name": "full", "node": "no such node"}, "-NODE_UNREACHABLE"},

	{"node.n1.snapshot.save", object{"threadId": "new", "runId": "r"}, "MISSING_REUSABLE_SANDBOX"},
	{"node.n1.restore", object{"threadId": "full", "path": "../x"}, "INVALID_PATH"},
	{"node.n1.no.such.operation", object{}, "-BAD_REQUEST"},
}

func artifactBody(change object) object {
	return changed(object{"threadId": "full", "runId": "r", "artifactId": "art", "name": "n", "mimeType": "m", "data": "AAAA"}, change)
}

func recordBody(change object) object {
	return changed(object{"key": "kept", "provider": "local", "providerSandboxId": "n1/box", "threadId": "full", "updatedAt": 1}, change)
}

// changed sets members, or removes those that are nil.
func changed(base, change object) object {
	for k, v := range change {
		base[k] = v
		if v == nil {
			delete(base, k)
		}
	}
	return base
}

func TestErrorsOfEverySubject(t *testing.T) {
	t.Parallel()
	s := startServer(t, configFile(t, definitions)...)
	s.populate()
	ok[revision](s.client, "instance.upsert", object{"record": recordBody(nil)})
	ok[revision](s.client, "instance.upsert", object{"record": recordBody(object{"updatedAt": 2})})
	build(t, s.restored).file("taken/file", []byte("in use"), 0o644)
	boxes := build(t, s.sandboxes)
	boxes.link("link", "full")
	boxes.file("file", nil, 0o644)

	threads := []string{"full", "other", "talk", "arts", "new", "gone", "pipes"}
	before := s.state(threads...)
	for _, row := range errorRows {
		f := refused(s.client, row.subject, row.body, fullCode(row.code))
		retryable := map[string]bool{"-NODE_UNREACHABLE": true}[row.code]
		if f.Retryable != retryable {
			t.Errorf("%s: retryable is %v", row.code, f.Retryable)
		}
		if all := fmt.Sprint(f); strings.Contains(all, filepath.Clean(os.TempDir())+"/") {
			t.Errorf("%s %v: %s tells a path of the host", row.subject, row.body, all)
		}
		after := s.state(threads...)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s %v changed something (-before +after):\n%s", row.subject, row.body, diff)
			before = after
		}
	}
}

func TestErrorsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := startServer(t, configFile(t, definitions)...)
	s.populate()
	for _, row := range []struct {
		errorRow
		details object // that have to be there
		says    string
	}{
		{errorRow{"snapshot.save", object{"threadId": "full", "runId": "r2", "checkpointId": "cp-full"}, "DUPLICATE_ID"}, object{"threadId": "full"}, "cp-full"},
		{errorRow{"snapshot.save", object{"threadId": "full", "runId": "r", "checkpointId": "cp-other"}, "DUPLICATE_ID"}, object{"threadId": nil}, "cp-other"},
		{errorRow{"snapshot.save", object{"threadId": "away", "runId": "r"}, "-NODE_UNREACHABLE"}, object{"node": "no-such-node"}, "no-such-node"},
		{errorRow{"snapshot.save", object{"threadId": "pipes", "runId": "r", "sandbox": "strict"}, "UNSUPPORTED_ENTRY"}, nil, "one"},
		{errorRow{"snapshot.save", object{"threadId": "pipes", "runId": "r", "sandbox": "strict"}, "UNSUPPORTED_ENTRY"}, nil, "two"},
		{errorRow{"checkpoint.get", object{"checkpointId": "c", "Include": nil}, "-BAD_REQUEST"}, nil, "include"},
		{errorRow{"instance.upsert", object{"record": recordBody(object{"threadID": "x"})}, "-BAD_REQUEST"}, nil, "record.threadID"},
		{errorRow{"artifact.put", artifactBody(object{"mimeType": 5}), "-BAD_REQUEST"}, nil, "mimeType"},
	} {
		f := refused(s.client, row.subject, row.body, fullCode(row.code))
		for k, want := range row.details {
			if got := f.Details[k]; got != want {
				t.Errorf("%s %v: detail %s is %v, want %v", row.subject, row.body, k, got, want)
			}
		}
		// The paths of a strict save may stand in the details.
		all, _ := json.Marshal(f)
		if !strings.Contains(string(all), row.says) {
			t.Errorf("%s %v: %s does not name %q", row.subject, row.body, all, row.says)
		}
	}
}
