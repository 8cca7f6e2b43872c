package snapshot_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sandkeep/internal/snapshot"
)

func save(id snapshot.CheckpointID) snapshot.SaveRequest {
	return snapshot.SaveRequest{ThreadID: "t", RunID: "r", CheckpointID: id}
}

func TestSave_OrderOfWork(t *testing.T) {
	w := newWorld(t)
	key := w.attach(t, "t")
	cp, warnings, err := w.Save(t.Context(), save("c1"))
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	want := []string{"acquire", "lock sandbox:" + string(key), "instance", "resume", "put instance", "unlock",
		"state", "capture", "artifacts", "state", "append", "release"}
	if !slices.Equal(w.trace, want) {
		t.Errorf("order of work:\n got %q\nwant %q", w.trace, want)
	}
	if cp.ID != "c1" || cp.Parent != "" || cp.Reason != snapshot.ReasonAutomatic || cp.SourceRunID != "r" || cp.Stats.Files != 2 || cp.Stats.NewBytes != 6 {
		t.Errorf("checkpoint is %+v", cp)
	}
	rec, _, _ := w.mem.Instance(t.Context(), key)
	if rec.LatestRunID != "r" || rec.LatestSnapshotID != "keep me" || rec.ProviderSandboxID != "n1/box" {
		t.Errorf("instance record after the save is %+v", rec)
	}
	if _, err := w.mem.Acquire(t.Context(), "t", 0); err != nil {
		t.Errorf("the lease was not released: %v", err)
	}
}

