package snapshot

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"
)

// GetInstance reads a record; a missing one is nil at revision 0.
func (s *Service) GetInstance(ctx context.Context, key InstanceKey) (*Instance, uint64, error) {
	return s.Instances.Instance(ctx, key)
}

// UpsertInstance replaces the whole record. Any provider and id are taken;
// they are checked when they are used.
func (s *Service) UpsertInstance(ctx context.Context, rec Instance, expected *int64) (uint64, error) {
	if err := s.noSecret(string(rec.Key), string(rec.ThreadID), string(rec.LatestRunID)); err != nil {
		return 0, err
	}
	rec.Provider = s.Redactor.Text(rec.Provider)
	rec.ProviderSandboxID = s.Redactor.Text(rec.ProviderSandboxID)
	rec.LatestSnapshotID = s.Redactor.Text(rec.LatestSnapshotID)
	return s.Instances.PutInstance(ctx, rec, revisionOr(expected))
}

// RemoveInstance removes a record; a missing one is a no-op.
func (s *Service) RemoveInstance(ctx context.Context, key InstanceKey, expected *int64) error {
	return s.Instances.DeleteInstance(ctx, key, revisionOr(expected))
}

// ListInstances pages through the records in order of revision, in replies of
// about maxBytes at most.
func (s *Service) ListInstances(ctx context.Context, req ListInstancesRequest, maxBytes int64) (*ListInstancesReply, error) {
	limit, err := req.count()
	if err != nil {
		return nil, err
	}
	after := uint64(0)
	if req.After != "" {
		b, err := base64.RawURLEncoding.DecodeString(req.After)
		if err == nil {
			after, err = strconv.ParseUint(string(b), 10, 64)
		}
		if err != nil {
			return nil, badCursor(req.After)
		}
	}
	// A record has six strings of 500 bytes or so, each byte escaped, but what
	// providers name may be longer.
	limit = max(1, min(limit, int(maxBytes/16384)))
	recs, next, err := s.Instances.Instances(ctx, req.ThreadID, after, limit)
	for err == nil && len(recs) > 1 && !fit(recs, maxBytes) {
		recs, next, err = s.Instances.Instances(ctx, req.ThreadID, after, len(recs)/2)
	}
	if err != nil {
		return nil, err
	}
	reply := &ListInstancesReply{Records: recs}
	if recs == nil {
		reply.Records = []Instance{}
	}
	if next > 0 {
		reply.Next = base64.RawURLEncoding.EncodeToString(strconv.AppendUint(nil, next, 10))
	}
	return reply, nil
}

// fit tells whether records go into a reply of that size, with its other members.
func fit(recs []Instance, maxBytes int64) bool {
	b, err := json.Marshal(recs)
	return err == nil && int64(len(b)) < maxBytes-512
}

// Attach makes an existing directory under this node's sandbox root the
// thread's sandbox, under the computed key.
func (s *Service) Attach(ctx context.Context, req AttachRequest) (*AttachReply, error) {
	if err := s.noSecret(string(req.ThreadID), string(req.RunID), req.Name); err != nil {
		return nil, err
	}
	def, err := s.Sandboxes.Definition(req.Sandbox)
	if err != nil {
		return nil, err
	}
	id, err := s.Sandboxes.Adopt(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	key := s.Sandboxes.Key(req.ThreadID, def, req.Tenant)
	rec := Instance{Key: key, Provider: def.Provider, ProviderSandboxID: id, ThreadID: req.ThreadID, LatestRunID: req.RunID, UpdatedAt: s.millis()}
	box, err := s.Sandboxes.Resume(ctx, rec, def, "")
	if err != nil {
		return nil, err
	}
	if err := s.Workspaces.CheckRoot(box.Dir); err != nil {
		return nil, err
	}
	stored := false
	err = s.lockSandbox(ctx, key, func(ctx context.Context) error {
		_, err := s.Instances.PutInstance(ctx, rec, -1)
		stored = err == nil
		return err
	})
	if !stored { // else it is attached, also if the lock was lost since
		return nil, err
	}
	return &AttachReply{Key: key, Record: rec}, nil
}
