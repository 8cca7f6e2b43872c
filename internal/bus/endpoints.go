package bus

import (
	"context"
	"errors"

	"sandkeep/internal/snapshot"
)

// endpoints is the one table of subjects. snapshot.save is last: a worker that
// has it is ready.
func endpoints() []endpoint {
	return []endpoint{
		op[snapshot.ForkRequest]{name: "fork", heavy: true, wait: forkWait, run: fork}.row(),
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
		// Heavy: an append may bring 64 MiB and writes pages; a fork copies a
		// conversation; a diff of one page, like the counting of references, may
		// have to read whole manifests; blobs are contents, and a packed one is
		// looked for in a manifest; a thread is deleted record by record.
		op[snapshot.AppendRequest]{name: "checkpoint.append", heavy: true, run: appendCheckpoint}.row(),
		op[snapshot.DeleteHeadRequest]{name: "checkpoint.delete-head", run: deleteHead}.row(),
		op[snapshot.ForkHeldRequest]{name: "checkpoint.fork", heavy: true, run: forkHeld}.row(),
		op[snapshot.DiffRequest]{name: "checkpoint.diff", heavy: true, run: diff}.row(),
		op[putBlobRequest]{name: "blob.put", heavy: true, run: putBlob}.row(),
		op[snapshot.HeadBlobsRequest]{name: "blob.head", run: headBlobs}.row(),
		op[snapshot.GetBlobRequest]{name: "blob.get", heavy: true, run: getBlob}.row(),
		op[snapshot.ReferencesRequest]{name: "blob.references", heavy: true, run: references}.row(),
		op[snapshot.ThreadRequest]{name: "thread.delete", heavy: true, run: deleteThread}.row(),
		op[snapshot.AcquireRequest]{name: "writer.acquire", wait: writerWait, run: acquireWriter}.row(),
		op[snapshot.Writer]{name: "writer.renew", run: renewWriter}.row(),
		op[snapshot.Writer]{name: "writer.release", run: releaseWriter}.row(),
		op[snapshot.AcquireLockRequest]{name: "lock.acquire", wait: lockWait, run: acquireLock}.row(),
		op[snapshot.Lock]{name: "lock.renew", run: renewLock}.row(),
		op[snapshot.Lock]{name: "lock.release", run: releaseLock}.row(),
		op[keyRequest]{name: "instance.get", run: getInstance}.row(),
		op[upsertRequest]{name: "instance.upsert", run: upsertInstance}.row(),
		op[removeRequest]{name: "instance.delete", run: removeInstance}.row(),
		op[snapshot.ListInstancesRequest]{name: "instance.list", run: listInstances}.row(),
		op[snapshot.AttachRequest]{name: "instance.attach", heavy: true, node: attachNode, run: attach}.row(),
		op[snapshot.SaveRequest]{name: "snapshot.save", heavy: true, wait: saveWait, node: saveNode, run: save}.row(),
	}
}

// The requests that are not the domain's own.
type (
	putArtifactRequest struct {
		snapshot.PutArtifactRequest
		upload
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

// restoreNode passes a restore in place on to the node of the thread's sandbox.
func restoreNode(ctx context.Context, svc Service, r snapshot.RestoreRequest) (snapshot.NodeName, error) {
	if r.Node == "" && r.Into == "sandbox" && r.Mode == "exact" {
		node, err := svc.SandboxNode(ctx, snapshot.SaveRequest{ThreadID: r.ThreadID})
		if errors.Is(err, snapshot.ReuseNone) { // then there is none
			return "", nil
		}
		return node, err
	}
	return r.Node, nil
}

func attachNode(_ context.Context, _ Service, r snapshot.AttachRequest) (snapshot.NodeName, error) {
	return r.Node, nil
}

func saveWait(r snapshot.SaveRequest) int64 { return r.WaitMs }
func forkWait(r snapshot.ForkRequest) int64 { return r.WaitMs }

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
	if err := r.check(); err != nil {
		return nil, err
	}
	r.Open = r.opener(ctx, c)
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
