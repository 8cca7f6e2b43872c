package kvstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"sandkeep/internal/snapshot"
)

// appending is one append, or one fork under a lease, from its first step to
// its answer.
type appending struct {
	s     *Store
	rec   *snapshot.Record
	data  []byte                // rec as it is stored
	head  snapshot.CheckpointID // the head to append to
	fence uint64
	fork  bool // the thread must be empty, and the commit sets its conversation

	seen    uint64      // highest sequence of the thread that was read
	pending *unresolved // a commit whose reply was lost
}

// unresolved is what a lost commit was prepared from.
type unresolved struct {
	seq, gen uint64
	depth    int64 // the slot that it makes visible
}

var (
	errThere       = errors.New("the record is visible already") // the operation is done
	errNeverLanded = errors.New("the commit never landed and never can")
	errUnknown     = errors.New("whether the commit landed can't be known")
)

// Append makes rec visible as the child of expectedHead. (§3)
func (s *Store) Append(ctx context.Context, rec *snapshot.Record, expectedHead snapshot.CheckpointID, w snapshot.Writer) error {
	if w.ThreadID != rec.Thread {
		return writerOf(rec.Thread).lost("the writer is of another thread")
	}
	data, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	th, err := s.heldThread(ctx, w) // steps 1 and 2
	if err != nil {
		return fmt.Errorf("append checkpoint %q: %w", rec.ID, err)
	}
	a := &appending{s: s, rec: rec, data: data, head: expectedHead, fence: w.Fence}
	return a.run(ctx, th, true)
}

