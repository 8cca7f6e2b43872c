package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

type demoCmd struct {
	Dir                string `arg:"" optional:"" type:"existingdir" help:"Workspace to try it with, which is copied and stays as it is (default: a small one)."`
	NoDefaultExcludes  bool   `help:"Also keep node_modules and .env files."`
	IncludeCredentials bool   `help:"Also keep files that hold credentials by convention."`
	Sync               string `default:"always" enum:"always,interval" help:"When writes reach the disk: ${enum} (default: always)."`
}

// demo is one run: a server, a worker and a workspace of its own, all below
// one temporary directory.
type demo struct {
	*caller
	dir    string
	report report
}

// report is what --json prints.
type report struct {
	Equal       bool     `json:"equal"`
	Compared    int      `json:"compared"`
	Differences []string `json:"differences"`
	Excluded    int      `json:"excluded"`
	Skipped     int      `json:"skipped"` // can't be copied or kept
	Changes     []change `json:"changes"`
	Steps       []step   `json:"steps"`
}

type step struct {
	Name string  `json:"name"`
	Ms   float64 `json:"ms"`
	Note string  `json:"note,omitempty"`
}

type change struct {
	Path   string `json:"path"`
	Change string `json:"change"`
}

var errNotEqual = errors.New("the restored tree is not what was saved")

func (c *demoCmd) Run(ctx context.Context, std agent.IO, top *cli) (err error) {
	dir, err := os.MkdirTemp("", "sandkeep-demo-")
	if err != nil {
		return fmt.Errorf("make demo directory: %w", err)
	}
	defer func() { err = errors.Join(err, removeTree(dir)) }()
	common := top.Common
	common.StateDir = filepath.Join(dir, "state")
	if common.LogLevel == "info" {
		common.LogLevel = "warn"
	}
	setup, err := agent.NewSetup(common, c.worker(dir), std.Err, filepath.Join(dir, "store"))
	if err != nil {
		return err
	}
	embedded := agent.Embedded{StoreDir: filepath.Join(dir, "store"), AllowTempStore: true, Listen: "127.0.0.1:0", Sync: c.Sync, Auth: "token"}
	start := time.Now()
	server, err := agent.StartServer(common, embedded, bus.ConnectOptions{}, setup.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Shutdown()) }()
	if err := server.Init(ctx, common, embedded, agent.Buckets{}); err != nil {
		return err
	}
	worker, err := setup.Start(ctx, server.Link)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(ctx, worker)) }()
	d := &demo{dir: dir, caller: newCaller(server.Link, common, agent.IO{In: std.In, Out: std.Out, Err: std.Err}, false, top.Timeout)}
	d.took("start server and worker", start, "")
	if err := d.run(ctx, c.Dir); err != nil {
		return err
	}
	return d.print(top.JSON)
}

func (c *demoCmd) worker(dir string) agent.Worker {
	return agent.Worker{Node: "demo", SandboxRoot: filepath.Join(dir, "sandboxes"), RestoreRoot: filepath.Join(dir, "restored"),
		Lease: 30 * time.Second, Drain: 5 * time.Second,
		Policy: agent.Policy{NoDefaultExcludes: c.NoDefaultExcludes, IncludeCredentials: c.IncludeCredentials}}
}

func stop(ctx context.Context, w *bus.Worker) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return w.Stop(ctx)
}

func (d *demo) took(name string, start time.Time, note string) {
	d.report.Steps = append(d.report.Steps, step{Name: name, Ms: float64(time.Since(start).Microseconds()) / 1000, Note: note})
}

const (
	thread = "demo"
	branch = "demo-fork"
)

