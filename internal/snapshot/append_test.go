package snapshot_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"sandkeep/internal/snapshot"
)

func ptr[T any](v T) *T { return &v }

func bytesOf(data string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(data)), nil }
}

func putBlob(t *testing.T, w *world, kind, data string) string {
	t.Helper()
	b, err := w.PutBlob(t.Context(), snapshot.PutBlobRequest{Kind: kind, Open: bytesOf(data)})
	if err != nil {
		t.Fatal(err)
	}
	return b.Key
}

func fileKey(data string) string {
	return fmt.Sprintf("%s%x", snapshot.FileBlobPrefix, sha256.Sum256([]byte(data)))
}

// own is a checkpoint as a client captures it: one file, one message.
func own(id, parent snapshot.CheckpointID, data string) snapshot.NewCheckpoint {
	c := snapshot.NewCheckpoint{ID: id, ThreadID: "t", CreatedAt: 7, Reason: snapshot.ReasonAutomatic, SourceRunID: "r",
		Files:        []snapshot.NewEntry{{Path: "f", Kind: "file", BlobKey: ptr(fileKey(data)), Size: ptr(int64(len(data))), Mtime: ptr(json.Number("1.5"))}},
		Conversation: snapshot.Messages{json.RawMessage(`{ "m" : 1 }`)}}
	if parent != "" {
		c.Parent = &parent
	}
	return c
}

// holder is a world and a client's lease of thread t.
func holder(t *testing.T) (*world, snapshot.Writer) {
	t.Helper()
	w := newWorld(t)
	l, err := w.AcquireWriter(t.Context(), snapshot.AcquireRequest{ThreadID: "t"})
	if err != nil {
		t.Fatal(err)
	}
	return w, l.Writer
}

