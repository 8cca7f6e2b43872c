package snapshottest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandkeep/internal/snapshot"
)

// Soon bounds everything that a contract waits for.
const Soon = 15 * time.Second

// Record makes a record that is worth comparing.
func Record(thread snapshot.ThreadID, id, parent snapshot.CheckpointID) *snapshot.Record {
	return &snapshot.Record{
		ID: id, Thread: thread, Parent: parent, CreatedAt: 1764436800123.5, Reason: snapshot.ReasonNamed,
		Label: "before <the> change & after", SourceRun: "run-1",
		Stats:        snapshot.Stats{Files: 2, Dirs: 1, Bytes: 77, NewBytes: 7},
		Coverage:     snapshot.Coverage{Excluded: map[string]int64{"node_modules": 3}, Skipped: []snapshot.Skipped{{Path: "p", Reason: "pipe"}}, Unstable: []string{"log"}, Redactions: 1},
		Files:        snapshot.List{Count: 2, Pages: []snapshot.PageRef{{Piece: snapshot.Piece{Digest: snapshot.Digest{1}, Pack: snapshot.Digest{2}, Offset: 3, Length: 4}, First: "a"}}},
		Conversation: snapshot.List{Count: 1, Inline: []byte(`{"role":"user"}`)},
		Nonce:        fmt.Sprintf("nonce of %s in %s", id, thread),
	}
}

// ForkRoot makes the record of a fork.
func ForkRoot(thread snapshot.ThreadID, id snapshot.CheckpointID) *snapshot.Record {
	rec := Record(thread, id, "")
	rec.Reason, rec.Label, rec.SourceRun = snapshot.ReasonForkRoot, "", ""
	rec.Source = &snapshot.ForkSource{Thread: "source", Checkpoint: "source-1"}
	return rec
}

func writer(t *testing.T, s Stores, id snapshot.ThreadID) snapshot.Writer {
	t.Helper()
	l, err := s.Acquire(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	return l.Writer
}

func mustAppend(t *testing.T, s Stores, w snapshot.Writer, id, parent snapshot.CheckpointID) *snapshot.Record {
	t.Helper()
	rec := Record(w.ThreadID, id, parent)
	if err := s.Append(t.Context(), rec, parent, w); err != nil {
		t.Fatal(err)
	}
	return rec
}

// wantCode checks the code of an error and returns its details.
func wantCode(t *testing.T, err error, code snapshot.Code) map[string]any {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("error is %v, want %s", err, code)
	}
	return snapshot.AsError(err).Details
}

// noEmptyName checks that a message says none where there is no head.
func noEmptyName(t *testing.T, err error) {
	t.Helper()
	if strings.Contains(err.Error(), `""`) {
		t.Errorf("%v names a head that is not there", err)
	}
}

// wantChain checks that list, head, root and get agree.
func wantChain(t *testing.T, s Stores, id snapshot.ThreadID, want ...*snapshot.Record) {
	t.Helper()
	got, err := s.List(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("list of thread %q (-want +got):\n%s", id, diff)
	}
	st, err := s.State(t.Context(), id)
	if err != nil || st.Depth != int64(len(want)) {
		t.Fatalf("state %+v, %v; want depth %d", st, err, len(want))
	}
	root, err := s.Root(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	newest, err := s.Newest(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) == 0 {
		if root != nil || newest != nil || st.Head != "" {
			t.Fatalf("root %v, newest %v, head %q of an empty thread", root, newest, st.Head)
		}
		return
	}
	last := want[len(want)-1]
	if diff := cmp.Diff([]*snapshot.Record{want[0], last}, []*snapshot.Record{root, newest}); diff != "" || st.Head != last.ID {
		t.Fatalf("head %q, root and newest (-want +got):\n%s", st.Head, diff)
	}
	for _, rec := range want {
		if found, err := s.Get(t.Context(), rec.ID); err != nil || !cmp.Equal(rec, found) {
			t.Fatalf("get %q: %v\n%s", rec.ID, err, cmp.Diff(rec, found))
		}
	}
}

// CheckpointsContract checks what every snapshot.Checkpoints must do.
func CheckpointsContract(t *testing.T, open func(*testing.T) Stores) {
	cases := map[string]func(*testing.T, Stores){
		"unknown thread": func(t *testing.T, s Stores) {
			wantChain(t, s, "nobody")
			if st, err := s.State(t.Context(), "nobody"); err != nil || !cmp.Equal(st, snapshot.ThreadState{}) {
				t.Fatal(st, err)
			}
			if rec, err := s.Get(t.Context(), "nothing"); rec != nil || err != nil {
				t.Fatal(rec, err)
			}
		},
		"base":            baseMoves,
		"append":          appendChain,
		"append refused":  appendRefused,
		"order of faults": orderOfFaults,
		"duplicate ids":   duplicateIDs,
		"writers":         writersLost,
		"hostile ids":     hostileIDs,
		"fork":            forkIntoEmpty,
		"fork refused":    forkRefused,
		"fork while held": forkWhileHeld,
		"fork by holder":  forkByHolder,
		"conversation":    conversation,
		"delete head":     deleteHead,
		"delete thread":   deleteThread,
		"deleted thread":  deletedRefuses,
		"bare artifacts":  deleteBareArtifacts,
		"swept thread":    sweptThread,
		"threads":         threads,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) { run(t, open(t)) })
	}
}

