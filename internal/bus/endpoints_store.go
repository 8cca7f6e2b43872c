package bus

import (
	"bytes"
	"context"
	"io"

	"sandkeep/internal/snapshot"
)

// The endpoints of clients that capture checkpoints themselves: they hold
// leases, put blobs and append.

type putBlobRequest struct {
	snapshot.PutBlobRequest
	upload
}

// upload is where the bytes of a request are: in it, or in an object.
type upload struct {
	Data   *[]byte `json:"data,omitempty"`
	Object *string `json:"object,omitempty"`
}

func (u upload) check() error {
	if (u.Data == nil) == (u.Object == nil) {
		return snapshot.Errorf(snapshot.BadRequest, "give the bytes either as data or as object")
	}
	return nil
}

// opener yields the bytes, each time from the beginning.
func (u upload) opener(ctx context.Context, c *call) func() (io.ReadCloser, error) {
	if u.Data != nil {
		return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(*u.Data)), nil }
	}
	return func() (io.ReadCloser, error) {
		body, _, err := c.transfer.OpenUpload(ctx, *u.Object)
		return body, err
	}
}

type (
	headIDReply struct {
		HeadID *snapshot.CheckpointID `json:"headId"`
	}
	deletedReply struct {
		Checkpoints int64 `json:"checkpoints"`
	}
	renewedReply struct {
		ExpiresAt snapshot.Millis `json:"expiresAt"`
	}
)

func appendCheckpoint(ctx context.Context, c *call, r snapshot.AppendRequest) (any, error) {
	return c.svc.Append(ctx, r)
}

func deleteHead(ctx context.Context, c *call, r snapshot.DeleteHeadRequest) (any, error) {
	id, err := c.svc.DeleteHead(ctx, r)
	if id == "" {
		return headIDReply{}, err
	}
	return headIDReply{&id}, err
}

func forkHeld(ctx context.Context, c *call, r snapshot.ForkHeldRequest) (any, error) {
	cp, warnings, err := c.svc.ForkHeld(ctx, r)
	c.warnings = warnings
	return checkpointReply{cp}, err
}

func diff(ctx context.Context, c *call, r snapshot.DiffRequest) (any, error) {
	reply, err := c.svc.Diff(ctx, r, c.maxReply)
	if err == nil && reply.Changes == nil {
		reply.Changes = []snapshot.Change{}
	}
	return reply, err
}

func putBlob(ctx context.Context, c *call, r putBlobRequest) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	r.Open = r.opener(ctx, c)
	return c.svc.PutBlob(ctx, r.PutBlobRequest)
}

func headBlobs(ctx context.Context, c *call, r snapshot.HeadBlobsRequest) (any, error) {
	reply, err := c.svc.HeadBlobs(ctx, r)
	if err == nil && reply.Present == nil {
		reply.Present = []snapshot.Blob{}
	}
	return reply, err
}

func getBlob(ctx context.Context, c *call, r snapshot.GetBlobRequest) (any, error) {
	return c.svc.GetBlob(ctx, r, c.maxData)
}

func references(ctx context.Context, c *call, r snapshot.ReferencesRequest) (any, error) {
	reply, err := c.svc.References(ctx, r, c.maxReply)
	if err == nil && reply.References == nil {
		reply.References = []snapshot.Reference{}
	}
	return reply, err
}

func deleteThread(ctx context.Context, c *call, r snapshot.ThreadRequest) (any, error) {
	n, err := c.svc.DeleteThread(ctx, r)
	return deletedReply{n}, err
}

func writerWait(r snapshot.AcquireRequest) int64   { return r.WaitMs }
func lockWait(r snapshot.AcquireLockRequest) int64 { return r.WaitMs }

func acquireWriter(ctx context.Context, c *call, r snapshot.AcquireRequest) (any, error) {
	return c.svc.AcquireWriter(ctx, r)
}

func renewWriter(ctx context.Context, c *call, w snapshot.Writer) (any, error) {
	at, err := c.svc.RenewWriter(ctx, w)
	return renewedReply{at}, err
}

func releaseWriter(ctx context.Context, c *call, w snapshot.Writer) (any, error) {
	return empty{}, c.svc.ReleaseWriter(ctx, w)
}

func acquireLock(ctx context.Context, c *call, r snapshot.AcquireLockRequest) (any, error) {
	return c.svc.AcquireLock(ctx, r)
}

func renewLock(ctx context.Context, c *call, l snapshot.Lock) (any, error) {
	at, err := c.svc.RenewLock(ctx, l)
	return renewedReply{at}, err
}

func releaseLock(ctx context.Context, c *call, l snapshot.Lock) (any, error) {
	return empty{}, c.svc.ReleaseLock(ctx, l)
}
