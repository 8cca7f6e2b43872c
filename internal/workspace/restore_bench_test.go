package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandkeep/internal/snapshot"
)

// packs are contents in memory, as they lie in a store.
type packs map[snapshot.Digest][]byte

func (p packs) OpenFile(_ context.Context, e snapshot.Entry, _, _ int64) (io.ReadCloser, error) {
	var all []byte
	for _, piece := range e.Pieces {
		all = append(all, p[piece.Pack][piece.Offset:piece.Offset+piece.Length]...)
	}
	return io.NopCloser(bytes.NewReader(all)), nil
}

func (p packs) ReadPack(_ context.Context, pieces []snapshot.Piece, use func(int, []byte) error) error {
	for i, piece := range pieces {
		if err := use(i, p[piece.Pack][piece.Offset:piece.Offset+piece.Length]); err != nil {
			return err
		}
	}
	return nil
}

// packed lays the contents of a tree, in pieces, into packs of some 16 MiB.
func (m *memTree) packed() packs {
	const pieceLimit, packLimit = 1 << 20, 16 << 20
	out := packs{}
	var name snapshot.Digest
	for i := range m.entries {
		e := &m.entries[i]
		for data := m.contents[e.Digest]; len(data) > 0 && e.Kind == snapshot.KindFile; {
			piece := data[:min(len(data), pieceLimit)]
			data = data[len(piece):]
			if len(out) == 0 || len(out[name]) > packLimit {
				name = sha256.Sum256(fmt.Append(nil, len(out)))
			}
			e.Pieces = append(e.Pieces, snapshot.Piece{Digest: sha256.Sum256(piece), Pack: name, Offset: int64(len(out[name])), Length: int64(len(piece))})
			out[name] = append(out[name], piece...)
		}
	}
	return out
}

// BenchmarkRestore restores a tree out of packs in memory, beside a bare making
// of the same files.
func BenchmarkRestore(b *testing.B) {
	w := newBench(b)
	w.benchTree()
	tree := newMemTree()
	_, err := w.Capture(b.Context(), w.ws, snapshot.Policy{NoDefaultExcludes: true, IncludeCredentials: true}, "", tree)
	must(b, err)
	contents := tree.packed()
	b.ReportAllocs()
	var bare time.Duration
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		bare += w.makeBare(filepath.Join(w.base, fmt.Sprint("bare", n)), tree)
		b.StartTimer()
		_, _, err := w.Trees.Restore(b.Context(), snapshot.Target{Root: "restore", Path: fmt.Sprint("out", n)}, tree.all(), contents)
		must(b, err)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(bare), "times-bare")
	b.ReportMetric(float64(bare.Microseconds())/1e3/float64(b.N), "bare-ms")
}

// makeBare makes the files of a tree, one after the other.
func (b *bench) makeBare(dir string, tree *memTree) time.Duration {
	began := time.Now()
	made := map[string]bool{}
	for _, e := range tree.entries {
		if e.Kind != snapshot.KindFile {
			continue
		}
		path := filepath.Join(dir, e.Path)
		if parent := filepath.Dir(path); !made[parent] {
			must(b.t, os.MkdirAll(parent, 0o755))
			made[parent] = true
		}
		must(b.t, os.WriteFile(path, tree.contents[e.Digest], 0o644))
	}
	return time.Since(began)
}
