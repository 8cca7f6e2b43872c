package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"sandkeep/internal/agent"
	"sandkeep/internal/snapshot"
)

type instanceCmd struct {
	Get    instanceGetCmd    `cmd:"" help:"Print an instance record."`
	Upsert instanceUpsertCmd `cmd:"" help:"Write a whole instance record."`
	Delete instanceDeleteCmd `cmd:"" help:"Delete an instance record."`
	List   instanceListCmd   `cmd:"" help:"List instance records, in the order of their revisions."`
	Attach instanceAttachCmd `cmd:"" help:"Make a directory in the sandbox root a thread's sandbox."`
}

type instanceGetCmd struct {
	Key snapshot.InstanceKey `arg:"" help:"Key of the record."`
}

func (c *instanceGetCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	type request struct {
		Key snapshot.InstanceKey `json:"key"`
	}
	type reply struct {
		Record   *snapshot.Instance
		Revision uint64
	}
	return one(ctx, std, top, "instance.get", request{c.Key}, func(w io.Writer, r reply) error {
		if r.Record == nil {
			return snapshot.Errorf(snapshot.MissingReusableSandbox, "there is no instance record %q; attach a sandbox first", c.Key)
		}
		showInstance(w, *r.Record)
		_, err := fmt.Fprintf(w, "  revision %d\n", r.Revision)
		return err
	})
}

func showInstance(w io.Writer, r snapshot.Instance) {
	fmt.Fprintf(w, "%s\n  thread %s, %s sandbox %s\n", shown(string(r.Key)), shown(string(r.ThreadID)), shown(r.Provider), shown(r.ProviderSandboxID))
	if r.LatestSnapshotID != "" {
		fmt.Fprintf(w, "  latest snapshot %s\n", shown(r.LatestSnapshotID))
	}
	if r.LatestRunID != "" {
		fmt.Fprintf(w, "  latest run %s\n", shown(string(r.LatestRunID)))
	}
}

type instanceUpsertCmd struct {
	Record   string `arg:"" help:"The record, a JSON object; - reads it from stdin."`
	Revision *int64 `name:"expected-revision" wire:"expectedRevision" placeholder:"N" help:"Only if the record has this revision; 0 is absent."`
}

func (c *instanceUpsertCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	record, err := argument(std, c.Record)
	if err != nil {
		return err
	}
	if !json.Valid(record) {
		return &agent.UsageError{Err: fmt.Errorf("RECORD is not JSON")}
	}
	type request struct {
		Record   json.RawMessage `json:"record"`
		Expected *int64          `json:"expectedRevision,omitempty"`
	}
	return one(ctx, std, top, "instance.upsert", request{record, c.Revision}, showRevision)
}

type revisionReply struct{ Revision uint64 }

func showRevision(w io.Writer, r revisionReply) error {
	_, err := fmt.Fprintf(w, "revision %d\n", r.Revision)
	return err
}

type instanceDeleteCmd struct {
	Key      snapshot.InstanceKey `arg:"" help:"Key of the record."`
	Revision *int64               `name:"expected-revision" wire:"expectedRevision" placeholder:"N" help:"Only if the record has this revision."`
}

func (c *instanceDeleteCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	type request struct {
		Key      snapshot.InstanceKey `json:"key"`
		Expected *int64               `json:"expectedRevision,omitempty"`
	}
	return one(ctx, std, top, "instance.delete", request{c.Key, c.Revision}, nothing)
}

type instanceListCmd struct {
	Thread snapshot.ThreadID `name:"thread" placeholder:"ID" help:"Only records of this thread."`
}

func (c *instanceListCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	type reply struct {
		Records []snapshot.Instance
		Next    string
	}
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		return pages(ctx, k, "instance.list",
			func(p snapshot.Page) any { return snapshot.ListInstancesRequest{ThreadID: c.Thread, Page: p} },
			func(r reply) (string, error) {
				for _, record := range r.Records {
					if !k.json {
						showInstance(std.Out, record)
					}
				}
				return r.Next, nil
			})
	})
}

type instanceAttachCmd struct {
	Thread  snapshot.ThreadID `arg:"" help:"Thread that gets the sandbox."`
	Name    string            `arg:"" help:"Name of a directory in the node's sandbox root."`
	Node    snapshot.NodeName `placeholder:"NAME" help:"Node that has the directory (default: the one that answers)."`
	Sandbox string            `placeholder:"NAME" help:"Sandbox definition."`
	RunID   snapshot.RunID    `name:"run" placeholder:"ID" help:"Run to record."`
	tenantFlags
}

func (c *instanceAttachCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	request := snapshot.AttachRequest{ThreadID: c.Thread, Name: c.Name, Node: c.Node, Sandbox: c.Sandbox, Tenant: c.domain(), RunID: c.RunID}
	return one(ctx, std, top, "instance.attach", request, func(w io.Writer, r snapshot.AttachReply) error {
		showInstance(w, r.Record)
		return nil
	})
}

type threadCmd struct {
	Load   threadLoadCmd   `cmd:"" help:"Print a conversation, one message a line."`
	Save   threadSaveCmd   `cmd:"" help:"Replace a conversation."`
	Delete threadDeleteCmd `cmd:"" help:"Delete a thread with its checkpoints, conversation and artifacts."`
}

type threadLoadCmd struct {
	Thread snapshot.ThreadID `arg:"" help:"Thread to load."`
}

func (c *threadLoadCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	type reply struct{ Messages []json.RawMessage }
	return one(ctx, std, top, "thread.load", snapshot.ThreadRequest{ThreadID: c.Thread}, func(w io.Writer, r reply) error {
		for _, m := range r.Messages {
			if _, err := fmt.Fprintf(w, "%s\n", m); err != nil {
				return err
			}
		}
		return nil
	})
}

type threadSaveCmd struct {
	Thread   snapshot.ThreadID `arg:"" help:"Thread to save."`
	File     string            `arg:"" help:"File with a JSON array of messages, - for stdin."`
	Revision *int64            `name:"expected-revision" wire:"expectedRevision" placeholder:"N" help:"Only if the conversation has this revision."`
}

// Run sends the messages byte for byte.
func (c *threadSaveCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	messages, err := readAll(std, c.File)
	if err != nil {
		return err
	}
	if !json.Valid(messages) {
		return &agent.UsageError{Err: fmt.Errorf("%s is not JSON; a JSON array of messages is needed", c.File)}
	}
	head, err := marshal(struct {
		Thread   snapshot.ThreadID `json:"threadId"`
		Expected *int64            `json:"expectedRevision,omitempty"`
	}{c.Thread, c.Revision})
	if err != nil {
		return err
	}
	request := fmt.Appendf(head[:len(head)-1:len(head)-1], `,"messages":%s}`, messages)
	return one(ctx, std, top, "thread.save", request, showRevision)
}

type threadDeleteCmd struct {
	Thread snapshot.ThreadID `arg:"" help:"Thread to delete."`
}

func (c *threadDeleteCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	type reply struct{ Checkpoints int64 }
	return one(ctx, std, top, "thread.delete", snapshot.ThreadRequest{ThreadID: c.Thread}, func(w io.Writer, r reply) error {
		_, err := fmt.Fprintf(w, "%s deleted\n", plural(r.Checkpoints, "checkpoint", "checkpoints"))
		return err
	})
}
