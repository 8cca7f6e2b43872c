package main

import (
	"context"
	"fmt"

	"sandkeep/internal/agent"
)

type initCmd struct {
	agent.Buckets
}

func (c *initCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	l, err := agent.Dial(top.Common, top.ConnectOptions)
	if err != nil {
		return err
	}
	defer l.Conn.Close()
	ctx, cancel := context.WithTimeout(ctx, top.Timeout)
	defer cancel()
	id, err := agent.InitStore(ctx, l, top.Common, c.Buckets)
	if err != nil {
		return err
	}
	if top.JSON {
		_, err = fmt.Fprintf(std.Out, "{\"store\":%q,\"storeId\":%q}\n", top.Store, id)
		return err
	}
	_, err = fmt.Fprintf(std.Out, "store %s is ready, id %s\n", top.Store, id)
	return err
}

type serveCmd struct {
	agent.Worker
}

// Run waits for a server that is not up yet, for as long as it takes.
func (c *serveCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	setup, err := agent.NewSetup(top.Common, c.Worker, std.Err)
	if err != nil {
		return err
	}
	connection := top.ConnectOptions
	connection.Daemon, connection.Log = true, setup.Log
	l, err := agent.Dial(top.Common, connection)
	if err != nil {
		return err
	}
	defer l.Conn.Close()
	if l, err = l.Await(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // a signal came before the server did
		}
		return err
	}
	return setup.Serve(ctx, l)
}
