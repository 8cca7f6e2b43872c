package snapshot

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"slices"
	"strings"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
	// maxReplyBytes bounds what a reply that can't be paged may hold.
	maxReplyBytes = 64 << 20
)

func (s *Service) millis() Millis { return Millis(s.Now().UnixMilli()) }

// noSecret refuses identifiers with a secret in them: an identifier can't be
// altered and would carry it into the store.
func (s *Service) noSecret(ids ...string) error {
	for _, id := range ids {
		if s.Redactor.Text(id) != id {
			return Errorf(InvalidID, "an identifier of the request holds a secret of a sandbox definition; choose another one")
		}
	}
	return nil
}

// reply shows a record to a client. Once a record is committed a failure to
// read its large members is a warning.
func (s *Service) reply(ctx context.Context, rec *Record, include Include, err error) (*Checkpoint, []Warning, error) {
	if err != nil {
		return nil, nil, err
	}
	cp, err := s.view(ctx, rec, include)
	if err != nil {
		plain := &Checkpoint{ID: rec.ID, ThreadID: rec.Thread, Parent: rec.Parent, CreatedAt: rec.CreatedAt, Reason: rec.Reason, Label: rec.Label,
			SourceRunID: rec.SourceRun, Stats: rec.Stats, Coverage: rec.Coverage}
		return plain, []Warning{warning("the checkpoint is stored, but not all of it could be read for this reply", err)}, nil
	}
	return cp, nil, nil
}

func (s *Service) view(ctx context.Context, rec *Record, include Include) (*Checkpoint, error) {
	artifacts, err := s.readArtifacts(ctx, rec.Artifacts)
	if err != nil {
		return nil, err
	}
	cp := &Checkpoint{ID: rec.ID, ThreadID: rec.Thread, Parent: rec.Parent, CreatedAt: rec.CreatedAt, Reason: rec.Reason, Label: rec.Label,
		SourceRunID: rec.SourceRun, Stats: rec.Stats, Coverage: rec.Coverage, Artifacts: artifacts}
	if include.has("files") {
		if cp.Entries, err = s.allEntries(ctx, rec); err != nil {
			return nil, err
		}
	}
	if include.has("conversation") {
		if cp.Conversation, err = s.messages(ctx, rec.Conversation); err != nil {
			return nil, err
		}
	}
	return cp, nil
}

func (s *Service) allEntries(ctx context.Context, rec *Record) ([]Entry, error) {
	out, size := []Entry{}, 0
	for e, err := range s.Objects.Entries(ctx, rec.Files, "", "") {
		if err != nil {
			return nil, err
		}
		if size += entrySize(e); size > maxReplyBytes {
			return nil, Errorf(PayloadTooLarge, "the files of checkpoint %q do not fit into one reply of %d bytes; page through them with checkpoint.files", rec.ID, maxReplyBytes)
		}
		e.Pieces = nil
		out = append(out, e)
	}
	return out, nil
}

// entrySize is about what an entry needs on the wire: fixed members, and names
// with their escapes.
func entrySize(e Entry) int { return 200 + escapedLen(e.Path) + escapedLen(e.Target) }

func escapedLen(s string) int {
	n := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20, c == '"', c == '\\':
			n += 5
		case c >= 0x80: // U+2028 has three bytes and an escape of six
			n++
		}
	}
	return n
}

func (s *Service) messages(ctx context.Context, list List) (Messages, error) {
	out, size := Messages{}, 0
	for m, err := range s.Objects.Items(ctx, list) {
		if err != nil {
			return nil, err
		}
		if size += len(m); size > maxReplyBytes {
			return nil, Errorf(PayloadTooLarge, "the conversation does not fit into one reply of %d bytes", maxReplyBytes)
		}
		out = append(out, m)
	}
	return out, nil
}

// Checkpoint returns a checkpoint by its id, or nil.
func (s *Service) Checkpoint(ctx context.Context, req GetCheckpointRequest) (*Checkpoint, error) {
	rec, err := s.Checkpoints.Get(ctx, req.CheckpointID)
	if rec == nil || err != nil {
		return nil, err
	}
	return s.view(ctx, rec, req.Include)
}

// Head returns the id of the thread's newest checkpoint, or "".
func (s *Service) Head(ctx context.Context, req ThreadRequest) (CheckpointID, error) {
	state, err := s.Checkpoints.State(ctx, req.ThreadID)
	return state.Head, err
}

// ListCheckpoints pages through the thread's checkpoints by time, then id, in
// replies of at most maxBytes, unless a single checkpoint is larger.
func (s *Service) ListCheckpoints(ctx context.Context, req ListCheckpointsRequest, maxBytes int64) (*ListCheckpointsReply, error) {
	recs, err := s.Checkpoints.List(ctx, req.ThreadID)
	if err != nil {
		return nil, err
	}
	key := func(r *Record) timeKey { return timeKey{r.CreatedAt, string(r.ID)} }
	slices.SortFunc(recs, func(a, b *Record) int { return key(a).compare(key(b)) })
	page, next, err := cut(recs, req.Page, key)
	if err != nil {
		return nil, err
	}
	reply := &ListCheckpointsReply{Checkpoints: []*Checkpoint{}, Next: next}
	for i, rec := range page {
		cp, err := s.view(ctx, rec, req.Include)
		if err != nil {
			return nil, err
		}
		b, err := cp.AppendJSON(nil)
		if err != nil {
			return nil, err
		}
		if maxBytes -= int64(len(b)) + 1; maxBytes < 0 && i > 0 {
			reply.Next = key(page[i-1]).cursor()
			break
		}
		reply.Checkpoints = append(reply.Checkpoints, cp)
	}
	return reply, nil
}

