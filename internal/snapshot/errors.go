package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
)

// Code names a kind of failure on the wire. It is also the sentinel to test
// for: errors.Is(err, snapshot.WriterLost).
type Code string

func (c Code) Error() string { return string(c) }

const (
	BadRequest                Code = "SANDBOX_BAD_REQUEST"
	InvalidID                 Code = "SANDBOX_SNAPSHOT_INVALID_ID"
	InvalidEntry              Code = "SANDBOX_SNAPSHOT_INVALID_ENTRY"
	InvalidPath               Code = "SANDBOX_SNAPSHOT_INVALID_PATH"
	ParentMismatch            Code = "SANDBOX_SNAPSHOT_PARENT_MISMATCH"
	ReuseNone                 Code = "SANDBOX_SNAPSHOT_REUSE_NONE"
	MissingSandbox            Code = "SANDBOX_SNAPSHOT_MISSING_SANDBOX"
	ForeignCheckpointArtifact Code = "SANDBOX_SNAPSHOT_FOREIGN_CHECKPOINT_ARTIFACT"
	ForkSourceThreadMismatch  Code = "SANDBOX_SNAPSHOT_FORK_SOURCE_THREAD_MISMATCH"
	CheckpointNotFound        Code = "SANDBOX_SNAPSHOT_CHECKPOINT_NOT_FOUND"
	MissingCheckpointArtifact Code = "SANDBOX_SNAPSHOT_MISSING_CHECKPOINT_ARTIFACT"
	ForkSourceNotFound        Code = "SANDBOX_SNAPSHOT_FORK_SOURCE_NOT_FOUND"
	MissingReusableSandbox    Code = "SANDBOX_SNAPSHOT_MISSING_REUSABLE_SANDBOX"
	MissingArtifactBlob       Code = "SANDBOX_SNAPSHOT_MISSING_ARTIFACT_BLOB"
	MissingEntry              Code = "SANDBOX_SNAPSHOT_MISSING_ENTRY"
	OperationNotFound         Code = "SANDBOX_OPERATION_NOT_FOUND"
	StaleHead                 Code = "SANDBOX_SNAPSHOT_STALE_HEAD"
	DuplicateID               Code = "SANDBOX_SNAPSHOT_DUPLICATE_ID"
	NotHead                   Code = "SANDBOX_SNAPSHOT_NOT_HEAD"
	WriterLost                Code = "SANDBOX_SNAPSHOT_WRITER_LOST"
	ForkDestinationNotEmpty   Code = "SANDBOX_SNAPSHOT_FORK_DESTINATION_NOT_EMPTY"
	ThreadDeleted             Code = "SANDBOX_THREAD_DELETED"
	LockLost                  Code = "SANDBOX_LOCK_LOST"
	StaleRevision             Code = "SANDBOX_STALE_REVISION"
	PayloadTooLarge           Code = "SANDBOX_PAYLOAD_TOO_LARGE"
	InvalidWorkspace          Code = "SANDBOX_SNAPSHOT_INVALID_WORKSPACE"
	UnsupportedEntry          Code = "SANDBOX_SNAPSHOT_UNSUPPORTED_ENTRY"
	UnreadableEntry           Code = "SANDBOX_SNAPSHOT_UNREADABLE_ENTRY"
	WorkspaceChanged          Code = "SANDBOX_SNAPSHOT_WORKSPACE_CHANGED"
	WorkspaceTooLarge         Code = "SANDBOX_SNAPSHOT_WORKSPACE_TOO_LARGE"
	DestinationNotEmpty       Code = "SANDBOX_SNAPSHOT_DESTINATION_NOT_EMPTY"
	FormatUnsupported         Code = "SANDBOX_SNAPSHOT_FORMAT_UNSUPPORTED"
	WriterConflict            Code = "SANDBOX_SNAPSHOT_WRITER_CONFLICT"
	LockConflict              Code = "SANDBOX_LOCK_CONFLICT"
	MissingBlob               Code = "SANDBOX_SNAPSHOT_MISSING_BLOB"
	InvalidBlob               Code = "SANDBOX_SNAPSHOT_INVALID_BLOB"
	InvalidArtifactBytes      Code = "SANDBOX_SNAPSHOT_INVALID_ARTIFACT_BYTES"
	Internal                  Code = "SANDBOX_INTERNAL"
	StoreUnavailable          Code = "SANDBOX_STORE_UNAVAILABLE"
	NodeUnreachable           Code = "SANDBOX_NODE_UNREACHABLE"
	Busy                      Code = "SANDBOX_BUSY"
	Timeout                   Code = "SANDBOX_TIMEOUT"
	Canceled                  Code = "SANDBOX_CANCELED"
	StoreFull                 Code = "SANDBOX_STORE_FULL"
)

