package snapshot

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// lockWait outlasts the lock of a worker that died while it held it.
const lockWait = time.Minute

// baseWait bounds the time that a save spends on its hint to others.
const baseWait = time.Second

// resumeTries bounds how often a concurrent change of the instance record is followed.
const resumeTries = 100

// maxLabelBytes keeps a record far below the largest message.
const maxLabelBytes = 4096

// staged is a save's input, validated before anything is locked.
type staged struct {
	SaveRequest
	def    Definition
	key    InstanceKey
	chosen bool // the client chose the checkpointId, so this may be a retry
}

// Save captures the thread's sandbox as a new checkpoint. It never makes a
// sandbox. Before the commit a failure changes nothing; after it the reply is
// the checkpoint, with warnings for what went wrong since.
func (s *Service) Save(ctx context.Context, req SaveRequest) (*Checkpoint, []Warning, error) {
	in, err := s.stageSave(req)
	if err != nil {
		return nil, nil, err
	}
	if done, err := s.savedBefore(ctx, in.SaveRequest); done != nil || err != nil {
		return s.reply(ctx, done, req.Include, err)
	}
	if in.chosen = in.CheckpointID != ""; !in.chosen {
		in.CheckpointID = CheckpointID(s.NewID())
	}
	lease, err := s.Leases.Acquire(ctx, in.ThreadID, waitTime(in.WaitMs))
	if err != nil {
		return nil, nil, err
	}
	rec, err, released := s.saveHeld(ctx, in, lease)
	if err != nil {
		return nil, nil, errors.Join(err, released)
	}
	cp, warnings, err := s.reply(ctx, rec, req.Include, nil)
	warnings = append(warnings, coverageWarnings(rec.Coverage)...)
	if released != nil {
		warnings = append(warnings, warning("the lease of the thread was not released and ends by itself", released))
	}
	return cp, warnings, err
}

func (s *Service) stageSave(req SaveRequest) (staged, error) {
	in := staged{SaveRequest: req}
	if err := s.noSecret(string(req.ThreadID), string(req.RunID), string(req.CheckpointID), string(req.InstanceKey)); err != nil {
		return in, err
	}
	if len(req.Label) > maxLabelBytes {
		return in, Errorf(BadRequest, "label has %d bytes; at most %d are allowed", len(req.Label), maxLabelBytes)
	}
	in.Label = s.Redactor.Text(req.Label)
	var err error
	if in.def, err = s.Sandboxes.Definition(req.Sandbox); err != nil {
		return in, err
	}
	if in.def.Reuse == "none" {
		return in, Errorf(ReuseNone, "sandboxes of definition %q are never reused, so there is none to save; set its reuse to \"thread\"", in.def.Name)
	}
	if in.key = req.InstanceKey; in.key == "" {
		in.key = s.Sandboxes.Key(req.ThreadID, in.def, req.Tenant)
	}
	return in, nil
}

// savedBefore answers a retry: a stored checkpoint of the same thread, run and label.
func (s *Service) savedBefore(ctx context.Context, req SaveRequest) (*Record, error) {
	if req.CheckpointID == "" {
		return nil, nil
	}
	rec, err := s.Checkpoints.Get(ctx, req.CheckpointID)
	if rec == nil || err != nil {
		return nil, err
	}
	if rec.Thread == req.ThreadID && rec.SourceRun == req.RunID && rec.Label == s.Redactor.Text(req.Label) {
		return rec, nil
	}
	dup := Errorf(DuplicateID, "checkpoint id %q is in use by another checkpoint; choose another checkpointId", req.CheckpointID)
	if rec.Thread == req.ThreadID {
		dup = dup.With("threadId", rec.Thread)
	}
	return nil, dup
}

// SandboxNode is the node that a save has to run on; "" if any can answer it.
func (s *Service) SandboxNode(ctx context.Context, req SaveRequest) (NodeName, error) {
	in, err := s.stageSave(req)
	if err != nil {
		return "", err
	}
	if done, err := s.savedBefore(ctx, req); done != nil || err != nil {
		return "", err
	}
	rec, _, err := s.Instances.Instance(ctx, in.key)
	if rec == nil || err != nil {
		return "", err
	}
	return s.Sandboxes.Node(*rec), nil
}

