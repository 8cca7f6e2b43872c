package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
	"github.com/nats-io/nats.go"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// caller sends the requests of one command and prints what comes back.
type caller struct {
	*bus.Client
	nc      *nats.Conn
	std     agent.IO
	json    bool
	timeout time.Duration
}

// with connects, runs fn and closes the connection.
func (c *cli) with(ctx context.Context, std agent.IO, fn func(context.Context, *caller) error) error {
	l, err := agent.Dial(c.Common, c.ConnectOptions)
	if err != nil {
		return err
	}
	defer l.Conn.Close()
	return fn(ctx, newCaller(l, c.Common, std, c.JSON, c.Timeout))
}

func newCaller(l agent.Link, c agent.Common, std agent.IO, json bool, timeout time.Duration) *caller {
	client := bus.NewClient(l.Conn, bus.ClientOptions{Prefix: c.Prefix, Store: c.Store, JetStream: l.JS})
	return &caller{Client: client, nc: l.Conn, std: std, json: json, timeout: timeout}
}

// one is a command of one request. Its reply is printed as it came or by show.
func one[T any](ctx context.Context, std agent.IO, top *cli, subject string, request any, show func(io.Writer, T) error) error {
	return top.with(ctx, std, func(ctx context.Context, k *caller) error {
		var reply T
		if err := k.call(ctx, subject, request, &reply); err != nil || k.json {
			return err
		}
		return show(std.Out, reply)
	})
}

// call sends a request, which is marshalled unless it is bytes, and decodes the
// reply.
func (k *caller) call(ctx context.Context, subject string, request, reply any) error {
	raw, ok := request.([]byte)
	if !ok {
		var err error
		if raw, err = marshal(request); err != nil {
			return err
		}
	}
	out, err := k.send(ctx, k.Subject(subject), withTimeout(raw, k.timeout))
	if err != nil {
		return err
	}
	if k.json {
		if _, err := fmt.Fprintf(k.std.Out, "%s\n", out); err != nil {
			return err
		}
	}
	if err := k.warn(out); err != nil {
		return err
	}
	if err := json.Unmarshal(out, reply); err != nil {
		return fmt.Errorf("decode reply to %s: %w", subject, err)
	}
	return nil
}

// send sends a request as it is, within --timeout.
func (k *caller) send(ctx context.Context, subject string, request []byte) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	out, err := k.Request(limited, subject, request)
	if err != nil {
		return nil, k.advise(ctx, err, subject, request)
	}
	return out, nil
}

// PrintFault writes an error with --json, in the shape of an error reply, unless
// a reply that is printed says the same.
func (c *cli) PrintFault(w io.Writer, e *snapshot.Error) error {
	if !c.JSON || c.answered {
		return nil
	}
	details := e.Details
	if details == nil {
		details = map[string]any{} // always an object
	}
	body, err := marshal(map[string]any{"error": map[string]any{
		"code": e.Code, "message": e.Message, "retryable": e.Code.Retryable(), "details": details,
	}})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", body)
	return err
}

func (k *caller) warn(reply []byte) error {
	var r struct{ Warnings []snapshot.Warning }
	if err := json.Unmarshal(reply, &r); err != nil {
		return fmt.Errorf("decode reply: %w", err)
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(k.std.Err, "agent: warning: %s (%s)\n", shown(w.Message), w.Code)
	}
	return nil
}

// longestRequest is the most that a request may ask for.
const longestRequest = time.Hour

// withTimeout tells the worker to give up shortly before this end does.
func withTimeout(request []byte, timeout time.Duration) []byte {
	ms := min(timeout-min(timeout/10, 2*time.Second), longestRequest).Milliseconds()
	body := bytes.TrimSpace(request[:max(bytes.LastIndexByte(request, '}'), 0)])
	comma := ","
	if len(body) <= 1 {
		comma = ""
	}
	return fmt.Appendf(bytes.Clone(body), `%s"timeoutMs":%d}`, comma, max(ms, 1))
}

// marshal is json.Marshal without HTML escapes.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// shown makes text of a store harmless on a terminal.
func shown(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// plural counts things: "1 file", "2 files".
func plural(n int64, what, many string) string {
	if n == 1 {
		return "1 " + what
	}
	return humanize.Comma(n) + " " + many
}

// input opens a file, or stdin for "-".
func input(std agent.IO, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(std.In), nil
	}
	return os.Open(path)
}

func readAll(std agent.IO, path string) ([]byte, error) {
	f, err := input(std, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
