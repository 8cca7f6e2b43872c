package snapshottest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"

	"sandkeep/internal/snapshot"
)

// MemoryObjects is a snapshot.Objects in memory. Its lists are tokens that only
// itself can read. Use NewMemoryObjects.
type MemoryObjects struct {
	mu        sync.Mutex // guards what follows
	contents  map[snapshot.Digest][]byte
	blobs     map[snapshot.Digest][]byte
	artifacts map[snapshot.Digest][]byte
	lent      map[string][]byte
	trees     map[string][]snapshot.Entry
	lists     map[string][][]byte
}

var _ snapshot.Objects = (*MemoryObjects)(nil)

func NewMemoryObjects() *MemoryObjects {
	return &MemoryObjects{
		contents: map[snapshot.Digest][]byte{}, blobs: map[snapshot.Digest][]byte{},
		artifacts: map[snapshot.Digest][]byte{}, lent: map[string][]byte{},
		trees: map[string][]snapshot.Entry{}, lists: map[string][][]byte{},
	}
}

// DropContent makes a content unreadable: MissingBlob.
func (m *MemoryObjects) DropContent(d snapshot.Digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.contents, d)
}

// DropArtifact makes an artifact's bytes missing.
func (m *MemoryObjects) DropArtifact(d snapshot.Digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.artifacts, d)
}

// DamageArtifact flips a bit of an artifact's bytes.
func (m *MemoryObjects) DamageArtifact(d snapshot.Digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data := bytes.Clone(m.artifacts[d])
	if len(data) > 0 {
		data[len(data)/2] ^= 1
	}
	m.artifacts[d] = data
}

func token(kind string, n int) []byte { return fmt.Appendf(nil, "%s %d", kind, n) }

func missing(d snapshot.Digest) error {
	return snapshot.Errorf(snapshot.MissingBlob, "content %s is missing", d)
}

func (m *MemoryObjects) NewTree(ctx context.Context, parent snapshot.List) (snapshot.TreeWriter, error) {
	t := &memoryTree{m: m, put: map[snapshot.Digest][]byte{}, known: map[snapshot.Digest]int64{}}
	for e, err := range m.Entries(ctx, parent, "", "") {
		if err != nil {
			return nil, err
		}
		if len(e.Pieces) > 0 { // a loose blob is not in a place that could be reused
			t.known[e.Digest] = e.Size
		}
	}
	return t, ctx.Err()
}

func (m *MemoryObjects) Entries(ctx context.Context, files snapshot.List, prefix, after string) iter.Seq2[snapshot.Entry, error] {
	return func(yield func(snapshot.Entry, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(snapshot.Entry{}, err)
			return
		}
		m.mu.Lock()
		entries, ok := m.trees[string(files.Inline)]
		m.mu.Unlock()
		if !ok && !files.IsEmpty() {
			yield(snapshot.Entry{}, snapshot.Errorf(snapshot.MissingBlob, "there is no manifest %q", files.Inline))
			return
		}
		for _, e := range entries {
			in := prefix == "" || e.Path == prefix || strings.HasPrefix(e.Path, prefix+"/")
			if in && e.Path > after && !yield(e, nil) {
				return
			}
		}
	}
}

