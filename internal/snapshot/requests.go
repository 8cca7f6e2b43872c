package snapshot

import (
	"encoding/json"
	"io"
)

// The request and reply shapes of the operations. A member with omitempty is
// optional on the wire; everything else is required.

// Include asks for the large members of a checkpoint: "files", "conversation".
type Include []string

func (i Include) has(what string) bool {
	for _, w := range i {
		if w == what {
			return true
		}
	}
	return false
}

type SaveRequest struct {
	ThreadID     ThreadID     `json:"threadId"`
	RunID        RunID        `json:"runId"`
	Label        string       `json:"label,omitempty"`
	Sandbox      string       `json:"sandbox,omitempty"`
	Tenant       Tenant       `json:"tenant,omitempty"`
	AdapterName  string       `json:"adapterName,omitempty"`
	InstanceKey  InstanceKey  `json:"instanceKey,omitempty"`
	CheckpointID CheckpointID `json:"checkpointId,omitempty"`
	WaitMs       int64        `json:"waitMs,omitempty"`
	Include      Include      `json:"include,omitempty"`
}

type ForkRequest struct {
	ThreadID                ThreadID     `json:"threadId"`
	CheckpointID            CheckpointID `json:"checkpointId,omitempty"`
	DestinationThreadID     ThreadID     `json:"destinationThreadId"`
	DestinationCheckpointID CheckpointID `json:"destinationCheckpointId,omitempty"`
	CreatedAt               *Millis      `json:"createdAt,omitempty"`
	WaitMs                  int64        `json:"waitMs,omitempty"`
	Include                 Include      `json:"include,omitempty"`
}

type RestoreRequest struct {
	ThreadID     ThreadID     `json:"threadId"`
	CheckpointID CheckpointID `json:"checkpointId,omitempty"`
	Path         string       `json:"path"`
	Into         string       `json:"into,omitempty"` // "restore" (default) or "sandbox"
	Node         NodeName     `json:"node,omitempty"`
	Prefix       string       `json:"prefix,omitempty"`
	Mode         string       `json:"mode,omitempty"` // "new" (default) or "exact"
}

type RestoreReply struct {
	CheckpointID CheckpointID `json:"checkpointId"`
	Node         NodeName     `json:"node"`
	Path         string       `json:"path"`
	Files        int64        `json:"files"`
	Bytes        int64        `json:"bytes"`
	Key          InstanceKey  `json:"key,omitempty"`
}

type ReadFileRequest struct {
	CheckpointID CheckpointID `json:"checkpointId"`
	Path         string       `json:"path"`
	Offset       int64        `json:"offset,omitempty"`
	Length       *int64       `json:"length,omitempty"`
}

type ReadFileReply struct {
	Entry Entry  `json:"entry"`
	Data  []byte `json:"data"`
	EOF   bool   `json:"eof"`
}

type ReadArtifactRequest struct {
	ThreadID       ThreadID     `json:"threadId"`
	CheckpointID   CheckpointID `json:"checkpointId"`
	ArtifactID     ArtifactID   `json:"artifactId"`
	MaxInlineBytes *int64       `json:"maxInlineBytes,omitempty"`
}

type ReadArtifactReply struct {
	Artifact Artifact `json:"artifact"`
	Data     *[]byte  `json:"data,omitempty"`
	Object   string   `json:"object"`
}

type PutArtifactRequest struct {
	ThreadID   ThreadID   `json:"threadId"`
	RunID      RunID      `json:"runId"`
	ArtifactID ArtifactID `json:"artifactId"`
	Name       string     `json:"name"`
	MimeType   string     `json:"mimeType"`
	CreatedAt  *Millis    `json:"createdAt,omitempty"`
	// Open yields the bytes, each time from the beginning.
	Open func() (io.ReadCloser, error) `json:"-"`
}

