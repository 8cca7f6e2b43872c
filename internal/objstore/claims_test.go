package objstore_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

func TestOpenUpload(t *testing.T) {
	s, js := newStore(t)
	obs, err := js.ObjectStore(t.Context(), "box-uploads")
	if err != nil {
		t.Fatal(err)
	}
	data := snapshottest.RandomBytes(1, 3_000_000)
	for name, opts := range map[string]*jetstream.ObjectMetaOptions{
		"plain": nil, "a b/c.>*é": {ChunkSize: 1000}, "large chunks": {ChunkSize: 900_000},
	} {
		meta := jetstream.ObjectMeta{Name: name, Opts: opts}
		if _, err := obs.Put(t.Context(), meta, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		r, size, err := s.OpenUpload(t.Context(), "box-uploads/"+name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || size != int64(len(data)) || !bytes.Equal(got, data) {
			t.Errorf("%s: size %d, %d bytes, %v", name, size, len(got), err)
		}
		r.Close()
	}
	if _, err := obs.AddLink(t.Context(), "link", mustInfo(t, obs, "plain")); err != nil {
		t.Fatal(err)
	}
	if err := obs.Delete(t.Context(), "large chunks"); err != nil {
		t.Fatal(err)
	}
	for _, object := range []string{
		"", "box-uploads", "box-uploads/", "box-uploads/none", "box-uploads/link", "box-uploads/large chunks",
		"box-packs/sha256/" + strings.Repeat("0", 64), "other-uploads/plain", "box-uploads.C/x", "box-uploads/" + strings.Repeat("x", 20_000),
	} {
		if _, _, err := s.OpenUpload(t.Context(), object); !errors.Is(err, snapshot.BadRequest) {
			t.Errorf("%.40q: %v", object, err)
		}
	}
}

func mustInfo(t *testing.T, obs jetstream.ObjectStore, name string) *jetstream.ObjectInfo {
	t.Helper()
	info, err := obs.GetInfo(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestPutReply(t *testing.T) {
	s, js := newStore(t)
	obs, err := js.ObjectStore(t.Context(), "box-replies")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, size := range []int{0, 10, 10, 3 << 20, 3 << 20} {
		data := snapshottest.RandomBytes(uint64(size), size)
		object, err := s.PutReply(t.Context(), data)
		if err != nil || seen[object] {
			t.Fatalf("reply %q: %v", object, err)
		}
		seen[object] = true
		name := strings.TrimPrefix(object, "box-replies/")
		got, err := obs.GetBytes(t.Context(), name)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v", object, len(got), err)
		}
	}
}