// codes is the one table: the number on the wire, and whether the same request
// may succeed when it is sent again unchanged.
var codes = map[Code]struct {
	status    int
	retryable bool
}{
	BadRequest: {400, false}, InvalidID: {400, false}, InvalidEntry: {400, false}, InvalidPath: {400, false},
	ParentMismatch: {400, false}, ReuseNone: {400, false}, MissingSandbox: {400, false},
	ForeignCheckpointArtifact: {403, false}, ForkSourceThreadMismatch: {403, false},
	CheckpointNotFound: {404, false}, MissingCheckpointArtifact: {404, false}, ForkSourceNotFound: {404, false},
	MissingReusableSandbox: {404, false}, MissingArtifactBlob: {404, false}, MissingEntry: {404, false}, OperationNotFound: {404, false},
	StaleHead: {409, false}, DuplicateID: {409, false}, NotHead: {409, false}, WriterLost: {409, false},
	ForkDestinationNotEmpty: {409, false}, ThreadDeleted: {409, false}, LockLost: {409, false}, StaleRevision: {409, false},
	PayloadTooLarge:  {413, false},
	InvalidWorkspace: {422, false}, UnsupportedEntry: {422, false}, UnreadableEntry: {422, false}, WorkspaceChanged: {422, true},
	WorkspaceTooLarge: {422, false}, DestinationNotEmpty: {422, false}, FormatUnsupported: {422, false},
	WriterConflict: {423, true}, LockConflict: {423, true},
	MissingBlob: {500, false}, InvalidBlob: {500, false}, InvalidArtifactBytes: {500, false}, Internal: {500, false},
	StoreUnavailable: {503, true}, NodeUnreachable: {503, true}, Busy: {503, true},
	Timeout: {504, true}, Canceled: {504, true},
	StoreFull: {507, false},
}

// Status is the number that goes with the code; an unknown code counts as Internal.
func (c Code) Status() int {
	if row, ok := codes[c]; ok {
		return row.status
	}
	return codes[Internal].status
}

// Retryable tells whether the same request may succeed when sent again unchanged.
func (c Code) Retryable() bool { return codes[c].retryable }

// Codes lists every code.
func Codes() []Code {
	out := make([]Code, 0, len(codes))
	for c := range maps.Keys(codes) {
		out = append(out, c)
	}
	return out
}

// Error is a failure that may be shown to a client: what was wrong, with which
// value, and what to do. Details hold ids only, never secrets or host paths.
type Error struct {
	Code    Code
	Message string
	Details map[string]any
	Err     error // the cause, for the log only
}

// Errorf makes an Error; its text reaches the client, so a cause goes into Because.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// With returns the error with one more detail.
func (e *Error) With(key string, value any) *Error {
	out := *e
	out.Details = maps.Clone(e.Details)
	if out.Details == nil {
		out.Details = map[string]any{}
	}
	out.Details[key] = value
	return &out
}

// Because returns the error with a cause that only the log sees.
func (e *Error) Because(cause error) *Error {
	out := *e
	out.Err = cause
	return &out
}

func (e *Error) Error() string {
	if e.Err != nil {
		return string(e.Code) + ": " + e.Message + ": " + e.Err.Error()
	}
	return string(e.Code) + ": " + e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// Is matches the error's code; a cause may match others.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// AsError finds what a client may be told about err: the outermost *Error, a
// code for the two context errors, or nil for an unknown cause.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf(Timeout, "the time given for the request was over; send it again with a larger timeoutMs").Because(err)
	case errors.Is(err, context.Canceled):
		return Errorf(Canceled, "the worker gave the request up; send it again").Because(err)
	}
	return nil
}