func TestSave_Refusals(t *testing.T) {
	other := snapshot.Instance{Provider: "local", ProviderSandboxID: "n1/box", ThreadID: "other", UpdatedAt: snapshot.Millis(time.Now().UnixMilli())}
	put := func(change func(*snapshot.Instance)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			rec := other
			rec.ThreadID, rec.Key = "t", w.boxes.Key("t", w.boxes.def, snapshot.Tenant{})
			change(&rec)
			if _, err := w.mem.PutInstance(t.Context(), rec, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tc := range []struct {
		name  string
		setup func(*testing.T, *world)
		req   snapshot.SaveRequest
		want  snapshot.Code
		trace []string // nil: not looked at
	}{
		{"unknown definition", nil, snapshot.SaveRequest{ThreadID: "t", RunID: "r", Sandbox: "x"}, snapshot.MissingSandbox, []string{}},
		{"reuse none", func(_ *testing.T, w *world) { w.boxes.def.Reuse = "none" }, save("c"), snapshot.ReuseNone, []string{}},
		{"held by another", func(t *testing.T, w *world) {
			if _, err := w.mem.Acquire(t.Context(), "t", 0); err != nil {
				t.Fatal(err)
			}
		}, save("c"), snapshot.WriterConflict, []string{"acquire"}},
		{"no record", nil, save("c"), snapshot.MissingReusableSandbox, nil},
		{"record of another thread", put(func(r *snapshot.Instance) { r.ThreadID = "other" }), save("c"), snapshot.MissingReusableSandbox, nil},
		{"record of another provider", put(func(r *snapshot.Instance) { r.Provider = "docker" }), save("c"), snapshot.MissingReusableSandbox, nil},
		{"record too old", func(t *testing.T, w *world) {
			w.boxes.def.SnapshotMaxAge = time.Hour
			put(func(r *snapshot.Instance) { r.UpdatedAt -= 3600*1000 + 1 })(t, w)
		}, save("c"), snapshot.MissingReusableSandbox, nil},
		{"sandbox gone", func(t *testing.T, w *world) {
			w.attach(t, "t")
			w.boxes.err = snapshot.Errorf(snapshot.MissingReusableSandbox, "gone")
		}, save("c"), snapshot.MissingReusableSandbox, nil},
		{"id of another run", func(t *testing.T, w *world) {
			w.attach(t, "t")
			if _, _, err := w.Save(t.Context(), save("c")); err != nil {
				t.Fatal(err)
			}
			w.trace = nil
		}, snapshot.SaveRequest{ThreadID: "t", RunID: "r2", CheckpointID: "c"}, snapshot.DuplicateID, []string{}},
		{"secret in an id", nil, snapshot.SaveRequest{ThreadID: "t", RunID: secret}, snapshot.InvalidID, []string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			if tc.setup != nil {
				tc.setup(t, w)
			}
			before, _ := w.mem.List(t.Context(), "t")
			_, _, err := w.Save(t.Context(), tc.req)
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if tc.trace != nil && !slices.Equal(w.trace, tc.trace) {
				t.Errorf("work done: %q, want %q", w.trace, tc.trace)
			}
			if after, _ := w.mem.List(t.Context(), "t"); len(after) != len(before) {
				t.Errorf("%d checkpoints became %d", len(before), len(after))
			}
		})
	}
}

func TestSave_RetryIsAnswered(t *testing.T) {
	w := newWorld(t)
	w.attach(t, "t")
	first, _, err := w.Save(t.Context(), save("c"))
	if err != nil {
		t.Fatal(err)
	}
	w.ws.files["new"] = "later"
	again, _, err := w.Save(t.Context(), save("c"))
	if err != nil || wire(t, again) != wire(t, first) {
		t.Errorf("retry: %s, %v; want %s", wire(t, again), err, wire(t, first))
	}
}

// wire is a checkpoint as a client gets it.
func wire(t *testing.T, cp *snapshot.Checkpoint) string {
	t.Helper()
	stored := *cp
	stored.Coverage.Phases = nil // in the reply to a save only
	b, err := stored.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSave_ChainKeepsItsOrderWhenClocksGoBack(t *testing.T) {
	w := newWorld(t)
	w.attach(t, "t")
	w.Now = func() time.Time { return time.UnixMilli(5000) }
	for _, id := range []snapshot.CheckpointID{"z", "y", "x"} {
		if _, _, err := w.Save(t.Context(), save(id)); err != nil {
			t.Fatal(err)
		}
		w.Now = func() time.Time { return time.UnixMilli(1000) }
	}
	page, err := w.ListCheckpoints(t.Context(), snapshot.ListCheckpointsRequest{ThreadID: "t"}, 1<<20)
	if err != nil || len(page.Checkpoints) != 3 {
		t.Fatal(page, err)
	}
	for i, id := range []snapshot.CheckpointID{"z", "y", "x"} {
		if page.Checkpoints[i].ID != id {
			t.Errorf("checkpoint %d is %q, want %q", i, page.Checkpoints[i].ID, id)
		}
	}
}

// blockFor makes a capture last, or end when its context does.
func blockFor(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestSave_Renewals(t *testing.T) {
	lostReply := errors.New("no reply")
	for _, tc := range []struct {
		name    string
		renew   func(n int) error
		want    snapshot.Code // "" for success
		renewed func(n int) bool
	}{
		{"renewed while it captures", nil, "", func(n int) bool { return n >= 5 }},
		{"one lost reply is no loss", func(n int) error { return errIf(n == 2, lostReply) }, "", func(n int) bool { return n >= 5 }},
		{"refused", func(int) error { return snapshot.Errorf(snapshot.WriterLost, "taken over") }, snapshot.WriterLost, func(n int) bool { return n == 1 }},
		{"all dropped", func(int) error { return lostReply }, snapshot.WriterLost, func(n int) bool { return n > 1 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.attach(t, "t")
				w.leases.renew = tc.renew
				w.ws.during = blockFor(2 * ttl)
				began := time.Now()
				_, _, err := w.Save(t.Context(), save("c"))
				if tc.want == "" && err != nil || tc.want != "" && !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				if tc.want != "" {
					if snapshot.AsError(err).Code != tc.want {
						t.Errorf("the client hears %v first", snapshot.AsError(err).Code)
					}
					if gone := time.Since(began); gone >= ttl { // virtual time
						t.Errorf("the capture went on for %v with a lease of %v", gone, ttl)
					}
					if state, _ := w.mem.State(t.Context(), "t"); state.Head != "" {
						t.Errorf("head is %q after a lost lease", state.Head)
					}
				}
				if !tc.renewed(w.leases.renewed) {
					t.Errorf("renewed %d times", w.leases.renewed)
				}
			})
		})
	}
}

func errIf(cond bool, err error) error {
	if cond {
		return err
	}
	return nil
}

func TestSave_PausedPastItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.attach(t, "t")
		late := time.Duration(0)
		w.Now = func() time.Time { return time.Now().Add(late) }
		w.leases.renew = func(int) error { return snapshot.Errorf(snapshot.WriterLost, "taken over while asleep") }
		w.ws.during = func(context.Context) error { late = 2 * ttl; return nil } // the process slept
		_, _, err := w.Save(t.Context(), save("c"))
		if !errors.Is(err, snapshot.WriterLost) || w.leases.renewed != 1 {
			t.Errorf("got %v after %d renewals, want one renewal and %v", err, w.leases.renewed, snapshot.WriterLost)
		}
	})
}

