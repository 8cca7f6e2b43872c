package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// InlineList is how many bytes of a list stand in the List itself for sure, so
// that nothing is stored beside the record: items, or paths and targets of
// entries without large contents, and inlineRow more for each.
const (
	InlineList    = 2 << 10
	inlineRow     = 128
	inlineContent = 1 << 20
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

// incoming is an append on its way: its record and what goes into its lists.
type incoming struct {
	*Service
	rec          *Record
	expected     CheckpointID
	writer       Writer
	requireBlobs bool
	files        []Entry
	conversation [][]byte
	blobs        []Artifact // sorted
	artifacts    [][]byte
}

// Append makes a checkpoint that a client captured itself the head of its
// thread. One that is stored already, with that parent, run and label, is done.
func (s *Service) Append(ctx context.Context, req AppendRequest) (*AppendReply, error) {
	if err := req.CheckIDs(); err != nil {
		return nil, err
	}
	in, err := s.stageAppend(req)
	if err != nil {
		return nil, err
	}
	if err := in.append(ctx); err != nil {
		return nil, err
	}
	return &AppendReply{HeadID: in.rec.ID}, nil
}

// append looks at the thread before it stores anything. If there is nothing to
// store, the commit's own look is enough, and only a refusal needs another one:
// for the faults that come before it, and for an append that was done.
func (in *incoming) append(ctx context.Context) error {
	small := in.small()
	if !small {
		if done, err := in.Checkpoints.Admit(ctx, in.rec, in.expected, in.writer); done || err != nil {
			return err
		}
	}
	err := in.store(ctx, small)
	refused := err != nil
	if err == nil {
		err = in.Checkpoints.Append(ctx, in.rec, in.expected, in.writer)
		refused = errors.Is(err, WriterLost) || errors.Is(err, DuplicateID) // others may be no definite answer
	}
	if small && refused {
		if done, first := in.Checkpoints.Admit(ctx, in.rec, in.expected, in.writer); done || first != nil {
			return first
		}
	}
	return err
}

// small tells whether all lists stand inline in the record.
func (in *incoming) small() bool {
	n := 0
	for _, e := range in.files {
		if e.Size > inlineContent {
			return false
		}
		n += inlineRow + len(e.Path) + len(e.Target)
	}
	return n <= InlineList && itemBytes(in.conversation) <= InlineList && itemBytes(in.artifacts) <= InlineList
}

func itemBytes(items [][]byte) (n int) {
	for _, item := range items {
		n += inlineRow + len(item)
	}
	return n
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// stageAppend validates the whole checkpoint before anything is looked at.
func (s *Service) stageAppend(req AppendRequest) (*incoming, error) {
	c := req.Checkpoint
	if err := s.noSecret(string(c.ID), string(c.ThreadID), string(c.SourceRunID)); err != nil {
		return nil, err
	}
	if c.Reason != ReasonAutomatic && c.Reason != ReasonNamed {
		return nil, Errorf(InvalidEntry, "checkpoint.reason is %q; it may be %q or %q", c.Reason, ReasonAutomatic, ReasonNamed)
	}
	if len(c.Label) > maxLabelBytes {
		return nil, Errorf(InvalidEntry, "checkpoint.label has %d bytes; at most %d are allowed", len(c.Label), maxLabelBytes)
	}
	entries, err := s.newEntries(c.Files)
	if err != nil {
		return nil, err
	}
	if err := s.checkArtifacts(c.Artifacts); err != nil {
		return nil, err
	}
	rec := &Record{ID: c.ID, Thread: c.ThreadID, Parent: deref(c.Parent), CreatedAt: c.CreatedAt, Reason: c.Reason,
		Label: s.Redactor.Text(c.Label), SourceRun: c.SourceRunID, Nonce: s.NewID()}
	for _, e := range entries {
		rec.Stats.count(e)
	}
	in := &incoming{Service: s, rec: rec, expected: deref(req.ExpectedHeadID), writer: req.Writer,
		requireBlobs: req.RequireBlobs == nil || *req.RequireBlobs, files: entries}
	return in, in.encodeLists(c)
}

// encodeLists makes the items of the conversation and of the artifacts.
func (in *incoming) encodeLists(c NewCheckpoint) (err error) {
	in.conversation = make([][]byte, len(c.Conversation))
	for i, m := range c.Conversation {
		in.conversation[i], _ = in.Redactor.JSON(m)
	}
	in.blobs = slices.Clone(c.Artifacts)
	slices.SortFunc(in.blobs, func(a, b Artifact) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	in.artifacts = make([][]byte, len(in.blobs))
	for i, a := range in.blobs {
		a.Name, a.MimeType = in.Redactor.Text(a.Name), in.Redactor.Text(a.MimeType)
		if in.artifacts[i], err = marshal(a); err != nil {
			return fmt.Errorf("encode artifact %q: %w", a.ID, err)
		}
	}
	return nil
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

// store stores the lists of the checkpoint, sharing those of its parent. Small
// ones share nothing but the places of contents.
func (in *incoming) store(ctx context.Context, small bool) error {
	parent := &Record{}
	if in.rec.Parent != "" && (!small || in.rec.Stats.Bytes > 0) {
		found, err := in.Checkpoints.Get(ctx, in.rec.Parent)
		if err != nil {
			return err
		}
		if found != nil {
			parent = found
		}
	}
	if small {
		parent.Conversation, parent.Artifacts = List{}, List{}
	}
	if in.requireBlobs {
		for _, a := range in.blobs {
			if err := in.haveArtifact(ctx, a); err != nil {
				return err
			}
		}
	}
	var err error
	if in.rec.Files, err = in.Objects.Import(ctx, in.files, parent.Files, in.requireBlobs); err != nil {
		return err
	}
	if in.rec.Conversation, err = in.Objects.WriteItems(ctx, in.conversation, parent.Conversation); err != nil {
		return err
	}
	in.rec.Artifacts, err = in.Objects.WriteItems(ctx, in.artifacts, parent.Artifacts)
	return err
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
