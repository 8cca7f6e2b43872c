package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"testing"
	"time"

	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

const ttl = 30 * time.Second

// world is a Service over memory, with a trace of what it asked its ports.
type world struct {
	*snapshot.Service
	mem     *snapshottest.Memory
	objects *snapshottest.MemoryObjects
	ws      *trees
	boxes   *boxes
	leases  *tracedLeases
	upserts int   // changes of an instance record that come between
	forked  error // of Fork, after its work was done
	refused error // of Append, instead of its work

	mu    sync.Mutex // guards trace
	trace []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{mem: snapshottest.NewMemory(ttl, nil), objects: snapshottest.NewMemoryObjects()}
	w.ws = &trees{w: w, files: map[string]string{"a": "one", "b/c": "two"}}
	w.boxes = &boxes{w: w, def: snapshot.Definition{Name: "default", Provider: "local", Reuse: "thread"}}
	w.leases = &tracedLeases{Leases: w.mem, w: w}
	n := 0
	w.Service = snapshot.New(snapshot.Options{
		Checkpoints: tracedCheckpoints{w.mem, w}, Leases: w.leases, Instances: tracedInstances{w.mem, w}, Artifacts: tracedArtifacts{w.mem, w},
		Objects: w.objects, Workspaces: w.ws, Sandboxes: w.boxes, Redactor: plainRedactor{}, Node: "n1", Now: time.Now,
		NewID: func() string { n++; return fmt.Sprintf("id-%03d", n) },
	})
	return w
}

