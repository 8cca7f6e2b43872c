package snapshot

import (
	"context"
	"io"
	"iter"
	"time"
)

// ThreadState is what a read of a thread tells. An unknown thread is the zero
// value. Messages is the conversation as it stands now.
type ThreadState struct {
	Head     CheckpointID
	Depth    int64
	Revision int64
	Messages List
}

// Checkpoints keeps threads and their checkpoint records. All reads see every
// write that was acknowledged before they began.
type Checkpoints interface {
	// Get returns the visible record with the id, or nil.
	Get(ctx context.Context, id CheckpointID) (*Record, error)
	// List returns the visible records of a thread, root first; nil if unknown.
	List(ctx context.Context, thread ThreadID) ([]*Record, error)
	// Root returns the thread's first visible record, or nil.
	Root(ctx context.Context, thread ThreadID) (*Record, error)
	// Newest returns the visible record at the thread's head, or nil.
	Newest(ctx context.Context, thread ThreadID) (*Record, error)
	// State reads the thread. A deleted thread reads as unknown.
	State(ctx context.Context, thread ThreadID) (ThreadState, error)
	// Append makes rec visible as the child of expectedHead ("" for none), all
	// or nothing. A visible record of that id that rec Repeats counts as done.
	// Errors: WriterLost, DuplicateID, StaleHead, ThreadDeleted; Timeout with
	// detail outcome=unknown if it can't be known.
	Append(ctx context.Context, rec *Record, expectedHead CheckpointID, w Writer) error
	// Admit tells what Append would answer, and stores nothing: done if such a
	// record is there, whoever holds the thread now; else its refusal, if any.
	Admit(ctx context.Context, rec *Record, expectedHead CheckpointID, w Writer) (done bool, err error)
	// Fork makes rec the root of an empty thread and rec.Conversation that
	// thread's conversation, in one commit. It takes and releases the thread's
	// lease itself when it needs one, waiting at most wait for it. Errors:
	// WriterConflict, ForkDestinationNotEmpty (also for a taken id),
	// ThreadDeleted, Timeout as for Append.
	Fork(ctx context.Context, rec *Record, wait time.Duration) error
	// ForkHeld is Fork by a writer that holds the destination's lease: WriterLost
	// if it does not.
	ForkHeld(ctx context.Context, rec *Record, w Writer) error
	// DeleteHead takes the head off its thread and returns the new one, its
	// parent ("" for none). Errors: WriterLost, NotHead, ThreadDeleted; Timeout
	// as for Append.
	DeleteHead(ctx context.Context, thread ThreadID, id CheckpointID, w Writer) (CheckpointID, error)
	// DeleteThread removes checkpoints, conversation and artifact records and
	// returns how many checkpoints there were; 0 for an unknown thread. The
	// thread refuses writes until its tombstone goes. WriterConflict while a
	// writer holds it; Timeout as for Append.
	DeleteThread(ctx context.Context, thread ThreadID) (checkpoints int64, err error)
	// Threads lists the ids of live threads above after in the store's own
	// order, at most limit; next is 0 at the end.
	Threads(ctx context.Context, after uint64, limit int) (ids []ThreadID, next uint64, err error)
	// SaveConversation replaces the thread's conversation and returns its new
	// revision. With expected >= 0 another revision is StaleRevision.
	SaveConversation(ctx context.Context, thread ThreadID, messages List, expected int64) (int64, error)
	// Base returns the manifest that MoveBase noted last, or an empty one. It is
	// a hint: what it refers to may be gone.
	Base(ctx context.Context, key BaseKey) (List, error)
	MoveBase(ctx context.Context, key BaseKey, files List) error
}

// BaseKey names sandboxes whose contents are likely to be alike. Tenants are
// kept apart: the size of a save tells what was there before it.
type BaseKey struct {
	Definition string
	Tenant     Tenant
}

// Leases gives out the one writer lease of each thread, and named locks.
type Leases interface {
	// Acquire takes the thread's lease or fails with WriterConflict, after
	// waiting at most wait for its expiry or release.
	Acquire(ctx context.Context, thread ThreadID, wait time.Duration) (Lease, error)
	// Holds fails with WriterLost unless w is the thread's current writer;
	// ThreadDeleted if it lost a thread that was deleted.
	Holds(ctx context.Context, w Writer) error
	// Renew extends the lease: WriterLost if it is another's or in its last second.
	Renew(ctx context.Context, w Writer) (expiresAt Millis, err error)
	// Release gives the lease up; a writer that is not current is a no-op.
	Release(ctx context.Context, w Writer) error
	// AcquireFor is Acquire for a time of the caller's choice, 3 s to 600 s, in
	// whole seconds, rounded up; BadRequest outside.
	AcquireFor(ctx context.Context, thread ThreadID, ttl, wait time.Duration) (Lease, error)
	// AcquireLock, RenewLock and ReleaseLock are the same for named locks, with
	// LockConflict and LockLost. A ttl of 0 is the default of leases.
	AcquireLock(ctx context.Context, name LockName, ttl, wait time.Duration) (LockLease, error)
	RenewLock(ctx context.Context, l Lock) (expiresAt Millis, err error)
	ReleaseLock(ctx context.Context, l Lock) error
	// Lock holds a named lock while fn runs, waiting at most wait for it
	// (LockConflict). It cancels fn's context when the lock is lost.
	Lock(ctx context.Context, name LockName, wait time.Duration, fn func(context.Context) error) error
}

