package snapshot_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sandkeep/internal/snapshot"
)

// refuse wants an append to be refused with the code, and to change nothing.
func refuse(t *testing.T, w *world, req snapshot.AppendRequest, code snapshot.Code) {
	t.Helper()
	w.Objects = untouched{w.objects, t}
	if _, err := w.Append(t.Context(), req); !errors.Is(err, code) {
		t.Errorf("got %v, want %v", err, code)
	}
	if recs, err := w.mem.List(t.Context(), req.Checkpoint.ThreadID); err != nil || len(recs) > 0 {
		t.Errorf("the thread has %d checkpoints, %v", len(recs), err)
	}
}

// untouched fails the test when something is stored.
type untouched struct {
	snapshot.Objects
	t *testing.T
}

func (o untouched) Import(context.Context, []snapshot.Entry, snapshot.List, bool) (snapshot.List, error) {
	o.t.Error("a manifest was stored")
	return snapshot.List{}, nil
}

func (o untouched) WriteItems(context.Context, [][]byte, snapshot.List) (snapshot.List, error) {
	o.t.Error("a list was stored")
	return snapshot.List{}, nil
}

func TestAppend_Artifacts(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	for name, artifacts := range map[string][]snapshot.Artifact{
		"key of a file":        {{ID: "a", BlobKey: snapshot.FileBlobPrefix + hex}},
		"key of another store": {{ID: "a", BlobKey: "mine-artifacts/sha256/" + hex}},
		"key in upper case":    {{ID: "a", BlobKey: snapshot.ArtifactBlobPrefix + strings.ToUpper(hex)}},
		"key too short":        {{ID: "a", BlobKey: snapshot.ArtifactBlobPrefix + hex[1:]}},
		"key too long":         {{ID: "a", BlobKey: snapshot.ArtifactBlobPrefix + hex + "/"}},
		"key not hex":          {{ID: "a", BlobKey: snapshot.ArtifactBlobPrefix + hex[1:] + "g"}},
		"no key":               {{ID: "a"}},
		"negative size":        {{ID: "a", BlobKey: snapshot.ArtifactBlobPrefix + hex, Size: -1}},
		"long name":            {{ID: "a", BlobKey: snapshot.ArtifactBlobPrefix + hex, Name: strings.Repeat("n", 5000)}},
		"twice": {{ID: "a", BlobKey: snapshot.ArtifactBlobPrefix + hex}, {ID: "b", BlobKey: snapshot.ArtifactBlobPrefix + hex},
			{ID: "a", BlobKey: snapshot.ArtifactBlobPrefix + hex, Name: "another"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, writer := holder(t)
			c := own("c", "", "")
			c.Artifacts = artifacts
			refuse(t, w, snapshot.AppendRequest{Checkpoint: c, Writer: writer, RequireBlobs: ptr(false)}, snapshot.InvalidEntry)
		})
	}
}

// Sizes that are safe one by one add up to a number that is none.
func TestAppend_SizesAddUp(t *testing.T) {
	w, writer := holder(t)
	c := own("c", "", "")
	c.Files = nil
	for i := range 1025 {
		c.Files = append(c.Files, snapshot.NewEntry{Path: fmt.Sprint("f", i), Kind: "file", BlobKey: ptr(fileKey("x")), Size: ptr(int64(1<<53 - 1))})
	}
	refuse(t, w, snapshot.AppendRequest{Checkpoint: c, Writer: writer, RequireBlobs: ptr(false)}, snapshot.InvalidEntry)
}