func appendChain(t *testing.T, s Stores) {
	w := writer(t, s, "t")
	wantChain(t, s, "t")
	first := mustAppend(t, s, w, "c1", "")
	second := mustAppend(t, s, w, "c2", "c1")
	other := mustAppend(t, s, writer(t, s, "u"), "d1", "")
	wantChain(t, s, "t", first, second)
	wantChain(t, s, "u", other)

	timed := Record("t", "c3", "c2")
	timed.Coverage.Phases = map[string]snapshot.Phase{"scan": {Ms: 1}}
	if err := s.Append(t.Context(), timed, "c2", w); err != nil {
		t.Fatal(err)
	}
	wantChain(t, s, "t", first, second, Record("t", "c3", "c2"))
}

func appendRefused(t *testing.T, s Stores) {
	w := writer(t, s, "t")
	first := mustAppend(t, s, w, "c1", "")
	d := wantCode(t, s.Append(t.Context(), Record("t", "c2", "c0"), "c0", w), snapshot.StaleHead)
	if fmt.Sprint(d["actualHead"]) != "c1" {
		t.Fatalf("details %v lack the actual head", d)
	}
	wantCode(t, s.Append(t.Context(), Record("t", "c2", ""), "", w), snapshot.StaleHead)
	wantChain(t, s, "t", first)
}

// orderOfFaults: a record whose parent is not the expected head has whatever
// fault comes before that, and is never stored.
func orderOfFaults(t *testing.T, s Stores) {
	w := writer(t, s, "t")
	first := mustAppend(t, s, w, "c1", "")
	lost := snapshot.Writer{ThreadID: "t", OwnerToken: "guess", Fence: w.Fence}
	for _, c := range []struct {
		id, parent, expected snapshot.CheckpointID
		w                    snapshot.Writer
		want                 snapshot.Code
	}{
		{"c1", "zz", "c0", lost, snapshot.WriterLost},
		{"c1", "zz", "c0", w, snapshot.DuplicateID},
		{"c1", "zz", "c1", w, snapshot.DuplicateID},
		{"c1", "", "c1", w, snapshot.DuplicateID},
		{"c1", "c1", "", w, snapshot.DuplicateID},
		{"c2", "c1", "", w, snapshot.StaleHead},
		{"c2", "zz", "c0", w, snapshot.StaleHead},
		{"c2", "", "c1", w, snapshot.ParentMismatch},
		{"c2", "zz", "c1", w, snapshot.ParentMismatch},
	} {
		err := s.Append(t.Context(), Record("t", c.id, c.parent), c.expected, c.w)
		wantCode(t, err, c.want)
		noEmptyName(t, err)
		done, err := s.Admit(t.Context(), Record("t", c.id, c.parent), c.expected, c.w)
		if wasDone := c.id == "c1" && c.expected == ""; done || wasDone {
			if !done || !wasDone || err != nil {
				t.Errorf("admit of %q behind %q: %v, %v", c.id, c.expected, done, err)
			}
			continue
		}
		wantCode(t, err, c.want)
	}
	if done, err := s.Admit(t.Context(), Record("t", "c2", "c1"), "c1", w); done || err != nil {
		t.Errorf("admit of an append that would be taken: %v, %v", done, err)
	}
	other := Record("t", "c1", "")
	other.Label = "of another save"
	wantCode(t, s.Append(t.Context(), other, "", w), snapshot.DuplicateID)
	wantChain(t, s, "t", first)
	if rec, err := s.Get(t.Context(), "c2"); rec != nil || err != nil {
		t.Fatal(rec, err)
	}
}

