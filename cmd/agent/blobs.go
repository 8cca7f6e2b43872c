package main

import (
	"context"
	"fmt"
	"io"

	"sandkeep/internal/agent"
	"sandkeep/internal/snapshot"
)

type blobCmd struct {
	Put  blobPutCmd  `cmd:"" help:"Put a file's bytes into the store and print their key."`
	Get  blobGetCmd  `cmd:"" help:"Print the bytes of a key."`
	Head blobHeadCmd `cmd:"" help:"Tell which keys the store has."`
}

type blobPutCmd struct {
	File string `arg:"" help:"File to put, - for stdin."`
	Kind string `default:"file" enum:"file,artifact" help:"What the bytes are for: ${enum} (default: file)."`
}

// Run sends small files in the request and uploads large ones first.
func (c *blobPutCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		type request struct {
			Kind   string  `json:"kind"`
			Data   *[]byte `json:"data,omitempty"`
			Object string  `json:"object,omitempty"`
		}
		r := request{Kind: c.Kind}
		var err error
		if r.Data, r.Object, err = k.upload(ctx, c.File); err != nil {
			return err
		}
		var reply snapshot.Blob
		if err := k.call(ctx, "blob.put", r, &reply); err != nil {
			return err
		}
		k.line("%s", shown(reply.Key))
		return nil
	})
}

type blobGetCmd struct {
	Key        string                `arg:"" help:"Key of the bytes."`
	Checkpoint snapshot.CheckpointID `placeholder:"ID" help:"Checkpoint that has them: a worker packs what it saves."`
}

func (c *blobGetCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		var reply snapshot.GetBlobReply
		if err := k.call(ctx, "blob.get", snapshot.GetBlobRequest{Key: c.Key, CheckpointID: c.Checkpoint}, &reply); err != nil {
			return err
		}
		if reply.Data != nil || k.json {
			return k.write(deref(reply.Data))
		}
		return k.download(ctx, reply.Object)
	})
}

type blobHeadCmd struct {
	Keys []string `arg:"" help:"Keys to look for, at most 1000."`
}

func (c *blobHeadCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return one(ctx, std, top, "blob.head", snapshot.HeadBlobsRequest{Keys: c.Keys}, func(w io.Writer, r snapshot.HeadBlobsReply) error {
		found := map[string]string{}
		for _, b := range r.Present {
			found[b.Key] = size(b.Size)
		}
		for _, key := range c.Keys {
			what, ok := found[key]
			if !ok {
				what = "missing"
			}
			if _, err := fmt.Fprintf(w, "%9s  %s\n", what, shown(key)); err != nil {
				return err
			}
		}
		return nil
	})
}