func TestSave_SeveralFailures(t *testing.T) {
	w := newWorld(t)
	w.attach(t, "t")
	broken := snapshot.Errorf(snapshot.StoreFull, "no room")
	w.ws.during = func(context.Context) error { return broken }
	w.leases.release = errors.New("no reply to the release")
	_, _, err := w.Save(t.Context(), save("c"))
	if e := snapshot.AsError(err); e == nil || e.Code != snapshot.StoreFull || !errors.Is(err, w.leases.release) {
		t.Errorf("got %v, want the capture's error first and the release's too", err)
	}
}

func TestSave_FailedReleaseAfterTheCommitIsAWarning(t *testing.T) {
	w := newWorld(t)
	w.attach(t, "t")
	w.leases.release = snapshot.Errorf(snapshot.StoreUnavailable, "no reply")
	w.ws.coverage = snapshot.Coverage{Skipped: []snapshot.Skipped{{Path: "p", Reason: "fifo"}}, Unstable: []string{"u"}}
	cp, warnings, err := w.Save(t.Context(), save("c"))
	if err != nil || cp.ID != "c" {
		t.Fatal(cp, err)
	}
	var codes []snapshot.Code
	for _, warning := range warnings {
		codes = append(codes, warning.Code)
	}
	if want := []snapshot.Code{snapshot.UnsupportedEntry, snapshot.WorkspaceChanged, snapshot.StoreUnavailable}; !slices.Equal(codes, want) {
		t.Errorf("warnings %v, want %v", codes, want)
	}
}

func TestSave_TimeoutLeavesNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.attach(t, "t")
		w.ws.during = blockFor(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, _, err := w.Save(ctx, save("c"))
		if e := snapshot.AsError(err); e == nil || e.Code != snapshot.Timeout {
			t.Errorf("got %v, want %v", err, snapshot.Timeout)
		}
		if _, err := w.mem.Acquire(t.Context(), "t", 0); err != nil {
			t.Errorf("the lease was not given up: %v", err)
		}
	})
}

