package snapshot_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"sandkeep/internal/snapshot"
)

// saved makes a thread with two checkpoints, c1 and c2, that differ in
// everything.
func saved(t *testing.T) *world {
	w := newWorld(t)
	w.attach(t, "t")
	for i, id := range []snapshot.CheckpointID{"c1", "c2"} {
		w.ws.files["b/c"] = string(id)
		putArtifact(t, w, "t", "a", "artifact of "+string(id))
		m := snapshot.Messages{json.RawMessage(`"message of ` + string(id) + `"`)}
		if _, err := w.SaveThread(t.Context(), snapshot.SaveThreadRequest{ThreadID: "t", Messages: m}); err != nil {
			t.Fatal(err)
		}
		req := save(id)
		req.Label = []string{"first", ""}[i]
		if _, _, err := w.Save(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func TestFork_CopiesTheChosenCheckpoint(t *testing.T) {
	for _, tc := range []struct{ asked, want snapshot.CheckpointID }{{"c1", "c1"}, {"c2", "c2"}, {"", "c2"}} {
		t.Run("checkpoint "+string(tc.asked), func(t *testing.T) {
			w := saved(t)
			before, _ := w.mem.List(t.Context(), "t")
			at := snapshot.Millis(77)
			cp, _, err := w.Fork(t.Context(), snapshot.ForkRequest{ThreadID: "t", CheckpointID: tc.asked, DestinationThreadID: "f", DestinationCheckpointID: "root", CreatedAt: &at,
				Include: snapshot.Include{"files", "conversation"}})
			if err != nil {
				t.Fatal(err)
			}
			src, err := w.Checkpoint(t.Context(), snapshot.GetCheckpointRequest{CheckpointID: tc.want, Include: snapshot.Include{"files", "conversation"}})
			if err != nil {
				t.Fatal(err)
			}
			want := *src
			want.ID, want.ThreadID, want.Parent, want.CreatedAt, want.Reason, want.Label, want.SourceRunID, want.Stats.NewBytes = "root", "f", "", 77, snapshot.ReasonForkRoot, "", "", 0
			if !reflect.DeepEqual(*cp, want) {
				t.Errorf("fork root is %+v\nwant %+v", *cp, want)
			}
			if m, err := w.LoadThread(t.Context(), snapshot.ThreadRequest{ThreadID: "f"}); err != nil || !reflect.DeepEqual(m.Messages, src.Conversation) {
				t.Errorf("conversation of the fork: %+v, %v", m, err)
			}
			if list, err := w.ListArtifacts(t.Context(), snapshot.ListArtifactsRequest{ThreadID: "f"}, 1<<20); err != nil || !reflect.DeepEqual(list.Artifacts, src.Artifacts) {
				t.Errorf("artifacts of the fork: %+v, %v", list, err)
			}
			if after, _ := w.mem.List(t.Context(), "t"); !reflect.DeepEqual(after, before) {
				t.Error("the source was touched")
			}
		})
	}
}

func TestFork_Refusals(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup func(*testing.T, *world)
		req   snapshot.ForkRequest
		want  snapshot.Code
	}{
		{"into itself", nil, snapshot.ForkRequest{ThreadID: "t", DestinationThreadID: "t"}, snapshot.ForkSourceThreadMismatch},
		{"unknown thread", nil, snapshot.ForkRequest{ThreadID: "x", DestinationThreadID: "f"}, snapshot.ForkSourceNotFound},
		{"unknown checkpoint", nil, snapshot.ForkRequest{ThreadID: "t", CheckpointID: "x", DestinationThreadID: "f"}, snapshot.ForkSourceNotFound},
		{"checkpoint of another thread", nil, snapshot.ForkRequest{ThreadID: "x", CheckpointID: "c1", DestinationThreadID: "f"}, snapshot.ForkSourceThreadMismatch},
		{"destination has a conversation", func(t *testing.T, w *world) {
			if _, err := w.SaveThread(t.Context(), snapshot.SaveThreadRequest{ThreadID: "f"}); err != nil {
				t.Fatal(err)
			}
		}, snapshot.ForkRequest{ThreadID: "t", DestinationThreadID: "f"}, snapshot.ForkDestinationNotEmpty},
		{"destination has artifacts", func(t *testing.T, w *world) { putArtifact(t, w, "f", "a", "x") },
			snapshot.ForkRequest{ThreadID: "t", DestinationThreadID: "f"}, snapshot.ForkDestinationNotEmpty},
		{"secret in the destination", nil, snapshot.ForkRequest{ThreadID: "t", DestinationThreadID: secret}, snapshot.InvalidID},
		{"secret in the id", nil, snapshot.ForkRequest{ThreadID: "t", DestinationThreadID: "f", DestinationCheckpointID: secret}, snapshot.InvalidID},
		{"id in use", nil, snapshot.ForkRequest{ThreadID: "t", DestinationThreadID: "f", DestinationCheckpointID: "c2"}, snapshot.ForkDestinationNotEmpty},
		{"destination held", func(t *testing.T, w *world) {
			if _, err := w.mem.Acquire(t.Context(), "f", 0); err != nil {
				t.Fatal(err)
			}
		}, snapshot.ForkRequest{ThreadID: "t", DestinationThreadID: "f"}, snapshot.WriterConflict},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := saved(t)
			if tc.setup != nil {
				tc.setup(t, w)
			}
			if _, _, err := w.Fork(t.Context(), tc.req); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if tc.req.DestinationThreadID != "t" {
				if state, _ := w.mem.State(t.Context(), "f"); state.Head != "" {
					t.Errorf("the destination has head %q", state.Head)
				}
			}
		})
	}
}

