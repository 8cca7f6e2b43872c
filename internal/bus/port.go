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
	Artifacts
	Threads
	Instances
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

type Artifacts interface {
	ReadArtifact(ctx context.Context, req snapshot.ReadArtifactRequest, maxBytes int64) (*snapshot.ReadArtifactReply, error)
	PutArtifact(context.Context, snapshot.PutArtifactRequest) (*snapshot.Artifact, error)
	ListArtifacts(context.Context, snapshot.ListArtifactsRequest, int64) (*snapshot.ListArtifactsReply, error)
	DeleteArtifact(context.Context, snapshot.DeleteArtifactRequest) error
}

type Threads interface {
	LoadThread(context.Context, snapshot.ThreadRequest) (*snapshot.LoadThreadReply, error)
	SaveThread(context.Context, snapshot.SaveThreadRequest) (revision int64, err error)
}

type Instances interface {
	GetInstance(context.Context, snapshot.InstanceKey) (*snapshot.Instance, uint64, error)
	UpsertInstance(ctx context.Context, rec snapshot.Instance, expectedRevision *int64) (uint64, error)
	RemoveInstance(ctx context.Context, key snapshot.InstanceKey, expectedRevision *int64) error
	ListInstances(ctx context.Context, req snapshot.ListInstancesRequest, maxBytes int64) (*snapshot.ListInstancesReply, error)
	Attach(context.Context, snapshot.AttachRequest) (*snapshot.AttachReply, error)
}

// Transfer moves what is too large for a message.
type Transfer interface {
	// OpenUpload reads an object that a client has put, named "<bucket>/<name>",
	// and tells its size. Nothing may be used before the end was read.
	OpenUpload(ctx context.Context, object string) (io.ReadCloser, int64, error)
	// PutReply stores a reply and returns its "<bucket>/<name>".
	PutReply(ctx context.Context, data []byte) (object string, err error)
}
