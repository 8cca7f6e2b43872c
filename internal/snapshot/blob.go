package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// maxKeys bounds a question about blobs; blobReaders are asked at a time.
const (
	maxKeys     = 1000
	blobReaders = 16
)

// blobKey is a parsed key of either kind.
type blobKey struct {
	digest   Digest
	artifact bool
}

func (k blobKey) String() string {
	if k.artifact {
		return ArtifactBlobPrefix + k.digest.String()
	}
	return FileBlobPrefix + k.digest.String()
}

func parseBlobKey(key string) (k blobKey, err error) {
	digits, isFile := strings.CutPrefix(key, FileBlobPrefix)
	if !isFile {
		digits, k.artifact = strings.CutPrefix(key, ArtifactBlobPrefix)
	}
	if k.digest, err = ParseDigest(digits); err != nil || !isFile && !k.artifact {
		return k, Errorf(BadRequest, "key %q is not %s or %s and 64 lower-case hex digits", key, FileBlobPrefix, ArtifactBlobPrefix)
	}
	return k, nil
}

// PutBlob keeps a loose blob, without the secrets in it, and tells its key.
func (s *Service) PutBlob(ctx context.Context, req PutBlobRequest) (*Blob, error) {
	if req.Kind != "file" && req.Kind != "artifact" {
		return nil, Errorf(BadRequest, "kind is %q; it may be \"file\" or \"artifact\"", req.Kind)
	}
	open := s.redacting(req.Open)
	digest, size, err := digestOf(open)
	if err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	key := blobKey{digest, req.Kind == "artifact"}
	if key.artifact {
		_, err = s.Objects.PutArtifact(ctx, digest, size, open)
	} else {
		err = s.Objects.PutBlob(ctx, digest, size, open)
	}
	return &Blob{Key: key.String(), Size: size}, err
}