// run drives the whole way by requests: attach, save, change, save, fork,
// restore; then it compares.
func (d *demo) run(ctx context.Context, source string) error {
	workspace := filepath.Join(d.dir, "sandboxes", "workspace")
	start := time.Now()
	if err := d.makeWorkspace(ctx, source, workspace); err != nil {
		return fmt.Errorf("make workspace: %w", err)
	}
	saved, err := readTree(ctx, workspace)
	if err != nil {
		return fmt.Errorf("read workspace: %w", err)
	}
	d.took("make workspace", start, plural(int64(len(saved)), "entry", "entries"))
	first, err := d.saveFirst(ctx)
	if err != nil {
		return err
	}
	before, err := d.listing(ctx, first.ID)
	if err != nil {
		return err
	}
	if err := changeWorkspace(workspace, before); err != nil {
		return fmt.Errorf("change workspace: %w", err)
	}
	second, err := d.save(ctx, "save again after a change")
	if err != nil {
		return err
	}
	if err := d.changes(ctx, before, second.ID); err != nil {
		return err
	}
	if err := d.forkAndRestore(ctx, first.ID); err != nil {
		return err
	}
	start = time.Now()
	restored, err := readTree(ctx, filepath.Join(d.dir, "restored", "fork"))
	if err != nil {
		return fmt.Errorf("read restored tree: %w", err)
	}
	d.compare(saved, restored, first.Coverage, before)
	d.took("compare", start, plural(int64(d.report.Compared), "entry", "entries"))
	return nil
}

func (d *demo) makeWorkspace(ctx context.Context, source, workspace string) error {
	if source == "" {
		return smallWorkspace(workspace)
	}
	skipped, err := copyTree(ctx, source, workspace, d.dir)
	d.report.Skipped = len(skipped)
	for _, s := range skipped {
		fmt.Fprintf(d.std.Err, "agent: not copied: %s\n", shown(s))
	}
	return err
}

func (d *demo) saveFirst(ctx context.Context) (checkpoint, error) {
	attach := snapshot.AttachRequest{ThreadID: thread, Name: "workspace"}
	if err := d.call(ctx, "instance.attach", attach, &snapshot.AttachReply{}); err != nil {
		return checkpoint{}, err
	}
	messages := map[string]any{"threadId": thread, "messages": []json.RawMessage{json.RawMessage(`{"role":"user","content":"keep this"}`)}}
	if err := d.call(ctx, "thread.save", messages, &revisionReply{}); err != nil {
		return checkpoint{}, err
	}
	return d.save(ctx, "save")
}

func (d *demo) save(ctx context.Context, name string) (checkpoint, error) {
	start := time.Now()
	var cp checkpoint
	err := d.call(ctx, "snapshot.save", snapshot.SaveRequest{ThreadID: thread, RunID: "demo", Label: name}, &cp)
	d.took(name, start, fmt.Sprintf("%s, %s, %s new", plural(cp.Stats.Files, "file", "files"), size(cp.Stats.Bytes), size(cp.Stats.NewBytes)))
	return cp, err
}

func (d *demo) forkAndRestore(ctx context.Context, id snapshot.CheckpointID) error {
	start := time.Now()
	var root checkpoint
	if err := d.call(ctx, "fork", snapshot.ForkRequest{ThreadID: thread, CheckpointID: id, DestinationThreadID: branch}, &root); err != nil {
		return err
	}
	d.took("fork the first checkpoint", start, "")
	start = time.Now()
	var reply snapshot.RestoreReply
	if err := d.call(ctx, "restore", snapshot.RestoreRequest{ThreadID: branch, Path: "fork"}, &reply); err != nil {
		return err
	}
	d.took("restore the fork", start, fmt.Sprintf("%s, %s", plural(reply.Files, "file", "files"), size(reply.Bytes)))
	return nil
}

// listing is a checkpoint's entries by path.
func (d *demo) listing(ctx context.Context, id snapshot.CheckpointID) (map[string]entry, error) {
	out := map[string]entry{}
	err := d.entries(ctx, id, "", func(e entry) error { out[e.Path] = e; return nil })
	return out, err
}

func (d *demo) changes(ctx context.Context, before map[string]entry, id snapshot.CheckpointID) error {
	after, err := d.listing(ctx, id)
	if err != nil {
		return err
	}
	d.report.Changes = diffEntries(before, after)
	return nil
}
