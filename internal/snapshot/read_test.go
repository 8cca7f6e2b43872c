package snapshot_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sandkeep/internal/snapshot"
)

func TestReadArtifact(t *testing.T) {
	w := saved(t)
	read := func(thread snapshot.ThreadID, cp snapshot.CheckpointID, id snapshot.ArtifactID, max int64) (*snapshot.ReadArtifactReply, error) {
		return w.ReadArtifact(t.Context(), snapshot.ReadArtifactRequest{ThreadID: thread, CheckpointID: cp, ArtifactID: id}, max)
	}
	r, err := read("t", "c1", "a", 1000)
	if err != nil || r.Data == nil || string(*r.Data) != "artifact of c1" || !strings.Contains(r.Object, r.Artifact.BlobKey[len(snapshot.ArtifactBlobPrefix):]) {
		t.Errorf("read: %+v, %v", r, err)
	}
	if r, err := read("t", "c1", "a", 3); err != nil || r.Data != nil || r.Object == "" {
		t.Errorf("read of a large artifact: %+v, %v; want the object alone", r, err)
	}
	for _, tc := range []struct {
		thread snapshot.ThreadID
		cp     snapshot.CheckpointID
		id     snapshot.ArtifactID
		want   snapshot.Code
	}{
		{"t", "x", "a", snapshot.MissingCheckpointArtifact},
		{"t", "c1", "x", snapshot.MissingCheckpointArtifact},
		{"other", "c1", "a", snapshot.ForeignCheckpointArtifact},
	} {
		if _, err := read(tc.thread, tc.cp, tc.id, 1000); !errors.Is(err, tc.want) {
			t.Errorf("%v: got %v, want %v", tc, err, tc.want)
		}
	}
	d, _ := r.Artifact.Digest()
	w.objects.DamageArtifact(d)
	if _, err := read("t", "c1", "a", 1000); !errors.Is(err, snapshot.InvalidArtifactBytes) {
		t.Errorf("wrong bytes: %v, want %v", err, snapshot.InvalidArtifactBytes)
	}
	w.objects.DropArtifact(d)
	if _, err := read("t", "c1", "a", 1000); !errors.Is(err, snapshot.InvalidArtifactBytes) {
		t.Errorf("no bytes: %v, want %v", err, snapshot.InvalidArtifactBytes)
	}
}

func TestReadFile(t *testing.T) {
	w := saved(t)
	five, big := int64(5), int64(1<<40)
	for _, tc := range []struct {
		req  snapshot.ReadFileRequest
		max  int64
		want string
		eof  bool
		code snapshot.Code
	}{
		{req: snapshot.ReadFileRequest{CheckpointID: "c1", Path: "b/c"}, max: 100, want: "c1", eof: true},
		{req: snapshot.ReadFileRequest{CheckpointID: "c1", Path: "b/c"}, max: 1, want: "c"},
		{req: snapshot.ReadFileRequest{CheckpointID: "c1", Path: "a", Offset: 1, Length: &five}, max: 100, want: "ne", eof: true},
		{req: snapshot.ReadFileRequest{CheckpointID: "c1", Path: "a", Offset: big, Length: &big}, max: 100, want: "", eof: true},
		{req: snapshot.ReadFileRequest{CheckpointID: "c1", Path: "b"}, code: snapshot.MissingEntry},
		{req: snapshot.ReadFileRequest{CheckpointID: "c1", Path: "x"}, code: snapshot.MissingEntry},
		{req: snapshot.ReadFileRequest{CheckpointID: "c1", Path: "../x"}, code: snapshot.InvalidPath},
		{req: snapshot.ReadFileRequest{CheckpointID: "x", Path: "a"}, code: snapshot.CheckpointNotFound},
	} {
		r, err := w.ReadFile(t.Context(), tc.req, tc.max)
		if tc.code != "" {
			if !errors.Is(err, tc.code) {
				t.Errorf("%+v: got %v, want %v", tc.req, err, tc.code)
			}
			continue
		}
		if err != nil || string(r.Data) != tc.want || r.EOF != tc.eof || r.Entry.Path != tc.req.Path {
			t.Errorf("%+v: got %+v, %v; want %q, eof %v", tc.req, r, err, tc.want, tc.eof)
		}
	}
}