// Admit tells what Append would answer, and stores nothing: done if such a
// record is visible, whoever holds the thread now.
func (s *Store) Admit(ctx context.Context, rec *snapshot.Record, expectedHead snapshot.CheckpointID, w snapshot.Writer) (done bool, err error) {
	if w.ThreadID != rec.Thread {
		return false, writerOf(rec.Thread).lost("the writer is of another thread")
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	a := &appending{s: s, rec: rec, head: expectedHead, fence: w.Fence}
	err = s.repeat(ctx, nothingUnresolved, func(ctx context.Context) error {
		th, lost := s.heldThread(ctx, w)
		if lost != nil && !errors.Is(lost, snapshot.WriterLost) && !errors.Is(lost, snapshot.ThreadDeleted) {
			return lost
		}
		found, err := s.get(ctx, rec.ID)
		if err != nil {
			return err
		}
		again := *rec
		again.Parent = expectedHead
		done = found != nil && again.Repeats(found)
		if done || lost != nil {
			return lost
		}
		a.seen = th.seq
		if found != nil {
			return a.confirmed(ctx, a.taken(found))
		}
		return a.confirmed(ctx, a.admit(ctx, th))
	})
	if done {
		return true, nil
	}
	if err != nil {
		err = fmt.Errorf("append checkpoint %q: %w", rec.ID, err)
	}
	return false, err
}

// heldThread reads the thread of a writer. The look at the lease only stops
// early, so its order does not matter.
func (s *Store) heldThread(ctx context.Context, w snapshot.Writer) (th thread, err error) {
	var lost error
	err = inParallel(
		func() error { lost = s.holds(ctx, writerOf(w.ThreadID), w.OwnerToken, w.Fence); return nil },
		func() (err error) { th, err = s.readThread(ctx, w.ThreadID); return err })
	switch {
	case err != nil:
		return th, err
	case th.Deleted:
		return th, threadDeleted(th.id)
	}
	return th, lost
}

// encodeRecord leaves out what is never stored.
func encodeRecord(rec *snapshot.Record) ([]byte, error) {
	if rec.Nonce == "" { // without one, nobody can tell a record from an equal one of somebody else
		return nil, snapshot.Errorf(snapshot.Internal, "checkpoint %q has no nonce", rec.ID)
	}
	stored := *rec
	stored.Coverage.Phases = nil
	data, err := json.Marshal(&stored)
	if err != nil {
		return nil, snapshot.Errorf(snapshot.Internal, "checkpoint %q can't be encoded", rec.ID).Because(err)
	}
	return data, nil
}

// run makes attempts until one has an answer. The first one starts from the
// thread as given; blind lets it expect an unused slot and pointer without
// looking.
func (a *appending) run(ctx context.Context, th thread, blind bool) error {
	first := true
	err := a.s.repeat(ctx, a.unresolved, func(ctx context.Context) (err error) {
		if !first {
			if th, err = a.s.readThread(ctx, a.rec.Thread); err != nil {
				return err
			}
		}
		look := !first || !blind
		first = false
		return a.confirmed(ctx, a.attempt(ctx, th, look))
	})
	switch {
	case err == nil || errors.Is(err, errThere):
		return nil
	case a.unresolved(): // then no failure is definite
		return unknownOutcome(a.rec, err)
	}
	return fmt.Errorf("append checkpoint %q: %w", a.rec.ID, err)
}

// confirmed lets a refusal stand only if the thread is still as it was: what it
// was compared with, the id's record, was read later.
func (a *appending) confirmed(ctx context.Context, refusal error) error {
	if !slices.ContainsFunc(refusals, func(code snapshot.Code) bool { return errors.Is(refusal, code) }) {
		return refusal
	}
	now, err := a.s.readThread(ctx, a.rec.Thread)
	if err == nil && now.seq != a.seen {
		err = errMoved
	}
	return cmp.Or(err, refusal)
}

var refusals = []snapshot.Code{snapshot.DuplicateID, snapshot.StaleHead, snapshot.ParentMismatch, snapshot.ForkDestinationNotEmpty}

func (a *appending) unresolved() bool { return a.pending != nil }

func unknownOutcome(rec *snapshot.Record, cause error) error {
	return snapshot.Errorf(snapshot.Timeout, "the store did not confirm checkpoint %q of thread %q; look for its id, or send the same request again", rec.ID, rec.Thread).
		With("outcome", "unknown").With("checkpointId", rec.ID).With("threadId", rec.Thread).Because(cause)
}

// attempt goes from a fresh read of the thread to the commit.
func (a *appending) attempt(ctx context.Context, th thread, look bool) error {
	if th.exists && th.seq < a.seen {
		return errStale
	}
	a.seen = th.seq
	if a.pending != nil { // R
		if err := a.resolve(ctx, th); !errors.Is(err, errNeverLanded) {
			return err
		}
		a.pending = nil
	}
	if err := a.admit(ctx, th); err != nil { // step 2
		return err
	}
	var pointerSeq, slotSeq uint64 = absent, absent
	if look {
		var err error
		if pointerSeq, slotSeq, err = a.prepare(ctx, &th); err != nil { // steps 3 to 5
			return err
		}
	}
	if err := a.place(ctx, th.Depth+1, pointerSeq, slotSeq); err != nil { // step 6
		return err
	}
	return a.commit(ctx, th) // step 7
}

// admit is step 2: what the thread itself says about the append.
func (a *appending) admit(ctx context.Context, th thread) error {
	if th.Deleted {
		return threadDeleted(th.id)
	}
	if !th.exists || th.Fence != a.fence {
		return writerOf(th.id).lost("another writer took the thread over")
	}
	stale := snapshot.CheckpointID(th.Head) != a.head || a.fork && (th.Depth > 0 || th.Revision > 0)
	if !stale && a.rec.Parent == a.head {
		return nil
	}
	found, err := a.s.get(ctx, a.rec.ID)
	if err != nil {
		return err
	}
	if found != nil {
		return a.taken(found)
	}
	if a.fork {
		return destinationNotEmpty(a.rec, "it has checkpoints or a conversation")
	}
	if stale {
		return snapshot.Errorf(snapshot.StaleHead, "the head of thread %q is %s, not %s; read the thread and append to its head", th.id, snapshot.CheckpointID(th.Head).Shown(), a.head.Shown()).
			With("threadId", th.id).With("actualHead", th.Head)
	}
	return snapshot.Errorf(snapshot.ParentMismatch, "checkpoint %q has parent %s, and the expected head is %s; send the head as its parent", a.rec.ID, a.rec.Parent.Shown(), a.head.Shown()).
		With("threadId", th.id).With("checkpointId", a.rec.ID)
}

// taken answers for a visible record that has the id.
func (a *appending) taken(found *snapshot.Record) error {
	if a.fork {
		if found.Nonce == a.rec.Nonce {
			return errThere
		}
		return destinationNotEmpty(a.rec, fmt.Sprintf("checkpoint id %q is in use", a.rec.ID))
	}
	if a.rec.Repeats(found) && a.rec.Parent == a.head {
		return errThere
	}
	err := snapshot.Errorf(snapshot.DuplicateID, "checkpoint id %q is in use; choose another one", a.rec.ID).With("checkpointId", a.rec.ID)
	if found.Thread == a.rec.Thread {
		err = err.With("threadId", found.Thread)
	}
	return err
}

// prepare is steps 3 to 5: the sequences to expect of pointer and slot. It
// touches every thread that a dead writer's commit could still make refer to
// what is about to be overwritten.
func (a *appending) prepare(ctx context.Context, th *thread) (pointerSeq, slotSeq uint64, err error) {
	sl, err := a.s.kv.get(ctx, slotKey(th.id, th.Depth+1)) // step 3
	if err != nil {
		return 0, 0, err
	}
	p, err := a.s.readPointer(ctx, a.rec.ID) // step 4
	if err != nil {
		return 0, 0, err
	}
	if p.live {
		if err := a.freePointer(ctx, *th, p.pointer); err != nil {
			return 0, 0, err
		}
	}
	if sl.live { // step 5
		if th.seq, err = a.s.touch(ctx, *th); err != nil {
			return 0, 0, err
		}
		a.seen = th.seq
	}
	return p.seq, sl.seq, nil
}

// freePointer is the rest of step 4: is what the pointer leads to visible, and
// if not, can it still become so?
func (a *appending) freePointer(ctx context.Context, th thread, p pointer) error {
	other, err := a.s.readThread(ctx, p.Thread)
	if err != nil {
		return err
	}
	sl, err := a.s.readSlot(ctx, p.Thread, p.Depth)
	if err != nil {
		return err
	}
	if other.live() && p.Depth <= other.Depth && sl.rec != nil && sl.rec.ID == a.rec.ID {
		if sl.seq > other.seq {
			return errMoved
		}
		return a.taken(sl.rec)
	}
	if p.Thread == th.id {
		if other.seq != th.seq {
			return errMoved
		}
		return nil
	}
	if other.live() {
		_, err = a.s.touch(ctx, other)
	}
	return err
}

// place is step 6: pointer and slot, always both, also if they look right
// already, or clean-up could remove them under the commit.
func (a *appending) place(ctx context.Context, depth int64, pointerSeq, slotSeq uint64) error {
	p, err := json.Marshal(pointer{Thread: a.rec.Thread, Depth: depth})
	if err != nil {
		return err
	}
	return inParallel(
		func() error {
			_, err := a.s.kv.put(ctx, write{key: pointerKey(a.rec.ID), value: p, expect: pointerSeq})
			return err
		},
		func() error {
			_, err := a.s.kv.put(ctx, write{key: slotKey(a.rec.Thread, depth), value: a.data, expect: slotSeq})
			return err
		})
}

// commit is step 7.
func (a *appending) commit(ctx context.Context, th thread) error {
	next := th.threadState
	next.Head, next.Depth, next.Gen = headID(a.rec.ID), th.Depth+1, th.Gen+1
	if a.fork {
		next.Messages = a.rec.Conversation
	}
	_, err := a.s.putThread(ctx, th, next)
	if errors.Is(err, errLost) {
		a.pending = &unresolved{seq: th.seq, gen: th.Gen, depth: next.Depth}
	}
	return err
}

// resolve is R: what became of the commit whose reply was lost? nil: it
// landed. errNeverLanded: make a new attempt.
func (a *appending) resolve(ctx context.Context, th thread) error {
	if !th.live() || th.Fence != a.fence || th.Gen != a.pending.gen {
		visible, err := a.s.ownVisible(ctx, th, a.rec, a.pending.depth)
		if err == nil && !visible {
			err = errUnknown
		}
		return err
	}
	if th.seq == a.pending.seq {
		return a.commit(ctx, th) // the same again; it stays unresolved until it is answered
	}
	return errNeverLanded
}

// ownVisible looks for the operation's own record, by its nonce. (§9)
func (s *Store) ownVisible(ctx context.Context, th thread, rec *snapshot.Record, depth int64) (bool, error) {
	if !th.live() || th.Depth < depth {
		return false, nil
	}
	sl, err := s.readSlot(ctx, th.id, depth)
	if err != nil {
		return false, err
	}
	if !sl.belongsTo(th) {
		return false, errMoved
	}
	return sl.rec.ID == rec.ID && sl.rec.Nonce == rec.Nonce, nil
}

func threadDeleted(id snapshot.ThreadID) error {
	return snapshot.Errorf(snapshot.ThreadDeleted, "thread %q was deleted; use another thread id", id).With("threadId", id)
}

func destinationNotEmpty(rec *snapshot.Record, why string) error {
	return snapshot.Errorf(snapshot.ForkDestinationNotEmpty, "thread %q can't be forked into: %s; choose another destination", rec.Thread, why).
		With("destinationThreadId", rec.Thread).With("destinationCheckpointId", rec.ID)
}
