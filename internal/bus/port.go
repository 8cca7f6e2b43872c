package bus

import (
	"context"
	"io"

	"sandkeep/internal/snapshot"
)

// Service is the domain, as far as the endpoints need it. maxBytes of a read
// bounds its data, maxBytes of a list its whole reply.
type Service interface {
	Snapshots
	Checkpoints
	Store
	Blobs
	Artifacts
	Threads
	Instances
	Writers
	Locks
}

type Snapshots interface {
	Save(context.Context, snapshot.SaveRequest) (*snapshot.Checkpoint, []snapshot.Warning, error)
	Fork(context.Context, snapshot.ForkRequest) (*snapshot.Checkpoint, []snapshot.Warning, error)
	Restore(context.Context, snapshot.RestoreRequest) (*snapshot.RestoreReply, error)
	// SandboxNode is the node that a save must run on, "" when any may answer.
	SandboxNode(context.Context, snapshot.SaveRequest) (snapshot.NodeName, error)
}

type Checkpoints interface {
	Checkpoint(context.Context, snapshot.GetCheckpointRequest) (*snapshot.Checkpoint, error)
	ListCheckpoints(ctx context.Context, req snapshot.ListCheckpointsRequest, maxBytes int64) (*snapshot.ListCheckpointsReply, error)
	ListFiles(ctx context.Context, req snapshot.ListFilesRequest, maxBytes int64) (*snapshot.ListFilesReply, error)
	ReadFile(ctx context.Context, req snapshot.ReadFileRequest, maxBytes int64) (*snapshot.ReadFileReply, error)
	Head(context.Context, snapshot.ThreadRequest) (snapshot.CheckpointID, error)
}

// Store is for clients that capture checkpoints themselves.
type Store interface {
	Append(context.Context, snapshot.AppendRequest) (*snapshot.AppendReply, error)
	DeleteHead(context.Context, snapshot.DeleteHeadRequest) (snapshot.CheckpointID, error)
	ForkHeld(context.Context, snapshot.ForkHeldRequest) (*snapshot.Checkpoint, []snapshot.Warning, error)
	Diff(ctx context.Context, req snapshot.DiffRequest, maxBytes int64) (*snapshot.DiffReply, error)
}

type Blobs interface {
	PutBlob(context.Context, snapshot.PutBlobRequest) (*snapshot.Blob, error)
	HeadBlobs(context.Context, snapshot.HeadBlobsRequest) (*snapshot.HeadBlobsReply, error)
	GetBlob(ctx context.Context, req snapshot.GetBlobRequest, maxBytes int64) (*snapshot.GetBlobReply, error)
	References(ctx context.Context, req snapshot.ReferencesRequest, maxBytes int64) (*snapshot.ReferencesReply, error)
}

type Artifacts interface {
	ReadArtifact(ctx context.Context, req snapshot.ReadArtifactRequest, maxBytes int64) (*snapshot.ReadArtifactReply, error)
	PutArtifact(context.Context, snapshot.PutArtifactRequest) (*snapshot.Artifact, error)
	ListArtifacts(context.Context, snapshot.ListArtifactsRequest, int64) (*snapshot.ListArtifactsReply, error)
	DeleteArtifact(context.Context, snapshot.DeleteArtifactRequest) error
}

type Threads interface {
	LoadThread(context.Context, snapshot.ThreadRequest) (*snapshot.LoadThreadReply, error)
	SaveThread(context.Context, snapshot.SaveThreadRequest) (revision int64, err error)
	DeleteThread(context.Context, snapshot.ThreadRequest) (checkpoints int64, err error)
}

type Instances interface {
	GetInstance(context.Context, snapshot.InstanceKey) (*snapshot.Instance, uint64, error)
	UpsertInstance(ctx context.Context, rec snapshot.Instance, expectedRevision *int64) (uint64, error)
	RemoveInstance(ctx context.Context, key snapshot.InstanceKey, expectedRevision *int64) error
	ListInstances(ctx context.Context, req snapshot.ListInstancesRequest, maxBytes int64) (*snapshot.ListInstancesReply, error)
	Attach(context.Context, snapshot.AttachRequest) (*snapshot.AttachReply, error)
}

type Writers interface {
	AcquireWriter(context.Context, snapshot.AcquireRequest) (*snapshot.Lease, error)
	RenewWriter(context.Context, snapshot.Writer) (expiresAt snapshot.Millis, err error)
	ReleaseWriter(context.Context, snapshot.Writer) error
}

type Locks interface {
	AcquireLock(context.Context, snapshot.AcquireLockRequest) (*snapshot.LockLease, error)
	RenewLock(context.Context, snapshot.Lock) (expiresAt snapshot.Millis, err error)
	ReleaseLock(context.Context, snapshot.Lock) error
}

// Transfer moves what is too large for a message.
type Transfer interface {
	// OpenUpload reads an object that a client has put, named "<bucket>/<name>",
	// and tells its size. Nothing may be used before the end was read.
	OpenUpload(ctx context.Context, object string) (io.ReadCloser, int64, error)
	// PutReply stores a reply and returns its "<bucket>/<name>".
	PutReply(ctx context.Context, data []byte) (object string, err error)
}
