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
	before := agent.BucketsOf(ctx, l, top.Store)
	id, err := agent.InitStore(ctx, l, top.Common, c.Buckets)
	if err != nil {
		return err
	}
	if top.JSON {
		_, err = fmt.Fprintf(std.Out, "{\"store\":%q,\"storeId\":%q}\n", top.Store, id)
		return err
	}
	_, err = fmt.Fprintf(std.Out, "store %s is ready, id %s%s\n", top.Store, id, changes(before, c.Buckets))
	return err
}

// changes says what is different of a store that was there.
func changes(was, now agent.Buckets) (text string) {
	if was.Replicas == 0 {
		return ""
	}
	if now.Replicas != 0 && now.Replicas != was.Replicas {
		text = fmt.Sprintf(", replicas %d (were %d)", now.Replicas, was.Replicas)
	}
	if now.MaxBytes != 0 && now.MaxBytes != was.MaxBytes {
		before := "none"
		if was.MaxBytes > 0 {
			before = size(was.MaxBytes)
		}
		text += fmt.Sprintf(", limit of each bucket %s (was %s)", size(now.MaxBytes), before)
	}
	return text
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