// saveHeld captures and commits under the lease, which it always gives up. The
// error of a lost renewal comes before the one of the operation.
func (s *Service) saveHeld(ctx context.Context, in staged, lease Lease) (rec *Record, err, released error) {
	heldCtx, h := s.holdLease(ctx, lease)
	defer func() { released = h.release(ctx) }()
	rec, before, err := s.retryOrCapture(heldCtx, in)
	if lost := h.stop(); lost != nil {
		return nil, errors.Join(lost, err), nil
	}
	if err != nil || before == nil {
		return rec, err, nil
	}
	state, err := s.Checkpoints.State(ctx, in.ThreadID)
	if err != nil {
		return nil, err, nil
	}
	if err := s.follow(ctx, rec, state.Head); err != nil {
		return nil, err, nil
	}
	if err := h.confirm(ctx); err != nil {
		return nil, err, nil
	}
	began := s.Now()
	if err := s.Checkpoints.Append(ctx, rec, state.Head, lease.Writer); err != nil {
		return nil, err, nil
	}
	s.phase(rec, "commit", began, Phase{Count: 1})
	if !reflect.DeepEqual(rec.Files, *before) {
		s.moveBase(ctx, in.base(), rec.Files)
	}
	return rec, nil, nil
}

// retryOrCapture looks once more for an equal request that was at work when
// this one came, then captures. before is the manifest that the capture went
// from; nil if there was none, since the record is there.
func (s *Service) retryOrCapture(ctx context.Context, in staged) (rec *Record, before *List, err error) {
	if in.chosen {
		if rec, err := s.savedBefore(ctx, in.SaveRequest); rec != nil || err != nil {
			return rec, nil, err
		}
	}
	return s.capture(ctx, in)
}

// phase notes how long a part of the save took.
func (s *Service) phase(rec *Record, name string, began time.Time, p Phase) {
	if rec.Coverage.Phases == nil {
		rec.Coverage.Phases = map[string]Phase{}
	}
	p.Ms = float64(s.Now().Sub(began).Microseconds()) / 1000
	rec.Coverage.Phases[name] = p
}

// follow makes rec the child of head, and later than it, so that a list by
// time is the order of the chain whatever the clocks of the workers say.
func (s *Service) follow(ctx context.Context, rec *Record, head CheckpointID) error {
	rec.Parent = head
	if head == "" {
		return nil
	}
	parent, err := s.Checkpoints.Get(ctx, head)
	if err == nil && parent != nil && rec.CreatedAt <= parent.CreatedAt {
		rec.CreatedAt = parent.CreatedAt + 1
	}
	return err
}

// capture stores everything that the checkpoint refers to and returns its
// record, which nobody sees yet, and the manifest before.
func (s *Service) capture(ctx context.Context, in staged) (rec *Record, before *List, err error) {
	box, err := s.resume(ctx, in)
	if err != nil {
		return nil, nil, err
	}
	state, err := s.Checkpoints.State(ctx, in.ThreadID)
	if err != nil {
		return nil, nil, err
	}
	parent, err := s.parentOf(ctx, in, state.Head)
	if err != nil {
		return nil, nil, err
	}
	rec = &Record{ID: in.CheckpointID, Thread: in.ThreadID, Reason: ReasonAutomatic, Label: in.Label, SourceRun: in.RunID,
		CreatedAt: s.millis(), Conversation: state.Messages, Nonce: s.NewID()}
	if in.Label != "" {
		rec.Reason = ReasonNamed
	}
	if err := s.captureFiles(ctx, rec, box.Dir, in, parent.Files); err != nil {
		return nil, nil, err
	}
	return rec, &parent.Files, s.captureArtifacts(ctx, rec, parent.Artifacts)
}

// parentOf is the record at the head, or of a thread without one, what the
// definition's newest save stored.
func (s *Service) parentOf(ctx context.Context, in staged, head CheckpointID) (*Record, error) {
	if head == "" {
		files, err := s.Checkpoints.Base(ctx, in.base())
		return &Record{Files: files}, err
	}
	parent, err := s.Checkpoints.Get(ctx, head)
	if err == nil && parent == nil {
		err = Errorf(WriterLost, "the head of thread %q moved during the save; save again", in.ThreadID)
	}
	return parent, err
}

// resume finds the existing sandbox under its lock.
func (s *Service) resume(ctx context.Context, in staged) (box Sandbox, err error) {
	err = s.lockSandbox(ctx, in.key, func(ctx context.Context) error {
		for try := 0; ; try++ { // an upsert takes no lock and may come between
			box, err = s.tryResume(ctx, in)
			if !errors.Is(err, StaleRevision) {
				return err
			}
			if try == resumeTries {
				return Errorf(Busy, "the instance record of thread %q changes all the time; send the request again", in.ThreadID).Because(err)
			}
		}
	})
	return box, err
}