func TestSave_ConversationAndArtifactsAreInTheCheckpoint(t *testing.T) {
	w := newWorld(t)
	w.attach(t, "t")
	messages := snapshot.Messages{json.RawMessage(`{ "a":1, "a":"\ud800" }`), json.RawMessage(`"my ` + secret + `"`)}
	if _, err := w.SaveThread(t.Context(), snapshot.SaveThreadRequest{ThreadID: "t", Messages: messages}); err != nil {
		t.Fatal(err)
	}
	putArtifact(t, w, "t", "a", "bytes")
	req := save("c")
	req.Label, req.Include = "of "+secret, snapshot.Include{"files", "conversation"}
	cp, _, err := w.Save(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if want := (snapshot.Messages{messages[0], json.RawMessage(`"my [redacted]"`)}); !reflect.DeepEqual(cp.Conversation, want) {
		t.Errorf("conversation %s, want %s", cp.Conversation, want)
	}
	if len(cp.Artifacts) != 1 || cp.Artifacts[0].ID != "a" || cp.Reason != snapshot.ReasonNamed || cp.Label != "of [redacted]" || len(cp.Entries) != 2 {
		t.Errorf("checkpoint is %+v", cp)
	}
}

func TestSave_BrokenArtifact(t *testing.T) {
	for _, tc := range []struct {
		name  string
		blame func(w *world, d snapshot.Digest)
		want  snapshot.Code
	}{
		{"bytes gone", func(w *world, d snapshot.Digest) { w.objects.DropArtifact(d) }, snapshot.MissingArtifactBlob},
		{"bytes wrong", func(w *world, d snapshot.Digest) { w.objects.DamageArtifact(d) }, snapshot.InvalidArtifactBytes},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.attach(t, "t")
			a := putArtifact(t, w, "t", "a", "bytes")
			d, err := a.Digest()
			if err != nil {
				t.Fatal(err)
			}
			tc.blame(w, d)
			if _, _, err := w.Save(t.Context(), save("c")); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if slices.Contains(w.trace, "append") {
				t.Error("a checkpoint was appended")
			}
		})
	}
}

func putArtifact(t *testing.T, w *world, thread snapshot.ThreadID, id snapshot.ArtifactID, data string) *snapshot.Artifact {
	t.Helper()
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader([]byte(data))), nil }
	a, err := w.PutArtifact(t.Context(), snapshot.PutArtifactRequest{ThreadID: thread, RunID: "r", ArtifactID: id, Name: "n", MimeType: "text/plain", Open: open})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestSave_WaitedForItsLease waits for the lease longer than a lease lasts: the
// holder's own deadline counts from when it got it, so one lost reply to a
// renewal is no loss, and the store need not be asked again before the commit.
func TestSave_WaitedForItsLease(t *testing.T) {
	for name, tc := range map[string]struct {
		renew func(n int) error
		takes time.Duration
		want  int // renewals
	}{
		"one lost reply": {func(n int) error { return errIf(n == 1, errors.New("no reply")) }, ttl / 2, 2},
		"short capture":  {nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.attach(t, "t")
				if _, err := w.mem.Acquire(t.Context(), "t", 0); err != nil { // it runs out
					t.Fatal(err)
				}
				w.leases.renew, w.ws.during = tc.renew, blockFor(tc.takes)
				req := save("c")
				req.WaitMs = 2 * ttl.Milliseconds()
				if _, _, err := w.Save(t.Context(), req); err != nil {
					t.Fatal(err)
				}
				if w.leases.renewed != tc.want {
					t.Errorf("renewed %d times, want %d", w.leases.renewed, tc.want)
				}
			})
		})
	}
}

// TestSave_RenewalsStop loses every renewal after the first one: the holder
// stops before the lease that the first one got can have ended.
func TestSave_RenewalsStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.attach(t, "t")
		w.leases.renew = func(n int) error { return errIf(n > 1, errors.New("no reply")) }
		w.ws.during = blockFor(3 * ttl)
		began := time.Now()
		if _, _, err := w.Save(t.Context(), save("c")); !errors.Is(err, snapshot.WriterLost) {
			t.Errorf("got %v, want %v", err, snapshot.WriterLost)
		}
		if gone := time.Since(began); gone >= ttl/3+ttl { // virtual time
			t.Errorf("the capture went on for %v", gone)
		}
	})
}

