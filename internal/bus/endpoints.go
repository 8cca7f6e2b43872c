package bus

import (
	"bytes"
	"context"
	"io"

	"sandkeep/internal/snapshot"
)

// endpoints is the one table of subjects. snapshot.save is last: a worker that
// has it is ready.
func endpoints() []endpoint {
	return []endpoint{
		op[snapshot.ForkRequest]{name: "fork", heavy: true, run: fork}.row(),
		op[snapshot.RestoreRequest]{name: "restore", heavy: true, node: restoreNode, run: restore}.row(),
		op[snapshot.ReadFileRequest]{name: "file.read", run: readFile}.row(),
		op[snapshot.ReadArtifactRequest]{name: "artifact.read", run: readArtifact}.row(),
		op[putArtifactRequest]{name: "artifact.put", heavy: true, run: putArtifact}.row(),
		op[snapshot.ListArtifactsRequest]{name: "artifact.list", run: listArtifacts}.row(),
		op[snapshot.DeleteArtifactRequest]{name: "artifact.delete", run: deleteArtifact}.row(),
		op[snapshot.ThreadRequest]{name: "thread.load", run: loadThread}.row(),
		op[snapshot.SaveThreadRequest]{name: "thread.save", heavy: true, run: saveThread}.row(),
		op[snapshot.GetCheckpointRequest]{name: "checkpoint.get", run: getCheckpoint}.row(),
		op[snapshot.ListCheckpointsRequest]{name: "checkpoint.list", run: listCheckpoints}.row(),
		op[snapshot.ThreadRequest]{name: "checkpoint.head", run: head}.row(),
		op[snapshot.ListFilesRequest]{name: "checkpoint.files", run: listFiles}.row(),
		op[keyRequest]{name: "instance.get", run: getInstance}.row(),
		op[upsertRequest]{name: "instance.upsert", run: upsertInstance}.row(),
		op[removeRequest]{name: "instance.delete", run: removeInstance}.row(),
		op[snapshot.ListInstancesRequest]{name: "instance.list", run: listInstances}.row(),
		op[snapshot.AttachRequest]{name: "instance.attach", heavy: true, node: attachNode, run: attach}.row(),
		op[snapshot.SaveRequest]{name: "snapshot.save", heavy: true, node: saveNode, run: save}.row(),
	}
}

// The requests that are not the domain's own.
type (
	putArtifactRequest struct {
		snapshot.PutArtifactRequest
		Data   *[]byte `json:"data,omitempty"`
		Object *string `json:"object,omitempty"`
	}
	keyRequest struct {
		Key snapshot.InstanceKey `json:"key"`
	}
	upsertRequest struct {
		Record           snapshot.Instance `json:"record"`
		ExpectedRevision *int64            `json:"expectedRevision,omitempty"`
	}
	removeRequest struct {
		Key              snapshot.InstanceKey `json:"key"`
		ExpectedRevision *int64               `json:"expectedRevision,omitempty"`
	}
)

// The replies that are not the domain's own.
type (
	empty    struct{}
	revision struct {
		Revision any `json:"revision"`
	}
	headReply struct {
		CheckpointID *snapshot.CheckpointID `json:"checkpointId"`
	}
	instanceReply struct {
		Record   *snapshot.Instance `json:"record"`
		Revision uint64             `json:"revision"`
	}
)

func saveNode(ctx context.Context, svc Service, r snapshot.SaveRequest) (snapshot.NodeName, error) {
	return svc.SandboxNode(ctx, r)
}

func restoreNode(_ context.Context, _ Service, r snapshot.RestoreRequest) (snapshot.NodeName, error) {
	return r.Node, nil
}

func attachNode(_ context.Context, _ Service, r snapshot.AttachRequest) (snapshot.NodeName, error) {
	return r.Node, nil
}

func save(ctx context.Context, c *call, r snapshot.SaveRequest) (any, error) {
	cp, warnings, err := c.svc.Save(ctx, r)
	c.warnings = warnings
	return cp, err
}

func fork(ctx context.Context, c *call, r snapshot.ForkRequest) (any, error) {
	cp, warnings, err := c.svc.Fork(ctx, r)
	c.warnings = warnings
	return cp, err
}