// Instances keeps instance records. A revision is 0 for a missing key.
type Instances interface {
	Instance(ctx context.Context, key InstanceKey) (*Instance, uint64, error)
	// PutInstance replaces the whole record; with expected >= 0 another
	// revision is StaleRevision.
	PutInstance(ctx context.Context, rec Instance, expected int64) (uint64, error)
	DeleteInstance(ctx context.Context, key InstanceKey, expected int64) error
	// Instances lists records with a revision above after, in order of
	// revision, at most limit; next is 0 at the end.
	Instances(ctx context.Context, thread ThreadID, after uint64, limit int) (recs []Instance, next uint64, err error)
}

// ThreadArtifact is an artifact record of a thread, or its tombstone, which
// hides an artifact that the thread's root brought along.
type ThreadArtifact struct {
	Artifact
	Deleted bool `json:"deleted,omitempty"`
}

// ThreadArtifacts keeps the artifact records of threads.
type ThreadArtifacts interface {
	PutArtifact(ctx context.Context, thread ThreadID, a ThreadArtifact) error
	// Artifacts returns all records of the thread, tombstones included.
	Artifacts(ctx context.Context, thread ThreadID) ([]ThreadArtifact, error)
}

// Objects reads and writes contents. Every byte that it hands out was checked
// against its digest first. Errors: MissingBlob, InvalidBlob, StoreFull,
// StoreUnavailable.
type Objects interface {
	// NewTree starts the writing of a manifest. parent is reused by digest.
	NewTree(ctx context.Context, parent List) (TreeWriter, error)
	// Import stores a manifest that a client captured itself. Entries come in
	// path order and carry digests and sizes. With require each content must be
	// a loose blob of that size or in parent, whose place is taken over;
	// MissingBlob names the first that is neither. Without it an unknown content
	// counts as a loose blob that is kept elsewhere.
	Import(ctx context.Context, entries []Entry, parent List, require bool) (List, error)
	// Entries yields the entries with a path greater than after that lie at or
	// under prefix ("" for all), in order.
	Entries(ctx context.Context, files List, prefix, after string) iter.Seq2[Entry, error]
	Contents

	// PutBlob keeps a loose blob under its digest.
	PutBlob(ctx context.Context, d Digest, size int64, open func() (io.ReadCloser, error)) error
	// BlobSize looks for a loose blob, or with artifact for an artifact's
	// bytes; there is false if it is missing.
	BlobSize(ctx context.Context, d Digest, artifact bool) (size int64, there bool, err error)
	// OpenBlob streams a loose blob or an artifact's bytes and tells its size;
	// MissingBlob. Wrong bytes are the error of the last Read.
	OpenBlob(ctx context.Context, d Digest, artifact bool) (io.ReadCloser, int64, error)
	// Lend puts bytes where a client can fetch them for an hour, "<bucket>/<name>".
	Lend(ctx context.Context, size int64, open func() (io.ReadCloser, error)) (object string, err error)
	// BlobObject names the object of a loose blob, "<bucket>/<name>".
	BlobObject(d Digest) string

	// WriteItems stores a list of byte strings, sharing the pages of prior.
	WriteItems(ctx context.Context, items [][]byte, prior List) (List, error)
	// Items yields a list's byte strings in order.
	Items(ctx context.Context, list List) iter.Seq2[[]byte, error]

	// PutArtifact stores bytes under their digest. newBytes is 0 if they were
	// there already.
	PutArtifact(ctx context.Context, d Digest, size int64, open func() (io.ReadCloser, error)) (newBytes int64, err error)
	// OpenArtifact streams an artifact's bytes; a wrong digest or size is the
	// error of the last Read. A missing object is MissingBlob.
	OpenArtifact(ctx context.Context, d Digest, size int64) (io.ReadCloser, error)
	// ArtifactObject names the object that a client can fetch, "<bucket>/<name>".
	ArtifactObject(d Digest) string
}

// Contents reads the contents of files.
type Contents interface {
	// OpenFile streams length bytes of a file's content from offset; -1 is to
	// its end.
	OpenFile(ctx context.Context, e Entry, offset, length int64) (io.ReadCloser, error)
	// ReadPack reads a pack once and hands out the bytes of pieces of it, which
	// come sorted by offset. use must not keep the bytes.
	ReadPack(ctx context.Context, pieces []Piece, use func(i int, data []byte) error) error
}

