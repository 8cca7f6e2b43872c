package snapshot_test

import (
	"encoding/json"
	"testing"

	"sandkeep/internal/snapshot"
)

func TestEntryOnTheWire(t *testing.T) {
	empty := "sandbox-files/sha256/0000000000000000000000000000000000000000000000000000000000000000"
	for _, tc := range []struct {
		entry snapshot.Entry
		want  string
	}{
		{snapshot.Entry{Path: "a<b", Kind: snapshot.KindFile, Mode: 0o644, Mtime: 1764435755123456789},
			`{"path":"a<b","kind":"file","blobKey":"` + empty + `","size":0,"mtime":1764435755123.456789}`},
		{snapshot.Entry{Path: "a", Kind: snapshot.KindFile, Mode: 0o755, Mtime: 1000000},
			`{"path":"a","kind":"file","blobKey":"` + empty + `","size":0,"mode":493,"mtime":1}`},
		{snapshot.Entry{Path: "a", Kind: snapshot.KindFile, Mode: 0, Mtime: -1500000},
			`{"path":"a","kind":"file","blobKey":"` + empty + `","size":0,"mode":0,"mtime":-1.5}`},
		{snapshot.Entry{Path: "a", Kind: snapshot.KindFile, Mode: 0o644, Mtime: -1},
			`{"path":"a","kind":"file","blobKey":"` + empty + `","size":0,"mtime":-0.000001}`},
		{snapshot.Entry{Path: "d", Kind: snapshot.KindDir, Mode: 0o755}, `{"path":"d","kind":"dir"}`},
		{snapshot.Entry{Path: "d", Kind: snapshot.KindDir, Mode: 0o700}, `{"path":"d","kind":"dir","mode":448}`},
		{snapshot.Entry{Path: "l", Kind: snapshot.KindSymlink, Target: "/etc"}, `{"path":"l","kind":"symlink","target":"/etc"}`},
	} {
		got, err := tc.entry.MarshalJSON()
		if err != nil || string(got) != tc.want {
			t.Errorf("got %s, %v\nwant %s", got, err, tc.want)
		}
	}
}

func TestCheckpointKeepsTheBytesOfItsConversation(t *testing.T) {
	cp := snapshot.Checkpoint{ID: "c", ThreadID: "t", Reason: snapshot.ReasonNamed, Label: "<l>",
		Conversation: snapshot.Messages{json.RawMessage(`{ "a" : 1.0e2, "a":"\ud800" }`), json.RawMessage(`null`)}}
	got, err := cp.AppendJSON([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	want := `x{"id":"c","threadId":"t","parentCheckpointId":null,"createdAt":0,"reason":"named","label":"<l>",` +
		`"stats":{"files":0,"dirs":0,"symlinks":0,"bytes":0,"newBytes":0},` +
		`"coverage":{"excluded":{},"skipped":[],"unstable":[],"redactions":0},"artifacts":[],` +
		`"conversation":[{ "a" : 1.0e2, "a":"\ud800" },null]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTokensAreNotPrinted(t *testing.T) {
	w := snapshot.Writer{ThreadID: "t", OwnerToken: "canary", Fence: 7}
	for _, s := range []string{w.String(), w.GoString(), snapshot.Lease{Writer: w}.String(), snapshot.Lease{Writer: w}.GoString()} {
		if want := `writer of "t", fence 7`; s != want {
			t.Errorf("got %q, want %q", s, want)
		}
	}
}