func (m *MemoryObjects) OpenFile(_ context.Context, e snapshot.Entry, offset, length int64) (io.ReadCloser, error) {
	if e.Kind != snapshot.KindFile || offset < 0 || length < -1 {
		return nil, snapshot.Errorf(snapshot.BadRequest, "no such range of %q", e.Path)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	from := m.contents
	if len(e.Pieces) == 0 {
		from = m.blobs
	}
	data, ok := from[e.Digest]
	switch {
	case !ok && e.Size > 0:
		return nil, missing(e.Digest)
	case e.Size > 0 && (int64(len(data)) != e.Size || snapshot.Digest(sha256.Sum256(data)) != e.Digest):
		return nil, snapshot.Errorf(snapshot.InvalidBlob, "content %s has other bytes", e.Digest)
	}
	data = data[min(offset, int64(len(data))):]
	if length >= 0 && length < int64(len(data)) {
		data = data[:length]
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (m *MemoryObjects) ReadPack(ctx context.Context, pieces []snapshot.Piece, use func(i int, data []byte) error) error {
	for i, p := range pieces {
		m.mu.Lock()
		data, ok := m.contents[p.Digest]
		m.mu.Unlock()
		if !ok {
			return missing(p.Digest)
		}
		if err := use(i, data); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (m *MemoryObjects) WriteItems(ctx context.Context, items [][]byte, _ snapshot.List) (snapshot.List, error) {
	if len(items) == 0 {
		return snapshot.List{}, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := snapshot.List{Count: int64(len(items)), Inline: token("items", len(m.lists))}
	for _, item := range items {
		m.lists[string(list.Inline)] = append(m.lists[string(list.Inline)], bytes.Clone(item))
	}
	return list, ctx.Err()
}

func (m *MemoryObjects) Items(_ context.Context, list snapshot.List) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		m.mu.Lock()
		items, ok := m.lists[string(list.Inline)]
		m.mu.Unlock()
		if !ok && !list.IsEmpty() {
			yield(nil, snapshot.Errorf(snapshot.MissingBlob, "there is no list %q", list.Inline))
			return
		}
		for _, item := range items {
			if !yield(bytes.Clone(item), nil) {
				return
			}
		}
	}
}

func (m *MemoryObjects) PutArtifact(_ context.Context, d snapshot.Digest, size int64, open func() (io.ReadCloser, error)) (int64, error) {
	return m.put(m.artifacts, d, size, open)
}

// put keeps bytes under their digest and returns how many are new.
func (m *MemoryObjects) put(in map[snapshot.Digest][]byte, d snapshot.Digest, size int64, open func() (io.ReadCloser, error)) (int64, error) {
	m.mu.Lock()
	old, ok := in[d]
	m.mu.Unlock()
	if ok && snapshot.Digest(sha256.Sum256(old)) == d {
		return 0, nil
	}
	data, err := readAll(open)
	if err != nil {
		return 0, err
	}
	if int64(len(data)) != size || snapshot.Digest(sha256.Sum256(data)) != d {
		return 0, snapshot.Errorf(snapshot.InvalidBlob, "the bytes given are not those of %s", d)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	in[d] = data
	return size, nil
}

func readAll(open func() (io.ReadCloser, error)) ([]byte, error) {
	r, err := open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func (m *MemoryObjects) OpenArtifact(ctx context.Context, d snapshot.Digest, size int64) (io.ReadCloser, error) {
	r, n, err := m.OpenBlob(ctx, d, true)
	if err == nil && n != size {
		r = io.NopCloser(failing{snapshot.Errorf(snapshot.InvalidBlob, "artifact %s has %d bytes", d, n)})
	}
	return r, err
}

func (m *MemoryObjects) ArtifactObject(d snapshot.Digest) string {
	return "memory-artifacts/sha256/" + d.String()
}

// failing is a reader that only has an error.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// memoryTree is the writing of one manifest; nothing is kept before Finish.
type memoryTree struct {
	m       *MemoryObjects
	put     map[snapshot.Digest][]byte
	known   map[snapshot.Digest]int64 // of the parent
	entries []snapshot.Entry
	done    bool
}

func (t *memoryTree) Known(_ string, d snapshot.Digest, size int64) bool {
	if size == 0 {
		return d == snapshot.Digest(sha256.Sum256(nil))
	}
	if data, ok := t.put[d]; ok {
		return int64(len(data)) == size
	}
	n, ok := t.known[d]
	return ok && n == size
}

func (t *memoryTree) Put(_ context.Context, r io.Reader) (snapshot.Digest, int64, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return snapshot.Digest{}, 0, fmt.Errorf("read content: %w", err)
	}
	d := snapshot.Digest(sha256.Sum256(data))
	t.put[d] = data
	return d, int64(len(data)), nil
}

func (t *memoryTree) PutBytes(_ context.Context, data []byte, d snapshot.Digest) error {
	t.put[d] = bytes.Clone(data)
	return nil
}

func (t *memoryTree) Add(ctx context.Context, e snapshot.Entry) error {
	if err := t.check(e); err != nil {
		return err
	}
	if e.Kind == snapshot.KindFile && !t.Known(e.Path, e.Digest, e.Size) {
		return missing(e.Digest)
	}
	e.Pieces = nil
	if e.Size > 0 {
		e.Pieces = []snapshot.Piece{{Digest: e.Digest, Pack: e.Digest, Length: e.Size}}
	}
	t.entries = append(t.entries, e)
	return ctx.Err()
}

// check refuses what may not be the next entry.
func (t *memoryTree) check(e snapshot.Entry) error {
	if err := snapshot.ValidatePath(e.Path); err != nil {
		return err
	}
	n := len(t.entries)
	switch {
	case n > 0 && e.Path <= t.entries[n-1].Path:
		return snapshot.Errorf(snapshot.InvalidEntry, "entry %q comes after %q", e.Path, t.entries[n-1].Path)
	case e.Kind < snapshot.KindFile || e.Kind > snapshot.KindSymlink || e.Mode > 0o777 || e.Size < 0,
		e.Kind == snapshot.KindSymlink && e.Target == "",
		e.Kind == snapshot.KindFile && e.Size == 0 && e.Digest != snapshot.Digest(sha256.Sum256(nil)),
		e.Kind != snapshot.KindFile && (e.Size != 0 || !e.Digest.IsZero()):
		return snapshot.Errorf(snapshot.InvalidEntry, "entry %q is invalid", e.Path)
	}
	return nil
}

func (t *memoryTree) Finish(ctx context.Context) (snapshot.List, int64, error) {
	if err := ctx.Err(); err != nil || t.done || len(t.entries) == 0 {
		t.done = true
		return snapshot.List{}, 0, err
	}
	t.done = true
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	newBytes := int64(0)
	for d, data := range t.put {
		if _, ok := t.m.contents[d]; !ok && len(data) > 0 {
			t.m.contents[d] = data
			newBytes += int64(len(data))
		}
	}
	list := snapshot.List{Count: int64(len(t.entries)), Inline: token("tree", len(t.m.trees))}
	t.m.trees[string(list.Inline)] = slices.Clone(t.entries)
	return list, newBytes, nil
}

func (t *memoryTree) Abort() { t.done = true }
