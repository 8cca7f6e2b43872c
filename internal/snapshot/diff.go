package snapshot

import (
	"context"
	"encoding/base64"
	"iter"
)

// Diff pages through what differs between the files of two checkpoints, in
// path order, in replies of at most maxBytes. Times alone are no difference.
func (s *Service) Diff(ctx context.Context, req DiffRequest, maxBytes int64) (*DiffReply, error) {
	limit, err := req.count()
	if err != nil {
		return nil, err
	}
	after, err := base64.RawURLEncoding.DecodeString(req.After)
	if err != nil {
		return nil, badCursor(req.After)
	}
	from, err := s.existing(ctx, req.From)
	if err != nil {
		return nil, err
	}
	to, err := s.existing(ctx, req.To)
	if err != nil {
		return nil, err
	}
	reply := &DiffReply{Changes: []Change{}}
	for c, err := range changes(s.Objects.Entries(ctx, from.Files, "", string(after)), s.Objects.Entries(ctx, to.Files, "", string(after))) {
		if err != nil {
			return nil, err
		}
		maxBytes -= int64(2*entrySize(Entry{Path: c.Path, Target: deref(c.From).Target + deref(c.To).Target}) + escapedLen(c.Path))
		if n := len(reply.Changes); n == limit || maxBytes < 0 && n > 0 {
			reply.Next = base64.RawURLEncoding.EncodeToString([]byte(reply.Changes[n-1].Path))
			break
		}
		reply.Changes = append(reply.Changes, c)
	}
	return reply, nil
}

// changes merges two sorted manifests.
func changes(from, to iter.Seq2[Entry, error]) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		nextOld, stopOld := iter.Pull2(from)
		defer stopOld()
		nextNew, stopNew := iter.Pull2(to)
		defer stopNew()
		a, errA, hasA := nextOld()
		b, errB, hasB := nextNew()
		for hasA || hasB {
			if errA != nil || errB != nil {
				yield(Change{}, firstError(errA, errB))
				return
			}
			c, differs := compare(a, b, hasA, hasB)
			if differs && !yield(c, nil) {
				return
			}
			if hasA && a.Path == c.Path {
				a, errA, hasA = nextOld()
			}
			if hasB && b.Path == c.Path {
				b, errB, hasB = nextNew()
			}
		}
	}
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// compare takes the smaller path of two entries, or both if they are equal.
func compare(a, b Entry, hasA, hasB bool) (c Change, differs bool) {
	switch {
	case !hasB || hasA && a.Path < b.Path:
		return Change{Path: a.Path, Change: "removed", From: &a}, true
	case !hasA || b.Path < a.Path:
		return Change{Path: b.Path, Change: "added", To: &b}, true
	}
	c = Change{Path: a.Path, From: &a, To: &b}
	switch {
	case a.Kind != b.Kind || a.Digest != b.Digest || a.Size != b.Size || a.Target != b.Target:
		c.Change = "modified"
	case a.Mode != b.Mode:
		c.Change = "mode"
	}
	return c, c.Change != ""
}
