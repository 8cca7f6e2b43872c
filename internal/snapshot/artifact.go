package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// PutArtifact stores an artifact of the thread; one of that id is replaced.
func (s *Service) PutArtifact(ctx context.Context, req PutArtifactRequest) (*Artifact, error) {
	if err := s.noSecret(string(req.ThreadID), string(req.RunID), string(req.ArtifactID)); err != nil {
		return nil, err
	}
	if n := len(req.Name) + len(req.MimeType); n > maxLabelBytes {
		return nil, Errorf(BadRequest, "name and mimeType of artifact %q have %d bytes; at most %d are allowed", req.ArtifactID, n, maxLabelBytes)
	}
	open := s.redacting(req.Open)
	digest, size, err := digestOf(open)
	if err != nil {
		return nil, fmt.Errorf("read artifact %q: %w", req.ArtifactID, err)
	}
	if _, err := s.Objects.PutArtifact(ctx, digest, size, open); err != nil {
		return nil, err
	}
	a := Artifact{ID: req.ArtifactID, Name: s.Redactor.Text(req.Name), MimeType: s.Redactor.Text(req.MimeType), Size: size,
		BlobKey: ArtifactBlobPrefix + digest.String(), CreatedAt: s.millis()}
	if req.CreatedAt != nil {
		a.CreatedAt = *req.CreatedAt
	}
	if err := s.Artifacts.PutArtifact(ctx, req.ThreadID, ThreadArtifact{Artifact: a}); err != nil {
		return nil, err
	}
	return &a, nil
}

// redacting yields the bytes without secrets.
func (s *Service) redacting(open func() (io.ReadCloser, error)) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		r, err := open()
		if err != nil {
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{s.Redactor.Reader(r), r}, nil
	}
}

func digestOf(open func() (io.ReadCloser, error)) (d Digest, size int64, err error) {
	r, err := open()
	if err != nil {
		return d, 0, err
	}
	defer r.Close()
	h := sha256.New()
	size, err = io.Copy(h, r)
	h.Sum(d[:0])
	return d, size, err
}

// ListArtifacts pages through the thread's artifacts by time, then id, in
// replies of at most maxBytes, unless a single artifact is larger.
func (s *Service) ListArtifacts(ctx context.Context, req ListArtifactsRequest, maxBytes int64) (*ListArtifactsReply, error) {
	all, err := s.threadArtifacts(ctx, req.ThreadID)
	if err != nil {
		return nil, err
	}
	key := func(a Artifact) timeKey { return timeKey{a.CreatedAt, string(a.ID)} }
	page, next, err := cut(all, req.Page, key)
	for i, a := range page {
		b, err := marshal(a)
		if err != nil {
			return nil, fmt.Errorf("encode artifact %q: %w", a.ID, err)
		}
		if maxBytes -= int64(len(b)) + 1; maxBytes < 0 && i > 0 {
			page, next = page[:i], key(page[i-1]).cursor()
			break
		}
	}
	return &ListArtifactsReply{Artifacts: page, Next: next}, err
}

// DeleteArtifact removes an artifact from the thread; checkpoints keep theirs.
func (s *Service) DeleteArtifact(ctx context.Context, req DeleteArtifactRequest) error {
	all, err := s.threadArtifacts(ctx, req.ThreadID)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(a Artifact) bool { return a.ID == req.ArtifactID })
	if i < 0 {
		return nil
	}
	return s.Artifacts.PutArtifact(ctx, req.ThreadID, ThreadArtifact{Artifact: all[i], Deleted: true})
}

