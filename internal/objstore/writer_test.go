package objstore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

const artifacts = "box-artifacts"

// blob is an artifact for tests.
type blob struct {
	data   []byte
	digest snapshot.Digest
}

func newBlob(seed uint64, size int) blob {
	data := snapshottest.RandomBytes(seed, size)
	return blob{data, sha256.Sum256(data)}
}

func (b blob) size() int64 { return int64(len(b.data)) }

func (b blob) put(ctx context.Context, s *objstore.Store) (int64, error) {
	return s.PutArtifact(ctx, b.digest, b.size(), func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.data)), nil
	})
}

func (b blob) mustPut(t testing.TB, s *objstore.Store, want int64) {
	t.Helper()
	if n, err := b.put(t.Context(), s); err != nil || n != want {
		t.Fatalf("put: %d new bytes, %v; want %d", n, err, want)
	}
}

func (b blob) read(ctx context.Context, s *objstore.Store) error {
	r, err := s.OpenArtifact(ctx, b.digest, b.size())
	if err != nil {
		return err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err == nil && !bytes.Equal(data, b.data) {
		return errors.New("other bytes came without an error")
	}
	return err
}

func (b blob) mustRead(t testing.TB, s *objstore.Store) {
	t.Helper()
	if err := b.read(t.Context(), s); err != nil {
		t.Fatalf("read: %v", err)
	}
}

// mustReadPlain reads the blob with the ordinary client.
func (b blob) mustReadPlain(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	obs, err := js.ObjectStore(t.Context(), artifacts)
	if err != nil {
		t.Fatal(err)
	}
	data, err := obs.GetBytes(t.Context(), "sha256/"+b.digest.String())
	if err != nil || !bytes.Equal(data, b.data) {
		t.Fatalf("ordinary client: %d bytes, %v; want %d", len(data), err, len(b.data))
	}
}

func (b blob) chunks() string { return objstore.ChunkSubject(artifacts, b.digest.String()) }

func stream(t testing.TB, js jetstream.JetStream, bucket string) jetstream.Stream {
	t.Helper()
	st, err := js.Stream(t.Context(), "OBJ_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func streamBytes(t testing.TB, js jetstream.JetStream, bucket string) uint64 {
	t.Helper()
	return stream(t, js, bucket).CachedInfo().State.Bytes
}

func chunkSeqs(t testing.TB, js jetstream.JetStream, b blob) []uint64 {
	t.Helper()
	st := stream(t, js, artifacts)
	var seqs []uint64
	for seq := uint64(1); seq <= st.CachedInfo().State.LastSeq; seq++ {
		if msg, err := st.GetMsg(t.Context(), seq); err == nil && msg.Subject == b.chunks() {
			seqs = append(seqs, seq)
		}
	}
	return seqs
}

func isWrite(msg *nats.Msg) bool { return strings.HasPrefix(msg.Subject, "$O.") }

func TestPut_OrdinaryClientReads(t *testing.T) {
	s, js := newStore(t)
	for _, size := range []int{0, 1, objstore.ChunkSize, 3*objstore.ChunkSize + 7} {
		b := newBlob(uint64(size), size)
		b.mustPut(t, s, b.size())
		b.mustReadPlain(t, js)
	}
}

// TestPut_Lost loses each request or each reply once: the request never came,
// the reply got lost, or the request comes once more after the next one.
func TestPut_Lost(t *testing.T) {
	faults := map[string]func(context.Context, *nats.Msg, objstore.Send) (*nats.Msg, error){
		"request": func(context.Context, *nats.Msg, objstore.Send) (*nats.Msg, error) { return nil, nats.ErrTimeout },
		"reply": func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
			_, _ = send(ctx, msg)
			return nil, nats.ErrTimeout
		},
		"responder": func(context.Context, *nats.Msg, objstore.Send) (*nats.Msg, error) { return nil, nats.ErrNoResponders },
	}
	contents := map[string]blob{"random": newBlob(7, 4*objstore.ChunkSize+100)}
	zeros := make([]byte, 4*objstore.ChunkSize)
	contents["zeros"] = blob{zeros, sha256.Sum256(zeros)} // each chunk equals the one before
	for name, fault := range faults {
		for what, b := range contents {
			t.Run(name+" "+what, func(t *testing.T) {
				s, js := newStore(t)
				lost := 0
				failNext := true
				s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
					if !isWrite(msg) {
						return send(ctx, msg)
					}
					if failNext = !failNext; failNext {
						return send(ctx, msg)
					}
					lost++
					return fault(ctx, msg, send)
				})
				b.mustPut(t, s, b.size())
				b.mustReadPlain(t, js)
				if n := len(chunkSeqs(t, js, b)); n != (len(b.data)+objstore.ChunkSize-1)/objstore.ChunkSize {
					t.Errorf("%d chunks stay", n)
				}
				if lost < 3 {
					t.Errorf("only %d writes were lost", lost)
				}
			})
		}
	}
}

