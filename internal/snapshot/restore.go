package snapshot

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
)

// ErrHalfRestored is in the error of a restore that failed and could not be taken
// back, so that the directory may be half changed. The error says what to do.
var ErrHalfRestored = errors.New("restore could not be taken back")

// Restore writes a checkpoint, or what lies at or under a prefix of it, into a
// new or empty directory of this node, or makes an existing one equal to it; with
// into "sandbox" it attaches the directory to the thread. A failure leaves the
// destination as it was found, unless it is an ErrHalfRestored.
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
	in := restoring{RestoreRequest: req, rec: rec, to: Target{Root: req.Into, Path: req.Path, Prefix: req.Prefix, Exact: req.Mode == "exact"}}
	if req.Into == "sandbox" {
		return s.restoreSandbox(ctx, in)
	}
	if in.to.Exact {
		def, err := s.Sandboxes.Definition("")
		if err != nil {
			return nil, err
		}
		in.to.Policy = def.Policy
	}
	return s.restoreTree(ctx, in)
}

// restoring is a validated restore.
type restoring struct {
	RestoreRequest
	rec *Record
	to  Target
}

func (s *Service) restoreTree(ctx context.Context, in restoring) (*RestoreReply, error) {
	files, n, err := s.Workspaces.Restore(ctx, in.to, s.under(ctx, in.rec, in.Prefix), s.Objects)
	if err != nil {
		return nil, err
	}
	return &RestoreReply{CheckpointID: in.rec.ID, Node: s.Node, Path: in.Path, Files: files, Bytes: n}, nil
}

// restoreSandbox makes the directory the thread's sandbox. Only the thread's own
// sandbox is changed in place.
func (s *Service) restoreSandbox(ctx context.Context, in restoring) (*RestoreReply, error) {
	if in.to.Exact {
		def, err := s.Sandboxes.Definition("")
		if err != nil {
			return nil, err
		}
		key := s.Sandboxes.Key(in.ThreadID, def, Tenant{})
		own, err := s.isSandbox(ctx, in, key)
		if err != nil {
			return nil, err
		}
		if own {
			in.to.Policy, in.to.CacheKey = def.Policy, string(key)
			return s.rewriteSandbox(ctx, in, key)
		}
		in.to.Exact = false
	}
	reply, err := s.restoreTree(ctx, in)
	if err != nil {
		return nil, err
	}
	attached, err := s.Attach(ctx, AttachRequest{ThreadID: in.ThreadID, Name: in.Path})
	if err != nil {
		err = fmt.Errorf("attach the restored directory: %w", err)
		return nil, errors.Join(err, s.Workspaces.Discard(in.Into, in.Path))
	}
	reply.Key = attached.Key
	return reply, nil
}

// isSandbox reports whether the directory is the one that the thread's record names.
func (s *Service) isSandbox(ctx context.Context, in restoring, key InstanceKey) (bool, error) {
	rec, _, err := s.Instances.Instance(ctx, key)
	if rec == nil || err != nil || rec.ThreadID != in.ThreadID {
		return false, err
	}
	id, err := s.Sandboxes.Adopt(ctx, in.Path)
	if errors.Is(err, MissingReusableSandbox) {
		return false, nil
	}
	return id == rec.ProviderSandboxID, err
}

// rewriteSandbox holds the thread's lease, which a save has as long as it reads
// the sandbox, and the sandbox's lock. A worker that was held up and lost them
// finds out before it changes anything.
func (s *Service) rewriteSandbox(ctx context.Context, in restoring, key InstanceKey) (reply *RestoreReply, err error) {
	lease, err := s.Leases.Acquire(ctx, in.ThreadID, 0)
	if err != nil {
		return nil, err
	}
	held, h := s.holdLease(ctx, lease)
	err = s.lockSandbox(held, key, func(ctx context.Context) (err error) {
		own, err := s.isSandbox(ctx, in, key)
		if err == nil && !own {
			err = Errorf(StaleRevision, "another sandbox was attached to thread %q meanwhile; send the request again", in.ThreadID)
		}
		if err != nil {
			return err
		}
		in.to.Confirm = func(ctx context.Context) error { return s.Leases.Holds(ctx, lease.Writer) }
		reply, err = s.restoreTree(ctx, in)
		return err
	})
	lost := h.stop()
	_ = h.release(ctx) // it ends by itself
	switch {
	case reply != nil: // also if lease or lock were lost since
		reply.Key = key
		return reply, nil
	case lost != nil && !errors.Is(err, ErrHalfRestored):
		return nil, Errorf(WriterLost, "the writer lease of thread %q was lost during the restore; the sandbox is as it was, restore again", in.ThreadID).Because(errors.Join(lost, err))
	}
	return nil, err
}

// under yields the entries at or under a prefix, "" for all, after those of the
// directories above it.
func (s *Service) under(ctx context.Context, rec *Record, prefix string) iter.Seq2[Entry, error] {
	if prefix == "" {
		return s.Objects.Entries(ctx, rec.Files, "", "")
	}
	return func(yield func(Entry, error) bool) {
		for i := range len(prefix) {
			if prefix[i] != '/' {
				continue
			}
			e, err := s.entry(ctx, rec, prefix[:i])
			if errors.Is(err, MissingEntry) || err == nil && e.Kind != KindDir {
				continue
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
		found := false
		for e, err := range s.Objects.Entries(ctx, rec.Files, prefix, "") {
			found = true
			if !yield(e, err) || err != nil {
				return
			}
		}
		if !found {
			yield(Entry{}, noEntry(rec, prefix))
		}
	}
}

func (s *Service) checkRestore(req RestoreRequest) error {
	if req.Into != "restore" && req.Into != "sandbox" {
		return Errorf(BadRequest, "into is %q; it may be \"restore\" or \"sandbox\"", req.Into)
	}
	if req.Mode != "" && req.Mode != "new" && req.Mode != "exact" {
		return Errorf(BadRequest, "mode is %q; it may be \"new\" or \"exact\"", req.Mode)
	}
	if err := ValidatePath(req.Path); err != nil {
		return err
	}
	if req.Into == "sandbox" && strings.Contains(req.Path, "/") {
		return Errorf(InvalidPath, "path %q has several parts, a sandbox is a directory right under the sandbox root; give one part", req.Path)
	}
	if req.Prefix == "" {
		return nil
	}
	return ValidatePath(req.Prefix)
}

func (s *Service) restorable(ctx context.Context, req RestoreRequest) (*Record, error) {
	if req.CheckpointID == "" {
		rec, err := s.Checkpoints.Newest(ctx, req.ThreadID)
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