// Page asks for a part of a list. After is the opaque Next of the page before.
type Page struct {
	After string `json:"after,omitempty"`
	Limit *int64 `json:"limit,omitempty"`
}

type ListArtifactsRequest struct {
	ThreadID ThreadID `json:"threadId"`
	Page
}

type ListArtifactsReply struct {
	Artifacts []Artifact `json:"artifacts"`
	Next      string     `json:"next,omitempty"`
}

type DeleteArtifactRequest struct {
	ThreadID   ThreadID   `json:"threadId"`
	ArtifactID ArtifactID `json:"artifactId"`
}

type ThreadRequest struct {
	ThreadID ThreadID `json:"threadId"`
}

// MaxMessages is the most that a conversation may have: each takes memory of its
// own, however short it is.
const MaxMessages = 1_000_000

// Messages are JSON texts that are kept byte for byte.
type Messages []json.RawMessage

type LoadThreadReply struct {
	ThreadID ThreadID `json:"threadId"`
	Messages Messages `json:"messages"`
	Revision int64    `json:"revision"`
}

type SaveThreadRequest struct {
	ThreadID         ThreadID `json:"threadId"`
	Messages         Messages `json:"messages"`
	ExpectedRevision *int64   `json:"expectedRevision,omitempty"`
}

type GetCheckpointRequest struct {
	CheckpointID CheckpointID `json:"checkpointId"`
	Include      Include      `json:"include,omitempty"`
}

type ListCheckpointsRequest struct {
	ThreadID ThreadID `json:"threadId"`
	Include  Include  `json:"include,omitempty"`
	Page
}

type ListCheckpointsReply struct {
	Checkpoints []*Checkpoint `json:"checkpoints"`
	Next        string        `json:"next,omitempty"`
}

type ListFilesRequest struct {
	CheckpointID CheckpointID `json:"checkpointId"`
	Prefix       string       `json:"prefix,omitempty"`
	Page
}

type ListFilesReply struct {
	Entries []Entry `json:"entries"`
	Next    string  `json:"next,omitempty"`
}

type ListInstancesRequest struct {
	ThreadID ThreadID `json:"threadId,omitempty"`
	Page
}

type ListInstancesReply struct {
	Records []Instance `json:"records"`
	Next    string     `json:"next,omitempty"`
}

type AttachRequest struct {
	ThreadID ThreadID `json:"threadId"`
	Name     string   `json:"name"`
	Node     NodeName `json:"node,omitempty"`
	Sandbox  string   `json:"sandbox,omitempty"`
	Tenant   Tenant   `json:"tenant,omitempty"`
	RunID    RunID    `json:"runId,omitempty"`
}

type AttachReply struct {
	Key    InstanceKey `json:"key"`
	Record Instance    `json:"record"`
}

// Checkpoint is a Record as clients see it. Entries and Conversation are nil
// unless they were asked for.
type Checkpoint struct {
	ID           CheckpointID
	ThreadID     ThreadID
	Parent       CheckpointID // "" is null on the wire
	CreatedAt    Millis
	Reason       string
	Label        string
	SourceRunID  RunID
	Stats        Stats
	Coverage     Coverage
	Artifacts    []Artifact
	Entries      []Entry
	Conversation Messages
}

// AppendRequest is a checkpoint that a client captured itself. Its stats and
// coverage are computed. With RequireBlobs, the default, every blob must be in
// the store.
type AppendRequest struct {
	Checkpoint     NewCheckpoint `json:"checkpoint"`
	ExpectedHeadID *CheckpointID `json:"expectedHeadId"`
	Writer         Writer        `json:"writer"`
	RequireBlobs   *bool         `json:"requireBlobs,omitempty"`
}

