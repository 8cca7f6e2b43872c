package objstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

const files = "box-files"

func loosePurge(t *testing.T, js jetstream.JetStream, b blob) {
	t.Helper()
	subject := objstore.ChunkSubject(files, b.digest.String())
	if err := stream(t, js, files).Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
		t.Fatal(err)
	}
}

// looseDamages are what can happen to a loose blob, and how a read must end.
var looseDamages = map[string]struct {
	code snapshot.Code
	do   func(t *testing.T, js jetstream.JetStream, b blob)
}{
	"byte flipped": {snapshot.InvalidBlob, func(t *testing.T, js jetstream.JetStream, b blob) {
		loosePurge(t, js, b)
		for at := 0; at < len(b.data); at += objstore.ChunkSize {
			chunk := bytes.Clone(b.data[at:min(at+objstore.ChunkSize, len(b.data))])
			chunk[len(chunk)-1] ^= 1
			publish(t, js, objstore.ChunkSubject(files, b.digest.String()), chunk)
		}
	}},
	"chunks gone": {snapshot.MissingBlob, loosePurge},
	"other bytes under its name": {snapshot.InvalidBlob, func(t *testing.T, js jetstream.JetStream, b blob) {
		obs, err := js.ObjectStore(t.Context(), files)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := obs.PutBytes(t.Context(), "sha256/"+b.digest.String(), make([]byte, len(b.data))); err != nil {
			t.Fatal(err)
		}
	}},
	"a shorter object": {snapshot.InvalidBlob, func(t *testing.T, js jetstream.JetStream, b blob) {
		obs, err := js.ObjectStore(t.Context(), files)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := obs.PutBytes(t.Context(), "sha256/"+b.digest.String(), b.data[1:]); err != nil {
			t.Fatal(err)
		}
	}},
}

// TestLooseBlob_DamagedThenHealed breaks a blob of a checkpoint. Its reads fail,
// an import counts it as missing, and a put by a worker that never saw it broken
// heals it.
func TestLooseBlob_DamagedThenHealed(t *testing.T) {
	for name, damage := range looseDamages {
		for _, size := range []int{700, 5 << 20} { // held, and read twice
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				s, js := newStore(t)
				b := newBlob(uint64(size), size)
				snapshottest.PutBlob(t, s, b.data)
				entries := []snapshot.Entry{snapshottest.FileEntry("dir/file", b.data)}
				list, err := s.Import(t.Context(), entries, snapshot.List{}, true)
				if err != nil {
					t.Fatal(err)
				}
				damage.do(t, js, b)
				for _, length := range []int64{-1, 1} {
					if _, err := s.OpenFile(t.Context(), entries[0], 0, length); !errors.Is(err, damage.code) {
						t.Errorf("read of %d bytes: %v, want %s", length, err, damage.code)
					}
				}
				if err := readBlob(t, s, b); !errors.Is(err, damage.code) {
					t.Errorf("open blob: %v, want %s", err, damage.code)
				}
				if _, err := s.Import(t.Context(), entries, list, true); !errors.Is(err, snapshot.MissingBlob) {
					t.Errorf("import: %v", err)
				}
				snapshottest.PutBlob(t, open(t, js), b.data)
				checkTree(t, s, list, map[string][]byte{"dir/file": b.data})
				if _, err := s.Import(t.Context(), entries, list, true); err != nil {
					t.Errorf("import of the healed blob: %v", err)
				}
			})
		}
	}
}

func readBlob(t *testing.T, s *objstore.Store, b blob) error {
	t.Helper()
	r, _, err := s.OpenBlob(t.Context(), b.digest, false)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

// TestPutBlob_Again writes nothing, and keeps one copy that any client reads.
func TestPutBlob_Again(t *testing.T) {
	s, js := newStore(t)
	b := newBlob(3, 3*objstore.ChunkSize+5)
	snapshottest.PutBlob(t, s, b.data)
	before := streamBytes(t, js, files)
	s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		if isWrite(msg) {
			t.Errorf("a write to %s", msg.Subject)
		}
		return send(ctx, msg)
	})
	snapshottest.PutBlob(t, s, b.data)
	if after := streamBytes(t, js, files); after != before {
		t.Errorf("the stream went from %d to %d bytes", before, after)
	}
	bucket, name, _ := strings.Cut(s.BlobObject(b.digest), "/")
	obs, err := js.ObjectStore(t.Context(), bucket)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := obs.GetBytes(t.Context(), name); err != nil || !bytes.Equal(data, b.data) {
		t.Errorf("ordinary client: %d bytes, %v", len(data), err)
	}
}

