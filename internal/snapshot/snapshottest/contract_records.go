package snapshottest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandkeep/internal/snapshot"
)

func instance(key snapshot.InstanceKey, thread snapshot.ThreadID) snapshot.Instance {
	return snapshot.Instance{Key: key, Provider: "local", ProviderSandboxID: "n/" + string(key), LatestSnapshotID: "s", ThreadID: thread, LatestRunID: "r", UpdatedAt: 1764436800123}
}

// InstancesContract checks what every snapshot.Instances must do.
func InstancesContract(t *testing.T, open func(*testing.T) Stores) {
	t.Run("one record", func(t *testing.T) { oneInstance(t, open(t)) })
	t.Run("list", func(t *testing.T) { listInstances(t, open(t)) })
	t.Run("concurrent upserts", func(t *testing.T) { concurrentUpserts(t, open(t)) })
}

func oneInstance(t *testing.T, s Stores) {
	ctx := t.Context()
	key := snapshot.InstanceKey(strings.Repeat("*", snapshot.MaxIDBytes))
	if rec, rev, err := s.Instance(ctx, key); rec != nil || rev != 0 || err != nil {
		t.Fatal(rec, rev, err)
	}
	if err := s.DeleteInstance(ctx, key, 7); err != nil { // missing: a no-op
		t.Fatal(err)
	}
	_, err := s.PutInstance(ctx, instance(key, "t"), 7)
	wantCode(t, err, snapshot.StaleRevision)
	first, err := s.PutInstance(ctx, instance(key, "t"), 0)
	if err != nil || first == 0 {
		t.Fatal(first, err)
	}
	_, err = s.PutInstance(ctx, instance(key, "t"), 0)
	if d := wantCode(t, err, snapshot.StaleRevision); fmt.Sprint(d["actualRevision"]) != fmt.Sprint(first) {
		t.Fatalf("details %v, want revision %d", d, first)
	}
	bare := snapshot.Instance{Key: key, Provider: "p", ProviderSandboxID: "i", ThreadID: "u", UpdatedAt: 1}
	second, err := s.PutInstance(ctx, bare, int64(first)) // a full replace
	if err != nil || second <= first {
		t.Fatal(second, err)
	}
	third, err := s.PutInstance(ctx, bare, -1)
	if err != nil || third <= second {
		t.Fatal(third, err)
	}
	if rec, rev, err := s.Instance(ctx, key); err != nil || rev != third || !cmp.Equal(*rec, bare) {
		t.Fatal(rec, rev, err)
	}
	wantCode(t, s.DeleteInstance(ctx, key, int64(second)), snapshot.StaleRevision)
	if err := s.DeleteInstance(ctx, key, int64(third)); err != nil {
		t.Fatal(err)
	}
	if rec, rev, err := s.Instance(ctx, key); rec != nil || rev != 0 || err != nil {
		t.Fatal(rec, rev, err)
	}
	if fourth, err := s.PutInstance(ctx, bare, 0); err != nil || fourth <= third { // as if it had never been
		t.Fatal(fourth, err)
	}
	if err := s.DeleteInstance(ctx, key, -1); err != nil {
		t.Fatal(err)
	}
}

func listInstances(t *testing.T, s Stores) {
	ctx := t.Context()
	for i := range 7 {
		thread := snapshot.ThreadID(fmt.Sprint("t", i%2))
		if _, err := s.PutInstance(ctx, instance(snapshot.InstanceKey(fmt.Sprint("k", i)), thread), -1); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.PutInstance(ctx, instance("k0", "t0"), -1) // moves to the end
	if err := errors.Join(err, s.DeleteInstance(ctx, "k3", -1)); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{1, 2, 3, 6, 100} {
		if got, want := allKeys(t, s, "", limit), "k1 k2 k4 k5 k6 k0"; got != want {
			t.Errorf("in pages of %d: %s, want %s", limit, got, want)
		}
		if got, want := allKeys(t, s, "t0", limit), "k2 k4 k6 k0"; got != want {
			t.Errorf("of one thread in pages of %d: %s, want %s", limit, got, want)
		}
	}
	if got := allKeys(t, s, "nobody", 10); got != "" {
		t.Errorf("of an unknown thread: %s", got)
	}
}

func allKeys(t *testing.T, s Stores, thread snapshot.ThreadID, limit int) string {
	t.Helper()
	var keys []string
	for after := uint64(0); ; {
		recs, next, err := s.Instances(t.Context(), thread, after, limit)
		if err != nil || len(recs) > limit || next != 0 && next <= after {
			t.Fatalf("%d records after %d, next %d, %v", len(recs), after, next, err)
		}
		for _, rec := range recs {
			keys = append(keys, string(rec.Key))
		}
		if next == 0 {
			return strings.Join(keys, " ")
		}
		after = next
	}
}

func concurrentUpserts(t *testing.T, s Stores) {
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if _, err := s.PutInstance(t.Context(), instance(snapshot.InstanceKey(fmt.Sprint("k", i)), "t"), 0); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if _, err := s.PutInstance(t.Context(), instance("shared", "t"), -1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(strings.Fields(allKeys(t, s, "t", 50))); n != 101 {
		t.Fatalf("%d records of 101", n)
	}
}

// ArtifactsContract checks what every snapshot.ThreadArtifacts must do.
func ArtifactsContract(t *testing.T, open func(*testing.T) Stores) {
	s, ctx := open(t), t.Context()
	art := func(id snapshot.ArtifactID, name string) snapshot.ThreadArtifact {
		return snapshot.ThreadArtifact{Artifact: snapshot.Artifact{ID: id, Name: name, MimeType: "text/plain", Size: 3, BlobKey: snapshot.ArtifactBlobPrefix + "00", CreatedAt: 1.5}}
	}
	long := snapshot.ThreadID(strings.Repeat("*", snapshot.MaxIDBytes))
	longArt := art(snapshot.ArtifactID(strings.Repeat(">", snapshot.MaxIDBytes)), "long")
	tomb := art("b", "")
	tomb.Deleted = true
	for _, a := range []snapshot.ThreadArtifact{art("a", "old"), art("b", "x"), art("c.d", "y"), art("a", "new"), tomb} {
		if err := s.PutArtifact(ctx, "t", a); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.PutArtifact(ctx, long, longArt), s.PutArtifact(ctx, "t.c", art("d", "other"))); err != nil {
		t.Fatal(err)
	}
	want := map[snapshot.ThreadID][]snapshot.ThreadArtifact{"t": {art("a", "new"), tomb, art("c.d", "y")}, long: {longArt}, "t.c": {art("d", "other")}, "nobody": nil}
	for thread, want := range want {
		got, err := s.Artifacts(ctx, thread)
		slices.SortFunc(got, func(a, b snapshot.ThreadArtifact) int { return strings.Compare(string(a.ID), string(b.ID)) })
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("thread %q: %v (-want +got)\n%s", thread, err, diff)
		}
	}
}
