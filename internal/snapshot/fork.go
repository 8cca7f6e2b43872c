package snapshot

import (
	"context"
	"errors"
)

// Fork copies a checkpoint, with its files, conversation and artifacts, to the
// root of an empty thread. Its cost does not depend on the size of the tree.
// The source is not touched.
func (s *Service) Fork(ctx context.Context, req ForkRequest) (*Checkpoint, []Warning, error) {
	return s.fork(ctx, req, func(rec *Record) error { return s.Checkpoints.Fork(ctx, rec, waitTime(req.WaitMs)) })
}

func (r ForkRequest) checkIDs() error {
	if r.ThreadID == r.DestinationThreadID {
		return Errorf(ForkSourceThreadMismatch, "thread %q can't be forked into itself; choose another destinationThreadId", r.ThreadID)
	}
	return nil
}

func (s *Service) fork(ctx context.Context, req ForkRequest, commit func(*Record) error) (*Checkpoint, []Warning, error) {
	if err := s.noSecret(string(req.DestinationThreadID), string(req.DestinationCheckpointID)); err != nil {
		return nil, nil, err
	}
	if err := req.checkIDs(); err != nil {
		return nil, nil, err
	}
	if done, err := s.forkedBefore(ctx, req); done != nil || err != nil {
		return s.reply(ctx, done, req.Include, err)
	}
	src, err := s.forkSource(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	rec := s.forkRoot(src, req)
	err = commit(rec)
	if errors.Is(err, ForkDestinationNotEmpty) { // an equal request may have been at work
		if done, _ := s.forkedBefore(ctx, req); done != nil {
			return s.reply(ctx, done, req.Include, nil)
		}
	}
	return s.reply(ctx, rec, req.Include, err)
}

// forkedBefore answers a retry: a fork root of that thread from the same source.
func (s *Service) forkedBefore(ctx context.Context, req ForkRequest) (*Record, error) {
	if req.DestinationCheckpointID == "" {
		return nil, nil
	}
	rec, err := s.Checkpoints.Get(ctx, req.DestinationCheckpointID)
	if rec == nil || err != nil {
		return nil, err
	}
	from := rec.Source
	if rec.Thread == req.DestinationThreadID && from != nil && from.Thread == req.ThreadID &&
		(req.CheckpointID == "" || from.Checkpoint == req.CheckpointID) {
		return rec, nil
	}
	return nil, nil // the commit refuses the id, after the faults of the source
}

func (s *Service) forkSource(ctx context.Context, req ForkRequest) (*Record, error) {
	if req.CheckpointID == "" {
		src, err := s.Checkpoints.Newest(ctx, req.ThreadID)
		if err == nil && src == nil {
			err = Errorf(ForkSourceNotFound, "thread %q has no checkpoint to fork; save it first", req.ThreadID)
		}
		return src, err
	}
	id := req.CheckpointID
	src, err := s.Checkpoints.Get(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case src == nil:
		return nil, Errorf(ForkSourceNotFound, "there is no checkpoint %q to fork; checkpoint.list shows those of a thread", id)
	case src.Thread != req.ThreadID:
		return nil, Errorf(ForkSourceThreadMismatch, "checkpoint %q is not one of thread %q; checkpoint.list shows those of a thread", id, req.ThreadID)
	}
	return src, nil
}

func (s *Service) forkRoot(src *Record, req ForkRequest) *Record {
	rec := *src
	rec.ID, rec.Thread, rec.Parent = req.DestinationCheckpointID, req.DestinationThreadID, ""
	if rec.ID == "" {
		rec.ID = CheckpointID(s.NewID())
	}
	if rec.CreatedAt = s.millis(); req.CreatedAt != nil {
		rec.CreatedAt = *req.CreatedAt
	}
	rec.Reason, rec.Label, rec.SourceRun = ReasonForkRoot, "", ""
	rec.Stats.NewBytes = 0
	rec.Source = &ForkSource{Thread: src.Thread, Checkpoint: src.ID}
	rec.Nonce = s.NewID()
	return &rec
}
