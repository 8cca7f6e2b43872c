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
