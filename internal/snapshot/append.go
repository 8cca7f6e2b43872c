package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// CheckIDs finds what is wrong between the identifiers of the request, before
// anything else in it is looked at.
func (r AppendRequest) CheckIDs() error {
	if r.Writer.ThreadID != r.Checkpoint.ThreadID {
		return foreignWriter(r.Writer, r.Checkpoint.ThreadID)
	}
	return nil
}

func foreignWriter(w Writer, thread ThreadID) error {
	return Errorf(WriterLost, "the writer holds thread %q, not %q; acquire the lease of that thread", w.ThreadID, thread).With("threadId", thread)
}

// Append makes a checkpoint that a client captured itself the head of its
// thread. One that is stored already, with that parent, run and label, is done.
func (s *Service) Append(ctx context.Context, req AppendRequest) (*AppendReply, error) {
	if err := req.CheckIDs(); err != nil {
		return nil, err
	}
	rec, entries, err := s.stageAppend(req.Checkpoint)
	if err != nil {
		return nil, err
	}
	expected := deref(req.ExpectedHeadID)
	done, err := s.admitAppend(ctx, rec, expected, req.Writer)
	if done || err != nil {
		return &AppendReply{HeadID: rec.ID}, err
	}
	require := req.RequireBlobs == nil || *req.RequireBlobs
	if err := s.storeAppend(ctx, rec, entries, req.Checkpoint, require); err != nil {
		return nil, err
	}
	if err := s.Checkpoints.Append(ctx, rec, expected, req.Writer); err != nil {
		return nil, err
	}
	return &AppendReply{HeadID: rec.ID}, nil
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// stageAppend validates the whole checkpoint before anything is stored.
func (s *Service) stageAppend(c NewCheckpoint) (*Record, []Entry, error) {
	if err := s.noSecret(string(c.ID), string(c.ThreadID), string(c.SourceRunID)); err != nil {
		return nil, nil, err
	}
	if c.Reason != ReasonAutomatic && c.Reason != ReasonNamed {
		return nil, nil, Errorf(InvalidEntry, "checkpoint.reason is %q; it may be %q or %q", c.Reason, ReasonAutomatic, ReasonNamed)
	}
	if len(c.Label) > maxLabelBytes {
		return nil, nil, Errorf(InvalidEntry, "checkpoint.label has %d bytes; at most %d are allowed", len(c.Label), maxLabelBytes)
	}
	entries, err := s.newEntries(c.Files)
	if err != nil {
		return nil, nil, err
	}
	if err := s.checkArtifacts(c.Artifacts); err != nil {
		return nil, nil, err
	}
	rec := &Record{ID: c.ID, Thread: c.ThreadID, Parent: deref(c.Parent), CreatedAt: c.CreatedAt, Reason: c.Reason,
		Label: s.Redactor.Text(c.Label), SourceRun: c.SourceRunID, Nonce: s.NewID()}
	for _, e := range entries {
		rec.Stats.count(e)
	}
	return rec, entries, nil
}

func (st *Stats) count(e Entry) {
	switch e.Kind {
	case KindFile:
		st.Files++
		st.Bytes += e.Size
	case KindDir:
		st.Dirs++
	case KindSymlink:
		st.Symlinks++
	}
}

// admitAppend finds the faults that the thread shows, in their order, before
// anything is stored. The commit looks at all of them again.
func (s *Service) admitAppend(ctx context.Context, rec *Record, expected CheckpointID, w Writer) (done bool, err error) {
	found, err := s.Checkpoints.Get(ctx, rec.ID)
	if err != nil {
		return false, err
	}
	if found != nil && found.Thread == rec.Thread && found.Parent == expected && found.SourceRun == rec.SourceRun && found.Label == rec.Label {
		return true, nil
	}
	if err := s.Leases.Holds(ctx, w); err != nil {
		return false, err
	}
	if found != nil {
		return false, duplicate(rec, found)
	}
	state, err := s.Checkpoints.State(ctx, rec.Thread)
	switch {
	case err != nil:
		return false, err
	case state.Head != expected:
		return false, Errorf(StaleHead, "the head of thread %q is %q, not %q; read the thread and append to its head", rec.Thread, state.Head, expected).
			With("threadId", rec.Thread).With("actualHead", nullable(state.Head))
	case rec.Parent != expected:
		return false, Errorf(ParentMismatch, "checkpoint %q has parent %q, not the expected head %q; make them equal", rec.ID, rec.Parent, expected).
			With("threadId", rec.Thread)
	}
	return false, nil
}

func duplicate(rec, found *Record) error {
	err := Errorf(DuplicateID, "checkpoint id %q is in use by another checkpoint; choose another one", rec.ID).With("checkpointId", rec.ID)
	if found.Thread == rec.Thread {
		err = err.With("threadId", found.Thread)
	}
	return err
}

// nullable is an id for details: null if there is none.
func nullable(id CheckpointID) any {
	if id == "" {
		return nil
	}
	return id
}

// storeAppend stores the lists of the checkpoint, sharing those of its parent.
func (s *Service) storeAppend(ctx context.Context, rec *Record, entries []Entry, c NewCheckpoint, require bool) error {
	parent := &Record{}
	if rec.Parent != "" {
		found, err := s.Checkpoints.Get(ctx, rec.Parent)
		if err != nil {
			return err
		}
		if found != nil {
			parent = found
		}
	}
	var err error
	if rec.Files, err = s.Objects.Import(ctx, entries, parent.Files, require); err != nil {
		return err
	}
	items := make([][]byte, len(c.Conversation))
	for i, m := range c.Conversation {
		items[i], _ = s.Redactor.JSON(m)
	}
	if rec.Conversation, err = s.Objects.WriteItems(ctx, items, parent.Conversation); err != nil {
		return err
	}
	rec.Artifacts, err = s.storeArtifactList(ctx, c.Artifacts, parent.Artifacts, require)
	return err
}

func (s *Service) storeArtifactList(ctx context.Context, artifacts []Artifact, parent List, require bool) (List, error) {
	artifacts = slices.Clone(artifacts)
	slices.SortFunc(artifacts, func(a, b Artifact) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	items := make([][]byte, len(artifacts))
	for i, a := range artifacts {
		if require {
			if err := s.haveArtifact(ctx, a); err != nil {
				return List{}, err
			}
		}
		a.Name, a.MimeType = s.Redactor.Text(a.Name), s.Redactor.Text(a.MimeType)
		var err error
		if items[i], err = marshal(a); err != nil {
			return List{}, fmt.Errorf("encode artifact %q: %w", a.ID, err)
		}
	}
	return s.Objects.WriteItems(ctx, items, parent)
}

func (s *Service) haveArtifact(ctx context.Context, a Artifact) error {
	d, err := a.Digest()
	if err != nil {
		return err
	}
	size, there, err := s.Objects.BlobSize(ctx, d, true)
	if err == nil && (!there || size != a.Size) {
		err = Errorf(MissingBlob, "the store has no blob %q of %d bytes for artifact %q; put it first with blob.put", a.BlobKey, a.Size, a.ID).
			With("artifactId", a.ID).With("key", a.BlobKey)
	}
	return err
}

// DeleteHead takes the head off a thread and returns the new one, "" for none.
func (s *Service) DeleteHead(ctx context.Context, req DeleteHeadRequest) (CheckpointID, error) {
	if req.Writer.ThreadID != req.ThreadID {
		return "", foreignWriter(req.Writer, req.ThreadID)
	}
	return s.Checkpoints.DeleteHead(ctx, req.ThreadID, req.CheckpointID, req.Writer)
}

// CheckIDs finds what is wrong between the identifiers of the request.
func (r ForkHeldRequest) CheckIDs() error {
	return r.plain().checkIDs()
}

func (r ForkHeldRequest) plain() ForkRequest {
	return ForkRequest{ThreadID: r.SourceThreadID, CheckpointID: r.SourceCheckpointID, DestinationThreadID: r.DestinationThreadID,
		DestinationCheckpointID: r.DestinationCheckpointID, CreatedAt: &r.CreatedAt, Include: r.Include}
}

// ForkHeld is Fork into a thread whose lease the caller holds.
func (s *Service) ForkHeld(ctx context.Context, req ForkHeldRequest) (*Checkpoint, []Warning, error) {
	return s.fork(ctx, req.plain(), func(rec *Record) error {
		if req.Writer.ThreadID != rec.Thread {
			return foreignWriter(req.Writer, rec.Thread)
		}
		return s.Checkpoints.ForkHeld(ctx, rec, req.Writer)
	})
}

// DeleteThread removes a thread with its checkpoints, conversation and artifact
// records, and returns how many checkpoints it had.
func (s *Service) DeleteThread(ctx context.Context, req ThreadRequest) (int64, error) {
	return s.Checkpoints.DeleteThread(ctx, req.ThreadID)
}