func duplicateIDs(t *testing.T, s Stores) {
	w, v := writer(t, s, "t"), writer(t, s, "u")
	first := mustAppend(t, s, w, "c1", "")
	second := mustAppend(t, s, w, "c2", "c1")
	if d := wantCode(t, s.Append(t.Context(), Record("u", "c1", ""), "", v), snapshot.DuplicateID); d["threadId"] != nil {
		t.Fatalf("details %v tell of another thread", d)
	}
	if d := wantCode(t, s.Append(t.Context(), Record("t", "c1", "c2"), "c2", w), snapshot.DuplicateID); d["threadId"] == nil {
		t.Fatalf("details %v lack the thread", d)
	}
	wantCode(t, s.Append(t.Context(), Record("t", "c2", ""), "", w), snapshot.DuplicateID)
	for _, other := range []func(*snapshot.Record){func(r *snapshot.Record) { r.SourceRun = "run-2" }, func(r *snapshot.Record) { r.Label = "" }} {
		rec := Record("t", "c1", "")
		other(rec)
		wantCode(t, s.Append(t.Context(), rec, "", w), snapshot.DuplicateID)
	}
	// A retry of an append that was done is done, also when the thread went on.
	mustAppend(t, s, w, "c2", "c1")
	mustAppend(t, s, w, "c1", "")
	wantChain(t, s, "t", first, second)
	wantChain(t, s, "u")
	// Refused appends are in nobody's way.
	wantChain(t, s, "t", first, second, mustAppend(t, s, w, "c3", "c2"))
	wantChain(t, s, "u", mustAppend(t, s, v, "d1", ""))
}

func writersLost(t *testing.T, s Stores) {
	w := writer(t, s, "t")
	first := mustAppend(t, s, w, "c1", "")
	next := Record("t", "c2", "c1")
	forged, oldFence, foreign := w, w, writer(t, s, "u")
	forged.OwnerToken = "guess"
	oldFence.Fence--
	for _, bad := range []snapshot.Writer{forged, oldFence, foreign, {ThreadID: "t"}} {
		wantCode(t, s.Append(t.Context(), next, "c1", bad), snapshot.WriterLost)
	}
	if err := s.Release(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.Append(t.Context(), next, "c1", w), snapshot.WriterLost)
	v := writer(t, s, "t")
	wantCode(t, s.Append(t.Context(), next, "c1", w), snapshot.WriterLost)
	wantChain(t, s, "t", first, mustAppend(t, s, v, "c2", "c1"))
}

func hostileIDs(t *testing.T, s Stores) {
	ids := []string{strings.Repeat("*", snapshot.MaxIDBytes), strings.Repeat("é", snapshot.MaxIDBytes/2), "a.b", ">", " ", "x/y\n", "\x00", "=2A", "😀"}
	for i, id := range ids {
		w := writer(t, s, snapshot.ThreadID(id))
		first := mustAppend(t, s, w, snapshot.CheckpointID(id), "")
		second := mustAppend(t, s, w, snapshot.CheckpointID(fmt.Sprint("next ", i)), snapshot.CheckpointID(id))
		wantChain(t, s, snapshot.ThreadID(id), first, second)
	}
}

func forkIntoEmpty(t *testing.T, s Stores) {
	ctx := t.Context()
	root := ForkRoot("t", "f1")
	if err := s.Fork(ctx, root, 0); err != nil {
		t.Fatal(err)
	}
	wantChain(t, s, "t", root)
	st, err := s.State(ctx, "t")
	if err != nil || st.Revision != 0 || !cmp.Equal(st.Messages, root.Conversation) {
		t.Fatalf("state %+v, %v; want the root's conversation at revision 0", st, err)
	}
	next := mustAppend(t, s, writer(t, s, "t"), "f2", "f1")
	wantChain(t, s, "t", root, next)

	// A thread that was only held, never written, is empty.
	if err := s.Release(ctx, writer(t, s, "held")); err != nil {
		t.Fatal(err)
	}
	held := ForkRoot("held", "g1")
	if err := s.Fork(ctx, held, 0); err != nil {
		t.Fatal(err)
	}
	wantChain(t, s, "held", held)
	if err := s.Release(ctx, writer(t, s, "held")); err != nil { // the fork left no lease
		t.Fatal(err)
	}
}