func TestFork_Retry(t *testing.T) {
	w := saved(t)
	req := snapshot.ForkRequest{ThreadID: "t", CheckpointID: "c1", DestinationThreadID: "f", DestinationCheckpointID: "root"}
	first, _, err := w.Fork(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := w.Fork(t.Context(), req); err != nil || wire(t, again) != wire(t, first) {
		t.Errorf("retry: %+v, %v; want %+v", again, err, first)
	}
	if _, _, err := w.Fork(t.Context(), snapshot.ForkRequest{ThreadID: "f", CheckpointID: "root", DestinationThreadID: "g"}); err != nil {
		t.Fatal(err)
	}
	for what, other := range map[string]snapshot.ForkRequest{
		"checkpoint": {ThreadID: "t", CheckpointID: "c2", DestinationThreadID: "f", DestinationCheckpointID: "root"},
		"thread":     {ThreadID: "g", DestinationThreadID: "f", DestinationCheckpointID: "root"},
	} {
		if _, _, err := w.Fork(t.Context(), other); !errors.Is(err, snapshot.ForkDestinationNotEmpty) {
			t.Errorf("same id, other source %s: %v, want %v", what, err, snapshot.ForkDestinationNotEmpty)
		}
	}
}

func TestFork_DestinationOverlaysTheArtifactsOfItsRoot(t *testing.T) {
	w := saved(t)
	if _, _, err := w.Fork(t.Context(), snapshot.ForkRequest{ThreadID: "t", CheckpointID: "c1", DestinationThreadID: "f"}); err != nil {
		t.Fatal(err)
	}
	putArtifact(t, w, "f", "b", "own")
	if err := w.DeleteArtifact(t.Context(), snapshot.DeleteArtifactRequest{ThreadID: "f", ArtifactID: "a"}); err != nil {
		t.Fatal(err)
	}
	list, err := w.ListArtifacts(t.Context(), snapshot.ListArtifactsRequest{ThreadID: "f"}, 1<<20)
	if err != nil || len(list.Artifacts) != 1 || list.Artifacts[0].ID != "b" {
		t.Errorf("artifacts of the fork: %+v, %v; want b alone", list, err)
	}
	if list, _ := w.ListArtifacts(t.Context(), snapshot.ListArtifactsRequest{ThreadID: "t"}, 1<<20); len(list.Artifacts) != 1 || list.Artifacts[0].ID != "a" {
		t.Errorf("artifacts of the source: %+v; want a alone", list)
	}
}

// TestFork_EqualRequestAtWork finds the destination taken by an equal request.
func TestFork_EqualRequestAtWork(t *testing.T) {
	w := saved(t)
	w.forked = snapshot.Errorf(snapshot.ForkDestinationNotEmpty, "an equal request was first")
	cp, _, err := w.Fork(t.Context(), snapshot.ForkRequest{ThreadID: "t", DestinationThreadID: "f", DestinationCheckpointID: "root"})
	if err != nil || cp.ID != "root" || cp.ThreadID != "f" {
		t.Errorf("got %+v, %v; want the fork that is there", cp, err)
	}
}
