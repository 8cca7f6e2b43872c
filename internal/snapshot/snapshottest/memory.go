// Package snapshottest has what tests of the domain and of its stores need: an
// in-memory store, and the contract that every store must meet.
package snapshottest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"sandkeep/internal/snapshot"
)

// Stores are the ports that keep state, and their sweep.
type Stores interface {
	// Sweep lets go of threads that were deleted longer than grace ago.
	Sweep(ctx context.Context, grace time.Duration) error
	snapshot.Checkpoints
	snapshot.Leases
	snapshot.Instances
	snapshot.ThreadArtifacts
}

var _ Stores = (*Memory)(nil)

// Memory keeps everything in maps. It is safe for concurrent use.
type Memory struct {
	ttl time.Duration
	now func() time.Time

	mu        sync.Mutex // guards all below
	seq       uint64
	freed     chan struct{} // closed and made anew when a lease is given up
	threads   map[snapshot.ThreadID]*memThread
	records   map[snapshot.CheckpointID][]byte
	leases    map[string]*memLease
	instances map[snapshot.InstanceKey]memInstance
	artifacts map[snapshot.ThreadID][]snapshot.ThreadArtifact
	bases     map[snapshot.BaseKey]snapshot.List
}

type memThread struct {
	snapshot.ThreadState
	ids       []snapshot.CheckpointID
	changed   uint64
	deletedAt time.Time // zero for a live thread
}

func (th *memThread) deleted() bool { return th != nil && !th.deletedAt.IsZero() }

type memLease struct {
	token          string
	fence          uint64
	ttl            time.Duration
	since, expires time.Time
}

type memInstance struct {
	rec snapshot.Instance
	rev uint64
}

// NewMemory makes an empty store. Its leases last for ttl by the clock now,
// the real one if nil.
func NewMemory(ttl time.Duration, now func() time.Time) *Memory {
	if now == nil {
		now = time.Now
	}
	return &Memory{ttl: ttl, now: now, freed: make(chan struct{}),
		threads: map[snapshot.ThreadID]*memThread{}, records: map[snapshot.CheckpointID][]byte{},
		leases: map[string]*memLease{}, instances: map[snapshot.InstanceKey]memInstance{},
		artifacts: map[snapshot.ThreadID][]snapshot.ThreadArtifact{}, bases: map[snapshot.BaseKey]snapshot.List{}}
}

func (m *Memory) Base(_ context.Context, key snapshot.BaseKey) (snapshot.List, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bases[key], nil
}

func (m *Memory) MoveBase(_ context.Context, key snapshot.BaseKey, files snapshot.List) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bases[key] = files
	return nil
}

func (m *Memory) nextSeq() uint64 { m.seq++; return m.seq }

// thread is a thread that is about to change.
func (m *Memory) thread(id snapshot.ThreadID) *memThread {
	if m.threads[id] == nil {
		m.threads[id] = &memThread{}
	}
	m.threads[id].changed = m.nextSeq()
	return m.threads[id]
}

// refuse is the error of a write to a deleted thread.
func (m *Memory) refuse(id snapshot.ThreadID) error {
	if m.threads[id].deleted() {
		return snapshot.Errorf(snapshot.ThreadDeleted, "thread %q was deleted", id).With("threadId", id)
	}
	return nil
}

// admit is refuse, and WriterLost unless w holds the thread.
func (m *Memory) admit(id snapshot.ThreadID, w snapshot.Writer) error {
	if err := m.refuse(id); err != nil {
		return err
	}
	if w.ThreadID != id || !m.holds(writerName(id), w.OwnerToken, w.Fence) {
		return snapshot.Errorf(snapshot.WriterLost, "thread %q is no longer yours", id).With("threadId", string(id))
	}
	return nil
}

// record decodes a fresh copy, so that callers share nothing.
func (m *Memory) record(id snapshot.CheckpointID) (*snapshot.Record, error) {
	data, ok := m.records[id]
	if !ok {
		return nil, nil
	}
	rec := new(snapshot.Record)
	return rec, json.Unmarshal(data, rec)
}

func (m *Memory) Get(ctx context.Context, id snapshot.CheckpointID) (*snapshot.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record(id)
}

