package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Restore writes a checkpoint into a new or empty directory of this node, and
// with into "sandbox" attaches it to the thread. A failure leaves the
// destination as it was found.
func (s *Service) Restore(ctx context.Context, req RestoreRequest) (*RestoreReply, error) {
	if req.Into == "" {
		req.Into = "restore"
	}
	if err := s.checkRestore(req); err != nil {
		return nil, err
	}
	rec, err := s.restorable(ctx, req)
	if err != nil {
		return nil, err
	}
	open := func(ctx context.Context, e Entry) (io.ReadCloser, error) { return s.Objects.OpenFile(ctx, e, 0, -1) }
	files, n, err := s.Workspaces.Restore(ctx, req.Into, req.Path, s.Objects.Entries(ctx, rec.Files, "", ""), open)
	if err != nil {
		return nil, err
	}
	reply := &RestoreReply{CheckpointID: rec.ID, Node: s.Node, Path: req.Path, Files: files, Bytes: n}
	if req.Into == "sandbox" {
		attached, err := s.Attach(ctx, AttachRequest{ThreadID: req.ThreadID, Name: req.Path})
		if err != nil {
			err = fmt.Errorf("attach the restored directory: %w", err)
			return nil, errors.Join(err, s.Workspaces.Discard(req.Into, req.Path))
		}
		reply.Key = attached.Key
	}
	return reply, nil
}

func (s *Service) checkRestore(req RestoreRequest) error {
	if req.Into != "restore" && req.Into != "sandbox" {
		return Errorf(BadRequest, "into is %q; it may be \"restore\" or \"sandbox\"", req.Into)
	}
	if err := ValidatePath(req.Path); err != nil {
		return err
	}
	if req.Into == "sandbox" && strings.Contains(req.Path, "/") {
		return Errorf(InvalidPath, "path %q has several parts, a sandbox is a directory right under the sandbox root; give one part", req.Path)
	}
	return nil
}

func (s *Service) restorable(ctx context.Context, req RestoreRequest) (*Record, error) {
	if req.CheckpointID == "" {
		rec, err := s.newest(ctx, req.ThreadID)
		if err == nil && rec == nil {
			err = Errorf(CheckpointNotFound, "thread %q has no checkpoint to restore; save it first", req.ThreadID)
		}
		return rec, err
	}
	id := req.CheckpointID
	rec, err := s.existing(ctx, id)
	if err == nil && rec.Thread != req.ThreadID {
		err = Errorf(CheckpointNotFound, "thread %q has no checkpoint %q; checkpoint.list shows those that it has", req.ThreadID, id)
	}
	return rec, err
}
