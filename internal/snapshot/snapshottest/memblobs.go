package snapshottest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"sandkeep/internal/snapshot"
)

// DropBlob makes a loose blob missing.
func (m *MemoryObjects) DropBlob(d snapshot.Digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.blobs, d)
}

// DamageBlob flips a bit of a loose blob.
func (m *MemoryObjects) DamageBlob(d snapshot.Digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if data := bytes.Clone(m.blobs[d]); len(data) > 0 {
		data[len(data)/2] ^= 1
		m.blobs[d] = data
	}
}

// Lent returns the bytes behind an object name that Lend gave out, or nil.
func (m *MemoryObjects) Lent(object string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lent[object]
}

func (m *MemoryObjects) Import(ctx context.Context, entries []snapshot.Entry, parent snapshot.List, require bool) (snapshot.List, error) {
	before, err := m.placed(ctx, parent)
	if err != nil {
		return snapshot.List{}, err
	}
	t := &memoryTree{m: m}
	for _, e := range entries {
		if err := t.check(e); err != nil {
			return snapshot.List{}, err
		}
		e.Pieces = before[e.Digest]
		if len(e.Pieces) > 0 && e.Pieces[0].Length != e.Size {
			e.Pieces = nil
		}
		t.entries = append(t.entries, e)
	}
	for _, e := range t.entries {
		if e.Size == 0 || len(e.Pieces) > 0 || !require {
			continue
		}
		if n, _, err := m.BlobSize(ctx, e.Digest, false); err != nil || n != e.Size {
			return snapshot.List{}, snapshot.Errorf(snapshot.MissingBlob, "the content %s of %q is missing", e.Digest, e.Path).Because(err)
		}
	}
	list, _, err := t.Finish(ctx)
	return list, err
}

// placed are the places of the contents of a manifest.
func (m *MemoryObjects) placed(ctx context.Context, files snapshot.List) (map[snapshot.Digest][]snapshot.Piece, error) {
	places := map[snapshot.Digest][]snapshot.Piece{}
	for e, err := range m.Entries(ctx, files, "", "") {
		if err != nil {
			return nil, err
		}
		if len(e.Pieces) > 0 {
			places[e.Digest] = e.Pieces
		}
	}
	return places, nil
}

func (m *MemoryObjects) PutBlob(_ context.Context, d snapshot.Digest, size int64, open func() (io.ReadCloser, error)) error {
	_, err := m.put(m.blobs, d, size, open)
	return err
}

func (m *MemoryObjects) BlobSize(_ context.Context, d snapshot.Digest, artifact bool) (int64, bool, error) {
	data, ok := m.blob(d, artifact)
	if !ok || snapshot.Digest(sha256.Sum256(data)) != d {
		return 0, false, nil
	}
	return int64(len(data)), true, nil
}

func (m *MemoryObjects) OpenBlob(_ context.Context, d snapshot.Digest, artifact bool) (io.ReadCloser, int64, error) {
	data, ok := m.blob(d, artifact)
	if !ok {
		return nil, 0, missing(d)
	}
	var end error = io.EOF
	if snapshot.Digest(sha256.Sum256(data)) != d {
		end = snapshot.Errorf(snapshot.InvalidBlob, "blob %s has other bytes", d)
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(data), failing{end})), int64(len(data)), nil
}

func (m *MemoryObjects) blob(d snapshot.Digest, artifact bool) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from := m.blobs
	if artifact {
		from = m.artifacts
	}
	data, ok := from[d]
	return data, ok
}

func (m *MemoryObjects) Lend(_ context.Context, size int64, open func() (io.ReadCloser, error)) (string, error) {
	data, err := readAll(open)
	if err != nil {
		return "", err
	}
	if int64(len(data)) != size {
		return "", snapshot.Errorf(snapshot.InvalidBlob, "%d bytes came instead of %d", len(data), size)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	object := fmt.Sprintf("memory-replies/%d", len(m.lent))
	m.lent[object] = data
	return object, nil
}

func (m *MemoryObjects) BlobObject(d snapshot.Digest) string {
	return "memory-files/sha256/" + d.String()
}