func restore(ctx context.Context, c *call, r snapshot.RestoreRequest) (any, error) {
	return c.svc.Restore(ctx, r)
}

func readFile(ctx context.Context, c *call, r snapshot.ReadFileRequest) (any, error) {
	reply, err := c.svc.ReadFile(ctx, r, c.maxData)
	if err == nil && reply.Data == nil {
		reply.Data = []byte{}
	}
	return reply, err
}

func readArtifact(ctx context.Context, c *call, r snapshot.ReadArtifactRequest) (any, error) {
	return c.svc.ReadArtifact(ctx, r, c.maxData)
}

func putArtifact(ctx context.Context, c *call, r putArtifactRequest) (any, error) {
	switch {
	case (r.Data == nil) == (r.Object == nil):
		return nil, snapshot.Errorf(snapshot.BadRequest, "give the bytes of the artifact either as data or as object")
	case r.Data != nil:
		r.Open = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(*r.Data)), nil }
	default:
		r.Open = func() (io.ReadCloser, error) {
			body, _, err := c.transfer.OpenUpload(ctx, *r.Object)
			return body, err
		}
	}
	return c.svc.PutArtifact(ctx, r.PutArtifactRequest)
}

func listArtifacts(ctx context.Context, c *call, r snapshot.ListArtifactsRequest) (any, error) {
	reply, err := c.svc.ListArtifacts(ctx, r, c.maxReply)
	if err == nil && reply.Artifacts == nil {
		reply.Artifacts = []snapshot.Artifact{}
	}
	return reply, err
}

func deleteArtifact(ctx context.Context, c *call, r snapshot.DeleteArtifactRequest) (any, error) {
	return empty{}, c.svc.DeleteArtifact(ctx, r)
}

func loadThread(ctx context.Context, c *call, r snapshot.ThreadRequest) (any, error) {
	return c.svc.LoadThread(ctx, r)
}

func saveThread(ctx context.Context, c *call, r snapshot.SaveThreadRequest) (any, error) {
	n, err := c.svc.SaveThread(ctx, r)
	return revision{n}, err
}

func getCheckpoint(ctx context.Context, c *call, r snapshot.GetCheckpointRequest) (any, error) {
	cp, err := c.svc.Checkpoint(ctx, r)
	return checkpointReply{cp}, err
}

func listCheckpoints(ctx context.Context, c *call, r snapshot.ListCheckpointsRequest) (any, error) {
	return c.svc.ListCheckpoints(ctx, r, c.maxReply)
}

func head(ctx context.Context, c *call, r snapshot.ThreadRequest) (any, error) {
	id, err := c.svc.Head(ctx, r)
	if id == "" {
		return headReply{}, err
	}
	return headReply{&id}, err
}

func listFiles(ctx context.Context, c *call, r snapshot.ListFilesRequest) (any, error) {
	reply, err := c.svc.ListFiles(ctx, r, c.maxReply)
	if err == nil && reply.Entries == nil {
		reply.Entries = []snapshot.Entry{}
	}
	return reply, err
}

func getInstance(ctx context.Context, c *call, r keyRequest) (any, error) {
	rec, rev, err := c.svc.GetInstance(ctx, r.Key)
	return instanceReply{rec, rev}, err
}

func upsertInstance(ctx context.Context, c *call, r upsertRequest) (any, error) {
	rev, err := c.svc.UpsertInstance(ctx, r.Record, r.ExpectedRevision)
	return revision{rev}, err
}

func removeInstance(ctx context.Context, c *call, r removeRequest) (any, error) {
	return empty{}, c.svc.RemoveInstance(ctx, r.Key, r.ExpectedRevision)
}

func listInstances(ctx context.Context, c *call, r snapshot.ListInstancesRequest) (any, error) {
	reply, err := c.svc.ListInstances(ctx, r, c.maxReply)
	if err == nil && reply.Records == nil {
		reply.Records = []snapshot.Instance{}
	}
	return reply, err
}

func attach(ctx context.Context, c *call, r snapshot.AttachRequest) (any, error) {
	return c.svc.Attach(ctx, r)
}
