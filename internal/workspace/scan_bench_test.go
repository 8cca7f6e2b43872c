package workspace

import (
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandkeep/internal/snapshot"
)

var benchTree = flag.String("tree", "", "directory for the benchmarks of the scan; without it 5,000 files are made")

// nowhere takes a tree in and keeps nothing.
type nowhere struct{ known bool }

func (n nowhere) Known(string, snapshot.Digest, int64) bool             { return n.known }
func (nowhere) PutBytes(context.Context, []byte, snapshot.Digest) error { return nil }

func (nowhere) Put(_ context.Context, r io.Reader) (snapshot.Digest, int64, error) {
	n, err := io.Copy(io.Discard, r)
	return snapshot.Digest{}, n, err
}
func (nowhere) Add(context.Context, snapshot.Entry) error { return nil }
func (nowhere) Finish(context.Context) (snapshot.List, int64, error) {
	return snapshot.List{}, 0, nil
}
func (nowhere) Abort() {}

func (b *bench) benchTree() {
	if *benchTree != "" {
		b.ws = *benchTree
		return
	}
	for i := range 5000 {
		b.write(fmt.Sprintf("dir%02d/sub%d/file%d.js", i%50, i%10, i), "content")
	}
}

// walk looks up every file, as a measure for the scan.
func (b *bench) walk() time.Duration {
	began := time.Now()
	must(b.t, filepath.WalkDir(b.ws, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			_, err = os.Lstat(p)
		}
		return err
	}))
	return time.Since(began)
}

func benchmarkScan(b *testing.B, known bool) {
	w := newBench(b)
	w.benchTree()
	everything := snapshot.Policy{NoDefaultExcludes: true, IncludeCredentials: true}
	scan := func(known bool) int64 {
		got, err := w.Capture(b.Context(), w.ws, everything, "box", nowhere{known})
		must(b, err)
		return got.Coverage.Phases["read"].Count
	}
	for deadline := time.Now().Add(10 * time.Second); scan(true) > 0 && time.Now().Before(deadline); {
		w.walk()
	}
	var walk time.Duration
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		walk += w.walk()
		b.StartTimer()
		scan(known)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(walk), "times-walk")
	b.ReportMetric(float64(walk.Microseconds())/1e3/float64(b.N), "walk-ms")
}

func BenchmarkScanUnchanged(b *testing.B) { benchmarkScan(b, true) }
func BenchmarkScanCold(b *testing.B)      { benchmarkScan(b, false) }