// threadArtifacts are those of a fork's root, overlaid by the thread's own
// records, sorted by time, then id.
func (s *Service) threadArtifacts(ctx context.Context, thread ThreadID) ([]Artifact, error) {
	all := map[ArtifactID]Artifact{}
	root, err := s.Checkpoints.Root(ctx, thread)
	if err != nil {
		return nil, err
	}
	if root != nil && root.Reason == ReasonForkRoot {
		inherited, err := s.readArtifacts(ctx, root.Artifacts)
		if err != nil {
			return nil, err
		}
		for _, a := range inherited {
			all[a.ID] = a
		}
	}
	own, err := s.Artifacts.Artifacts(ctx, thread)
	if err != nil {
		return nil, err
	}
	for _, a := range own {
		if all[a.ID] = a.Artifact; a.Deleted {
			delete(all, a.ID)
		}
	}
	out := make([]Artifact, 0, len(all))
	for _, a := range all {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b Artifact) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// readArtifacts reads a checkpoint's list of artifacts.
func (s *Service) readArtifacts(ctx context.Context, list List) ([]Artifact, error) {
	out := []Artifact{}
	for item, err := range s.Objects.Items(ctx, list) {
		if err != nil {
			return nil, err
		}
		var a Artifact
		if err := json.Unmarshal(item, &a); err != nil {
			return nil, Errorf(InvalidBlob, "the list of artifacts of a checkpoint is damaged; restore an earlier one").Because(err)
		}
		out = append(out, a)
	}
	return out, nil
}

// captureArtifacts verifies the bytes of all the thread's artifacts against
// their records, then stores the list.
func (s *Service) captureArtifacts(ctx context.Context, rec *Record, parent List) error {
	all, err := s.threadArtifacts(ctx, rec.Thread)
	if err != nil {
		return err
	}
	items := make([][]byte, 0, len(all))
	for _, a := range all {
		if err := s.verifyArtifact(ctx, a); err != nil {
			return err
		}
		item, err := marshal(a)
		if err != nil {
			return fmt.Errorf("encode artifact %q: %w", a.ID, err)
		}
		items = append(items, item)
	}
	rec.Artifacts, err = s.Objects.WriteItems(ctx, items, parent)
	return err
}

func (s *Service) verifyArtifact(ctx context.Context, a Artifact) error {
	err := s.copyArtifact(ctx, a, io.Discard)
	switch {
	case errors.Is(err, MissingBlob):
		return Errorf(MissingArtifactBlob, "the bytes of artifact %q are not in the store; put it again or delete it", a.ID).With("artifactId", a.ID).Because(err)
	case errors.Is(err, InvalidBlob):
		return Errorf(InvalidArtifactBytes, "the stored bytes of artifact %q are not those of its record; put it again or delete it", a.ID).With("artifactId", a.ID).Because(err)
	}
	return err
}

func (s *Service) copyArtifact(ctx context.Context, a Artifact, w io.Writer) error {
	d, err := a.Digest()
	if err != nil {
		return err
	}
	r, err := s.Objects.OpenArtifact(ctx, d, a.Size)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}

// ReadArtifact reads an artifact of a checkpoint. Its bytes are checked before
// anything is answered; they are in the reply if they fit into maxBytes.
func (s *Service) ReadArtifact(ctx context.Context, req ReadArtifactRequest, maxBytes int64) (*ReadArtifactReply, error) {
	a, err := s.checkpointArtifact(ctx, req)
	if err != nil {
		return nil, err
	}
	if req.MaxInlineBytes != nil {
		maxBytes = min(maxBytes, *req.MaxInlineBytes)
	}
	var data bytes.Buffer
	w := io.Discard
	if a.Size <= maxBytes {
		w = &data
	}
	if err := s.copyArtifact(ctx, a, w); errors.Is(err, MissingBlob) || errors.Is(err, InvalidBlob) {
		return nil, Errorf(InvalidArtifactBytes, "the bytes of artifact %q in checkpoint %q are missing or damaged; read it from another checkpoint", a.ID, req.CheckpointID).
			With("artifactId", a.ID).With("checkpointId", req.CheckpointID).Because(err)
	} else if err != nil {
		return nil, err
	}
	d, err := a.Digest()
	if err != nil {
		return nil, err
	}
	reply := &ReadArtifactReply{Artifact: a, Object: s.Objects.ArtifactObject(d)}
	if a.Size <= maxBytes {
		b := append([]byte{}, data.Bytes()...)
		reply.Data = &b
	}
	return reply, nil
}

func (s *Service) checkpointArtifact(ctx context.Context, req ReadArtifactRequest) (Artifact, error) {
	rec, err := s.Checkpoints.Get(ctx, req.CheckpointID)
	if err != nil {
		return Artifact{}, err
	}
	missing := Errorf(MissingCheckpointArtifact, "there is no artifact %q in a checkpoint %q; checkpoint.get shows what a checkpoint has", req.ArtifactID, req.CheckpointID)
	if rec == nil {
		return Artifact{}, missing
	}
	if rec.Thread != req.ThreadID {
		return Artifact{}, Errorf(ForeignCheckpointArtifact, "checkpoint %q is not one of thread %q; checkpoint.list shows those of a thread", req.CheckpointID, req.ThreadID)
	}
	all, err := s.readArtifacts(ctx, rec.Artifacts)
	if err != nil {
		return Artifact{}, err
	}
	for _, a := range all {
		if a.ID == req.ArtifactID {
			return a, nil
		}
	}
	return Artifact{}, missing
}