type NewCheckpoint struct {
	ID           CheckpointID  `json:"id"`
	ThreadID     ThreadID      `json:"threadId"`
	Parent       *CheckpointID `json:"parentCheckpointId,omitempty"`
	CreatedAt    Millis        `json:"createdAt"`
	Reason       string        `json:"reason"`
	Label        string        `json:"label,omitempty"`
	SourceRunID  RunID         `json:"sourceRunId,omitempty"`
	Files        []NewEntry    `json:"files"`
	Conversation Messages      `json:"conversation"`
	Artifacts    []Artifact    `json:"artifacts"`
}

// NewEntry is an entry as clients send it. Mtime is the literal number of
// milliseconds, which may have a fraction down to nanoseconds.
type NewEntry struct {
	Path    string       `json:"path"`
	Kind    string       `json:"kind"`
	BlobKey *string      `json:"blobKey,omitempty"`
	Size    *int64       `json:"size,omitempty"`
	Mode    *int64       `json:"mode,omitempty"`
	Mtime   *json.Number `json:"mtime,omitempty"`
	Target  *string      `json:"target,omitempty"`
}

type AppendReply struct {
	HeadID CheckpointID `json:"headId"`
}

type DeleteHeadRequest struct {
	ThreadID     ThreadID     `json:"threadId"`
	CheckpointID CheckpointID `json:"checkpointId"`
	Writer       Writer       `json:"writer"`
}

type ForkHeldRequest struct {
	SourceThreadID          ThreadID     `json:"sourceThreadId"`
	SourceCheckpointID      CheckpointID `json:"sourceCheckpointId"`
	DestinationThreadID     ThreadID     `json:"destinationThreadId"`
	DestinationCheckpointID CheckpointID `json:"destinationCheckpointId"`
	CreatedAt               Millis       `json:"createdAt"`
	Writer                  Writer       `json:"writer"`
	Include                 Include      `json:"include,omitempty"`
}

type DiffRequest struct {
	From CheckpointID `json:"from"`
	To   CheckpointID `json:"to"`
	Page
}

// Change is a row of a diff: "added", "removed", "modified" or "mode", with the
// entries on both sides.
type Change struct {
	Path   string `json:"path"`
	Change string `json:"change"`
	From   *Entry `json:"from,omitempty"`
	To     *Entry `json:"to,omitempty"`
}

type DiffReply struct {
	Changes []Change `json:"changes"`
	Next    string   `json:"next,omitempty"`
}

type PutBlobRequest struct {
	Kind string `json:"kind"` // "file" or "artifact"
	// Open yields the bytes, each time from the beginning.
	Open func() (io.ReadCloser, error) `json:"-"`
}

type Blob struct {
	Key  string `json:"key"`
	Size int64  `json:"size"`
}

type HeadBlobsRequest struct {
	Keys []string `json:"keys"`
}

type HeadBlobsReply struct {
	Present []Blob `json:"present"`
}

type GetBlobRequest struct {
	Key            string       `json:"key"`
	CheckpointID   CheckpointID `json:"checkpointId,omitempty"`
	MaxInlineBytes *int64       `json:"maxInlineBytes,omitempty"`
}

type GetBlobReply struct {
	Key    string  `json:"key"`
	Size   int64   `json:"size"`
	Data   *[]byte `json:"data,omitempty"`
	Object string  `json:"object,omitempty"`
}

type ReferencesRequest struct {
	ThreadID ThreadID `json:"threadId,omitempty"`
	Page
}

type Reference struct {
	Key        string `json:"key"`
	References int64  `json:"references"`
}

type ReferencesReply struct {
	References []Reference `json:"references"`
	Next       string      `json:"next,omitempty"`
}

type AcquireRequest struct {
	ThreadID        ThreadID `json:"threadId"`
	LeaseDurationMs *int64   `json:"leaseDurationMs,omitempty"`
	WaitMs          int64    `json:"waitMs,omitempty"`
}

type AcquireLockRequest struct {
	Name            LockName `json:"name"`
	LeaseDurationMs *int64   `json:"leaseDurationMs,omitempty"`
	WaitMs          int64    `json:"waitMs,omitempty"`
}
