package objstore

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"

	"github.com/nats-io/nuid"

	"sandkeep/internal/snapshot"
)

// PutArtifact stores bytes under their digest. newBytes is 0 if they were there
// already. Bytes that do not have the digest and size are InvalidBlob.
func (s *Store) PutArtifact(ctx context.Context, d snapshot.Digest, size int64, open func() (io.ReadCloser, error)) (newBytes int64, err error) {
	if size < 0 {
		return 0, snapshot.Errorf(snapshot.BadRequest, "an artifact can't have %d bytes", size)
	}
	stored, err := s.put(ctx, object{
		bucket: s.artifacts(), name: objectName(d), nuid: d.String(), digest: d, size: size, exact: true, open: open,
	})
	if err != nil {
		return 0, fmt.Errorf("store artifact %s: %w", d, err)
	}
	if !stored {
		return 0, nil
	}
	return size, nil
}

// OpenArtifact streams an artifact's bytes; a wrong digest or size is the error
// of the last Read. A missing object is MissingBlob.
func (s *Store) OpenArtifact(ctx context.Context, d snapshot.Digest, size int64) (io.ReadCloser, error) {
	r, err := s.openExact(ctx, s.artifacts(), d, size)
	if err != nil {
		return nil, err // not r: a nil *objectReader is no nil interface
	}
	return r, nil
}

// openExact opens a content-addressed object and makes its reader check the
// digest asked for, whatever the info says.
func (s *Store) openExact(ctx context.Context, bucket string, d snapshot.Digest, size int64) (*objectReader, error) {
	r, err := s.openObject(ctx, bucket, objectName(d))
	if err != nil {
		return nil, err
	}
	if r.info.Size != uint64(size) {
		return nil, r.damaged(fmt.Sprintf("it has %d bytes instead of %d", r.info.Size, size))
	}
	r.info.Digest = infoDigest(d)
	return r, nil
}

// ArtifactObject names the object that a client can fetch, "<bucket>/<name>".
func (s *Store) ArtifactObject(d snapshot.Digest) string {
	return s.artifacts() + "/" + objectName(d)
}

// OpenUpload streams an object that a client names as "<bucket>/<name>", in the
// buckets for uploads, replies and artifacts. Any other bucket, and an object
// that is not there, is BadRequest. Wrong bytes are the error of the last Read.
func (s *Store) OpenUpload(ctx context.Context, object string) (io.ReadCloser, int64, error) {
	bucket, name, ok := strings.Cut(object, "/")
	if !ok || name == "" || bucket != s.uploads() && bucket != s.replies() && bucket != s.artifacts() {
		return nil, 0, snapshot.Errorf(snapshot.BadRequest,
			"object %q can't be read; put it into bucket %q and name it \"%s/<name>\"", object, s.uploads(), s.uploads())
	}
	if len(name) > maxObjectName {
		return nil, 0, snapshot.Errorf(snapshot.BadRequest, "the name of an object in bucket %q has more than %d bytes", bucket, maxObjectName)
	}
	info, _, err := s.info(ctx, bucket, name)
	if err != nil {
		return nil, 0, fmt.Errorf("open upload: %w", err)
	}
	if info == nil || info.Opts != nil && info.Opts.Link != nil {
		return nil, 0, snapshot.Errorf(snapshot.BadRequest,
			"object %q is not there; uploads are kept for an hour: put it again and repeat the request", object)
	}
	return s.readObject(ctx, bucket, info), int64(info.Size), nil
}

const maxObjectName = 1024

// PutReply stores a reply that is too large for a message and names its object,
// "<bucket>/<name>". It is kept for an hour.
func (s *Store) PutReply(ctx context.Context, data []byte) (string, error) {
	// A name of its own: an equal reply of an hour ago is about to expire.
	name := nuid.Next()
	_, err := s.upload(ctx, object{
		bucket: s.replies(), name: name, nuid: name, digest: snapshot.Digest(sha256.Sum256(data)),
		size: int64(len(data)), exact: true, open: readerOf(data),
	})
	if err != nil {
		return "", fmt.Errorf("store reply: %w", err)
	}
	return s.replies() + "/" + name, nil
}