// TestSave_EqualRequestAtWork lets a retry come while the first request is at
// work: it waits for the lease, then answers what the first one made.
func TestSave_EqualRequestAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.attach(t, "t")
		w.ws.during = blockFor(time.Second)
		first := make(chan *snapshot.Checkpoint)
		go func() {
			cp, _, err := w.Save(t.Context(), save("c"))
			if err != nil {
				t.Error(err)
			}
			first <- cp
		}()
		synctest.Wait()
		req := save("c")
		req.WaitMs = 60_000
		again, _, err := w.Save(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if want := <-first; wire(t, again) != wire(t, want) {
			t.Errorf("got %s, want %s", wire(t, again), wire(t, want))
		}
		if n := len(slices.DeleteFunc(w.trace, func(s string) bool { return s != "capture" })); n != 1 {
			t.Errorf("captured %d times", n)
		}
	})
}

func TestSave_InstanceRecordChangesMeanwhile(t *testing.T) {
	for upserts, want := range map[int]snapshot.Code{3: "", 1000: snapshot.Busy} {
		w := newWorld(t)
		w.attach(t, "t")
		w.upserts = upserts
		if _, _, err := w.Save(t.Context(), save("c")); want == "" && err != nil || want != "" && !errors.Is(err, want) {
			t.Errorf("%d changes: got %v, want %q", upserts, err, want)
		}
	}
}

func TestSave_LostLockIsNotTheClientsAffair(t *testing.T) {
	w := newWorld(t)
	w.attach(t, "t")
	w.leases.lock = snapshot.Errorf(snapshot.LockLost, "paused")
	_, _, err := w.Save(t.Context(), save("c"))
	if e := snapshot.AsError(err); e == nil || e.Code != snapshot.Busy {
		t.Errorf("got %v, want %v", err, snapshot.Busy)
	}
}

// parents notes upon which manifest each tree was written.
type parents struct {
	snapshot.Objects
	of []snapshot.List
}

func (p *parents) NewTree(ctx context.Context, parent snapshot.List) (snapshot.TreeWriter, error) {
	p.of = append(p.of, parent)
	return p.Objects.NewTree(ctx, parent)
}

// TestSave_FirstOfAThread reuses what the definition's newest save stored, for
// the same tenant only.
func TestSave_FirstOfAThread(t *testing.T) {
	w := newWorld(t)
	seen := &parents{Objects: w.objects}
	w.Objects = seen
	for _, thread := range []snapshot.ThreadID{"t1", "t2", "t1", "t1", "tenant"} {
		req := snapshot.SaveRequest{ThreadID: thread, RunID: "r", InstanceKey: w.attach(t, thread)}
		if thread == "tenant" {
			req.Tenant.OrgID = "other"
		}
		if _, _, err := w.Save(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		w.ws.files["grows"] += "x"
	}
	if len(seen.of) != 5 {
		t.Fatalf("%d trees", len(seen.of))
	}
	chain, err := w.mem.List(t.Context(), "t1")
	if err != nil || len(chain) != 3 {
		t.Fatal(chain, err)
	}
	want := []snapshot.List{{}, chain[0].Files, chain[0].Files, chain[1].Files, {}}
	if !reflect.DeepEqual(seen.of, want) {
		t.Errorf("trees were written upon %+v, want %+v", seen.of, want)
	}
}

// TestSave_NotesOnlyWhatIsCommitted fails a save at its commit: the first save
// of another thread is not pointed to a manifest that no checkpoint has.
func TestSave_NotesOnlyWhatIsCommitted(t *testing.T) {
	w := newWorld(t)
	w.attach(t, "t")
	base := func() snapshot.List {
		files, err := w.mem.Base(t.Context(), snapshot.BaseKey{Definition: "default"})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	w.refused = snapshot.Errorf(snapshot.WriterLost, "taken over")
	if _, _, err := w.Save(t.Context(), save("c")); !errors.Is(err, snapshot.WriterLost) {
		t.Fatalf("got %v", err)
	}
	if files := base(); files.Count != 0 {
		t.Errorf("the save that failed noted %+v", files)
	}
	w.refused = nil
	if _, _, err := w.Save(t.Context(), save("c")); err != nil {
		t.Fatal(err)
	}
	if files := base(); files.Count != 2 {
		t.Errorf("the save that was done noted %+v", files)
	}
}
