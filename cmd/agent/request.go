package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"sandkeep/internal/agent"
)

type requestCmd struct {
	Subject string `arg:"" help:"Subject, with or without the prefix."`
	JSON    string `arg:"" optional:"" default:"{}" name:"json" help:"Request, a JSON object; - reads it from stdin."`
}

// Run sends the request as it is and prints the reply as it came, errors too.
func (c *requestCmd) Run(ctx context.Context, std agent.IO, top *cli) error {
	top.JSON = true
	body, err := argument(std, c.JSON)
	if err != nil {
		return err
	}
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		reply, err := k.send(ctx, k.Subject(strings.TrimPrefix(c.Subject, top.Prefix+".")), body)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(std.Out, "%s\n", reply)
		return err
	})
}

// argument is a JSON text from the command line, or stdin for "-".
func argument(std agent.IO, arg string) ([]byte, error) {
	if arg == "-" {
		return io.ReadAll(std.In)
	}
	return []byte(arg), nil
}