// TestPut_LateChunks lets every write arrive a second time, after the next one.
func TestPut_LateChunks(t *testing.T) {
	s, js := newStore(t)
	var late *nats.Msg
	s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		if !isWrite(msg) {
			return send(ctx, msg)
		}
		reply, err := send(ctx, msg)
		if late != nil {
			_, _ = send(ctx, late)
		}
		late = msg
		return reply, err
	})
	b := newBlob(8, 5*objstore.ChunkSize)
	b.mustPut(t, s, b.size())
	b.mustReadPlain(t, js)
	if n := len(chunkSeqs(t, js, b)); n != 5 {
		t.Errorf("%d chunks stay, want 5", n)
	}
}

func TestPut_Concurrent(t *testing.T) {
	srv := startServer(t)
	js := connect(t, srv)
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	b := newBlob(9, 1<<20)
	var g errgroup.Group
	for range 8 {
		s := open(t, connect(t, srv))
		g.Go(func() error { _, err := b.put(t.Context(), s); return err })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	b.mustReadPlain(t, js)
	if n := streamBytes(t, js, artifacts); n > 1<<20+64<<10 {
		t.Errorf("the stream has %d bytes, want about one copy", n)
	}
}

func TestPut_CanceledThenAgain(t *testing.T) {
	b := newBlob(10, 6*objstore.ChunkSize)
	for after := 1; after <= 7; after++ {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			s, js := newStore(t)
			ctx, cancel := context.WithCancel(t.Context())
			writes := 0
			s.Intercept(func(c context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
				if isWrite(msg) {
					if writes++; writes == after {
						reply, err := send(c, msg)
						cancel()
						return reply, errors.Join(err, context.Canceled)
					}
				}
				return send(c, msg)
			})
			if _, err := b.put(ctx, s); !errors.Is(err, context.Canceled) {
				t.Fatalf("canceled put: %v", err)
			}
			if err := b.read(t.Context(), s); after < 7 && !errors.Is(err, snapshot.MissingBlob) {
				t.Fatalf("read after a canceled put: %v", err)
			}
			before := chunkSeqs(t, js, b)
			if _, err := b.put(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			b.mustReadPlain(t, js)
			seqs := chunkSeqs(t, js, b)
			if len(seqs) != 6 || seqs[0] != before[0] {
				t.Errorf("chunks at %v, want those at %v continued", seqs, before)
			}
		})
	}
}

func TestPut_StoreFull(t *testing.T) {
	js := connect(t, startServer(t))
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", MaxBytes: 2 << 20, Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	s := open(t, js)
	b := newBlob(11, 4<<20)
	if _, err := b.put(t.Context(), s); !errors.Is(err, snapshot.StoreFull) {
		t.Fatalf("put into a full bucket: %v", err)
	}
	if err := b.read(t.Context(), s); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("read after a failed put: %v", err)
	}
	if n := streamBytes(t, js, artifacts); n != 0 {
		t.Errorf("%d bytes stay of a failed put", n)
	}
	newBlob(12, 1<<20).mustPut(t, s, 1<<20)
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", MaxBytes: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	b.mustPut(t, s, b.size())
	b.mustRead(t, s)
	b.mustReadPlain(t, js)
}

func TestTree_StoreFull(t *testing.T) {
	js := connect(t, startServer(t))
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", MaxBytes: 2 << 20, Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	s := open(t, js)
	files := map[string][]byte{"a": snapshottest.RandomBytes(1, 4<<20), "b": snapshottest.RandomBytes(2, 4<<20)}
	w, err := s.NewTree(t.Context(), snapshot.List{})
	if err != nil {
		t.Fatal(err)
	}
	for p, data := range files {
		if _, _, err = w.Put(t.Context(), bytes.NewReader(data)); err != nil {
			break
		}
		_ = p
	}
	if err == nil {
		_, _, err = w.Finish(t.Context())
	}
	if !errors.Is(err, snapshot.StoreFull) {
		t.Fatalf("tree in a full bucket: %v", err)
	}
	w.Abort()
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", MaxBytes: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	list, n := snapshottest.WriteTree(t, s, snapshot.List{}, files)
	if n != 8<<20 {
		t.Errorf("%d new bytes, want all", n)
	}
	checkTree(t, s, list, files)
}