// HeadBlobs tells which of the keys are loose in the store.
func (s *Service) HeadBlobs(ctx context.Context, req HeadBlobsRequest) (*HeadBlobsReply, error) {
	if len(req.Keys) > maxKeys {
		return nil, Errorf(BadRequest, "keys has %d members; at most %d are allowed", len(req.Keys), maxKeys)
	}
	keys := make([]blobKey, len(req.Keys))
	for i, key := range req.Keys {
		var err error
		if keys[i], err = parseBlobKey(key); err != nil {
			return nil, err
		}
	}
	found := make([]*Blob, len(keys))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(blobReaders)
	for i, k := range keys {
		g.Go(func() error {
			size, there, err := s.Objects.BlobSize(gctx, k.digest, k.artifact)
			if there {
				found[i] = &Blob{Key: k.String(), Size: size}
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	reply := &HeadBlobsReply{Present: []Blob{}}
	for _, b := range found {
		if b != nil {
			reply.Present = append(reply.Present, *b)
		}
	}
	return reply, nil
}

// GetBlob reads a loose blob, or one that a worker packed, through a checkpoint
// that has it. Its bytes are checked before anything is answered.
func (s *Service) GetBlob(ctx context.Context, req GetBlobRequest, maxBytes int64) (*GetBlobReply, error) {
	k, err := parseBlobKey(req.Key)
	if err != nil {
		return nil, err
	}
	if req.MaxInlineBytes != nil {
		maxBytes = min(maxBytes, *req.MaxInlineBytes)
	}
	open, size, object, err := s.findBlob(ctx, k, req.CheckpointID)
	if err != nil {
		return nil, err
	}
	reply := &GetBlobReply{Key: req.Key, Size: size, Object: object}
	if size > maxBytes {
		if object == "" {
			reply.Object, err = s.Objects.Lend(ctx, size, open)
			return reply, err
		}
		return reply, drain(open, io.Discard)
	}
	var data bytes.Buffer
	if err := drain(open, &data); err != nil {
		return nil, err
	}
	b := append([]byte{}, data.Bytes()...)
	reply.Data = &b
	return reply, nil
}

func drain(open func() (io.ReadCloser, error), w io.Writer) error {
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}

// findBlob finds a blob in a checkpoint or loose; object is "" for a packed one.
func (s *Service) findBlob(ctx context.Context, k blobKey, checkpoint CheckpointID) (open func() (io.ReadCloser, error), size int64, object string, err error) {
	if checkpoint != "" && !k.artifact {
		e, err := s.entryWith(ctx, checkpoint, k.digest)
		if err != nil {
			return nil, 0, "", err
		}
		if len(e.Pieces) > 0 || e.Kind == KindFile && e.Size == 0 { // an empty file has no blob
			return func() (io.ReadCloser, error) { return s.Objects.OpenFile(ctx, e, 0, -1) }, e.Size, "", nil
		}
	}
	r, size, err := s.Objects.OpenBlob(ctx, k.digest, k.artifact)
	if err != nil {
		return nil, 0, "", err
	}
	_ = r.Close() // only its size was asked for
	open = func() (io.ReadCloser, error) {
		r, _, err := s.Objects.OpenBlob(ctx, k.digest, k.artifact)
		return r, err
	}
	if k.artifact {
		return open, size, s.Objects.ArtifactObject(k.digest), nil
	}
	return open, size, s.Objects.BlobObject(k.digest), nil
}

// entryWith finds a file of a checkpoint by its content; the zero Entry if it
// has none.
func (s *Service) entryWith(ctx context.Context, id CheckpointID, d Digest) (Entry, error) {
	rec, err := s.existing(ctx, id)
	if err != nil {
		return Entry{}, err
	}
	for e, err := range s.Objects.Entries(ctx, rec.Files, "", "") {
		if err != nil {
			return Entry{}, err
		}
		if e.Kind == KindFile && e.Digest == d {
			return e, nil
		}
	}
	return Entry{}, nil
}

// References counts, for each blob key, the checkpoints that have it, sorted by
// key. It reads the manifests of all checkpoints of the thread, or of the store.
func (s *Service) References(ctx context.Context, req ReferencesRequest, maxBytes int64) (*ReferencesReply, error) {
	limit, err := req.count()
	if err != nil {
		return nil, err
	}
	limit = max(1, min(limit, int(maxBytes/160))) // a row has a key of 85 bytes and a number
	after := ""
	if req.After != "" {
		if k, err := parseBlobKey(req.After); err != nil {
			return nil, badCursor(req.After)
		} else {
			after = k.String()
		}
	}
	t := tally{after: after, limit: limit, counts: map[string]int64{}}
	if err := s.eachThread(ctx, req.ThreadID, func(thread ThreadID) error { return s.tallyThread(ctx, thread, &t) }); err != nil {
		return nil, err
	}
	return t.reply(), nil
}

func (s *Service) eachThread(ctx context.Context, only ThreadID, fn func(ThreadID) error) error {
	if only != "" {
		return fn(only)
	}
	seen := map[ThreadID]bool{} // a thread that changes meanwhile comes again
	for after := uint64(0); ; {
		ids, next, err := s.Checkpoints.Threads(ctx, after, maxLimit)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if seen[id] {
				continue
			}
			seen[id] = true
			if err := fn(id); err != nil {
				return err
			}
		}
		if after = next; next == 0 {
			return nil
		}
	}
}

func (s *Service) tallyThread(ctx context.Context, thread ThreadID, t *tally) error {
	recs, err := s.Checkpoints.List(ctx, thread)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		keys := map[string]bool{}
		for e, err := range s.Objects.Entries(ctx, rec.Files, "", "") {
			if err != nil {
				return err
			}
			if e.Kind == KindFile {
				t.see(keys, FileBlobPrefix+e.Digest.String())
			}
		}
		artifacts, err := s.readArtifacts(ctx, rec.Artifacts)
		if err != nil {
			return err
		}
		for _, a := range artifacts {
			t.see(keys, a.BlobKey)
		}
		t.add(keys)
	}
	return nil
}

// tally counts the keys of one page. It forgets those that come after the page,
// so that its size does not depend on the store's.
type tally struct {
	after  string
	until  string // "" while the page is not full
	limit  int
	counts map[string]int64
}

func (t *tally) see(keys map[string]bool, key string) {
	if key > t.after && (t.until == "" || key <= t.until) {
		keys[key] = true
	}
}

func (t *tally) add(keys map[string]bool) {
	for k := range keys {
		t.counts[k]++
	}
	if len(t.counts) <= 4*t.limit+maxLimit {
		return
	}
	sorted := slices.Sorted(maps.Keys(t.counts))
	for _, k := range sorted[t.limit+1:] { // one more tells that there is a next page
		delete(t.counts, k)
	}
	t.until = sorted[t.limit]
}

func (t *tally) reply() *ReferencesReply {
	reply := &ReferencesReply{References: []Reference{}}
	for _, k := range slices.Sorted(maps.Keys(t.counts)) {
		if n := len(reply.References); n == t.limit {
			reply.Next = reply.References[n-1].Key
			break
		}
		reply.References = append(reply.References, Reference{Key: k, References: t.counts[k]})
	}
	return reply
}

// defaultLease is that of leases whose duration the client does not say.
const defaultLease = 30 * time.Second

func leaseTime(ms *int64) time.Duration {
	if ms == nil {
		return defaultLease
	}
	return max(waitTime(*ms), time.Nanosecond) // 0 would be the default of the port
}

// AcquireWriter gives a client the lease of a thread.
func (s *Service) AcquireWriter(ctx context.Context, req AcquireRequest) (*Lease, error) {
	if err := s.noSecret(string(req.ThreadID)); err != nil {
		return nil, err
	}
	l, err := s.Leases.AcquireFor(ctx, req.ThreadID, leaseTime(req.LeaseDurationMs), waitTime(req.WaitMs))
	return &l, err
}

// RenewWriter extends a client's lease.
func (s *Service) RenewWriter(ctx context.Context, w Writer) (Millis, error) {
	return s.Leases.Renew(ctx, w)
}

// ReleaseWriter gives a client's lease up.
func (s *Service) ReleaseWriter(ctx context.Context, w Writer) error { return s.Leases.Release(ctx, w) }

// AcquireLock gives a client a named lock.
func (s *Service) AcquireLock(ctx context.Context, req AcquireLockRequest) (*LockLease, error) {
	if err := s.noSecret(string(req.Name)); err != nil {
		return nil, err
	}
	l, err := s.Leases.AcquireLock(ctx, req.Name, leaseTime(req.LeaseDurationMs), waitTime(req.WaitMs))
	return &l, err
}

// RenewLock extends a client's lock.
func (s *Service) RenewLock(ctx context.Context, l Lock) (Millis, error) {
	return s.Leases.RenewLock(ctx, l)
}

// ReleaseLock gives a client's lock up.
func (s *Service) ReleaseLock(ctx context.Context, l Lock) error { return s.Leases.ReleaseLock(ctx, l) }
