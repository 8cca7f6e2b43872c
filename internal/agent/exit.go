package agent

import (
	"errors"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// Exit codes of both programs.
const (
	ExitDone        = 0
	ExitError       = 1
	ExitUsage       = 2
	ExitNotFound    = 4
	ExitConflict    = 5 // or a lease is held
	ExitUnavailable = 6
	ExitCorrupt     = 7
	ExitInterrupted = 130
)

// UsageError is a command line that can't be run.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// ErrInterrupted is what a command that a signal stopped ends with.
var ErrInterrupted = errors.New("interrupted")

// ExitCode is the one place where errors become exit codes.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	if errors.Is(err, ErrInterrupted) {
		return ExitInterrupted
	}
	if _, ok := errors.AsType[*UsageError](err); ok {
		return ExitUsage
	}
	if _, ok := errors.AsType[*kong.ParseError](err); ok {
		return ExitUsage
	}
	if _, ok := errors.AsType[*bus.SettingError](err); ok {
		return ExitUsage
	}
	if e := snapshot.AsError(err); e != nil {
		return codeExit(e.Code)
	}
	if isConnection(err) {
		return ExitUnavailable
	}
	return ExitError
}

func codeExit(c snapshot.Code) int {
	switch c {
	case snapshot.MissingBlob, snapshot.InvalidBlob, snapshot.InvalidArtifactBytes:
		return ExitCorrupt
	}
	switch c.Status() {
	case 404:
		return ExitNotFound
	case 409, 423:
		return ExitConflict
	case 503, 504, 507:
		return ExitUnavailable
	}
	return ExitError
}

// isConnection reports errors of the client library that mean that nobody
// answered or nobody could be asked.
func isConnection(err error) bool {
	for _, target := range []error{nats.ErrNoServers, nats.ErrNoResponders, nats.ErrTimeout, nats.ErrConnectionClosed,
		nats.ErrDisconnected, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrNoStreamResponse, nats.ErrJetStreamNotEnabled} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
