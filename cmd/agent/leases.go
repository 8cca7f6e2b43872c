package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"sandkeep/internal/agent"
	"sandkeep/internal/snapshot"
)

// A lease is a secret, so it is never an argument, which other users of the
// machine can see: acquire prints it, the other commands read it from a file.

type writerCmd struct {
	Acquire writerAcquireCmd `cmd:"" help:"Acquire the lease of a thread and print it, a secret, as JSON."`
	Renew   writerRenewCmd   `cmd:"" help:"Extend a lease."`
	Release writerReleaseCmd `cmd:"" help:"Give a lease up."`
}

type lockCmd struct {
	Acquire lockAcquireCmd `cmd:"" help:"Acquire a lock and print its lease, a secret, as JSON."`
	Renew   lockRenewCmd   `cmd:"" help:"Extend a lease."`
	Release lockReleaseCmd `cmd:"" help:"Give a lock up."`
}

// acquireFlags say how long to hold and how long to wait.
type acquireFlags struct {
	TTL  time.Duration `name:"ttl" wire:"leaseDurationMs" placeholder:"30s" help:"How long to hold it, 3s to 10m (default: 30s)."`
	Wait time.Duration `wire:"waitMs" help:"How long to wait for another holder."`
}

func (f acquireFlags) duration() *int64 {
	if f.TTL == 0 {
		return nil
	}
	ms := f.TTL.Milliseconds()
	return &ms
}

type writerAcquireCmd struct {
	Thread snapshot.ThreadID `arg:"" help:"Thread to write to."`
	acquireFlags
}

func (c *writerAcquireCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	request := snapshot.AcquireRequest{ThreadID: c.Thread, LeaseDurationMs: c.duration(), WaitMs: c.Wait.Milliseconds()}
	return one(ctx, std, top, "writer.acquire", request, asItCame)
}

type lockAcquireCmd struct {
	Name snapshot.LockName `arg:"" help:"Name of the lock."`
	acquireFlags
}

func (c *lockAcquireCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	request := snapshot.AcquireLockRequest{Name: c.Name, LeaseDurationMs: c.duration(), WaitMs: c.Wait.Milliseconds()}
	return one(ctx, std, top, "lock.acquire", request, asItCame)
}

func asItCame(w io.Writer, reply json.RawMessage) error {
	_, err := fmt.Fprintf(w, "%s\n", reply)
	return err
}

// leaseFile is where a lease is read from.
type leaseFile struct {
	Lease string `arg:"" help:"File with what acquire has printed, - for stdin."`
}

func (f leaseFile) writer(std agent.IO) (w snapshot.Writer, err error) {
	err = f.read(std, &w, &w.OwnerToken)
	return w, err
}

func (f leaseFile) lock(std agent.IO) (l snapshot.Lock, err error) {
	err = f.read(std, &l, &l.OwnerToken)
	return l, err
}

// read says nothing of what is in the file.
func (f leaseFile) read(std agent.IO, lease any, token *string) error {
	raw, err := readAll(std, f.Lease)
	if err != nil {
		return err
	}
	if json.Unmarshal(raw, lease) != nil || *token == "" {
		return &agent.UsageError{Err: fmt.Errorf("%s holds no lease; give it what acquire has printed", f.Lease)}
	}
	return nil
}

type renewReply struct{ ExpiresAt float64 }

func showRenewed(w io.Writer, r renewReply) error {
	_, err := fmt.Fprintf(w, "held until %s\n", checkpoint{CreatedAt: r.ExpiresAt}.time())
	return err
}

type writerRenewCmd struct{ leaseFile }

func (c *writerRenewCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	w, err := c.writer(std)
	if err != nil {
		return err
	}
	return one(ctx, std, top, "writer.renew", w, showRenewed)
}

type writerReleaseCmd struct{ leaseFile }

func (c *writerReleaseCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	w, err := c.writer(std)
	if err != nil {
		return err
	}
	return one(ctx, std, top, "writer.release", w, nothing)
}

type lockRenewCmd struct{ leaseFile }

func (c *lockRenewCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	l, err := c.lock(std)
	if err != nil {
		return err
	}
	return one(ctx, std, top, "lock.renew", l, showRenewed)
}

type lockReleaseCmd struct{ leaseFile }

func (c *lockReleaseCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	l, err := c.lock(std)
	if err != nil {
		return err
	}
	return one(ctx, std, top, "lock.release", l, nothing)
}

type deleteHeadCmd struct {
	Thread     snapshot.ThreadID     `arg:"" help:"Thread to shorten."`
	Checkpoint snapshot.CheckpointID `arg:"" help:"Its newest checkpoint."`
	leaseFile
}

func (c *deleteHeadCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	holder, err := c.writer(std)
	if err != nil {
		return err
	}
	type reply struct{ HeadID *snapshot.CheckpointID }
	request := snapshot.DeleteHeadRequest{ThreadID: c.Thread, CheckpointID: c.Checkpoint, Writer: holder}
	return one(ctx, std, top, "checkpoint.delete-head", request, func(w io.Writer, r reply) error {
		now := "no checkpoint is left"
		if r.HeadID != nil {
			now = shown(string(*r.HeadID))
		}
		_, err := fmt.Fprintln(w, now)
		return err
	})
}
