package kvstore_test

import (
	"bytes"
	"fmt"
	"testing"

	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

// BenchmarkRawCAS is one conditional write: the least that a commit can cost.
func BenchmarkRawCAS(b *testing.B) {
	w := newWorld(b)
	kv := w.kv(b)
	value := bytes.Repeat([]byte("x"), 200)
	rev, err := kv.Create(b.Context(), "key", value)
	for b.Loop() {
		if err == nil {
			rev, err = kv.Update(b.Context(), "key", value, rev)
		}
	}
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkAppend(b *testing.B) {
	w := newWorld(b)
	s := w.open(b, options())
	l, err := s.Acquire(b.Context(), "t", 0)
	if err != nil {
		b.Fatal(err)
	}
	parent, n := snapshot.CheckpointID(""), 0
	for b.Loop() {
		n++
		id := snapshot.CheckpointID(fmt.Sprint("c", n))
		if n%1000 == 0 { // a lease lasts for a while only
			if _, err := s.Renew(b.Context(), l.Writer); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.Append(b.Context(), snapshottest.Record("t", id, parent), parent, l.Writer); err != nil {
			b.Fatal(err)
		}
		parent = id
	}
}

func BenchmarkFork(b *testing.B) {
	s := newWorld(b).open(b, options())
	n := 0
	for b.Loop() {
		n++
		root := snapshottest.ForkRoot(snapshot.ThreadID(fmt.Sprint("t", n)), snapshot.CheckpointID(fmt.Sprint("f", n)))
		if err := s.Fork(b.Context(), root, 0); err != nil {
			b.Fatal(err)
		}
	}
}