func checkTree(t testing.TB, s *objstore.Store, list snapshot.List, want map[string][]byte) {
	t.Helper()
	got := snapshottest.ReadTree(t, s, list)
	if len(got) != len(want) {
		t.Errorf("%d entries, want %d", len(got), len(want))
	}
	for p, data := range want {
		if !bytes.Equal(got[p], data) {
			t.Errorf("%s has other bytes", p)
		}
	}
}

// damage is what can happen to a stored object, and how a read must end.
var damages = map[string]struct {
	code snapshot.Code
	do   func(t *testing.T, js jetstream.JetStream, b blob)
}{
	"first chunk deleted": {snapshot.MissingBlob, func(t *testing.T, js jetstream.JetStream, b blob) { deleteChunk(t, js, b, 0) }},
	"inner chunk deleted": {snapshot.MissingBlob, func(t *testing.T, js jetstream.JetStream, b blob) { deleteChunk(t, js, b, 1) }},
	"last chunk deleted":  {snapshot.MissingBlob, func(t *testing.T, js jetstream.JetStream, b blob) { deleteChunk(t, js, b, 2) }},
	"all chunks purged":   {snapshot.MissingBlob, purgeChunks},
	"object deleted": {snapshot.MissingBlob, func(t *testing.T, js jetstream.JetStream, b blob) {
		obs, err := js.ObjectStore(t.Context(), artifacts)
		if err != nil {
			t.Fatal(err)
		}
		if err := obs.Delete(t.Context(), "sha256/"+b.digest.String()); err != nil {
			t.Fatal(err)
		}
	}},
	"byte flipped": {snapshot.InvalidBlob, func(t *testing.T, js jetstream.JetStream, b blob) {
		purgeChunks(t, js, b)
		for at := 0; at < len(b.data); at += objstore.ChunkSize {
			chunk := bytes.Clone(b.data[at:min(at+objstore.ChunkSize, len(b.data))])
			chunk[0] ^= 1
			publish(t, js, b.chunks(), chunk)
		}
	}},
	"chunk added": {"", func(t *testing.T, js jetstream.JetStream, b blob) { publish(t, js, b.chunks(), []byte("more")) }},
	"info is not JSON": {snapshot.MissingBlob, func(t *testing.T, js jetstream.JetStream, b blob) {
		publish(t, js, objstore.InfoSubject(artifacts, "sha256/"+b.digest.String()), []byte("no info"))
	}},
}

func publish(t *testing.T, js jetstream.JetStream, subject string, data []byte) {
	t.Helper()
	if _, err := js.Publish(t.Context(), subject, data); err != nil {
		t.Fatal(err)
	}
}

func deleteChunk(t *testing.T, js jetstream.JetStream, b blob, i int) {
	t.Helper()
	if err := stream(t, js, artifacts).DeleteMsg(t.Context(), chunkSeqs(t, js, b)[i]); err != nil {
		t.Fatal(err)
	}
}

func purgeChunks(t *testing.T, js jetstream.JetStream, b blob) {
	t.Helper()
	if err := stream(t, js, artifacts).Purge(t.Context(), jetstream.WithPurgeSubject(b.chunks())); err != nil {
		t.Fatal(err)
	}
}

func TestRead_DamagedThenHealed(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			s, js := newStore(t)
			b := newBlob(13, 3*objstore.ChunkSize)
			b.mustPut(t, s, b.size())
			damage.do(t, js, b)
			if err := b.read(t.Context(), s); damage.code != "" && !errors.Is(err, damage.code) {
				t.Fatalf("read: %v, want %s", err, damage.code)
			}
			if _, err := b.put(t.Context(), s); err != nil {
				t.Fatalf("put again: %v", err)
			}
			b.mustRead(t, s)
			if damage.code != "" {
				b.mustReadPlain(t, js)
			}
			b.mustPut(t, s, 0)
		})
	}
}

