package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"sandkeep/internal/agent"
	"sandkeep/internal/snapshot"
)

// checkpoint is what the commands show of one.
type checkpoint struct {
	ID        snapshot.CheckpointID  `json:"id"`
	ThreadID  snapshot.ThreadID      `json:"threadId"`
	Parent    *snapshot.CheckpointID `json:"parentCheckpointId"`
	CreatedAt float64                `json:"createdAt"`
	Reason    string                 `json:"reason"`
	Label     string                 `json:"label"`
	Stats     snapshot.Stats         `json:"stats"`
	Coverage  snapshot.Coverage      `json:"coverage"`
}

func (c checkpoint) time() string {
	return time.UnixMicro(int64(c.CreatedAt * 1000)).Local().Format("2006-01-02 15:04:05")
}

func showCheckpoint(w io.Writer, c checkpoint) error {
	_, err := fmt.Fprintf(w, "%s\n  thread %s, %s, %s, %s new\n", shown(string(c.ID)), shown(string(c.ThreadID)),
		plural(c.Stats.Files, "file", "files"), size(c.Stats.Bytes), size(c.Stats.NewBytes))
	if err != nil {
		return err
	}
	if err := showPhases(w, c.Coverage.Phases); err != nil {
		return err
	}
	return showCoverage(w, c.Coverage)
}

// showPhases says where the time of a save went.
func showPhases(w io.Writer, phases map[string]snapshot.Phase) error {
	var parts []string
	for _, name := range []string{"scan", "read", "upload", "commit"} {
		if p, ok := phases[name]; ok {
			parts = append(parts, fmt.Sprintf("%s %.1f ms", name, p.Ms))
		}
	}
	if len(parts) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "  %s\n", strings.Join(parts, ", "))
	return err
}

// showCoverage says in a few lines what a checkpoint does not have.
func showCoverage(w io.Writer, c snapshot.Coverage) error {
	for rule, n := range sorted(c.Excluded) {
		fmt.Fprintf(w, "  excluded by %s: %d\n", shown(rule), n)
	}
	for _, s := range c.Skipped {
		fmt.Fprintf(w, "  skipped %s: %s\n", shown(s.Path), shown(s.Reason))
	}
	for _, path := range c.Unstable {
		fmt.Fprintf(w, "  kept changing: %s\n", shown(path))
	}
	if c.More > 0 {
		fmt.Fprintf(w, "  and %d more\n", c.More)
	}
	if c.Redactions > 0 {
		fmt.Fprintf(w, "  secrets redacted: %d\n", c.Redactions)
	}
	return nil
}

type tenantFlags struct {
	User string `name:"tenant-user" placeholder:"ID" help:"Tenant: the user."`
	Org  string `name:"tenant-org" placeholder:"ID" help:"Tenant: the organisation."`
}

func (t tenantFlags) domain() snapshot.Tenant { return snapshot.Tenant{UserID: t.User, OrgID: t.Org} }

type saveCmd struct {
	Thread  snapshot.ThreadID     `arg:"" help:"Thread to save."`
	RunID   snapshot.RunID        `name:"run" default:"cli" help:"Run that the checkpoint belongs to (default: cli)."`
	Label   string                `help:"Label; the checkpoint is then a named one."`
	Sandbox string                `placeholder:"NAME" help:"Sandbox definition."`
	Key     snapshot.InstanceKey  `help:"Instance key, instead of the computed one."`
	ID      snapshot.CheckpointID `name:"id" help:"Id of the checkpoint; saving it again is no second save."`
	Adapter string                `wire:"adapterName" help:"Adapter name for the provider."`
	Wait    time.Duration         `wire:"waitMs" help:"How long to wait for another writer."`
	tenantFlags
}

func (c *saveCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return one(ctx, std, top, "snapshot.save", snapshot.SaveRequest{
		ThreadID: c.Thread, RunID: c.RunID, Label: c.Label, Sandbox: c.Sandbox, Tenant: c.domain(), AdapterName: c.Adapter,
		InstanceKey: c.Key, CheckpointID: c.ID, WaitMs: c.Wait.Milliseconds(),
	}, showCheckpoint)
}

