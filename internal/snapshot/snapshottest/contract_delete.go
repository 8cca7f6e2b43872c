package snapshottest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandkeep/internal/snapshot"
)

func forkByHolder(t *testing.T, s Stores) {
	ctx := t.Context()
	stale := writer(t, s, "t")
	if err := s.Release(ctx, stale); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.ForkHeld(ctx, ForkRoot("t", "f1"), stale), snapshot.WriterLost)
	w := writer(t, s, "t")
	stranger, foreign := w, writer(t, s, "u")
	stranger.OwnerToken = "guess"
	for _, bad := range []snapshot.Writer{stale, stranger, foreign, {ThreadID: "t"}} {
		wantCode(t, s.ForkHeld(ctx, ForkRoot("t", "f1"), bad), snapshot.WriterLost)
		wantChain(t, s, "t")
		wantChain(t, s, "u")
		if rec, err := s.Get(ctx, "f1"); rec != nil || err != nil {
			t.Fatalf("a refused fork left %v, %v", rec, err)
		}
	}
	wantCode(t, s.ForkHeld(ctx, ForkRoot("nobody", "f1"), snapshot.Writer{ThreadID: "nobody"}), snapshot.WriterLost)
	root := ForkRoot("t", "f1")
	if err := errors.Join(s.ForkHeld(ctx, root, w), s.Holds(ctx, w)); err != nil { // the lease stays
		t.Fatal(err)
	}
	wantChain(t, s, "t", root)
	if st, err := s.State(ctx, "t"); err != nil || st.Revision != 0 || !cmp.Equal(st.Messages, root.Conversation) {
		t.Fatalf("state %+v, %v; want the root's conversation at revision 0", st, err)
	}
	wantCode(t, s.ForkHeld(ctx, ForkRoot("t", "f2"), w), snapshot.ForkDestinationNotEmpty)
	wantCode(t, s.ForkHeld(ctx, ForkRoot("u", "f1"), foreign), snapshot.ForkDestinationNotEmpty)
	if err := s.PutArtifact(ctx, "u", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "a"}}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.ForkHeld(ctx, ForkRoot("u", "f2"), foreign), snapshot.ForkDestinationNotEmpty)
	talk := writer(t, s, "talk")
	if _, err := s.SaveConversation(ctx, "talk", snapshot.List{}, -1); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.ForkHeld(ctx, ForkRoot("talk", "f2"), talk), snapshot.ForkDestinationNotEmpty)
	wantChain(t, s, "t", root, mustAppend(t, s, w, "f2", "f1"))
}

func deleteHead(t *testing.T, s Stores) {
	ctx := t.Context()
	w, v := writer(t, s, "t"), writer(t, s, "u")
	_, err := s.DeleteHead(ctx, "t", "c1", w)
	wantCode(t, err, snapshot.NotHead)
	noEmptyName(t, err)
	first := mustAppend(t, s, w, "c1", "")
	second := mustAppend(t, s, w, "c2", "c1")
	words := snapshot.List{Count: 1, Inline: []byte("1")}
	if _, err := s.SaveConversation(ctx, "t", words, 0); err != nil {
		t.Fatal(err)
	}
	for _, id := range []snapshot.CheckpointID{"c1", "unknown", ""} {
		_, err = s.DeleteHead(ctx, "t", id, w)
		if d := wantCode(t, err, snapshot.NotHead); fmt.Sprint(d["actualHead"]) != "c2" {
			t.Fatalf("details %v lack the actual head", d)
		}
	}
	stranger := snapshot.Writer{ThreadID: "t", OwnerToken: "guess", Fence: w.Fence}
	for _, bad := range []snapshot.Writer{stranger, v, {ThreadID: "t"}} {
		_, err = s.DeleteHead(ctx, "t", "c2", bad)
		wantCode(t, err, snapshot.WriterLost)
	}
	wantChain(t, s, "t", first, second)
	wantDeleted(t, s, w, "c2", "c1")
	wantChain(t, s, "t", first)
	if st, err := s.State(ctx, "t"); err != nil || st.Revision != 1 || !cmp.Equal(st.Messages, words) {
		t.Fatalf("state %+v, %v; want the conversation as it was", st, err)
	}
	wantChain(t, s, "u", mustAppend(t, s, v, "c2", "")) // the id is free, in any thread
	third := mustAppend(t, s, w, "c3", "c1")
	wantChain(t, s, "t", first, third)
	wantDeleted(t, s, w, "c3", "c1")
	wantDeleted(t, s, w, "c1", "")
	wantChain(t, s, "t")
	wantChain(t, s, "t", mustAppend(t, s, w, "c1", ""))
}

func wantDeleted(t *testing.T, s Stores, w snapshot.Writer, id, parent snapshot.CheckpointID) {
	t.Helper()
	head, err := s.DeleteHead(t.Context(), w.ThreadID, id, w)
	if err != nil || head != parent {
		t.Fatalf("head %q after deleting %q, %v; want %q", head, id, err, parent)
	}
	if rec, err := s.Get(t.Context(), id); rec != nil || err != nil {
		t.Fatalf("deleted checkpoint %q is %v, %v", id, rec, err)
	}
	_, err = s.DeleteHead(t.Context(), w.ThreadID, id, w)
	wantCode(t, err, snapshot.NotHead)
}

func mustDelete(t *testing.T, s Stores, id snapshot.ThreadID, want int64) {
	t.Helper()
	if n, err := s.DeleteThread(t.Context(), id); err != nil || n != want {
		t.Fatalf("deleting thread %q counted %d, %v; want %d", id, n, err, want)
	}
}

// fill makes a thread with two checkpoints, a conversation and artifacts.
func fill(t *testing.T, s Stores, id snapshot.ThreadID) (snapshot.Writer, []*snapshot.Record) {
	t.Helper()
	w, name := writer(t, s, id), snapshot.CheckpointID(id)
	recs := []*snapshot.Record{mustAppend(t, s, w, name+"-1", ""), mustAppend(t, s, w, name+"-2", name+"-1")}
	_, err := s.SaveConversation(t.Context(), id, snapshot.List{Count: 1, Inline: []byte("1")}, -1)
	for _, a := range []snapshot.ArtifactID{"a", "b"} {
		err = errors.Join(err, s.PutArtifact(t.Context(), id, snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: a}}))
	}
	if err := errors.Join(err, s.Release(t.Context(), w)); err != nil {
		t.Fatal(err)
	}
	return w, recs
}

func wantGone(t *testing.T, s Stores, id snapshot.ThreadID) {
	t.Helper()
	wantChain(t, s, id)
	st, err := s.State(t.Context(), id)
	if err != nil || !cmp.Equal(st, snapshot.ThreadState{}) {
		t.Fatalf("state of thread %q is %+v, %v", id, st, err)
	}
	if arts, err := s.Artifacts(t.Context(), id); err != nil || len(arts) > 0 {
		t.Fatalf("artifacts of thread %q are %v, %v", id, arts, err)
	}
	for _, name := range []snapshot.CheckpointID{"-1", "-2"} {
		if rec, err := s.Get(t.Context(), snapshot.CheckpointID(id)+name); rec != nil || err != nil {
			t.Fatalf("checkpoint %s of thread %q is %v, %v", name, id, rec, err)
		}
	}
}

func deleteThread(t *testing.T, s Stores) {
	ctx := t.Context()
	mustDelete(t, s, "nobody", 0)
	if _, err := s.SaveConversation(ctx, "nobody", snapshot.List{}, 0); err != nil {
		t.Fatalf("deleting an unknown thread left something: %v", err)
	}
	fill(t, s, "t")
	_, other := fill(t, s, "t.t") // its keys begin alike
	w := writer(t, s, "t")
	_, err := s.DeleteThread(ctx, "t")
	if d := wantCode(t, err, snapshot.WriterConflict); d["holder"] == nil || d["expiresAt"] == nil {
		t.Fatalf("details %v lack the holder", d)
	}
	if err := s.Release(ctx, w); err != nil {
		t.Fatal(err)
	}
	mustDelete(t, s, "t", 2)
	wantGone(t, s, "t")
	mustDelete(t, s, "t", 0)
	wantChain(t, s, "t.t", other...)
	if arts, err := s.Artifacts(ctx, "t.t"); err != nil || len(arts) != 2 {
		t.Fatalf("artifacts of another thread are %v, %v", arts, err)
	}
	wantChain(t, s, "u", mustAppend(t, s, writer(t, s, "u"), "t-1", "")) // the ids are free
}

func deletedRefuses(t *testing.T, s Stores) {
	ctx := t.Context()
	w, _ := fill(t, s, "t")
	mustDelete(t, s, "t", 2)
	_, acquired := s.Acquire(ctx, "t", 0)
	_, acquiredFor := s.AcquireFor(ctx, "t", 3*time.Second, 0)
	_, saved := s.SaveConversation(ctx, "t", snapshot.List{}, -1)
	_, beheaded := s.DeleteHead(ctx, "t", "t-2", w)
	for what, err := range map[string]error{
		"acquire": acquired, "acquire for": acquiredFor, "save": saved, "delete head": beheaded,
		"append":    s.Append(ctx, Record("t", "c3", "t-2"), "t-2", w),
		"append 1":  s.Append(ctx, Record("t", "c3", ""), "", w),
		"fork":      s.Fork(ctx, ForkRoot("t", "f1"), 0),
		"held fork": s.ForkHeld(ctx, ForkRoot("t", "f1"), w),
		"artifact":  s.PutArtifact(ctx, "t", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "a"}}),
		"holds":     s.Holds(ctx, w),
	} {
		if !errors.Is(err, snapshot.ThreadDeleted) {
			t.Errorf("%s on a deleted thread: %v", what, err)
		}
	}
	_, err := s.Renew(ctx, w)
	wantCode(t, err, snapshot.WriterLost)
	wantGone(t, s, "t")
}

// deleteBareArtifacts: artifacts of a thread that was never more than that.
func deleteBareArtifacts(t *testing.T, s Stores) {
	ctx := t.Context()
	put := func() error {
		return s.PutArtifact(ctx, "t", snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: "a"}})
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	mustDelete(t, s, "t", 0)
	wantGone(t, s, "t")
	if err := put(); err != nil {
		t.Fatal(err)
	}
}

func sweptThread(t *testing.T, s Stores) {
	ctx := t.Context()
	w, _ := fill(t, s, "t")
	mustDelete(t, s, "t", 2)
	if err := s.Sweep(ctx, time.Hour); err != nil {
		t.Fatal(err)
	}
	_, err := s.Acquire(ctx, "t", 0)
	wantCode(t, err, snapshot.ThreadDeleted) // its time is not over
	if err := s.Sweep(ctx, 0); err != nil {
		t.Fatal(err)
	}
	wantGone(t, s, "t")
	wantCode(t, s.Append(ctx, Record("t", "t-1", ""), "", w), snapshot.WriterLost)
	wantChain(t, s, "t", mustAppend(t, s, writer(t, s, "t"), "t-1", ""))
}

func threads(t *testing.T, s Stores) {
	ctx := t.Context()
	want := []snapshot.ThreadID{"a", "b", "c.*", "d", "e"}
	for _, id := range want {
		if _, err := s.SaveConversation(ctx, id, snapshot.List{}, -1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.SaveConversation(ctx, "gone", snapshot.List{}, -1); err != nil {
		t.Fatal(err)
	}
	mustDelete(t, s, "gone", 0)
	for limit := 1; limit <= len(want)+1; limit++ {
		var got []snapshot.ThreadID
		for after, pages := uint64(0), 0; ; pages++ {
			ids, next, err := s.Threads(ctx, after, limit)
			if err != nil || len(ids) > limit || pages > len(want)+1 {
				t.Fatalf("page %d of %d has %v, %v", pages, limit, ids, err)
			}
			got = append(got, ids...)
			if after = next; next == 0 {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("threads %v by %d, want %v", got, limit, want)
		}
	}
}