func TestAppend(t *testing.T) {
	w, writer := holder(t)
	putBlob(t, w, "file", "one")
	if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: own("a", "", "one"), Writer: writer}); err != nil {
		t.Fatal(err)
	}
	second := own("b", "a", "one")
	second.Label = "second"
	reply, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: second, ExpectedHeadID: ptr(snapshot.CheckpointID("a")), Writer: writer})
	if err != nil || reply.HeadID != "b" {
		t.Fatal(reply, err)
	}
	cp, err := w.Checkpoint(t.Context(), snapshot.GetCheckpointRequest{CheckpointID: "b", Include: snapshot.Include{"files", "conversation"}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"b","threadId":"t","parentCheckpointId":"a","createdAt":7,"reason":"automatic","label":"second","sourceRunId":"r",` +
		`"stats":{"files":1,"dirs":0,"symlinks":0,"bytes":3,"newBytes":0},"coverage":{"excluded":{},"skipped":[],"unstable":[],"redactions":0},"artifacts":[],` +
		`"files":[{"path":"f","kind":"file","blobKey":"` + fileKey("one") + `","size":3,"mtime":1.5}],"conversation":[{ "m" : 1 }]}`
	if got := wire(t, cp); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// long is a conversation that does not stand in its record.
func long() snapshot.Messages {
	return snapshot.Messages{json.RawMessage(`"` + strings.Repeat("x", snapshot.InlineList) + `"`)}
}

func TestAppend_FaultsInTheirOrder(t *testing.T) {
	for name, talk := range map[string]snapshot.Messages{"small": {}, "large": long()} {
		t.Run(name, func(t *testing.T) { faultsInTheirOrder(t, talk) })
	}
}

func faultsInTheirOrder(t *testing.T, talk snapshot.Messages) {
	w, writer := holder(t)
	putBlob(t, w, "file", "one")
	if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: own("a", "", "one"), Writer: writer}); err != nil {
		t.Fatal(err)
	}
	req := snapshot.AppendRequest{Checkpoint: own("a", "x", "missing"), ExpectedHeadID: ptr(snapshot.CheckpointID("y")),
		Writer: snapshot.Writer{ThreadID: "other", OwnerToken: "stale"}}
	req.Checkpoint.Files[0].Path, req.Checkpoint.Conversation = "/f", talk
	for _, step := range []struct {
		want snapshot.Code
		mend func()
	}{
		{snapshot.WriterLost, func() { req.Writer.ThreadID = "t" }},
		{snapshot.InvalidEntry, func() { req.Checkpoint.Files[0].Path = "f" }},
		{snapshot.WriterLost, func() { req.Writer = writer }},
		{snapshot.DuplicateID, func() { req.Checkpoint.ID = "b" }},
		{snapshot.StaleHead, func() { req.ExpectedHeadID = ptr(snapshot.CheckpointID("a")) }},
		{snapshot.ParentMismatch, func() { req.Checkpoint.Parent = ptr(snapshot.CheckpointID("a")) }},
		{snapshot.MissingBlob, func() { putBlob(t, w, "file", "missing") }},
	} {
		if _, err := w.Append(t.Context(), req); !errors.Is(err, step.want) {
			t.Fatalf("got %v, want %v", err, step.want)
		}
		if head, _ := w.Head(t.Context(), snapshot.ThreadRequest{ThreadID: "t"}); head != "a" {
			t.Fatalf("after %v the head is %q", step.want, head)
		}
		step.mend()
	}
	if _, err := w.Append(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Append(t.Context(), req); err != nil {
		t.Errorf("the same again: %v", err)
	}
}

// An append that was done is done, whatever became of its writer and its thread.
func TestAppend_DoneAlready(t *testing.T) {
	for name, talk := range map[string]snapshot.Messages{"small": {}, "large": long()} {
		t.Run(name, func(t *testing.T) {
			w, writer := holder(t)
			putBlob(t, w, "file", "one")
			req := snapshot.AppendRequest{Checkpoint: own("a", "", "one"), Writer: writer}
			req.Checkpoint.Conversation = talk
			next := snapshot.AppendRequest{Checkpoint: own("b", "a", "one"), ExpectedHeadID: ptr(snapshot.CheckpointID("a")), Writer: writer}
			for _, r := range []snapshot.AppendRequest{req, req, next, req} {
				if reply, err := w.Append(t.Context(), r); err != nil || reply.HeadID != r.Checkpoint.ID {
					t.Fatal(reply, err)
				}
			}
			if err := w.ReleaseWriter(t.Context(), writer); err != nil {
				t.Fatal(err)
			}
			w.objects.DropBlob(sha256.Sum256([]byte("one")))
			if reply, err := w.Append(t.Context(), req); err != nil || reply.HeadID != "a" {
				t.Errorf("the same again by a writer that was: %v, %v", reply, err)
			}
			req.Checkpoint.Parent = ptr(snapshot.CheckpointID("x"))
			if _, err := w.Append(t.Context(), req); err != nil {
				t.Errorf("the same again with another parent: %v", err)
			}
			req.Checkpoint.SourceRunID = "another"
			if _, err := w.Append(t.Context(), req); !errors.Is(err, snapshot.WriterLost) {
				t.Errorf("another append of that id: %v, want %v", err, snapshot.WriterLost)
			}
		})
	}
}

// A small append is one commit; a large one looks before it stores anything.
func TestAppend_LooksBeforeItStores(t *testing.T) {
	w, writer := holder(t)
	objects := &countedObjects{Objects: w.objects}
	w.Objects = objects
	small, large := own("a", "", ""), own("b", "x", "")
	large.Conversation = long()
	for _, tc := range []struct {
		c      snapshot.NewCheckpoint
		want   snapshot.Code
		trace  string
		stores bool
	}{{small, "", "append", true}, {large, snapshot.StaleHead, "admit", false}} {
		w.trace, objects.lists = nil, 0
		_, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: tc.c, ExpectedHeadID: tc.c.Parent, Writer: writer})
		if tc.want == "" && err != nil || tc.want != "" && !errors.Is(err, tc.want) {
			t.Fatalf("%s: %v, want %q", tc.c.ID, err, tc.want)
		}
		if got := strings.Join(w.trace, ", "); got != tc.trace || tc.stores != (objects.lists > 0) {
			t.Errorf("%s: asked for %s and stored %d lists, want %s, %v", tc.c.ID, got, objects.lists, tc.trace, tc.stores)
		}
	}
}

// countedObjects counts the lists that are made.
type countedObjects struct {
	snapshot.Objects
	lists int
}

func (o *countedObjects) WriteItems(ctx context.Context, items [][]byte, prior snapshot.List) (snapshot.List, error) {
	o.lists++
	return o.Objects.WriteItems(ctx, items, prior)
}

// A content that lies in a pack of the head needs no loose blob.
func TestAppend_ContentOfTheHead(t *testing.T) {
	w := saved(t)
	l, err := w.AcquireWriter(t.Context(), snapshot.AcquireRequest{ThreadID: "t"})
	if err != nil {
		t.Fatal(err)
	}
	req := snapshot.AppendRequest{Checkpoint: own("c3", "c2", "one"), ExpectedHeadID: ptr(snapshot.CheckpointID("c2")), Writer: l.Writer}
	if _, err := w.Append(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if r, err := w.ReadFile(t.Context(), snapshot.ReadFileRequest{CheckpointID: "c3", Path: "f"}, 100); err != nil || string(r.Data) != "one" {
		t.Errorf("got %+v, %v", r, err)
	}
	req = snapshot.AppendRequest{Checkpoint: own("c4", "c3", "c1"), ExpectedHeadID: ptr(snapshot.CheckpointID("c3")), Writer: l.Writer}
	if _, err := w.Append(t.Context(), req); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("a content of another checkpoint: %v, want %v", err, snapshot.MissingBlob)
	}
}

func TestAppend_Entries(t *testing.T) {
	key, size := ptr(fileKey("")), ptr(int64(0))
	file := func(path string) snapshot.NewEntry {
		return snapshot.NewEntry{Path: path, Kind: "file", BlobKey: key, Size: size}
	}
	for name, files := range map[string][]snapshot.NewEntry{
		"no kind":              {{Path: "a"}},
		"path leaves":          {file("../a")},
		"file without key":     {{Path: "a", Kind: "file", Size: size}},
		"file without size":    {{Path: "a", Kind: "file", BlobKey: key}},
		"key of an artifact":   {{Path: "a", Kind: "file", BlobKey: ptr(snapshot.ArtifactBlobPrefix + strings.Repeat("0", 64)), Size: size}},
		"key in upper case":    {{Path: "a", Kind: "file", BlobKey: ptr(strings.ToUpper(*key)), Size: size}},
		"negative size":        {{Path: "a", Kind: "file", BlobKey: ptr(fileKey("x")), Size: ptr(int64(-1))}},
		"no size for bytes":    {{Path: "a", Kind: "file", BlobKey: ptr(fileKey("x")), Size: size}},
		"mode too large":       {{Path: "a", Kind: "file", BlobKey: key, Size: size, Mode: ptr(int64(0o1777))}},
		"mtime no number":      {{Path: "a", Kind: "file", BlobKey: key, Size: size, Mtime: ptr(json.Number("1e400"))}},
		"mtime too fine":       {{Path: "a", Kind: "file", BlobKey: key, Size: size, Mtime: ptr(json.Number("1.0000001"))}},
		"directory with size":  {{Path: "a", Kind: "dir", Size: size}},
		"link without target":  {{Path: "a", Kind: "symlink"}},
		"link with mode":       {{Path: "a", Kind: "symlink", Target: ptr("b"), Mode: ptr(int64(0))}},
		"twice":                {file("a"), file("b"), file("a")},
		"below a file":         {file("a/b"), file("a"), file("a-b")},
		"below a link":         {file("a/b/c"), {Path: "a", Kind: "symlink", Target: ptr("b")}},
		"secret in the name":   {file(secret)},
		"secret in the target": {{Path: "a", Kind: "symlink", Target: ptr(secret)}},
	} {
		t.Run(name, func(t *testing.T) {
			w, writer := holder(t)
			c := own("a", "", "")
			c.Files = files
			if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: c, Writer: writer}); !errors.Is(err, snapshot.InvalidEntry) {
				t.Errorf("got %v, want %v", err, snapshot.InvalidEntry)
			}
		})
	}
	w, writer := holder(t)
	c := own("a", "", "")
	c.Files = []snapshot.NewEntry{file("z"), {Path: "d", Kind: "dir", Mode: ptr(int64(0o700))}, file("d/x"), {Path: "l", Kind: "symlink", Target: ptr("/etc")}}
	if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: c, Writer: writer}); err != nil {
		t.Error(err)
	}
}

func TestAppend_WithoutItsBlobs(t *testing.T) {
	w, writer := holder(t)
	c := own("a", "", "elsewhere")
	c.Artifacts = []snapshot.Artifact{{ID: "x", BlobKey: snapshot.ArtifactBlobPrefix + strings.Repeat("0", 64), Size: 5}}
	req := snapshot.AppendRequest{Checkpoint: c, Writer: writer}
	if _, err := w.Append(t.Context(), req); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("got %v, want %v", err, snapshot.MissingBlob)
	}
	req.RequireBlobs = ptr(false)
	if _, err := w.Append(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ReadFile(t.Context(), snapshot.ReadFileRequest{CheckpointID: "a", Path: "f"}, 100); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("read of a blob kept elsewhere: %v, want %v", err, snapshot.MissingBlob)
	}
	putBlob(t, w, "file", "elsewhere")
	if r, err := w.ReadFile(t.Context(), snapshot.ReadFileRequest{CheckpointID: "a", Path: "f"}, 100); err != nil || string(r.Data) != "elsewhere" {
		t.Errorf("read of a blob that came later: %+v, %v", r, err)
	}
}

func TestDeleteHead(t *testing.T) {
	w, writer := holder(t)
	putBlob(t, w, "file", "one")
	for _, c := range []snapshot.NewCheckpoint{own("a", "", "one"), own("b", "a", "one")} {
		if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: c, ExpectedHeadID: c.Parent, Writer: writer}); err != nil {
			t.Fatal(err)
		}
	}
	req := snapshot.DeleteHeadRequest{ThreadID: "t", CheckpointID: "a", Writer: writer}
	if _, err := w.DeleteHead(t.Context(), req); !errors.Is(err, snapshot.NotHead) {
		t.Errorf("delete below the head: %v, want %v", err, snapshot.NotHead)
	}
	req.CheckpointID, req.Writer.ThreadID = "b", "other"
	if _, err := w.DeleteHead(t.Context(), req); !errors.Is(err, snapshot.WriterLost) {
		t.Errorf("writer of another thread: %v, want %v", err, snapshot.WriterLost)
	}
	for _, step := range [][2]snapshot.CheckpointID{{"b", "a"}, {"a", ""}} {
		head, err := w.DeleteHead(t.Context(), snapshot.DeleteHeadRequest{ThreadID: "t", CheckpointID: step[0], Writer: writer})
		if err != nil || head != step[1] {
			t.Fatalf("after %q the head is %q, %v, want %q", step[0], head, err, step[1])
		}
	}
}

func TestForkHeld(t *testing.T) {
	w := saved(t)
	l, err := w.AcquireWriter(t.Context(), snapshot.AcquireRequest{ThreadID: "f"})
	if err != nil {
		t.Fatal(err)
	}
	req := snapshot.ForkHeldRequest{SourceThreadID: "f", SourceCheckpointID: "x", DestinationThreadID: "f", DestinationCheckpointID: "c2", CreatedAt: 9}
	for _, step := range []struct {
		want snapshot.Code
		mend func()
	}{
		{snapshot.ForkSourceThreadMismatch, func() { req.SourceThreadID = "other" }},
		{snapshot.ForkSourceNotFound, func() { req.SourceCheckpointID = "c1" }},
		{snapshot.ForkSourceThreadMismatch, func() { req.SourceThreadID = "t" }},
		{snapshot.WriterLost, func() { req.Writer = l.Writer; req.Writer.OwnerToken = "stale" }},
		{snapshot.WriterLost, func() { req.Writer = l.Writer }},
		{snapshot.ForkDestinationNotEmpty, func() { req.DestinationCheckpointID = "root" }},
	} {
		if _, _, err := w.ForkHeld(t.Context(), req); !errors.Is(err, step.want) {
			t.Fatalf("got %v, want %v", err, step.want)
		}
		step.mend()
	}
	if cp, _, err := w.ForkHeld(t.Context(), req); err != nil || cp.ID != "root" || cp.CreatedAt != 9 || cp.Reason != snapshot.ReasonForkRoot {
		t.Errorf("%+v, %v", cp, err)
	}
	if _, err := w.RenewWriter(t.Context(), l.Writer); err != nil {
		t.Errorf("the caller's lease is gone: %v", err)
	}
}

func TestDiff(t *testing.T) {
	w, writer := holder(t)
	e := func(path, data string, mode int64) snapshot.NewEntry {
		return snapshot.NewEntry{Path: path, Kind: "file", BlobKey: ptr(fileKey(data)), Size: ptr(int64(len(data))), Mode: &mode, Mtime: ptr(json.Number(fmt.Sprint(len(data) + int(mode))))}
	}
	a, b := own("a", "", ""), own("b", "a", "")
	a.Files = []snapshot.NewEntry{e("gone", "x", 420), e("mode", "x", 420), e("same", "x", 420), e("text", "x", 420), e("kind", "x", 420)}
	b.Files = []snapshot.NewEntry{e("mode", "x", 493), e("new", "x", 420), e("same", "x", 420), e("text", "y", 420), {Path: "kind", Kind: "dir"}}
	b.Files[2].Mtime = ptr(json.Number("99"))
	for _, c := range []snapshot.NewCheckpoint{a, b} {
		if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: c, ExpectedHeadID: c.Parent, Writer: writer, RequireBlobs: ptr(false)}); err != nil {
			t.Fatal(err)
		}
	}
	want := "removed gone, modified kind, mode mode, added new, modified text"
	for _, tc := range []struct{ limit, maxBytes int64 }{{1, 1 << 20}, {2, 1 << 20}, {100, 1 << 20}, {100, 1}} {
		var got []string
		page := snapshot.Page{Limit: &tc.limit}
		for {
			r, err := w.Diff(t.Context(), snapshot.DiffRequest{From: "a", To: "b", Page: page}, tc.maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range r.Changes {
				got = append(got, c.Change+" "+c.Path)
			}
			if page.After = r.Next; page.After == "" {
				break
			}
		}
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("%+v: got %s, want %s", tc, s, want)
		}
	}
	if _, err := w.Diff(t.Context(), snapshot.DiffRequest{From: "a", To: "x"}, 100); !errors.Is(err, snapshot.CheckpointNotFound) {
		t.Errorf("got %v, want %v", err, snapshot.CheckpointNotFound)
	}
}

func TestBlobs(t *testing.T) {
	w := saved(t)
	loose := putBlob(t, w, "file", "a loose one with "+secret)
	artifact := putBlob(t, w, "artifact", "bytes")
	redacted := "a loose one with " + string(make([]byte, len(secret)))
	if loose != fileKey(redacted) {
		t.Errorf("key %s is not that of the bytes without the secret", loose)
	}
	absent := fileKey("never stored")
	r, err := w.HeadBlobs(t.Context(), snapshot.HeadBlobsRequest{Keys: []string{artifact, absent, loose}})
	if want := []snapshot.Blob{{Key: artifact, Size: 5}, {Key: loose, Size: int64(len(redacted))}}; err != nil || !reflect.DeepEqual(r.Present, want) {
		t.Errorf("got %+v, %v; want %+v", r, err, want)
	}
	get := func(key string, cp snapshot.CheckpointID, max int64) (*snapshot.GetBlobReply, error) {
		return w.GetBlob(t.Context(), snapshot.GetBlobRequest{Key: key, CheckpointID: cp}, max)
	}
	if b, err := get(loose, "", 100); err != nil || b.Data == nil || !bytes.Equal(*b.Data, []byte(redacted)) || b.Object == "" {
		t.Errorf("loose blob: %+v, %v", b, err)
	}
	if b, err := get(artifact, "", 2); err != nil || b.Data != nil || b.Size != 5 || b.Object == "" {
		t.Errorf("artifact over the limit: %+v, %v", b, err)
	}
	if b, err := get(fileKey("c1"), "c1", 100); err != nil || b.Data == nil || string(*b.Data) != "c1" {
		t.Errorf("packed blob through its checkpoint: %+v, %v", b, err)
	}
	if b, err := get(fileKey("c1"), "c1", 1); err != nil || b.Data != nil || b.Object == "" {
		t.Errorf("packed blob over the limit: %+v, %v", b, err)
	}
	w.ws.files["empty"] = ""
	if _, _, err := w.Save(t.Context(), save("c3")); err != nil {
		t.Fatal(err)
	}
	if b, err := get(fileKey(""), "c3", 100); err != nil || b.Data == nil || len(*b.Data) != 0 || b.Size != 0 {
		t.Errorf("an empty file through its checkpoint: %+v, %v", b, err)
	}
	for _, tc := range []struct {
		key  string
		cp   snapshot.CheckpointID
		want snapshot.Code
	}{{absent, "", snapshot.MissingBlob}, {absent, "c1", snapshot.MissingBlob}, {absent, "x", snapshot.CheckpointNotFound}, {"x", "", snapshot.BadRequest}, {loose + "0", "", snapshot.BadRequest}} {
		if _, err := get(tc.key, tc.cp, 100); !errors.Is(err, tc.want) {
			t.Errorf("%+v: got %v", tc, err)
		}
	}
	if _, err := w.PutBlob(t.Context(), snapshot.PutBlobRequest{Kind: "other", Open: bytesOf("")}); !errors.Is(err, snapshot.BadRequest) {
		t.Errorf("unknown kind: %v", err)
	}
}

func TestReferences(t *testing.T) {
	w := saved(t)
	if _, _, err := w.Fork(t.Context(), snapshot.ForkRequest{ThreadID: "t", CheckpointID: "c1", DestinationThreadID: "f"}); err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{fileKey("one"): 3, fileKey("c1"): 2, fileKey("c2"): 1}
	for _, name := range []string{"c1", "c2"} {
		want[fmt.Sprintf("%s%x", snapshot.ArtifactBlobPrefix, sha256.Sum256([]byte("artifact of "+name)))] = map[string]int64{"c1": 2, "c2": 1}[name]
	}
	for _, limit := range []int64{1, 2, 100} {
		got, last := map[string]int64{}, ""
		page := snapshot.Page{Limit: &limit}
		for {
			r, err := w.References(t.Context(), snapshot.ReferencesRequest{Page: page}, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			for _, ref := range r.References {
				if ref.Key <= last {
					t.Errorf("%s comes after %s", ref.Key, last)
				}
				got[ref.Key], last = ref.References, ref.Key
			}
			if page.After = r.Next; page.After == "" {
				break
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("limit %d: got %v, want %v", limit, got, want)
		}
	}
	r, err := w.References(t.Context(), snapshot.ReferencesRequest{ThreadID: "f"}, 1<<20)
	if err != nil || len(r.References) != 3 {
		t.Errorf("of the fork: %+v, %v", r, err)
	}
}

func TestDeleteThread(t *testing.T) {
	w := saved(t)
	if n, err := w.DeleteThread(t.Context(), snapshot.ThreadRequest{ThreadID: "t"}); err != nil || n != 2 {
		t.Fatalf("deleted %d checkpoints, %v; want 2", n, err)
	}
	if cp, err := w.Checkpoint(t.Context(), snapshot.GetCheckpointRequest{CheckpointID: "c1"}); err != nil || cp != nil {
		t.Errorf("a deleted checkpoint: %+v, %v", cp, err)
	}
	if _, _, err := w.Save(t.Context(), save("c3")); !errors.Is(err, snapshot.ThreadDeleted) {
		t.Errorf("save into a deleted thread: %v, want %v", err, snapshot.ThreadDeleted)
	}
	if n, err := w.DeleteThread(t.Context(), snapshot.ThreadRequest{ThreadID: "unknown"}); err != nil || n != 0 {
		t.Errorf("unknown thread: %d, %v", n, err)
	}
}