// lockSandbox runs fn under the sandbox's lock. The lock is the worker's own
// affair: a client that hears of its loss can only send the request again.
func (s *Service) lockSandbox(ctx context.Context, key InstanceKey, fn func(context.Context) error) error {
	err := s.Leases.Lock(ctx, LockName("sandbox:"+string(key)), lockWait, fn)
	if errors.Is(err, LockLost) {
		return Errorf(Busy, "the worker was held up and lost its lock on the sandbox before it was done; send the request again").Because(err)
	}
	return err
}

// tryResume resumes the sandbox and notes this run in its record.
func (s *Service) tryResume(ctx context.Context, in staged) (Sandbox, error) {
	rec, revision, err := s.Instances.Instance(ctx, in.key)
	if err != nil {
		return Sandbox{}, err
	}
	if err := s.reusable(rec, in); err != nil {
		return Sandbox{}, err
	}
	box, err := s.Sandboxes.Resume(ctx, *rec, in.def, in.AdapterName)
	if err != nil {
		return Sandbox{}, err
	}
	rec.LatestRunID, rec.UpdatedAt = in.RunID, s.millis()
	_, err = s.Instances.PutInstance(ctx, *rec, int64(revision))
	return box, err
}

func (s *Service) reusable(rec *Instance, in staged) error {
	missing := func(why string) error {
		return Errorf(MissingReusableSandbox, "thread %q has no sandbox to save: %s; attach one with instance.attach", in.ThreadID, why).With("key", in.key)
	}
	switch {
	case rec == nil:
		return missing("there is no instance record under its key, which depends on the definition and what that leaves out")
	case rec.ThreadID != in.ThreadID:
		return missing("the instance record under its key belongs to another thread")
	case rec.Provider != in.def.Provider:
		return missing(fmt.Sprintf("its instance record is of provider %q, definition %q uses %q", rec.Provider, in.def.Name, in.def.Provider))
	case in.def.SnapshotMaxAge > 0 && s.millis()-rec.UpdatedAt > Millis(in.def.SnapshotMaxAge.Milliseconds()):
		return missing(fmt.Sprintf("its instance record is older than the definition's snapshotMaxAge of %s", in.def.SnapshotMaxAge))
	}
	return nil
}

func (s *Service) captureFiles(ctx context.Context, rec *Record, dir string, in staged, parent List) error {
	if err := s.Workspaces.CheckRoot(dir); err != nil {
		return err
	}
	tree, err := s.Objects.NewTree(ctx, parent)
	if err != nil {
		return err
	}
	defer tree.Abort()
	captured, err := s.Workspaces.Capture(ctx, dir, in.def.Policy, string(in.key), tree)
	if err != nil {
		return err
	}
	rec.Stats, rec.Coverage = captured.Stats, captured.Coverage
	began := s.Now()
	rec.Files, rec.Stats.NewBytes, err = tree.Finish(ctx)
	s.phase(rec, "upload", began, Phase{Bytes: rec.Stats.NewBytes})
	return err
}

func (in staged) base() BaseKey { return BaseKey{in.def.Name, in.Tenant} }

// moveBase lets the first save of another thread reuse what this one stored. It
// is worth no failure, and little time. It comes after the commit: if the worker
// dies in between, the base is the one before, which is as good a parent, only
// older; never is it a manifest that no checkpoint had.
func (s *Service) moveBase(ctx context.Context, key BaseKey, files List) {
	ctx, cancel := context.WithTimeout(ctx, baseWait)
	defer cancel()
	_ = s.Checkpoints.MoveBase(ctx, key, files)
}

// coverageWarnings point at entries that the checkpoint does not have as they were.
func coverageWarnings(c Coverage) (out []Warning) {
	if len(c.Skipped) > 0 {
		out = append(out, Warning{UnsupportedEntry, fmt.Sprintf("entries that can't be kept were left out, %q among them; coverage.skipped lists them", c.Skipped[0].Path)})
	}
	if len(c.Unstable) > 0 {
		out = append(out, Warning{WorkspaceChanged, fmt.Sprintf("files kept changing while they were read, %q among them; coverage.unstable lists them", c.Unstable[0])})
	}
	return out
}

func warning(what string, cause error) Warning {
	w := Warning{Code: Internal, Message: what}
	if e := AsError(cause); e != nil {
		w.Code, w.Message = e.Code, what+": "+e.Message
	}
	return w
}