// attach gives the thread a sandbox record under the key that a save computes.
func (w *world) attach(t *testing.T, thread snapshot.ThreadID) snapshot.InstanceKey {
	t.Helper()
	key := w.boxes.Key(thread, w.boxes.def, snapshot.Tenant{})
	rec := snapshot.Instance{Key: key, Provider: "local", ProviderSandboxID: "n1/box", LatestSnapshotID: "keep me", ThreadID: thread, UpdatedAt: snapshot.Millis(time.Now().UnixMilli())}
	if _, err := w.mem.PutInstance(t.Context(), rec, -1); err != nil {
		t.Fatal(err)
	}
	return key
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

type tracedCheckpoints struct {
	snapshot.Checkpoints
	w *world
}

func (c tracedCheckpoints) State(ctx context.Context, id snapshot.ThreadID) (snapshot.ThreadState, error) {
	c.w.note("state")
	return c.Checkpoints.State(ctx, id)
}

func (c tracedCheckpoints) Admit(ctx context.Context, rec *snapshot.Record, head snapshot.CheckpointID, wr snapshot.Writer) (bool, error) {
	c.w.note("admit")
	return c.Checkpoints.Admit(ctx, rec, head, wr)
}

func (c tracedCheckpoints) Append(ctx context.Context, rec *snapshot.Record, head snapshot.CheckpointID, wr snapshot.Writer) error {
	c.w.note("append")
	if c.w.refused != nil {
		return c.w.refused
	}
	return c.Checkpoints.Append(ctx, rec, head, wr)
}

func (c tracedCheckpoints) Fork(ctx context.Context, rec *snapshot.Record, wait time.Duration) error {
	return errors.Join(c.w.forked, c.Checkpoints.Fork(ctx, rec, wait))
}

// tracedLeases lets a test decide what Renew and Release answer.
type tracedLeases struct {
	snapshot.Leases
	w       *world
	renew   func(n int) error
	release error
	lock    error // of Lock, after its work was done
	holds   error
	renewed int
}

func (l *tracedLeases) Acquire(ctx context.Context, id snapshot.ThreadID, wait time.Duration) (snapshot.Lease, error) {
	l.w.note("acquire")
	return l.Leases.Acquire(ctx, id, wait)
}

func (l *tracedLeases) Renew(ctx context.Context, wr snapshot.Writer) (snapshot.Millis, error) {
	l.renewed++
	if l.renew != nil {
		if err := l.renew(l.renewed); err != nil {
			return 0, err
		}
	}
	return l.Leases.Renew(ctx, wr)
}

func (l *tracedLeases) Holds(ctx context.Context, wr snapshot.Writer) error {
	return errors.Join(l.holds, l.Leases.Holds(ctx, wr))
}

func (l *tracedLeases) Release(ctx context.Context, wr snapshot.Writer) error {
	l.w.note("release")
	if err := errors.Join(l.release, ctx.Err()); err != nil {
		return err
	}
	return l.Leases.Release(ctx, wr)
}

func (l *tracedLeases) Lock(ctx context.Context, name snapshot.LockName, wait time.Duration, fn func(context.Context) error) error {
	l.w.note("lock %s", name)
	defer l.w.note("unlock")
	return errors.Join(l.Leases.Lock(ctx, name, wait, fn), l.lock)
}

type instances = snapshot.Instances // embedding it under its own name would hide its method

type tracedInstances struct {
	instances
	w *world
}

func (i tracedInstances) Instance(ctx context.Context, key snapshot.InstanceKey) (*snapshot.Instance, uint64, error) {
	i.w.note("instance")
	return i.instances.Instance(ctx, key)
}

func (i tracedInstances) PutInstance(ctx context.Context, rec snapshot.Instance, expected int64) (uint64, error) {
	i.w.note("put instance")
	if i.w.upserts > 0 {
		i.w.upserts--
		if _, err := i.instances.PutInstance(ctx, rec, -1); err != nil {
			return 0, err
		}
	}
	return i.instances.PutInstance(ctx, rec, expected)
}

type tracedArtifacts struct {
	snapshot.ThreadArtifacts
	w *world
}

func (a tracedArtifacts) Artifacts(ctx context.Context, id snapshot.ThreadID) ([]snapshot.ThreadArtifact, error) {
	a.w.note("artifacts")
	return a.ThreadArtifacts.Artifacts(ctx, id)
}

// boxes knows one definition and one sandbox.
type boxes struct {
	w   *world
	def snapshot.Definition
	err error // of Resume
}

func (b *boxes) Definition(name string) (snapshot.Definition, error) {
	if name != "" && name != b.def.Name {
		return snapshot.Definition{}, snapshot.Errorf(snapshot.MissingSandbox, "no definition %q", name)
	}
	return b.def, nil
}

func (b *boxes) Key(thread snapshot.ThreadID, _ snapshot.Definition, t snapshot.Tenant) snapshot.InstanceKey {
	return snapshot.InstanceKey(fmt.Sprintf("key of %s %v", thread, t))
}

func (b *boxes) Resume(context.Context, snapshot.Instance, snapshot.Definition, string) (snapshot.Sandbox, error) {
	b.w.note("resume")
	return snapshot.Sandbox{Dir: "box"}, b.err
}

func (b *boxes) Node(snapshot.Instance) snapshot.NodeName { return "n1" }

func (b *boxes) Adopt(_ context.Context, name string) (string, error) { return "n1/" + name, nil }

// trees is a workspace with the given files; during runs in the middle of a
// capture or restore.
type trees struct {
	w        *world
	files    map[string]string
	coverage snapshot.Coverage
	during   func(ctx context.Context) error
	restored map[string]string
	target   snapshot.Target
}

func (t *trees) Discard(string, string) error { t.restored = nil; return nil }

func (t *trees) CheckRoot(string) error { return nil }

func (t *trees) Capture(ctx context.Context, _ string, _ snapshot.Policy, _ string, tree snapshot.TreeWriter) (snapshot.Captured, error) {
	t.w.note("capture")
	out := snapshot.Captured{Coverage: t.coverage}
	for _, path := range sortedKeys(t.files) {
		d, size, err := tree.Put(ctx, bytes.NewReader([]byte(t.files[path])))
		if err != nil {
			return out, err
		}
		if err := tree.Add(ctx, snapshot.Entry{Path: path, Kind: snapshot.KindFile, Mode: 0o644, Digest: d, Size: size}); err != nil {
			return out, err
		}
		out.Stats.Files++
		out.Stats.Bytes += size
	}
	if t.during != nil {
		return out, t.during(ctx)
	}
	return out, nil
}

func (t *trees) Restore(ctx context.Context, to snapshot.Target, entries iter.Seq2[snapshot.Entry, error], from snapshot.Contents) (files, n int64, err error) {
	t.restored, t.target = map[string]string{}, to
	if t.during != nil {
		if err := t.during(ctx); err != nil {
			return 0, 0, err
		}
	}
	for e, err := range entries {
		if err != nil {
			return 0, 0, err
		}
		r, err := from.OpenFile(ctx, e, 0, -1)
		if err != nil {
			return 0, 0, err
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return 0, 0, err
		}
		t.restored[e.Path] = string(b)
		files, n = files+1, n+e.Size
	}
	if to.Confirm != nil {
		return files, n, to.Confirm(ctx)
	}
	return files, n, nil
}
