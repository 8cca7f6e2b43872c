package snapshot

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Millis is a time in epoch milliseconds; it may have a fraction and is finite.
type Millis float64

// MarshalJSON writes the number without an exponent.
func (m Millis) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(m)) || math.IsInf(float64(m), 0) {
		return nil, fmt.Errorf("time %v is not finite", float64(m))
	}
	return strconv.AppendFloat(nil, float64(m), 'f', -1, 64), nil
}

// Digest is a SHA-256.
type Digest [32]byte

// ParseDigest reads 64 lower-case hex digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) != 2*len(d) || strings.ToLower(s) != s {
		return d, fmt.Errorf("digest %q is not 64 lower-case hex digits", s)
	}
	if _, err := hex.Decode(d[:], []byte(s)); err != nil {
		return d, fmt.Errorf("digest %q is not 64 lower-case hex digits", s)
	}
	return d, nil
}

func (d Digest) String() string               { return hex.EncodeToString(d[:]) }
func (d Digest) IsZero() bool                 { return d == Digest{} }
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }
func (d *Digest) UnmarshalText(b []byte) error {
	var err error
	*d, err = ParseDigest(string(b))
	return err
}

// Blob key prefixes; they do not depend on the store's name.
const (
	FileBlobPrefix     = "sandbox-files/sha256/"
	ArtifactBlobPrefix = "sandbox-artifacts/sha256/"
)

// EntryKind is what an entry is.
type EntryKind uint8

const (
	KindFile EntryKind = iota + 1
	KindDir
	KindSymlink
)

func (k EntryKind) String() string {
	switch k {
	case KindFile:
		return "file"
	case KindDir:
		return "dir"
	case KindSymlink:
		return "symlink"
	}
	return "invalid"
}

// Default permission bits: entries with these carry no mode on the wire.
const (
	DefaultFileMode = 0o644
	DefaultDirMode  = 0o755
)

