package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"

	"sandkeep/internal/agent"
	"sandkeep/internal/snapshot"
)

// pageLimit is what is asked for at once, the most that a request may.
var pageLimit int64 = 1000

// pages asks for a list page by page. request makes the request of a page, show
// prints one and returns where the next begins.
func pages[T any](ctx context.Context, k *caller, subject string, request func(snapshot.Page) any, show func(T) (next string, err error)) error {
	page := snapshot.Page{Limit: &pageLimit}
	for {
		var reply T
		if err := k.call(ctx, subject, request(page), &reply); err != nil {
			return err
		}
		next, err := show(reply)
		if err != nil || next == "" {
			return err
		}
		page.After = next
	}
}

type logCmd struct {
	Thread snapshot.ThreadID `arg:"" help:"Thread to look at."`
}

func (c *logCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	type reply struct {
		Checkpoints []checkpoint
		Next        string
	}
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		found := false
		err := pages(ctx, k, "checkpoint.list",
			func(p snapshot.Page) any { return snapshot.ListCheckpointsRequest{ThreadID: c.Thread, Page: p} },
			func(r reply) (string, error) {
				for _, cp := range r.Checkpoints {
					found = true
					k.line("%s  %s  %-9s  %14s  %8s  %s", shown(string(cp.ID)), cp.time(), cp.Reason,
						plural(cp.Stats.Files, "file", "files"), size(cp.Stats.Bytes), shown(cp.Label))
				}
				return r.Next, nil
			})
		if err == nil && !found && !k.json {
			return noCheckpoint(c.Thread)
		}
		return err
	})
}

// entry is an Entry of the wire.
type entry struct {
	Path    string
	Kind    string
	BlobKey string
	Size    int64
	Mode    *uint16
	Mtime   float64
	Target  string
}

func (e entry) mode() uint16 {
	switch {
	case e.Mode != nil:
		return *e.Mode
	case e.Kind == "dir":
		return snapshot.DefaultDirMode
	}
	return snapshot.DefaultFileMode
}

type lsCmd struct {
	Checkpoint snapshot.CheckpointID `arg:"" help:"Checkpoint to list."`
	Under      string                `arg:"" optional:"" name:"path" help:"Only what lies at or under this path."`
}

func (c *lsCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		found := false
		err := k.entries(ctx, c.Checkpoint, c.Under, func(e entry) error {
			found = true
			switch e.Kind {
			case "symlink":
				k.line("symlink  %9s  %s -> %s", "", shown(e.Path), shown(e.Target))
			case "dir":
				k.line("dir %04o %9s  %s/", e.mode(), "", shown(e.Path))
			default:
				k.line("    %04o %9s  %s", e.mode(), size(e.Size), shown(e.Path))
			}
			return nil
		})
		if err == nil && !found && c.Under != "" {
			top.answered = true
			return snapshot.Errorf(snapshot.MissingEntry, "checkpoint %q has nothing at or under %q; `agent ls` without a path lists all", c.Checkpoint, c.Under)
		}
		return err
	})
}

// entries calls fn for each entry of a checkpoint at or under prefix.
func (k *caller) entries(ctx context.Context, id snapshot.CheckpointID, prefix string, fn func(entry) error) error {
	type reply struct {
		Entries []entry
		Next    string
	}
	return pages(ctx, k, "checkpoint.files",
		func(p snapshot.Page) any { return snapshot.ListFilesRequest{CheckpointID: id, Prefix: prefix, Page: p} },
		func(r reply) (string, error) {
			for _, e := range r.Entries {
				if err := fn(e); err != nil {
					return "", err
				}
			}
			return r.Next, nil
		})
}

type catCmd struct {
	Checkpoint snapshot.CheckpointID `arg:"" help:"Checkpoint that has the file."`
	Path       string                `arg:"" help:"Path of the file."`
}

// Run reads a file piece by piece, each as large as a reply may be.
func (c *catCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		for offset, eof := int64(0), false; !eof; {
			var reply struct {
				Entry entry
				Data  []byte
				EOF   bool
			}
			request := snapshot.ReadFileRequest{CheckpointID: c.Checkpoint, Path: c.Path, Offset: offset}
			if err := k.call(ctx, "file.read", request, &reply); err != nil {
				return c.explain(ctx, k, err)
			}
			if err := c.notFile(reply.Entry); err != nil && !k.json {
				return err
			}
			if len(reply.Data) == 0 && !reply.EOF {
				return snapshot.Errorf(snapshot.Internal, "the worker sent no bytes of %q from %d on", c.Path, offset)
			}
			if err := k.write(reply.Data); err != nil {
				return err
			}
			offset, eof = offset+int64(len(reply.Data)), reply.EOF
		}
		return nil
	})
}

// notFile is the error for an entry without bytes of its own.
func (c *catCmd) notFile(e entry) error {
	switch e.Kind {
	case "symlink":
		return snapshot.Errorf(snapshot.InvalidPath, "%q is a link to %q; print the file that it leads to", c.Path, e.Target)
	case "dir":
		return snapshot.Errorf(snapshot.InvalidPath, "%q is a directory; `agent ls` lists it", c.Path)
	}
	return nil
}

// explain finds directories that are known by what lies in them only.
func (c *catCmd) explain(ctx context.Context, k *caller, err error) error {
	if !errors.Is(err, snapshot.MissingEntry) || k.json {
		return err
	}
	var reply struct{ Entries []entry }
	one := int64(1)
	request := snapshot.ListFilesRequest{CheckpointID: c.Checkpoint, Prefix: c.Path, Page: snapshot.Page{Limit: &one}}
	if k.call(ctx, "checkpoint.files", request, &reply) == nil && len(reply.Entries) > 0 {
		return c.notFile(entry{Kind: "dir"})
	}
	return err
}

type diffCmd struct {
	From snapshot.CheckpointID `arg:"" help:"Checkpoint to start from."`
	To   snapshot.CheckpointID `arg:"" help:"Checkpoint to compare with it."`
}

// diffRow is a Change of the wire.
type diffRow struct {
	Path   string
	Change string
	From   *entry
	To     *entry
}

// modes tells the permission bits on both sides, if only they differ.
func (r diffRow) modes() string {
	if r.Change != "mode" || r.From == nil || r.To == nil {
		return ""
	}
	return fmt.Sprintf("  %04o -> %04o", r.From.mode(), r.To.mode())
}

func (c *diffCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	type reply struct {
		Changes []diffRow
		Next    string
	}
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		return pages(ctx, k, "checkpoint.diff",
			func(p snapshot.Page) any { return snapshot.DiffRequest{From: c.From, To: c.To, Page: p} },
			func(r reply) (string, error) {
				for _, row := range r.Changes {
					k.line("%-8s  %s%s", row.Change, shown(row.Path), row.modes())
				}
				return r.Next, nil
			})
	})
}

// line prints for people only.
func (k *caller) line(format string, args ...any) {
	if !k.json {
		fmt.Fprintf(k.std.Out, format+"\n", args...)
	}
}

// write prints bytes, unless the replies are printed as they came.
func (k *caller) write(b []byte) error {
	if k.json {
		return nil
	}
	_, err := k.std.Out.Write(b)
	return err
}

// sorted yields a map in the order of its keys.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}

// nothing shows a reply that says no more than that it is done.
func nothing(io.Writer, struct{}) error { return nil }