func forkRefused(t *testing.T, s Stores) {
	ctx := t.Context()
	w := writer(t, s, "full")
	first := mustAppend(t, s, w, "c1", "")
	if err := s.Release(ctx, w); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SaveConversation(ctx, "talk", snapshot.List{}, -1); err != nil {
		t.Fatal(err)
	}
	if err := s.PutArtifact(ctx, "art", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "a"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.PutArtifact(ctx, "gone", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "a"}, Deleted: true}); err != nil {
		t.Fatal(err)
	}
	for _, dst := range []snapshot.ThreadID{"full", "talk", "art", "gone"} {
		wantCode(t, s.Fork(ctx, ForkRoot(dst, "f1"), 0), snapshot.ForkDestinationNotEmpty)
	}
	wantCode(t, s.Fork(ctx, ForkRoot("new", "c1"), 0), snapshot.ForkDestinationNotEmpty)
	wantChain(t, s, "full", first)
	wantChain(t, s, "new")
	if rec, err := s.Get(ctx, "f1"); rec != nil || err != nil {
		t.Fatalf("a refused fork left %v, %v", rec, err)
	}
	root := ForkRoot("new", "f1") // neither the id nor the thread was spoilt
	if err := s.Fork(ctx, root, 0); err != nil {
		t.Fatal(err)
	}
	wantChain(t, s, "new", root)
}

func forkWhileHeld(t *testing.T, s Stores) {
	ctx, cancel := context.WithTimeout(t.Context(), Soon)
	defer cancel()
	w := writer(t, s, "t")
	wantCode(t, s.Fork(ctx, ForkRoot("t", "f1"), 0), snapshot.WriterConflict)
	forked := make(chan error, 1)
	go func() { forked <- s.Fork(ctx, ForkRoot("t", "f1"), Soon) }()
	if err := s.Release(ctx, w); err != nil {
		t.Fatal(err)
	}
	if err := <-forked; err != nil {
		t.Fatal(err)
	}
	wantChain(t, s, "t", ForkRoot("t", "f1"))
}

func conversation(t *testing.T, s Stores) {
	ctx := t.Context()
	one, two := snapshot.List{Count: 1, Inline: []byte("1")}, snapshot.List{Count: 2, Inline: []byte("12")}
	wantCode(t, saveErr(s.SaveConversation(ctx, "t", one, 1)), snapshot.StaleRevision)
	for i, expected := range []int64{0, -1, 2} {
		rev, err := s.SaveConversation(ctx, "t", one, expected)
		if err != nil || rev != int64(i)+1 {
			t.Fatalf("revision %d, %v; want %d", rev, err, i+1)
		}
	}
	d := wantCode(t, saveErr(s.SaveConversation(ctx, "t", two, 2)), snapshot.StaleRevision)
	if fmt.Sprint(d["actualRevision"]) != "3" {
		t.Fatalf("details %v lack the actual revision", d)
	}
	w := writer(t, s, "t")
	first := mustAppend(t, s, w, "c1", "")
	if _, err := s.SaveConversation(ctx, "t", two, 3); err != nil {
		t.Fatal(err)
	}
	second := mustAppend(t, s, w, "c2", "c1")
	wantChain(t, s, "t", first, second)
	st, err := s.State(ctx, "t")
	if err != nil || st.Revision != 4 || !cmp.Equal(st.Messages, two) {
		t.Fatalf("state %+v, %v", st, err)
	}
}

func saveErr(_ int64, err error) error { return err }

func baseMoves(t *testing.T, s Stores) {
	long := snapshot.BaseKey{Definition: strings.Repeat("*", snapshot.MaxIDBytes), Tenant: snapshot.Tenant{UserID: strings.Repeat("é", 250), OrgID: strings.Repeat(">", snapshot.MaxIDBytes)}}
	keys := []snapshot.BaseKey{{Definition: "d"}, {Definition: "e"}, {Definition: "d", Tenant: snapshot.Tenant{UserID: "x"}}, {Definition: "d", Tenant: snapshot.Tenant{OrgID: "x"}}, long}
	for round := range int64(2) {
		for i, key := range keys {
			before, err := s.Base(t.Context(), key)
			if err != nil || (round == 0) != before.IsEmpty() {
				t.Fatalf("base of %+v: %+v, %v", key, before, err)
			}
			files := Record("t", "c", "").Files
			files.Count = round*100 + int64(i) + 1
			if err := s.MoveBase(t.Context(), key, files); err != nil {
				t.Fatal(err)
			}
		}
		for i, key := range keys {
			if got, err := s.Base(t.Context(), key); err != nil || got.Count != round*100+int64(i)+1 || len(got.Pages) != 1 {
				t.Fatalf("base of %+v: %+v, %v", key, got, err)
			}
		}
	}
}