// TestBlobSize_OrdinaryClient finds a blob that a client put by itself.
func TestBlobSize_OrdinaryClient(t *testing.T) {
	s, js := newStore(t)
	obs, err := js.ObjectStore(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	b := newBlob(4, 300_000)
	info, err := obs.PutBytes(t.Context(), "sha256/"+b.digest.String(), b.data)
	if err != nil {
		t.Fatal(err)
	}
	if n, there, err := s.BlobSize(t.Context(), b.digest, false); n != b.size() || !there || err != nil {
		t.Errorf("size %d, there %v, %v", n, there, err)
	}
	other := newBlob(5, 10)
	if _, err := obs.AddLink(t.Context(), "sha256/"+other.digest.String(), info); err != nil {
		t.Fatal(err)
	}
	if n, there, err := s.BlobSize(t.Context(), other.digest, false); n != 0 || there || err != nil {
		t.Errorf("link: size %d, there %v, %v", n, there, err)
	}
	if err := readBlob(t, s, other); !errors.Is(err, snapshot.InvalidBlob) {
		t.Errorf("read of a link: %v", err)
	}
}

// TestLend reads what was lent with the ordinary client.
func TestLend(t *testing.T) {
	s, js := newStore(t)
	data := snapshottest.RandomBytes(6, 2<<20)
	object, err := s.Lend(t.Context(), int64(len(data)), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	if err != nil {
		t.Fatal(err)
	}
	obs, err := js.ObjectStore(t.Context(), "box-replies")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := obs.GetBytes(t.Context(), strings.TrimPrefix(object, "box-replies/")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestImport_AsksOnce looks for each content once, for none that the parent has
// or that is empty, and for nothing without require.
func TestImport_AsksOnce(t *testing.T) {
	s, js := newStore(t)
	kept, loose := []byte("of the parent"), []byte("loose")
	parent, _ := snapshottest.WriteTree(t, s, snapshot.List{}, map[string][]byte{"kept": kept})
	snapshottest.PutBlob(t, s, loose)
	entries := []snapshot.Entry{
		snapshottest.FileEntry("a", loose), snapshottest.FileEntry("b", loose), snapshottest.FileEntry("c", kept),
		snapshottest.FileEntry("d", nil), {Path: "e", Kind: snapshot.KindDir},
	}
	for _, require := range []bool{true, false} {
		asked := make(chan string, 100)
		s := open(t, js)
		s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
			if strings.HasSuffix(msg.Subject, "MSG.GET.OBJ_"+files) {
				asked <- msg.Subject
			}
			return send(ctx, msg)
		})
		if _, err := s.Import(t.Context(), entries, parent, require); err != nil {
			t.Fatal(err)
		}
		if n := len(asked); require && n != 1 || !require && n != 0 {
			t.Errorf("require %v: asked %d times", require, n)
		}
	}
}

// TestImport_BrokenParent takes nothing over from a parent whose pack is known
// to be lost: the blobs have to come, and then the checkpoint is whole.
func TestImport_BrokenParent(t *testing.T) {
	s, js := newStore(t)
	data := snapshottest.RandomBytes(7, 10_000)
	parent, _ := snapshottest.WriteTree(t, s, snapshot.List{}, map[string][]byte{"f": data})
	if err := stream(t, js, packs).Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.ForgetCache()
	r, err := s.OpenFile(t.Context(), entryOf(t, s, parent, "f"), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, snapshot.MissingBlob) {
		t.Fatalf("read of a lost pack: %v", err)
	}
	entries := []snapshot.Entry{snapshottest.FileEntry("f", data)}
	if _, err := s.Import(t.Context(), entries, parent, true); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("import: %v", err)
	}
	snapshottest.PutBlob(t, s, data)
	list, err := s.Import(t.Context(), entries, parent, true)
	if err != nil {
		t.Fatal(err)
	}
	checkTree(t, s, list, map[string][]byte{"f": data})
}

// TestImport_BucketGone is no missing blob.
func TestImport_BucketGone(t *testing.T) {
	s, js := newStore(t)
	if err := js.DeleteStream(t.Context(), "OBJ_"+files); err != nil {
		t.Fatal(err)
	}
	entries := []snapshot.Entry{snapshottest.FileEntry("f", []byte("x"))}
	if _, err := s.Import(t.Context(), entries, snapshot.List{}, true); !errors.Is(err, snapshot.StoreUnavailable) {
		t.Errorf("import: %v", err)
	}
}

// TestImport_Many looks for thousands of blobs, all but the last of which are
// there, in a tree of many pages.
func TestImport_Many(t *testing.T) {
	s, _ := newStore(t)
	var entries []snapshot.Entry
	n := 1500
	for i := range n {
		data := binary.BigEndian.AppendUint64(nil, uint64(i))
		if i < n-1 {
			snapshottest.PutBlob(t, s, data)
		}
		entries = append(entries, snapshottest.FileEntry(fmt.Sprintf("f%06d", i), data))
	}
	_, err := s.Import(t.Context(), entries, snapshot.List{}, true)
	if !errors.Is(err, snapshot.MissingBlob) || !strings.Contains(err.Error(), "f001499") {
		t.Fatalf("got %v", err)
	}
	list, err := s.Import(t.Context(), entries[:n-1], snapshot.List{}, true)
	if err != nil || len(list.Pages) < 5 {
		t.Fatalf("%d pages, %v", len(list.Pages), err)
	}
	last := entries[n-2]
	if e := entryOf(t, s, list, last.Path); e.Digest != last.Digest || len(e.Pieces) > 0 {
		t.Errorf("got %+v", e)
	}
}