func TestPagesAddUp(t *testing.T) {
	w := newWorld(t)
	w.attach(t, "t")
	for i := range 30 {
		w.ws.files[fmt.Sprintf("f%02d", i)] = "x"
	}
	for i := range 7 {
		if _, _, err := w.Save(t.Context(), save(snapshot.CheckpointID(fmt.Sprintf("c%d", 6-i)))); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ limit, maxBytes int64 }{{1, 1 << 20}, {3, 1 << 20}, {7, 1 << 20}, {100, 1 << 20}, {100, 1}, {100, 700}} {
		var ids, paths []string
		page := snapshot.Page{Limit: &tc.limit}
		for {
			r, err := w.ListCheckpoints(t.Context(), snapshot.ListCheckpointsRequest{ThreadID: "t", Page: page}, tc.maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := r.AppendJSON(nil); err != nil || len(r.Checkpoints) > 1 && int64(len(b)) > tc.maxBytes+100 {
				t.Errorf("%+v: a page of %d checkpoints has %d bytes, %v", tc, len(r.Checkpoints), len(b), err)
			}
			for _, cp := range r.Checkpoints {
				ids = append(ids, string(cp.ID))
			}
			if page.After = r.Next; page.After == "" {
				break
			}
		}
		if got := strings.Join(ids, " "); got != "c6 c5 c4 c3 c2 c1 c0" {
			t.Errorf("%+v: checkpoints %s", tc, got)
		}
		for page.After = ""; ; {
			r, err := w.ListFiles(t.Context(), snapshot.ListFilesRequest{CheckpointID: "c0", Page: page}, tc.maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range r.Entries {
				paths = append(paths, e.Path)
			}
			if page.After = r.Next; page.After == "" {
				break
			}
		}
		if got := strings.Join(paths, " "); got != strings.Join(sortedKeys(w.ws.files), " ") {
			t.Errorf("%+v: files %s", tc, got)
		}
	}
	zero, many := int64(0), int64(1001)
	for _, page := range []snapshot.Page{{Limit: &zero}, {Limit: &many}, {After: "!"}, {After: "bm90IGpzb24"}} {
		if _, err := w.ListCheckpoints(t.Context(), snapshot.ListCheckpointsRequest{ThreadID: "t", Page: page}, 1<<20); !errors.Is(err, snapshot.BadRequest) {
			t.Errorf("%+v: got %v, want %v", page, err, snapshot.BadRequest)
		}
	}
}

func TestRestore(t *testing.T) {
	w := saved(t)
	r, err := w.Restore(t.Context(), snapshot.RestoreRequest{ThreadID: "t", CheckpointID: "c1", Path: "x"})
	if err != nil || w.ws.restored["b/c"] != "c1" || w.ws.restored["a"] != "one" || r.Files != 2 || r.Node != "n1" || r.Key != "" {
		t.Errorf("restore: %+v, %v, files %v", r, err, w.ws.restored)
	}
	r, err = w.Restore(t.Context(), snapshot.RestoreRequest{ThreadID: "t", Path: "y", Into: "sandbox"})
	if err != nil || w.ws.restored["b/c"] != "c2" || r.Key == "" {
		t.Errorf("restore of the head into a sandbox: %+v, %v, files %v", r, err, w.ws.restored)
	}
	if rec, _, _ := w.GetInstance(t.Context(), r.Key); rec == nil || rec.ProviderSandboxID != "n1/y" || rec.ThreadID != "t" {
		t.Errorf("instance record after the restore: %+v", rec)
	}
	for _, tc := range []struct {
		req  snapshot.RestoreRequest
		want snapshot.Code
	}{
		{snapshot.RestoreRequest{ThreadID: "t", CheckpointID: "x", Path: "x"}, snapshot.CheckpointNotFound},
		{snapshot.RestoreRequest{ThreadID: "other", CheckpointID: "c1", Path: "x"}, snapshot.CheckpointNotFound},
		{snapshot.RestoreRequest{ThreadID: "other", Path: "x"}, snapshot.CheckpointNotFound},
		{snapshot.RestoreRequest{ThreadID: "t", Path: "../x"}, snapshot.InvalidPath},
		{snapshot.RestoreRequest{ThreadID: "t", Path: "a/b", Into: "sandbox"}, snapshot.InvalidPath},
		{snapshot.RestoreRequest{ThreadID: "t", Path: "a", Into: "elsewhere"}, snapshot.BadRequest},
	} {
		if _, err := w.Restore(t.Context(), tc.req); !errors.Is(err, tc.want) {
			t.Errorf("%+v: got %v, want %v", tc.req, err, tc.want)
		}
	}
}

// TestRestore_Exact changes the thread's own sandbox under lease and lock, and
// treats any other directory as a new one.
func TestRestore_Exact(t *testing.T) {
	w := saved(t)
	w.boxes.def.Policy.Exclude = []string{"x"}
	exact := snapshot.RestoreRequest{ThreadID: "t", Path: "box", Into: "sandbox", Mode: "exact"}
	w.trace = nil
	r, err := w.Restore(t.Context(), exact)
	key := w.boxes.Key("t", w.boxes.def, snapshot.Tenant{})
	if err != nil || r.Key != key || r.Files != 2 {
		t.Fatalf("restore: %+v, %v", r, err)
	}
	if to := w.ws.target; !to.Exact || to.CacheKey != string(key) || !reflect.DeepEqual(to.Policy, w.boxes.def.Policy) {
		t.Errorf("target %+v", to)
	}
	if got, want := strings.Join(w.trace, ", "), fmt.Sprintf("acquire, lock sandbox:%s, instance, unlock, release", key); !strings.HasSuffix(got, want) {
		t.Errorf("trace %q, want %q at its end", got, want)
	}
	for _, req := range []snapshot.RestoreRequest{{ThreadID: "t", Path: "elsewhere", Into: "sandbox", Mode: "exact"}, {ThreadID: "t", Path: "box", Into: "sandbox"}, {ThreadID: "t", Path: "box", Mode: "new"}} {
		if _, err := w.Restore(t.Context(), req); err != nil || w.ws.target.Exact || w.ws.target.Confirm != nil {
			t.Errorf("%+v: target %+v, %v", req, w.ws.target, err)
		}
	}
	if _, err := w.Restore(t.Context(), snapshot.RestoreRequest{ThreadID: "t", Path: "a/b", Mode: "exact"}); err != nil || !w.ws.target.Exact || w.ws.target.CacheKey != "" {
		t.Errorf("target %+v, %v", w.ws.target, err)
	}
	w.attach(t, "t")
	held, err := w.leases.Leases.Acquire(t.Context(), "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Restore(t.Context(), exact); !errors.Is(err, snapshot.WriterConflict) {
		t.Errorf("while another holds the thread: %v", err)
	}
	if err := w.leases.Leases.Release(t.Context(), held.Writer); err != nil {
		t.Fatal(err)
	}
	w.leases.holds = snapshot.Errorf(snapshot.WriterLost, "taken over while the worker was held up")
	if _, err := w.Restore(t.Context(), exact); !errors.Is(err, snapshot.WriterLost) {
		t.Errorf("after a takeover: %v", err)
	}
}

func TestRestore_Prefix(t *testing.T) {
	w := saved(t)
	for prefix, want := range map[string]string{"b": "b/c", "b/c": "b/c", "a": "a"} {
		if _, err := w.Restore(t.Context(), snapshot.RestoreRequest{ThreadID: "t", Path: "x", Prefix: prefix}); err != nil {
			t.Errorf("%s: %v", prefix, err)
		}
		if got := strings.Join(sortedKeys(w.ws.restored), " "); got != want {
			t.Errorf("%s: restored %q, want %q", prefix, got, want)
		}
	}
	for prefix, want := range map[string]snapshot.Code{"b/d": snapshot.MissingEntry, "a/b": snapshot.MissingEntry, "/a": snapshot.InvalidPath} {
		if _, err := w.Restore(t.Context(), snapshot.RestoreRequest{ThreadID: "t", Path: "x", Prefix: prefix}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", prefix, err, want)
		}
	}
}

// TestRestore_NotAttached can't attach what it has restored: nothing stays.
func TestRestore_NotAttached(t *testing.T) {
	w := saved(t)
	w.boxes.err = snapshot.Errorf(snapshot.MissingReusableSandbox, "gone")
	_, err := w.Restore(t.Context(), snapshot.RestoreRequest{ThreadID: "t", Path: "y", Into: "sandbox"})
	if !errors.Is(err, snapshot.MissingReusableSandbox) || w.ws.restored != nil {
		t.Errorf("got %v, files %v", err, w.ws.restored)
	}
}

// TestAttach_LostLock stored the record, so it is attached, whatever became of
// the lock: a restore must not remove the directory that the record names.
func TestAttach_LostLock(t *testing.T) {
	w := saved(t)
	w.leases.lock = snapshot.Errorf(snapshot.LockLost, "paused")
	r, err := w.Restore(t.Context(), snapshot.RestoreRequest{ThreadID: "t", Path: "y", Into: "sandbox"})
	if err != nil || w.ws.restored == nil {
		t.Fatalf("got %+v, %v, files %v", r, err, w.ws.restored)
	}
	if rec, _, err := w.GetInstance(t.Context(), r.Key); err != nil || rec.ProviderSandboxID != "n1/y" {
		t.Errorf("the record is %+v, %v", rec, err)
	}
}

func TestListArtifacts_Pages(t *testing.T) {
	w := newWorld(t)
	for i := range 9 {
		putArtifact(t, w, "t", snapshot.ArtifactID(fmt.Sprint("a", i)), "x")
	}
	for _, maxBytes := range []int64{1, 600, 1 << 20} {
		ids, page := []string{}, snapshot.Page{}
		for {
			r, err := w.ListArtifacts(t.Context(), snapshot.ListArtifactsRequest{ThreadID: "t", Page: page}, maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			size := int64(0)
			for _, a := range r.Artifacts {
				b, err := json.Marshal(a)
				if err != nil {
					t.Fatal(err)
				}
				ids, size = append(ids, string(a.ID)), size+int64(len(b))
			}
			if size > maxBytes && len(r.Artifacts) > 1 {
				t.Errorf("a page of %d bytes where %d are allowed", size, maxBytes)
			}
			if page.After = r.Next; page.After == "" {
				break
			}
		}
		if got := strings.Join(ids, " "); got != "a0 a1 a2 a3 a4 a5 a6 a7 a8" {
			t.Errorf("%d bytes a page: %s", maxBytes, got)
		}
	}
}

// TestReplies_Bounded asks for more than a reply that can't be paged may hold.
func TestReplies_Bounded(t *testing.T) {
	w := newWorld(t)
	w.attach(t, "t")
	for i := range 2800 {
		w.ws.files[fmt.Sprintf("%04d%s", i, strings.Repeat("\n", 4000))] = ""
	}
	message := json.RawMessage(`"` + strings.Repeat("m", 1<<20) + `"`)
	if _, err := w.SaveThread(t.Context(), snapshot.SaveThreadRequest{ThreadID: "t", Messages: slices.Repeat(snapshot.Messages{message}, 64)}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Save(t.Context(), save("c")); err != nil {
		t.Fatal(err)
	}
	for _, include := range []string{"files", "conversation"} {
		_, err := w.Checkpoint(t.Context(), snapshot.GetCheckpointRequest{CheckpointID: "c", Include: snapshot.Include{include}})
		if !errors.Is(err, snapshot.PayloadTooLarge) {
			t.Errorf("%s: got %v, want %v", include, err, snapshot.PayloadTooLarge)
		}
	}
	if _, err := w.LoadThread(t.Context(), snapshot.ThreadRequest{ThreadID: "t"}); !errors.Is(err, snapshot.PayloadTooLarge) {
		t.Errorf("load: got %v, want %v", err, snapshot.PayloadTooLarge)
	}
}

// TestSecrets_AreNotStored puts a secret wherever a client may write text.
func TestSecrets_AreNotStored(t *testing.T) {
	w := newWorld(t)
	open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("my " + secret)), nil }
	a, err := w.PutArtifact(t.Context(), snapshot.PutArtifactRequest{ThreadID: "t", RunID: "r", ArtifactID: "a", Name: secret, MimeType: secret, Open: open})
	if err != nil || a.Name != "[redacted]" || a.MimeType != "[redacted]" {
		t.Errorf("artifact %+v, %v", a, err)
	}
	d, err := a.Digest()
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.objects.OpenArtifact(t.Context(), d, a.Size)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); err != nil || string(b) != "my "+strings.Repeat("\x00", len(secret)) {
		t.Errorf("stored %q, %v", b, err)
	}
	if _, err := w.UpsertInstance(t.Context(), snapshot.Instance{Key: "k", ThreadID: "t", Provider: secret, ProviderSandboxID: secret, LatestSnapshotID: secret}, nil); err != nil {
		t.Fatal(err)
	}
	rec, _, err := w.mem.Instance(t.Context(), "k")
	if err != nil || rec.Provider != "[redacted]" || rec.ProviderSandboxID != "[redacted]" || rec.LatestSnapshotID != "[redacted]" {
		t.Errorf("record %+v, %v", rec, err)
	}
	for _, rec := range []snapshot.Instance{{Key: secret}, {Key: "k", ThreadID: secret}, {Key: "k", LatestRunID: secret}} {
		if _, err := w.UpsertInstance(t.Context(), rec, nil); !errors.Is(err, snapshot.InvalidID) {
			t.Errorf("%+v: got %v, want %v", rec, err, snapshot.InvalidID)
		}
	}
}