// timeKey is the order of checkpoints and artifacts: by time, then by id.
type timeKey struct {
	at Millis
	id string
}

func (k timeKey) compare(o timeKey) int {
	return cmp.Or(cmp.Compare(k.at, o.at), strings.Compare(k.id, o.id))
}

func (k timeKey) cursor() string {
	b, _ := json.Marshal([]any{k.at, k.id}) // a finite number and a string
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseTimeKey(cursor string) (k timeKey, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err == nil {
		err = json.Unmarshal(b, &[]any{&k.at, &k.id})
	}
	if err != nil {
		return k, badCursor(cursor)
	}
	return k, nil
}

func badCursor(cursor string) error {
	return Errorf(BadRequest, "after is %q, which is not the next of a page of this list; leave it out to begin at the start", cursor)
}

// count is how many rows a page may have.
func (p Page) count() (int, error) {
	if p.Limit == nil {
		return defaultLimit, nil
	}
	if *p.Limit < 1 || *p.Limit > maxLimit {
		return 0, Errorf(BadRequest, "limit is %d; it may be 1 to %d", *p.Limit, maxLimit)
	}
	return int(*p.Limit), nil
}

// cut takes a page out of a sorted list.
func cut[T any](all []T, p Page, key func(T) timeKey) (page []T, next string, err error) {
	limit, err := p.count()
	if err != nil {
		return nil, "", err
	}
	if p.After != "" {
		after, err := parseTimeKey(p.After)
		if err != nil {
			return nil, "", err
		}
		i, found := slices.BinarySearchFunc(all, after, func(v T, k timeKey) int { return key(v).compare(k) })
		if found {
			i++
		}
		all = all[i:]
	}
	if len(all) > limit {
		all = all[:limit]
		next = key(all[limit-1]).cursor()
	}
	return all, next, nil
}

// ListFiles pages through a checkpoint's entries at or under a prefix, in
// replies of at most maxBytes.
func (s *Service) ListFiles(ctx context.Context, req ListFilesRequest, maxBytes int64) (*ListFilesReply, error) {
	limit, err := req.count()
	if err != nil {
		return nil, err
	}
	after, err := base64.RawURLEncoding.DecodeString(req.After)
	if err != nil {
		return nil, badCursor(req.After)
	}
	prefix := strings.TrimSuffix(req.Prefix, "/")
	if req.Prefix != "" {
		if err := ValidatePath(prefix); err != nil {
			return nil, err
		}
	}
	rec, err := s.existing(ctx, req.CheckpointID)
	if err != nil {
		return nil, err
	}
	reply := &ListFilesReply{Entries: []Entry{}}
	for e, err := range s.Objects.Entries(ctx, rec.Files, prefix, string(after)) {
		if err != nil {
			return nil, err
		}
		full := len(reply.Entries) == limit
		if maxBytes -= int64(entrySize(e)); full || maxBytes < 0 && len(reply.Entries) > 0 {
			last := reply.Entries[len(reply.Entries)-1].Path
			reply.Next = base64.RawURLEncoding.EncodeToString([]byte(last))
			break
		}
		reply.Entries = append(reply.Entries, e)
	}
	return reply, nil
}

func (s *Service) existing(ctx context.Context, id CheckpointID) (*Record, error) {
	rec, err := s.Checkpoints.Get(ctx, id)
	if err == nil && rec == nil {
		err = Errorf(CheckpointNotFound, "there is no checkpoint %q; checkpoint.list shows those of a thread", id)
	}
	return rec, err
}

// ReadFile reads at most maxBytes of a file of a checkpoint.
func (s *Service) ReadFile(ctx context.Context, req ReadFileRequest, maxBytes int64) (*ReadFileReply, error) {
	if err := ValidatePath(req.Path); err != nil {
		return nil, err
	}
	rec, err := s.existing(ctx, req.CheckpointID)
	if err != nil {
		return nil, err
	}
	e, err := s.entry(ctx, rec, req.Path)
	if err != nil {
		return nil, err
	}
	reply := &ReadFileReply{Entry: e, Data: []byte{}, EOF: true}
	if e.Kind != KindFile || req.Offset >= e.Size {
		return reply, nil
	}
	length := min(e.Size-req.Offset, maxBytes)
	if req.Length != nil {
		length = min(length, *req.Length)
	}
	r, err := s.Objects.OpenFile(ctx, e, req.Offset, length)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if reply.Data, err = io.ReadAll(r); err != nil {
		return nil, err
	}
	reply.EOF = req.Offset+int64(len(reply.Data)) >= e.Size
	return reply, nil
}

func (s *Service) entry(ctx context.Context, rec *Record, path string) (Entry, error) {
	for e, err := range s.Objects.Entries(ctx, rec.Files, path, "") {
		if err != nil {
			return e, err
		}
		if e.Path == path {
			return e, nil
		}
		break
	}
	return Entry{}, noEntry(rec, path)
}

func noEntry(rec *Record, path string) error {
	return Errorf(MissingEntry, "checkpoint %q has no entry %q; checkpoint.files lists them", rec.ID, path).With("path", path)
}
