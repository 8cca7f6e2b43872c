package tests

import "encoding/json"

// The shapes of replies as the contract gives them.

type checkpoint struct {
	ID           string            `json:"id"`
	ThreadID     string            `json:"threadId"`
	Parent       *string           `json:"parentCheckpointId"`
	CreatedAt    float64           `json:"createdAt"`
	Reason       string            `json:"reason"`
	Label        *string           `json:"label"`
	SourceRunID  *string           `json:"sourceRunId"`
	Stats        stats             `json:"stats"`
	Coverage     coverage          `json:"coverage"`
	Files        *[]entry          `json:"files"`
	Conversation []json.RawMessage `json:"conversation"`
	Artifacts    []artifact        `json:"artifacts"`
	Warnings     []warning         `json:"warnings"`
}

type warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type stats struct {
	Files    int64 `json:"files"`
	Dirs     int64 `json:"dirs"`
	Symlinks int64 `json:"symlinks"`
	Bytes    int64 `json:"bytes"`
	NewBytes int64 `json:"newBytes"`
}

type coverage struct {
	Excluded   map[string]int64           `json:"excluded"`
	Skipped    []skipped                  `json:"skipped"`
	Unstable   []string                   `json:"unstable"`
	Redactions int64                      `json:"redactions"`
	More       int64                      `json:"more"`
	Phases     map[string]json.RawMessage `json:"phases"`
}

type skipped struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

type entry struct {
	Path    string      `json:"path"`
	Kind    string      `json:"kind"`
	BlobKey string      `json:"blobKey"`
	Size    *int64      `json:"size"`
	Mode    *int        `json:"mode"`
	Mtime   json.Number `json:"mtime"`
	Target  string      `json:"target"`
}

type artifact struct {
	ID        string  `json:"artifactId"`
	Name      string  `json:"name"`
	MimeType  string  `json:"mimeType"`
	Size      int64   `json:"size"`
	BlobKey   string  `json:"blobKey"`
	CreatedAt float64 `json:"createdAt"`
}

type instance struct {
	Key               string  `json:"key"`
	Provider          string  `json:"provider"`
	ProviderSandboxID string  `json:"providerSandboxId"`
	LatestSnapshotID  *string `json:"latestSnapshotId"`
	ThreadID          string  `json:"threadId"`
	LatestRunID       *string `json:"latestRunId"`
	UpdatedAt         float64 `json:"updatedAt"`
}

type (
	restored struct {
		CheckpointID string `json:"checkpointId"`
		Node         string `json:"node"`
		Path         string `json:"path"`
		Files        int64  `json:"files"`
		Bytes        int64  `json:"bytes"`
		Key          string `json:"key"`
	}
	fileData struct {
		Entry entry  `json:"entry"`
		Data  []byte `json:"data"`
		EOF   bool   `json:"eof"`
	}
	artifactData struct {
		Artifact artifact `json:"artifact"`
		Data     *[]byte  `json:"data"`
		Object   string   `json:"object"`
	}
	artifactPage struct {
		Artifacts []artifact `json:"artifacts"`
		Next      string     `json:"next"`
	}
	thread struct {
		ThreadID string            `json:"threadId"`
		Messages []json.RawMessage `json:"messages"`
		Revision int64             `json:"revision"`
	}
	revision struct {
		Revision int64 `json:"revision"`
	}
	checkpointOrNull struct {
		Checkpoint *checkpoint `json:"checkpoint"`
	}
	checkpointPage struct {
		Checkpoints []checkpoint `json:"checkpoints"`
		Next        string       `json:"next"`
	}
	headOf struct {
		CheckpointID *string `json:"checkpointId"`
	}
	entryPage struct {
		Entries []entry `json:"entries"`
		Next    string  `json:"next"`
	}
	instanceOrNull struct {
		Record   *instance `json:"record"`
		Revision int64     `json:"revision"`
	}
	instancePage struct {
		Records []instance `json:"records"`
		Next    string     `json:"next"`
	}
	attached struct {
		Key    string   `json:"key"`
		Record instance `json:"record"`
	}
	empty struct{}
)

// numbers is the contract's table of error codes.
var numbers = codeNumbers(map[int][]string{
	400: {"SANDBOX_BAD_REQUEST", "SANDBOX_SNAPSHOT_INVALID_ID", "SANDBOX_SNAPSHOT_INVALID_ENTRY", "SANDBOX_SNAPSHOT_INVALID_PATH",
		"SANDBOX_SNAPSHOT_PARENT_MISMATCH", "SANDBOX_SNAPSHOT_REUSE_NONE", "SANDBOX_SNAPSHOT_MISSING_SANDBOX"},
	403: {"SANDBOX_SNAPSHOT_FOREIGN_CHECKPOINT_ARTIFACT", "SANDBOX_SNAPSHOT_FORK_SOURCE_THREAD_MISMATCH"},
	404: {"SANDBOX_SNAPSHOT_CHECKPOINT_NOT_FOUND", "SANDBOX_SNAPSHOT_MISSING_CHECKPOINT_ARTIFACT", "SANDBOX_SNAPSHOT_FORK_SOURCE_NOT_FOUND",
		"SANDBOX_SNAPSHOT_MISSING_REUSABLE_SANDBOX", "SANDBOX_SNAPSHOT_MISSING_ARTIFACT_BLOB", "SANDBOX_SNAPSHOT_MISSING_ENTRY", "SANDBOX_OPERATION_NOT_FOUND"},
	409: {"SANDBOX_SNAPSHOT_STALE_HEAD", "SANDBOX_SNAPSHOT_DUPLICATE_ID", "SANDBOX_SNAPSHOT_NOT_HEAD", "SANDBOX_SNAPSHOT_WRITER_LOST",
		"SANDBOX_SNAPSHOT_FORK_DESTINATION_NOT_EMPTY", "SANDBOX_THREAD_DELETED", "SANDBOX_LOCK_LOST", "SANDBOX_STALE_REVISION"},
	413: {"SANDBOX_PAYLOAD_TOO_LARGE"},
	422: {"SANDBOX_SNAPSHOT_INVALID_WORKSPACE", "SANDBOX_SNAPSHOT_UNSUPPORTED_ENTRY", "SANDBOX_SNAPSHOT_UNREADABLE_ENTRY", "SANDBOX_SNAPSHOT_WORKSPACE_CHANGED",
		"SANDBOX_SNAPSHOT_WORKSPACE_TOO_LARGE", "SANDBOX_SNAPSHOT_DESTINATION_NOT_EMPTY", "SANDBOX_SNAPSHOT_FORMAT_UNSUPPORTED"},
	423: {"SANDBOX_SNAPSHOT_WRITER_CONFLICT", "SANDBOX_LOCK_CONFLICT"},
	500: {"SANDBOX_SNAPSHOT_MISSING_BLOB", "SANDBOX_SNAPSHOT_INVALID_BLOB", "SANDBOX_SNAPSHOT_INVALID_ARTIFACT_BYTES", "SANDBOX_INTERNAL"},
	503: {"SANDBOX_STORE_UNAVAILABLE", "SANDBOX_NODE_UNREACHABLE", "SANDBOX_BUSY"},
	504: {"SANDBOX_TIMEOUT", "SANDBOX_CANCELED"},
	507: {"SANDBOX_STORE_FULL"},
})

func codeNumbers(byNumber map[int][]string) map[string]int {
	out := map[string]int{}
	for number, codes := range byNumber {
		for _, code := range codes {
			out[code] = number
		}
	}
	return out
}
