package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"mime"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

type artifactCmd struct {
	Read   artifactReadCmd   `cmd:"" help:"Print an artifact of a checkpoint."`
	Put    artifactPutCmd    `cmd:"" help:"Put an artifact into a thread, or replace it."`
	List   artifactListCmd   `cmd:"" help:"List the artifacts of a thread."`
	Delete artifactDeleteCmd `cmd:"" help:"Delete an artifact of a thread."`
}

type artifactReadCmd struct {
	Thread     snapshot.ThreadID     `arg:"" help:"Thread of the checkpoint."`
	Checkpoint snapshot.CheckpointID `arg:"" help:"Checkpoint that has the artifact."`
	Artifact   snapshot.ArtifactID   `arg:"" help:"Artifact to read."`
}

func (c *artifactReadCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		var reply struct {
			Data   *[]byte
			Object string
		}
		request := snapshot.ReadArtifactRequest{ThreadID: c.Thread, CheckpointID: c.Checkpoint, ArtifactID: c.Artifact}
		if err := k.call(ctx, "artifact.read", request, &reply); err != nil {
			return err
		}
		if reply.Data != nil || k.json {
			return k.write(deref(reply.Data))
		}
		return k.download(ctx, reply.Object)
	})
}

func deref(b *[]byte) []byte {
	if b == nil {
		return nil
	}
	return *b
}

type artifactPutCmd struct {
	Thread   snapshot.ThreadID   `arg:"" help:"Thread that gets the artifact."`
	Artifact snapshot.ArtifactID `arg:"" help:"Id of the artifact."`
	File     string              `arg:"" help:"File with its bytes, - for stdin."`
	RunID    snapshot.RunID      `name:"run" default:"cli" help:"Run that made it (default: cli)."`
	Name     string              `help:"Name (default: that of the file)."`
	Mime     string              `wire:"mimeType" help:"MIME type (default: by the name)."`
}

// Run sends small artifacts in the request and uploads large ones first.
func (c *artifactPutCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		type request struct {
			snapshot.PutArtifactRequest
			Data   *[]byte `json:"data,omitempty"`
			Object string  `json:"object,omitempty"`
		}
		r := request{PutArtifactRequest: snapshot.PutArtifactRequest{ThreadID: c.Thread, RunID: c.RunID, ArtifactID: c.Artifact,
			Name: c.name(), MimeType: c.mime()}}
		var err error
		if r.Data, r.Object, err = k.upload(ctx, c.File); err != nil {
			return err
		}
		var reply snapshot.Artifact
		if err := k.call(ctx, "artifact.put", r, &reply); err != nil {
			return err
		}
		k.line("%s  %s  %s", shown(string(reply.ID)), size(reply.Size), shown(reply.BlobKey))
		return nil
	})
}

func (c *artifactPutCmd) name() string {
	switch {
	case c.Name != "":
		return c.Name
	case c.File == "-":
		return string(c.Artifact)
	}
	return filepath.Base(c.File)
}

func (c *artifactPutCmd) mime() string {
	if c.Mime != "" {
		return c.Mime
	}
	if byName := mime.TypeByExtension(filepath.Ext(c.name())); byName != "" {
		return byName
	}
	return "application/octet-stream"
}

type artifactListCmd struct {
	Thread snapshot.ThreadID `arg:"" help:"Thread to look at."`
}

func (c *artifactListCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	type reply struct {
		Artifacts []snapshot.Artifact
		Next      string
	}
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		return pages(ctx, k, "artifact.list",
			func(p snapshot.Page) any { return snapshot.ListArtifactsRequest{ThreadID: c.Thread, Page: p} },
			func(r reply) (string, error) {
				for _, a := range r.Artifacts {
					k.line("%s  %s  %8s  %s  %s", shown(string(a.ID)), checkpoint{CreatedAt: float64(a.CreatedAt)}.time(),
						size(a.Size), shown(a.MimeType), shown(a.Name))
				}
				return r.Next, nil
			})
	})
}

type artifactDeleteCmd struct {
	Thread   snapshot.ThreadID   `arg:"" help:"Thread of the artifact."`
	Artifact snapshot.ArtifactID `arg:"" help:"Artifact to delete."`
}

func (c *artifactDeleteCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	return one(ctx, std, top, "artifact.delete", snapshot.DeleteArtifactRequest{ThreadID: c.Thread, ArtifactID: c.Artifact}, nothing)
}

// upload reads a file for a request: small ones stand in the request, large
// ones are put into the uploads bucket first.
func (k *caller) upload(ctx context.Context, path string) (*[]byte, string, error) {
	f, err := input(k.std, path)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	head := make([]byte, maxInline)
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		head = head[:n]
		return &head, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read file: %w", err)
	}
	bucket, name := k.Store+"-uploads", rand.Text()
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	store, err := k.JetStream.ObjectStore(ctx, bucket)
	if err == nil {
		_, err = store.Put(ctx, jetstream.ObjectMeta{Name: name}, io.MultiReader(bytes.NewReader(head), f))
	}
	if err != nil {
		return nil, "", snapshot.Errorf(snapshot.StoreUnavailable, "the file could not be put into bucket %s; try again", bucket).Because(err)
	}
	return nil, bucket + "/" + name, nil
}

// maxInline is the most that is sent in a request; base64 makes it a third larger.
const maxInline = 512 << 10

// download prints an object. Its digest is only known at the end: wrong bytes
// end in an error after they were printed.
func (k *caller) download(ctx context.Context, object string) error {
	bucket, name, _ := strings.Cut(object, "/")
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	store, err := k.JetStream.ObjectStore(ctx, bucket)
	if err != nil {
		return snapshot.Errorf(snapshot.StoreUnavailable, "bucket %q could not be opened; check --store", bucket).Because(err)
	}
	body, err := bus.Fetch(ctx, store, name)
	if err != nil {
		return snapshot.Errorf(snapshot.StoreUnavailable, "object %q could not be fetched; try again", object).Because(err)
	}
	defer body.Close()
	if _, err := io.Copy(k.std.Out, body); err != nil {
		return snapshot.Errorf(snapshot.InvalidArtifactBytes, "object %q did not come whole; what was printed is not to be used", object).Because(err)
	}
	return nil
}