func (m *Memory) List(ctx context.Context, id snapshot.ThreadID) ([]*snapshot.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.threads[id] == nil {
		return nil, nil
	}
	var recs []*snapshot.Record
	for _, id := range m.threads[id].ids {
		rec, err := m.record(id)
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

func (m *Memory) Root(ctx context.Context, id snapshot.ThreadID) (*snapshot.Record, error) {
	recs, err := m.List(ctx, id)
	if len(recs) == 0 {
		return nil, err
	}
	return recs[0], err
}

func (m *Memory) Newest(ctx context.Context, id snapshot.ThreadID) (*snapshot.Record, error) {
	recs, err := m.List(ctx, id)
	if len(recs) == 0 {
		return nil, err
	}
	return recs[len(recs)-1], err
}

func (m *Memory) State(ctx context.Context, id snapshot.ThreadID) (snapshot.ThreadState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.threads[id] == nil {
		return snapshot.ThreadState{}, nil
	}
	return m.threads[id].ThreadState, nil
}

func (m *Memory) Append(ctx context.Context, rec *snapshot.Record, expectedHead snapshot.CheckpointID, w snapshot.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, err := m.record(rec.ID)
	if err == nil {
		err = m.refusal(rec, found, expectedHead, w)
	}
	if err != nil || found != nil {
		return err
	}
	return m.add(m.thread(rec.Thread), rec)
}

func (m *Memory) Admit(ctx context.Context, rec *snapshot.Record, expectedHead snapshot.CheckpointID, w snapshot.Writer) (done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, err := m.record(rec.ID)
	if err != nil {
		return false, err
	}
	again := *rec
	again.Parent = expectedHead
	if found != nil && again.Repeats(found) {
		return true, nil
	}
	return false, m.refusal(rec, found, expectedHead, w)
}

func (m *Memory) refusal(rec, found *snapshot.Record, expectedHead snapshot.CheckpointID, w snapshot.Writer) error {
	if w.ThreadID != rec.Thread {
		return snapshot.Errorf(snapshot.WriterLost, "the writer is not of thread %q", rec.Thread).With("threadId", string(rec.Thread))
	}
	if err := m.admit(rec.Thread, w); err != nil {
		return err
	}
	head := m.threads[rec.Thread].Head
	switch {
	case found != nil && rec.Repeats(found) && rec.Parent == expectedHead:
		return nil
	case found != nil && found.Thread == rec.Thread:
		return snapshot.Errorf(snapshot.DuplicateID, "checkpoint id %q is in use", rec.ID).With("checkpointId", rec.ID).With("threadId", rec.Thread)
	case found != nil:
		return snapshot.Errorf(snapshot.DuplicateID, "checkpoint id %q is in use", rec.ID).With("checkpointId", rec.ID)
	case head != expectedHead:
		return snapshot.Errorf(snapshot.StaleHead, "the head of thread %q is %s", rec.Thread, head.Shown()).With("threadId", rec.Thread).With("actualHead", head)
	case rec.Parent != expectedHead:
		return snapshot.Errorf(snapshot.ParentMismatch, "checkpoint %q has parent %s, not %s", rec.ID, rec.Parent.Shown(), expectedHead.Shown())
	}
	return nil
}

func (m *Memory) add(th *memThread, rec *snapshot.Record) error {
	stored := *rec
	stored.Coverage.Phases = nil
	data, err := json.Marshal(&stored)
	if err != nil {
		return err
	}
	m.records[rec.ID] = data
	th.ids = append(th.ids, rec.ID)
	th.Head, th.Depth = rec.ID, th.Depth+1
	return nil
}

func (m *Memory) Fork(ctx context.Context, rec *snapshot.Record, wait time.Duration) error {
	if err := m.noArtifacts(rec); err != nil {
		return err
	}
	lease, err := m.Acquire(ctx, rec.Thread, wait)
	if err != nil {
		return err
	}
	defer m.Release(context.WithoutCancel(ctx), lease.Writer)
	return m.ForkHeld(ctx, rec, lease.Writer)
}

func (m *Memory) noArtifacts(rec *snapshot.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refuse(rec.Thread); err != nil {
		return err
	}
	if len(m.artifacts[rec.Thread]) > 0 {
		return notEmpty(rec)
	}
	return nil
}

func notEmpty(rec *snapshot.Record) error {
	return snapshot.Errorf(snapshot.ForkDestinationNotEmpty, "thread %q can't be forked into", rec.Thread).
		With("destinationThreadId", rec.Thread).With("destinationCheckpointId", rec.ID)
}

func (m *Memory) ForkHeld(ctx context.Context, rec *snapshot.Record, w snapshot.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.admit(rec.Thread, w); err != nil {
		return err
	}
	th, taken := m.threads[rec.Thread], m.records[rec.ID] != nil
	if th.Depth > 0 || th.Revision > 0 || taken || len(m.artifacts[rec.Thread]) > 0 {
		return notEmpty(rec)
	}
	th = m.thread(rec.Thread)
	th.Messages = rec.Conversation
	return m.add(th, rec)
}

func (m *Memory) SaveConversation(ctx context.Context, id snapshot.ThreadID, messages snapshot.List, expected int64) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refuse(id); err != nil {
		return 0, err
	}
	revision := int64(0)
	if th := m.threads[id]; th != nil {
		revision = th.Revision
	}
	if expected >= 0 && revision != expected {
		return 0, snapshot.Errorf(snapshot.StaleRevision, "the conversation of thread %q has revision %d", id, revision).
			With("threadId", id).With("actualRevision", revision)
	}
	th := m.thread(id)
	th.Messages, th.Revision = messages, th.Revision+1
	return th.Revision, nil
}

func (m *Memory) Instance(ctx context.Context, key snapshot.InstanceKey) (*snapshot.Instance, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, ok := m.instances[key]
	if !ok {
		return nil, 0, nil
	}
	return &in.rec, in.rev, nil
}

func (m *Memory) checkRevision(key snapshot.InstanceKey, expected int64) error {
	if actual := m.instances[key].rev; expected >= 0 && uint64(expected) != actual {
		return snapshot.Errorf(snapshot.StaleRevision, "instance %q has revision %d", key, actual).With("key", key).With("actualRevision", actual)
	}
	return nil
}

func (m *Memory) PutInstance(ctx context.Context, rec snapshot.Instance, expected int64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkRevision(rec.Key, expected); err != nil {
		return 0, err
	}
	m.instances[rec.Key] = memInstance{rec: rec, rev: m.nextSeq()}
	return m.seq, nil
}

func (m *Memory) DeleteInstance(ctx context.Context, key snapshot.InstanceKey, expected int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.instances[key]; !ok {
		return nil
	}
	if err := m.checkRevision(key, expected); err != nil {
		return err
	}
	delete(m.instances, key)
	return nil
}

func (m *Memory) Instances(ctx context.Context, thread snapshot.ThreadID, after uint64, limit int) (recs []snapshot.Instance, next uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []memInstance
	for _, in := range m.instances {
		if in.rev > after && (thread == "" || in.rec.ThreadID == thread) {
			found = append(found, in)
		}
	}
	slices.SortFunc(found, func(a, b memInstance) int { return int(int64(a.rev) - int64(b.rev)) })
	for i, in := range found {
		if i == limit {
			return recs, found[i-1].rev, nil
		}
		recs = append(recs, in.rec)
	}
	return recs, 0, nil
}

func (m *Memory) PutArtifact(ctx context.Context, thread snapshot.ThreadID, a snapshot.ThreadArtifact) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refuse(thread); err != nil {
		return err
	}
	others := slices.DeleteFunc(m.artifacts[thread], func(b snapshot.ThreadArtifact) bool { return b.ID == a.ID })
	m.artifacts[thread] = append(others, a)
	return nil
}

func (m *Memory) Artifacts(ctx context.Context, thread snapshot.ThreadID) ([]snapshot.ThreadArtifact, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.artifacts[thread]), nil
}

func writerName(id snapshot.ThreadID) string { return fmt.Sprintf("thread %q", id) }
func lockName(n snapshot.LockName) string    { return fmt.Sprintf("lock %q", n) }