// TreeWriter takes the contents and entries of one tree, in path order, and
// keeps them in packs and pages. It is used by one goroutine.
type TreeWriter interface {
	// Known reports whether the content of the file at path, which is asked for
	// in path order, can be reused without its bytes.
	Known(path string, d Digest, size int64) bool
	// Put reads r to its end and keeps what it read.
	Put(ctx context.Context, r io.Reader) (Digest, int64, error)
	// PutBytes keeps a content of at most 64 KiB, which its caller has hashed,
	// but not data itself.
	PutBytes(ctx context.Context, data []byte, d Digest) error
	// Add appends an entry; a file's content was Put or is Known.
	Add(ctx context.Context, e Entry) error
	// Finish stores what is left. Every byte that the list refers to is
	// acknowledged when it returns.
	Finish(ctx context.Context) (files List, newBytes int64, err error)
	// Abort drops what is buffered. After Finish it does nothing.
	Abort()
}

// Definition describes sandboxes of one kind.
type Definition struct {
	Name           string
	Provider       string
	Reuse          string        // "thread" or "none"
	SnapshotMaxAge time.Duration // 0: any age
	Policy         Policy
}

// Policy says what of a tree is kept.
type Policy struct {
	Include            []string // .dockerignore dialect; empty: everything
	Exclude            []string
	NoDefaultExcludes  bool
	IncludeCredentials bool
	Strict             bool
}

// Tenant scopes an instance key.
type Tenant struct {
	UserID string `json:"userId,omitempty"`
	OrgID  string `json:"orgId,omitempty"`
}

// Sandboxes knows definitions, keys and providers.
type Sandboxes interface {
	// Definition finds a definition, the default one for ""; MissingSandbox.
	Definition(name string) (Definition, error)
	// Key computes the instance key of a thread's sandbox.
	Key(thread ThreadID, def Definition, tenant Tenant) InstanceKey
	// Resume finds the running sandbox that a record stands for. It makes
	// nothing: a sandbox that is gone is MissingReusableSandbox.
	Resume(ctx context.Context, rec Instance, def Definition, adapter string) (Sandbox, error)
	// Node is the node that the record's sandbox lives on; "" if any can reach it.
	Node(rec Instance) NodeName
	// Adopt gives the providerSandboxId of the existing directory name under
	// this node's sandbox root; InvalidPath, MissingReusableSandbox.
	Adopt(ctx context.Context, name string) (providerSandboxID string, err error)
}

// Redactor knows the secrets of all definitions and takes them out of whatever
// is stored or said.
type Redactor interface {
	// Text replaces secrets by "[redacted]".
	Text(s string) string
	// JSON does the same in the decoded strings (names included) of a JSON
	// text and leaves every other byte as it is. n counts replacements.
	JSON(raw []byte) (out []byte, n int64)
	// Reader overwrites secrets with zero bytes, also across reads.
	Reader(r io.Reader) RedactingReader
}

// RedactingReader counts what it has overwritten so far.
type RedactingReader interface {
	io.Reader
	Redactions() int64
}

// Sandbox is a directory that a provider has made available on this node.
type Sandbox struct {
	Dir string
}

// Captured is what a capture found out.
type Captured struct {
	Stats    Stats // without NewBytes
	Coverage Coverage
}

// Target is the directory that a restore writes into, and how.
type Target struct {
	Root   string // "restore" or "sandbox"
	Path   string // below it; new or empty unless Exact
	Exact  bool   // make an existing directory equal to the entries, at and under Prefix
	Prefix string // "" for the whole directory
	// What Policy excludes stays in an exact restore. CacheKey names the stat
	// cache of the directory, "" for none.
	Policy   Policy
	CacheKey string
	// Confirm, unless nil, is asked before an existing directory is changed, when
	// no capture of it can begin any more until the restore has ended.
	Confirm func(context.Context) error
}

// Workspaces reads and writes directory trees on this node.
type Workspaces interface {
	// Capture hands the tree under dir to w, in path order. parent are the
	// entries of the checkpoint before, for reuse. cacheKey names the stat
	// cache to use.
	Capture(ctx context.Context, dir string, pol Policy, cacheKey string, w TreeWriter) (Captured, error)
	// CheckRoot refuses a directory that must not be captured.
	CheckRoot(dir string) error
	// Restore writes entries into a directory and returns what it had to write. A
	// failure leaves the destination as it was found, unless it is an ErrHalfRestored.
	Restore(ctx context.Context, to Target, entries iter.Seq2[Entry, error], from Contents) (files, bytes int64, err error)
	// Discard removes what a Restore of this request has just made.
	Discard(root, path string) error
}
