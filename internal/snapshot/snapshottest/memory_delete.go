package snapshottest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"sandkeep/internal/snapshot"
)

func (m *Memory) DeleteHead(ctx context.Context, id snapshot.ThreadID, head snapshot.CheckpointID, w snapshot.Writer) (snapshot.CheckpointID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.admit(id, w); err != nil {
		return "", err
	}
	if th := m.threads[id]; th.Head != head || th.Depth == 0 {
		return "", snapshot.Errorf(snapshot.NotHead, "checkpoint %q is not the head of thread %q", head, id).With("threadId", id).With("actualHead", th.Head)
	}
	th := m.thread(id)
	delete(m.records, head)
	th.ids = th.ids[:len(th.ids)-1]
	th.Head, th.Depth = "", th.Depth-1
	if th.Depth > 0 {
		th.Head = th.ids[th.Depth-1]
	}
	return th.Head, nil
}

func (m *Memory) DeleteThread(ctx context.Context, id snapshot.ThreadID) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	th := m.threads[id]
	if th == nil {
		delete(m.artifacts, id)
	}
	if th == nil || th.deleted() {
		return 0, nil
	}
	if l := m.lease(writerName(id)); l != nil {
		return 0, snapshot.Errorf(snapshot.WriterConflict, "thread %q is held", id).With("threadId", string(id)).
			With("holder", "memory").With("since", l.since.UnixMilli()).With("expiresAt", l.expires.UnixMilli())
	}
	for _, id := range th.ids {
		delete(m.records, id)
	}
	delete(m.artifacts, id)
	m.threads[id] = &memThread{changed: m.nextSeq(), deletedAt: m.now()}
	return th.Depth, nil
}

// Sweep forgets the threads that were deleted more than grace ago.
func (m *Memory) Sweep(ctx context.Context, grace time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.now().Add(-grace)
	for id, th := range m.threads {
		if th.deleted() && !th.deletedAt.After(before) {
			delete(m.threads, id)
		}
	}
	return nil
}

func (m *Memory) Threads(ctx context.Context, after uint64, limit int) (ids []snapshot.ThreadID, next uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, th := range m.threads {
		if th.changed > after && !th.deleted() {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b snapshot.ThreadID) int { return cmp.Compare(m.threads[a].changed, m.threads[b].changed) })
	if len(ids) > limit {
		ids = ids[:limit]
		next = m.threads[ids[limit-1]].changed
	}
	return ids, next, nil
}