// Piece says where a content, or a part of a large one, lies: Length bytes at
// Offset of the pack's uncompressed bytes, whose SHA-256 is Digest.
type Piece struct {
	Digest Digest `json:"digest"`
	Pack   Digest `json:"pack"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
}

// Entry is one row of a manifest. A file's Digest is that of its whole
// (redacted) content; its Pieces, in order, make it up. An empty file has none.
// A file with bytes and no pieces is a loose blob.
type Entry struct {
	Path   string
	Kind   EntryKind
	Mode   uint16 // permission bits, 0..0777; files and dirs
	Mtime  int64  // nanoseconds since the epoch; files only
	Size   int64
	Digest Digest
	Target string // symlinks only
	Pieces []Piece
}

// PageRef is a page of a paged list: its content and, for manifests, the path
// of its first entry.
type PageRef struct {
	Piece
	First string `json:"first,omitempty"`
}

// List is the root of a paged list: a manifest, a conversation or the
// artifacts of a checkpoint. Small lists stand inline. With Level > 0 the pages
// hold page references instead of items, so that a root stays small.
type List struct {
	Count  int64     `json:"count"`
	Level  int       `json:"level,omitempty"`
	Inline []byte    `json:"inline,omitempty"`
	Pages  []PageRef `json:"pages,omitempty"`
}

// IsEmpty reports whether the list has no items.
func (l List) IsEmpty() bool { return l.Count == 0 }

// Reasons of a checkpoint.
const (
	ReasonAutomatic = "automatic"
	ReasonNamed     = "named"
	ReasonForkRoot  = "fork-root"
	ReasonPromoted  = "promoted"
)

// Stats counts what a checkpoint holds. NewBytes are the bytes of file and
// artifact contents that its save had to store, before compression.
type Stats struct {
	Files    int64 `json:"files"`
	Dirs     int64 `json:"dirs"`
	Symlinks int64 `json:"symlinks"`
	Bytes    int64 `json:"bytes"`
	NewBytes int64 `json:"newBytes"`
}

// MaxCoverageRows bounds the lists of a Coverage.
const MaxCoverageRows = 100

// Skipped is an entry that could not be kept. Path is escaped if it is not UTF-8.
type Skipped struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Coverage says honestly what a checkpoint does not have. Lists hold at most
// MaxCoverageRows rows; More counts the rows left out of both.
type Coverage struct {
	Excluded   map[string]int64 `json:"excluded"`
	Skipped    []Skipped        `json:"skipped"`
	Unstable   []string         `json:"unstable"`
	Redactions int64            `json:"redactions"`
	More       int64            `json:"more,omitempty"`
	Phases     map[string]Phase `json:"phases,omitempty"` // reply to a save only, never stored
}

// Phase is one part of a save's work.
type Phase struct {
	Ms    float64 `json:"ms"`
	Count int64   `json:"count"`
	Bytes int64   `json:"bytes"`
}

// Artifact is a generated file that belongs to a thread or a checkpoint.
type Artifact struct {
	ID        ArtifactID `json:"artifactId"`
	Name      string     `json:"name"`
	MimeType  string     `json:"mimeType"`
	Size      int64      `json:"size"`
	BlobKey   string     `json:"blobKey"`
	CreatedAt Millis     `json:"createdAt"`
}

// Digest is the content's digest, from the blob key.
func (a Artifact) Digest() (Digest, error) {
	hexDigits, ok := strings.CutPrefix(a.BlobKey, ArtifactBlobPrefix)
	if !ok {
		return Digest{}, Errorf(InvalidEntry, "blob key %q of artifact %q does not begin with %q", a.BlobKey, a.ID, ArtifactBlobPrefix)
	}
	d, err := ParseDigest(hexDigits)
	if err != nil {
		return d, Errorf(InvalidEntry, "blob key %q of artifact %q does not end in 64 hex digits", a.BlobKey, a.ID)
	}
	return d, nil
}

// ForkSource is where a fork root was copied from.
type ForkSource struct {
	Thread     ThreadID     `json:"thread"`
	Checkpoint CheckpointID `json:"checkpoint"`
}

// Record is a checkpoint as it is stored. Nonce is one per operation and tells
// a worker its own record from an equal one of somebody else.
type Record struct {
	ID           CheckpointID `json:"id"`
	Thread       ThreadID     `json:"thread"`
	Parent       CheckpointID `json:"parent,omitempty"`
	CreatedAt    Millis       `json:"createdAt"`
	Reason       string       `json:"reason"`
	Label        string       `json:"label,omitempty"`
	SourceRun    RunID        `json:"sourceRun,omitempty"`
	Stats        Stats        `json:"stats"`
	Coverage     Coverage     `json:"coverage"`
	Files        List         `json:"files"`
	Conversation List         `json:"conversation"`
	Artifacts    List         `json:"artifacts"`
	Source       *ForkSource  `json:"source,omitempty"`
	Nonce        string       `json:"nonce"`
}

// Repeats reports whether an append of r asks again for what other is, a record
// with the same id.
func (r *Record) Repeats(other *Record) bool {
	return r.Thread == other.Thread && r.Parent == other.Parent && r.SourceRun == other.SourceRun && r.Label == other.Label
}

// Instance says which sandbox a key stands for.
type Instance struct {
	Key               InstanceKey `json:"key"`
	Provider          string      `json:"provider"`
	ProviderSandboxID string      `json:"providerSandboxId"`
	LatestSnapshotID  string      `json:"latestSnapshotId,omitempty"`
	ThreadID          ThreadID    `json:"threadId"`
	LatestRunID       RunID       `json:"latestRunId,omitempty"`
	UpdatedAt         Millis      `json:"updatedAt"`
}

// Writer proves who holds a thread's lease. OwnerToken is a secret.
type Writer struct {
	ThreadID   ThreadID `json:"threadId"`
	OwnerToken string   `json:"ownerToken"`
	Fence      uint64   `json:"fence"`
}

// String hides the token, which lets its reader act as the writer.
func (w Writer) String() string   { return fmt.Sprintf("writer of %q, fence %d", w.ThreadID, w.Fence) }
func (w Writer) GoString() string { return w.String() }

// Lock proves who holds a named lock. OwnerToken is a secret.
type Lock struct {
	Name       LockName `json:"name"`
	OwnerToken string   `json:"ownerToken"`
	Fence      uint64   `json:"fence"`
}

// String hides the token.
func (l Lock) String() string   { return fmt.Sprintf("holder of lock %q, fence %d", l.Name, l.Fence) }
func (l Lock) GoString() string { return l.String() }

// LockLease is a Lock with its times.
type LockLease struct {
	Lock
	ExpiresAt    Millis `json:"expiresAt"`
	RenewAfterMs int64  `json:"renewAfterMs"`
}

func (l LockLease) String() string   { return l.Lock.String() }
func (l LockLease) GoString() string { return l.String() }

// Lease is a Writer with its times.
type Lease struct {
	Writer
	ExpiresAt    Millis `json:"expiresAt"`
	RenewAfterMs int64  `json:"renewAfterMs"`
}

func (l Lease) String() string   { return l.Writer.String() }
func (l Lease) GoString() string { return l.String() }

// Warning marks a reply that is good but not perfect.
type Warning struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}