// An mtime is a number in any spelling of JSON; two spellings of a letter are
// two names; a name is a directory's child only behind a slash.
func TestAppend_EntriesTaken(t *testing.T) {
	w, writer := holder(t)
	c := own("c", "", "")
	c.Files = nil
	file := func(path, mtime string) {
		c.Files = append(c.Files, snapshot.NewEntry{Path: path, Kind: "file", BlobKey: ptr(fileKey("")), Size: ptr(int64(0)), Mtime: ptr(json.Number(mtime))})
	}
	file("\u00e9", "1.7e12")
	file("e\u0301", "-15E-1")
	file("a", "0.000001e0")
	file("a-", "1.5e+3")
	file("a.b/c", "-0")
	file("a0", "100000.0e-5")
	if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: c, Writer: writer}); err != nil {
		t.Fatal(err)
	}
	cp, err := w.Checkpoint(t.Context(), snapshot.GetCheckpointRequest{CheckpointID: "c", Include: snapshot.Include{"files"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range cp.Entries {
		got = append(got, fmt.Sprintf("%+q %d", e.Path, e.Mtime))
	}
	want := []string{`"a" 1`, `"a-" 1500000000`, `"a.b/c" 0`, `"a0" 1000000`, `"e\u0301" -1500000`, `"\u00e9" 1700000000000000000`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	for _, mtime := range []string{"1e13", "1e400", "1e-400", "1e99999999999999999999", "-1e-7"} {
		c.Files = nil
		file("f", mtime)
		if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: c, Writer: writer}); !errors.Is(err, snapshot.InvalidEntry) {
			t.Errorf("mtime %s: %v", mtime, err)
		}
	}
}

// Checkpoints of one time sort by the bytes of their ids, which is neither the
// order of the chain nor that of UTF-16.
func TestListCheckpoints_Order(t *testing.T) {
	w, writer := holder(t)
	parent := snapshot.CheckpointID("")
	for _, c := range []struct {
		id snapshot.CheckpointID
		at snapshot.Millis
	}{{"\U0001f9ea", 5}, {"\uff5e", 5}, {"late", 5.5}, {"b", 5}, {"B", 5}, {"early", -1}} {
		next := own(c.id, parent, "")
		next.CreatedAt = c.at
		if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: next, ExpectedHeadID: next.Parent, Writer: writer}); err != nil {
			t.Fatal(err)
		}
		parent = c.id
	}
	for _, limit := range []int64{1, 4, 100} {
		var got []string
		for page := (snapshot.Page{Limit: &limit}); ; {
			r, err := w.ListCheckpoints(t.Context(), snapshot.ListCheckpointsRequest{ThreadID: "t", Page: page}, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			for _, cp := range r.Checkpoints {
				got = append(got, string(cp.ID))
			}
			if page.After = r.Next; page.After == "" {
				break
			}
		}
		if want := []string{"early", "B", "b", "\uff5e", "\U0001f9ea", "late"}; !slices.Equal(got, want) {
			t.Errorf("by %d: got %q, want %q", limit, got, want)
		}
	}
}

// unasked fails the test when a blob is looked for.
type unasked struct {
	snapshot.Objects
	t *testing.T
}

func (o unasked) BlobSize(context.Context, snapshot.Digest, bool) (int64, bool, error) {
	o.t.Error("a blob was looked for")
	return 0, false, nil
}

// A key of another form is found before anything is looked for.
func TestHeadBlobs_Refused(t *testing.T) {
	w := newWorld(t)
	w.Objects = unasked{w.objects, t}
	for _, key := range []string{"", "x", fileKey("") + "0", strings.ToUpper(fileKey("")), "other-files/sha256/" + strings.Repeat("0", 64)} {
		_, err := w.HeadBlobs(t.Context(), snapshot.HeadBlobsRequest{Keys: []string{fileKey("a"), fileKey("b"), key}})
		if !errors.Is(err, snapshot.BadRequest) {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

// A checkpoint refers once to each distinct key, however many of its files and
// artifacts have it.
func TestReferences_DistinctKeys(t *testing.T) {
	w, writer := holder(t)
	artifact := putBlob(t, w, "artifact", "same")
	putBlob(t, w, "file", "same")
	parent := snapshot.CheckpointID("")
	for _, id := range []snapshot.CheckpointID{"a", "b"} {
		c := own(id, parent, "same")
		for _, path := range []string{"g", "h"} {
			c.Files = append(c.Files, c.Files[0])
			c.Files[len(c.Files)-1].Path = path
		}
		for _, name := range []snapshot.ArtifactID{"x", "y"} {
			c.Artifacts = append(c.Artifacts, snapshot.Artifact{ID: name, Size: 4, BlobKey: artifact})
		}
		if _, err := w.Append(t.Context(), snapshot.AppendRequest{Checkpoint: c, ExpectedHeadID: c.Parent, Writer: writer}); err != nil {
			t.Fatal(err)
		}
		parent = id
	}
	r, err := w.References(t.Context(), snapshot.ReferencesRequest{ThreadID: "t"}, 1<<20)
	want := []snapshot.Reference{{Key: artifact, References: 2}, {Key: fileKey("same"), References: 2}}
	if err != nil || !slices.Equal(r.References, want) {
		t.Errorf("got %+v, %v; want %+v", r, err, want)
	}
}
