package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"sandkeep/internal/snapshot"
)

// Version is the program's version, set by the linker from the tag.
var Version = "0.0.0-dev"

// IO is where a program reads and writes: data on stdout, logs and advice on
// stderr.
type IO struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Program is what a command line is parsed into: CLI is a kong structure whose
// Run methods take a context.Context and an IO. If it is a FaultPrinter, every
// error with a code that a command ends with is shown to it.
type Program struct {
	Name        string
	Description string
	CLI         any
}

// FaultPrinter prints an error for programs, beside the sentence for people.
type FaultPrinter interface {
	PrintFault(w io.Writer, e *snapshot.Error) error
}

// Main runs the program and ends the process. The first SIGINT or SIGTERM ends
// the context, the second one the process.
func (p Program) Main() {
	// Packs and the server's blocks are few large buffers: at the default of 100
	// the heap grows to twice what is in use. GOGC still decides if it is set.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// From the first signal on, the default action is back in place.
	context.AfterFunc(ctx, stop)
	os.Exit(p.Run(ctx, IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Args[1:]))
}

// Run runs the program and returns its exit code.
func (p Program) Run(ctx context.Context, std IO, args []string) int {
	parser, err := p.parser(std)
	if err != nil {
		fmt.Fprintf(std.Err, "%s: %v\n", p.Name, err)
		return ExitError
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(std.Err, "%s: %s\n%s --help shows what can be given.\n", p.Name, parseSentence(err), p.Name)
		return ExitUsage
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	parsed.Bind(std)
	if err = negative(parsed); err == nil {
		err = parsed.Run()
	}
	if e, ok := errors.AsType[*snapshot.Error](err); ok {
		if cli, ok := p.CLI.(FaultPrinter); ok {
			err = errors.Join(err, cli.PrintFault(std.Out, e))
		}
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.Is(err, ErrInterrupted) {
		err = ErrInterrupted
	}
	if err != nil {
		fmt.Fprintf(std.Err, "%s: %s\n", p.Name, inFlags(Sentence(err), parsed.Selected()))
	}
	return ExitCode(err)
}

// negative finds times below zero, which no flag takes, and a request's of zero.
func negative(parsed *kong.Context) error {
	var faults []error
	for _, f := range parsed.Flags() {
		d, ok := f.Target.Interface().(time.Duration)
		switch {
		case ok && d < 0:
			faults = append(faults, fmt.Errorf("--%s %s is negative", f.Name, d))
		case ok && d == 0 && f.Name == "timeout":
			faults = append(faults, errors.New("--timeout is 0; give the time that a request may take"))
		}
	}
	return usage(faults...)
}

// parser makes the command line. A host name or a home that the machine doesn't
// know is only missed by the commands that need it.
func (p Program) parser(std IO) (*kong.Kong, error) {
	node, _ := os.Hostname()
	return kong.New(p.CLI, kong.Name(p.Name), kong.Description(p.Description), kong.PostBuild(variables),
		kong.Writers(std.Out, std.Err), kong.Vars{"node": node, "state_dir": defaultStateDir(), "version": Version},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.PostBuild(requestTimeout))
}

// variables gives every flag its SANDBOX_… variable. Those of a command that
// sends a request have the command in their name: SANDBOX_ID may well be there
// for somebody else, and would make every save the same one. Commands with the
// tag settings are run by operators, and theirs have not.
func variables(k *kong.Kong) error {
	nameVariables(k.Model.Node, "SANDBOX_")
	return nil
}

func nameVariables(n *kong.Node, prefix string) {
	for _, f := range n.Flags {
		switch {
		case f.Name == "help" || len(f.Envs) > 0 && f.Envs[0] != "-":
			continue
		case len(f.Envs) > 0:
			f.Envs = nil
		default:
			f.Envs = []string{prefix + variable(f.Name)}
		}
		f.Tag.Envs = f.Envs
	}
	for _, c := range n.Children {
		if below := prefix + variable(c.Name) + "_"; c.Tag.Has("settings") {
			nameVariables(c, prefix)
		} else {
			nameVariables(c, below)
		}
	}
}

func variable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// requestTimeout makes --timeout that of a whole request. NATS_TIMEOUT is not
// asked: it is set for short answers, and a save takes its time.
func requestTimeout(k *kong.Kong) error {
	for _, f := range k.Model.Flags {
		if f.Name == "timeout" {
			f.Default, f.Help = "5m", "How long a request may take (default: 5m)."
			f.Envs = []string{"SANDBOX_TIMEOUT"}
			f.Tag.Envs = f.Envs
		}
	}
	return nil
}

// defaultStateDir follows the XDG rules: a relative XDG_STATE_HOME is ignored.
func defaultStateDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sandkeep")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "state", "sandkeep")
}
