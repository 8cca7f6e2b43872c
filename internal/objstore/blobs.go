package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"sandkeep/internal/snapshot"
)

// A loose blob is a file's content that is an object of its own, named by its
// digest like an artifact.

// PutBlob keeps a loose blob under its digest. Bytes that do not have the digest
// and size are InvalidBlob.
func (s *Store) PutBlob(ctx context.Context, d snapshot.Digest, size int64, open func() (io.ReadCloser, error)) error {
	if _, err := s.putExact(ctx, s.files(), d, size, open); err != nil {
		return fmt.Errorf("store blob %s: %w", d, err)
	}
	return nil
}

// putExact stores a content as an object of its own. One that is there is read
// back, which costs no more than it took to send it here: so it is healed
// whichever worker found it broken.
func (s *Store) putExact(ctx context.Context, bucket string, d snapshot.Digest, size int64, open func() (io.ReadCloser, error)) (stored bool, err error) {
	if size < 0 {
		return false, snapshot.Errorf(snapshot.BadRequest, "a blob can't have %d bytes", size)
	}
	return s.put(ctx, object{
		bucket: bucket, name: objectName(d), nuid: d.String(), digest: d, size: size, exact: true, doubted: true, open: open,
	})
}

// BlobSize looks for a loose blob, or with artifact for an artifact's bytes;
// there is false if it is missing. One that proved unreadable counts as missing
// until it is healed.
func (s *Store) BlobSize(ctx context.Context, d snapshot.Digest, artifact bool) (size int64, there bool, err error) {
	bucket := s.blobs(artifact)
	info, _, err := s.info(ctx, bucket, objectName(d))
	if err == nil && info != nil && info.Digest == infoDigest(d) {
		size = int64(info.Size)
		there, err = s.whole(ctx, bucket, info, false)
	}
	if err != nil {
		return 0, false, fmt.Errorf("look for blob %s: %w", d, err)
	}
	if !there {
		return 0, false, nil
	}
	return size, true, nil
}

// OpenBlob streams a loose blob or an artifact's bytes and tells its size;
// MissingBlob. Wrong bytes are the error of the last Read.
func (s *Store) OpenBlob(ctx context.Context, d snapshot.Digest, artifact bool) (io.ReadCloser, int64, error) {
	r, err := s.openContent(ctx, s.blobs(artifact), d)
	if err != nil {
		return nil, 0, err
	}
	return r, int64(r.info.Size), nil
}

// BlobObject names the object of a loose blob, "<bucket>/<name>".
func (s *Store) BlobObject(d snapshot.Digest) string { return s.files() + "/" + objectName(d) }

func (s *Store) blobs(artifact bool) string {
	if artifact {
		return s.artifacts()
	}
	return s.files()
}

// openContent opens an object that is named by its digest and makes its reader
// check that digest, whatever the info says.
func (s *Store) openContent(ctx context.Context, bucket string, d snapshot.Digest) (*objectReader, error) {
	r, err := s.openObject(ctx, bucket, objectName(d))
	if err != nil {
		return nil, err
	}
	r.info.Digest = infoDigest(d)
	return r, nil
}

// openExact is openContent for a known size.
func (s *Store) openExact(ctx context.Context, bucket string, d snapshot.Digest, size int64) (*objectReader, error) {
	r, err := s.openContent(ctx, bucket, d)
	if err != nil {
		return nil, err
	}
	if r.info.Size != uint64(size) {
		return nil, r.damaged(fmt.Sprintf("it has %d bytes instead of %d", r.info.Size, size))
	}
	return r, nil
}

// openLoose streams a part of a loose blob. Its digest is known at its end only,
// and nothing unchecked is handed out: a small one is held, a large one is read
// twice.
func (s *Store) openLoose(ctx context.Context, e snapshot.Entry, offset, length int64) (io.ReadCloser, error) {
	r, err := s.openExact(ctx, s.files(), e.Digest, e.Size)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if e.Size <= maxContent {
		data, err := r.all()
		if err != nil {
			return nil, err
		}
		return io.NopCloser(bytes.NewReader(data[offset : offset+length])), nil
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	again := s.readObject(ctx, s.files(), r.info)
	if length == e.Size {
		return again, nil // checked at its end once more
	}
	if _, err := io.CopyN(io.Discard, again, offset); err != nil {
		return nil, errors.Join(err, again.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(again, length), again}, nil
}