type forkCmd struct {
	Thread      snapshot.ThreadID     `arg:"" help:"Thread to copy from."`
	Destination snapshot.ThreadID     `arg:"" wire:"destinationThreadId" help:"New thread."`
	Checkpoint  snapshot.CheckpointID `placeholder:"ID" help:"Checkpoint to copy (default: the head)."`
	ID          snapshot.CheckpointID `name:"id" wire:"destinationCheckpointId" help:"Id of the new thread's root."`
	Wait        time.Duration         `wire:"waitMs" help:"How long to wait for another writer."`
}

func (c *forkCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return one(ctx, std, top, "fork", snapshot.ForkRequest{
		ThreadID: c.Thread, CheckpointID: c.Checkpoint, DestinationThreadID: c.Destination,
		DestinationCheckpointID: c.ID, WaitMs: c.Wait.Milliseconds(),
	}, showCheckpoint)
}

type restoreCmd struct {
	Thread     snapshot.ThreadID     `arg:"" help:"Thread to restore."`
	Path       string                `arg:"" help:"Directory below the node's root, new or empty unless --exact."`
	Checkpoint snapshot.CheckpointID `placeholder:"ID" help:"Checkpoint to restore (default: the head)."`
	Into       string                `default:"restore" enum:"restore,sandbox" help:"Root to write into: ${enum}; sandbox also attaches it to the thread."`
	Node       snapshot.NodeName     `placeholder:"NAME" help:"Node to restore on (default: the one that answers)."`
	Only       *string               `placeholder:"PATH" help:"Restore only what lies at or under this path of the checkpoint."`
	Exact      bool                  `help:"Make an existing directory equal to the checkpoint: rewrite what differs, remove what is not in it."`
}

func (c *restoreCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	request := snapshot.RestoreRequest{ThreadID: c.Thread, CheckpointID: c.Checkpoint, Path: c.Path, Into: c.Into, Node: c.Node}
	if c.Exact {
		request.Mode = "exact"
	}
	if c.Only != nil {
		if request.Prefix = *c.Only; request.Prefix == "" {
			return &agent.UsageError{Err: errors.New("--only is empty; give a path of the checkpoint, or leave it out to restore all")}
		}
		if dir, ok := strings.CutSuffix(request.Prefix, "/"); ok && dir != "" {
			request.Prefix = dir
		}
	}
	err := one(ctx, std, top, "restore", request, func(w io.Writer, r snapshot.RestoreReply) error {
		_, err := fmt.Fprintf(w, "%s\n  into %s on node %s, %s, %s\n", shown(string(r.CheckpointID)), shown(r.Path),
			shown(string(r.Node)), plural(r.Files, "file", "files"), size(r.Bytes))
		return err
	})
	return c.advise(err)
}

// advise tells of the other way to restore into a directory that has something in it.
func (c *restoreCmd) advise(err error) error {
	e, ok := errors.AsType[*snapshot.Error](err)
	if !ok || e.Code != snapshot.DestinationNotEmpty || c.Exact {
		return err
	}
	told := *e
	told.Message += "; --exact makes an existing directory equal to the checkpoint, and removes what is not in it"
	if c.Into == "sandbox" {
		told.Message += ", if it is the thread's own sandbox"
	}
	return &told
}

type headCmd struct {
	Thread snapshot.ThreadID `arg:"" help:"Thread to look at."`
}

func (c *headCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	type reply struct{ CheckpointID *snapshot.CheckpointID }
	return one(ctx, std, top, "checkpoint.head", snapshot.ThreadRequest{ThreadID: c.Thread}, func(w io.Writer, r reply) error {
		if r.CheckpointID == nil {
			return noCheckpoint(c.Thread)
		}
		_, err := fmt.Fprintln(w, shown(string(*r.CheckpointID)))
		return err
	})
}

func noCheckpoint(thread snapshot.ThreadID) error {
	return snapshot.Errorf(snapshot.CheckpointNotFound, "thread %q has no checkpoint; save it first", thread)
}

func size(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }
