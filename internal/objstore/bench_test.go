package objstore_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"

	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

func BenchmarkTree(b *testing.B) {
	s, js := newStore(b)
	files := manyFiles(2000, 20<<20)
	total := int64(0)
	for _, data := range files {
		total += int64(len(data))
	}
	var list snapshot.List
	b.Run("write", func(b *testing.B) {
		b.SetBytes(total)
		for b.Loop() {
			b.StopTimer()
			if err := stream(b, js, packs).Purge(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			list, _ = snapshottest.WriteTree(b, s, snapshot.List{}, files)
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		b.SetBytes(total)
		for b.Loop() {
			snapshottest.WriteTree(b, s, list, files)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(total)
		for b.Loop() {
			s.ForgetCache()
			snapshottest.ReadTree(b, s, list)
		}
	})
}

// appTree is a tree of n small files as a package manager makes them.
func appTree(n int) *model {
	m := &model{entries: map[string]snapshot.Entry{}, contents: map[snapshot.Digest][]byte{}}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		text := fmt.Appendf(nil, "module %d\n", i)
		for range rng.IntN(300) {
			text = fmt.Appendf(text, "exports.f%d = require(%q)\n", rng.IntN(1000), "x")
		}
		m.put(snapshot.Entry{Path: fmt.Sprintf("node_modules/pkg-%03d/lib/file-%05d.js", i/60, i), Kind: snapshot.KindFile, Mode: 0o644, Mtime: int64(1_700_000_000_000_000_000 + i)}, text)
	}
	return m
}

// BenchmarkSave saves a tree of 29,000 small files: cold into an empty store,
// then upon itself.
func BenchmarkSave(b *testing.B) {
	s, js := newStore(b)
	m := appTree(29_000)
	total := int64(0)
	entries := m.sorted()
	for _, e := range entries {
		total += e.Size
	}
	save := func(parent snapshot.List) snapshot.List {
		list, _, err := m.writeEntries(b.Context(), s, entries, parent)
		if err != nil {
			b.Fatal(err)
		}
		return list
	}
	list := save(snapshot.List{})
	b.Run("cold", func(b *testing.B) {
		b.SetBytes(total)
		for b.Loop() {
			b.StopTimer()
			if err := stream(b, js, packs).Purge(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			save(snapshot.List{})
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			save(list)
		}
	})
	b.Run("one-changed", func(b *testing.B) {
		e := &entries[len(entries)/2]
		for b.Loop() {
			data := fmt.Append(nil, e.Mtime)
			e.Mtime++
			e.Digest, e.Size = sha256.Sum256(data), int64(len(data))
			m.contents[e.Digest] = data
			save(list)
		}
	})
	b.Run("all-touched", func(b *testing.B) {
		for b.Loop() {
			for i := range entries {
				entries[i].Mtime++
			}
			save(list)
		}
	})
}