// TestPut_BrokenUploadFound leaves wrong chunks under the subject before the
// first put.
func TestPut_BrokenUploadFound(t *testing.T) {
	b := newBlob(14, 3*objstore.ChunkSize)
	good := func(i int) []byte { return b.data[i*objstore.ChunkSize : (i+1)*objstore.ChunkSize] }
	for name, chunks := range map[string][][]byte{
		"wrong": {[]byte("x")}, "closed": {good(0), nil}, "only closed": {nil}, "too many": {good(0), good(1), good(2), nil},
		"twice": {good(0), good(0), good(2)}, "complete": {good(0), good(1), good(2)}, "prefix": {good(0), good(1)},
	} {
		t.Run(name, func(t *testing.T) {
			s, js := newStore(t)
			for _, c := range chunks {
				publish(t, js, b.chunks(), c)
			}
			b.mustPut(t, s, b.size())
			b.mustRead(t, s)
			b.mustReadPlain(t, js)
			if n := len(chunkSeqs(t, js, b)); n != 3 {
				t.Errorf("%d chunks stay, want 3", n)
			}
		})
	}
}

// TestPut_Interference purges or closes the chunks under a writer at each of
// its writes: the object must come out whole in the end.
func TestPut_Interference(t *testing.T) {
	b := newBlob(15, 3*objstore.ChunkSize)
	for at := 1; at <= 4; at++ {
		for name, chunk := range map[string][]byte{"purge": nil, "close": {}} {
			t.Run(fmt.Sprint(name, " before write ", at), func(t *testing.T) {
				s, js := newStore(t)
				writes := 0
				var once sync.Once
				s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
					if isWrite(msg) {
						writes++
					}
					if writes == at {
						once.Do(func() {
							if chunk == nil {
								purgeChunks(t, js, b)
							} else {
								publish(t, js, b.chunks(), chunk)
							}
						})
					}
					return send(ctx, msg)
				})
				b.mustPut(t, s, b.size())
				b.mustReadPlain(t, js)
				if n := len(chunkSeqs(t, js, b)); n != 3 {
					t.Errorf("%d chunks stay, want 3", n)
				}
			})
		}
	}
}

func TestPut_SourceFails(t *testing.T) {
	s, js := newStore(t)
	b := newBlob(16, 3*objstore.ChunkSize)
	broken := errors.New("the source is gone")
	_, err := s.PutArtifact(t.Context(), b.digest, b.size(), func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(b.data[:objstore.ChunkSize*2]), brokenReader{broken})), nil
	})
	if !errors.Is(err, broken) {
		t.Fatalf("put: %v", err)
	}
	if n := streamBytes(t, js, artifacts); n != 0 {
		t.Errorf("%d bytes stay of a failed put", n)
	}
	b.mustPut(t, s, b.size())
}

// TestPut_OtherBytes gives other bytes of the same number than the digest says.
func TestPut_OtherBytes(t *testing.T) {
	s, js := newStore(t)
	b, other := newBlob(18, 2*objstore.ChunkSize), newBlob(19, 2*objstore.ChunkSize)
	_, err := s.PutArtifact(t.Context(), b.digest, b.size(), func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(other.data)), nil
	})
	if !errors.Is(err, snapshot.InvalidBlob) {
		t.Fatalf("put: %v", err)
	}
	if err := b.read(t.Context(), s); !errors.Is(err, snapshot.MissingBlob) {
		t.Errorf("read after a refused put: %v", err)
	}
	if n := streamBytes(t, js, artifacts); n != 0 {
		t.Errorf("%d bytes stay of a refused put", n)
	}
	b.mustPut(t, s, b.size())
	b.mustReadPlain(t, js)
}

func TestRead_OtherSize(t *testing.T) {
	s, _ := newStore(t)
	b := newBlob(20, 100)
	b.mustPut(t, s, b.size())
	for _, size := range []int64{99, 101, 0} {
		r, err := s.OpenArtifact(t.Context(), b.digest, size)
		if err == nil {
			_, err = io.ReadAll(r)
		}
		if !errors.Is(err, snapshot.InvalidBlob) {
			t.Errorf("size %d: %v", size, err)
		}
	}
	b.mustRead(t, s)
}

// TestPut_ChunksGone heals an object that this process has never read.
func TestPut_ChunksGone(t *testing.T) {
	s, js := newStore(t)
	b := newBlob(21, 3*objstore.ChunkSize)
	b.mustPut(t, s, b.size())
	deleteChunk(t, js, b, 1)
	b.mustPut(t, s, b.size())
	b.mustReadPlain(t, js)
}

type brokenReader struct{ err error }

func (r brokenReader) Read([]byte) (int, error) { return 0, r.err }
