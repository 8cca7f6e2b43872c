package agent_test

import (
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var treeDir = flag.String("tree", "", "directory for the benchmarks of the engine; without it 2,000 files are made")

// engineTree copies the tree of -tree into a sandbox and attaches it.
func (r *rig) engineTree() (thread, dir string) {
	r.b.Helper()
	if *treeDir == "" {
		thread = r.tree(2000, 10_000, 1)
		return thread, filepath.Join(r.sandboxes, thread)
	}
	thread = r.next("thread")
	dir = filepath.Join(r.sandboxes, thread)
	r.must(os.MkdirAll(r.sandboxes, 0o755))
	r.must(exec.Command("cp", "-a", *treeDir, dir).Run())
	r.request("instance.attach", map[string]any{"threadId": thread, "name": thread})
	return thread, dir
}

func lstatWalk(r *rig, dir string) time.Duration {
	began := time.Now()
	r.must(filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			_, err = os.Lstat(p)
		}
		return err
	}))
	return time.Since(began)
}

// settle saves until no file is read again: the stat cache does not trust files
// that changed a moment before.
func (r *rig) settle(thread string) {
	r.b.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		var reply struct {
			Checkpoint struct {
				Coverage struct {
					Phases map[string]struct{ Count int }
				}
			}
		}
		r.decode(r.request("snapshot.save", map[string]any{"threadId": thread, "runId": "bench"}), &reply)
		if reply.Checkpoint.Coverage.Phases["read"].Count == 0 {
			return
		}
	}
	r.b.Fatal("files are read at each save")
}

// BenchmarkEngineCold saves the tree into an empty store.
func BenchmarkEngineCold(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		r := newRig(b)
		thread, _ := r.engineTree()
		b.StartTimer()
		r.save(thread)
	}
}

// BenchmarkEngineUnchanged saves the tree again and again, beside a bare walk.
func BenchmarkEngineUnchanged(b *testing.B) {
	r := newRig(b)
	thread, dir := r.engineTree()
	r.settle(thread)
	var walk time.Duration
	for b.Loop() {
		b.StopTimer()
		walk += lstatWalk(r, dir)
		b.StartTimer()
		r.save(thread)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(walk), "times-walk")
	b.ReportMetric(float64(walk.Microseconds())/1000/float64(b.N), "walk-ms")
}

// BenchmarkEngineOneFile changes a file before each save.
func BenchmarkEngineOneFile(b *testing.B) {
	r := newRig(b)
	thread, dir := r.engineTree()
	r.settle(thread)
	var walk time.Duration
	for b.Loop() {
		b.StopTimer()
		r.must(os.WriteFile(filepath.Join(dir, "changed.txt"), []byte(time.Now().String()), 0o644))
		walk += lstatWalk(r, dir)
		b.StartTimer()
		r.save(thread)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(walk), "times-walk")
}

// BenchmarkEngineRestore restores the tree into new directories.
func BenchmarkEngineRestore(b *testing.B) {
	r := newRig(b)
	thread, _ := r.engineTree()
	r.save(thread)
	for b.Loop() {
		r.request("restore", map[string]any{"threadId": thread, "path": r.next("out"), "into": "restore"})
	}
}
