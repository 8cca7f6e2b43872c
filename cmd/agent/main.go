// Agent keeps checkpoints of coding-agent sandboxes in NATS JetStream: the
// worker, and the command line that people use.
package main

import (
	"fmt"

	"github.com/alecthomas/kong"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
)

const description = "Durable, forkable checkpoints of coding-agent sandboxes on NATS JetStream."

type cli struct {
	agent.Common
	bus.ConnectOptions
	JSON        bool             `name:"json" help:"Print the reply as it came: one JSON document a line, and one a page where there are several."`
	ShowVersion kong.VersionFlag `name:"version" env:"-" help:"Print the version."`
	answered    bool             // --json has printed a reply that says what the error does

	Init     initCmd     `cmd:"" settings:"" help:"Make the buckets of a store."`
	Serve    serveCmd    `cmd:"" settings:"" help:"Answer requests until SIGTERM."`
	Demo     demoCmd     `cmd:"" settings:"" help:"Save, fork and restore a workspace on a server of its own, and compare."`
	Request  requestCmd  `cmd:"" wire:"-" help:"Send a request and print its reply."`
	Save     saveCmd     `cmd:"" help:"Save a checkpoint of a thread's sandbox."`
	Fork     forkCmd     `cmd:"" help:"Start a thread from a checkpoint of another."`
	Restore  restoreCmd  `cmd:"" help:"Write a checkpoint into a new directory of a node or, with --exact, make an existing one equal to it."`
	Log      logCmd      `cmd:"" help:"List the checkpoints of a thread, oldest first."`
	Ls       lsCmd       `cmd:"" help:"List the entries of a checkpoint; with --json one document for each 1,000 of them."`
	Head     headCmd     `cmd:"" help:"Print the newest checkpoint of a thread."`
	Diff     diffCmd     `cmd:"" help:"List what differs between two checkpoints."`
	Cat      catCmd      `cmd:"" help:"Print a file of a checkpoint."`
	Artifact artifactCmd `cmd:"" help:"Read, put, list and delete artifacts."`
	Instance instanceCmd `cmd:"" help:"Get, put, delete, list and attach instance records."`
	Thread   threadCmd   `cmd:"" help:"Load and save conversations, delete threads."`
	Blob     blobCmd     `cmd:"" help:"Put, get and look for contents."`
	Writer   writerCmd   `cmd:"" help:"Acquire, renew and release the writer lease of a thread."`
	Lock     lockCmd     `cmd:"" help:"Acquire, renew and release a named lock."`

	DeleteHead deleteHeadCmd `cmd:"" help:"Take the newest checkpoint off a thread."`

	Version versionCmd `cmd:"" help:"Print the version."`
}

type versionCmd struct{}

func (versionCmd) Run(std agent.IO) error {
	_, err := fmt.Fprintln(std.Out, agent.Version)
	return err
}

func main() {
	agent.Program{Name: "agent", Description: description, CLI: &cli{}}.Main()
}
