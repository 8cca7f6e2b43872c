// Nats-embedded is a NATS server with JetStream and a worker in one process.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
)

const description = "A NATS server with JetStream that keeps checkpoints of coding-agent sandboxes, in one process."

type cli struct {
	agent.Common
	agent.Worker
	agent.Buckets
	agent.Embedded
	Login
	NoAgent bool             `help:"Run the server only."`
	Version kong.VersionFlag `env:"-" help:"Print the version."`
}

// Login is how the worker authenticates when --server-config says who may.
type Login struct {
	Creds    string `env:"SANDBOX_CREDS,NATS_CREDS" type:"path" placeholder:"FILE" help:"With --server-config: credentials of the worker."`
	NKey     string `name:"nkey" env:"SANDBOX_NKEY,NATS_NKEY" type:"path" placeholder:"FILE" help:"With --server-config: NKey of the worker."`
	User     string `env:"SANDBOX_USER,NATS_USER" help:"With --server-config: user of the worker."`
	Password string `env:"SANDBOX_PASSWORD,NATS_PASSWORD" help:"With --server-config: password of the worker."`
	JSDomain string `name:"js-domain" env:"SANDBOX_JS_DOMAIN" placeholder:"DOMAIN" help:"With --server-config: JetStream domain of the worker."`
}

func (l Login) options() bus.ConnectOptions {
	return bus.ConnectOptions{Creds: l.Creds, NKey: l.NKey, User: l.User, Password: l.Password, JSDomain: l.JSDomain}
}

// AfterApply refuses a login without a server that asks for one. Variables are
// no fault: they are about other servers.
func (c *cli) AfterApply(given *kong.Context) error {
	for _, p := range given.Path {
		if p.Flag != nil && c.ServerConfig == "" && strings.HasPrefix(p.Flag.Help, "With --server-config:") {
			return fmt.Errorf("--%s is of use only with --server-config; leave it out", p.Flag.Name)
		}
	}
	return nil
}

func (c *cli) Run(ctx context.Context, std agent.IO) (err error) {
	if err := agent.CheckServer(c.Embedded, c.Buckets); err != nil {
		return err
	}
	setup, err := agent.NewSetup(c.Common, c.Worker, std.Err, c.StoreDir)
	if err != nil {
		return err
	}
	server, err := agent.StartServer(c.Common, c.Embedded, c.options(), setup.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Shutdown()) }()
	if err := server.Init(ctx, c.Common, c.Embedded, c.Buckets); err != nil {
		if ctx.Err() != nil {
			return nil // a signal came first
		}
		return err
	}
	if !c.NoAgent {
		return setup.Serve(ctx, server.Link)
	}
	setup.Log.Info().Str("url", server.URL).Str("version", agent.Version).Msg("ready")
	<-ctx.Done()
	return nil
}

func main() {
	agent.Program{Name: "nats-embedded", Description: description, CLI: &cli{}}.Main()
}
