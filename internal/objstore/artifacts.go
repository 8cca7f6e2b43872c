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
	stored, err := s.putExact(ctx, s.artifacts(), d, size, open)
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
	return s.lend(ctx, sha256.Sum256(data), int64(len(data)), readerOf(data))
}

// Lend puts bytes where a client can fetch them for an hour, "<bucket>/<name>".
// They are read twice, the first time for their digest.
func (s *Store) Lend(ctx context.Context, size int64, open func() (io.ReadCloser, error)) (object string, err error) {
	r, err := open()
	if err != nil {
		return "", err
	}
	defer r.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", fmt.Errorf("read what is lent: %w", err)
	}
	return s.lend(ctx, snapshot.Digest(sum.Sum(nil)), size, open)
}

func (s *Store) lend(ctx context.Context, d snapshot.Digest, size int64, open func() (io.ReadCloser, error)) (string, error) {
	// A name of its own: an equal reply of an hour ago is about to expire.
	name := nuid.Next()
	_, err := s.upload(ctx, object{bucket: s.replies(), name: name, nuid: name, digest: d, size: size, exact: true, open: open})
	if err != nil {
		return "", fmt.Errorf("store reply: %w", err)
	}
	return s.replies() + "/" + name, nil
}
