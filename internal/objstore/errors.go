package objstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

var (
	errMoved   = errors.New("the subject has moved")          // a guard refused the write
	errUnknown = errors.New("the outcome is unknown")         // no reply, or one that says "later"
	errAbsent  = errors.New("there is no such message")       // says the leader
	errSource  = errors.New("the source has different bytes") // than its digest says
)

// Numbers of the server's errors that mean something here.
const (
	codeAccountFull     jetstream.ErrorCode = 10002
	codeNotAvailable    jetstream.ErrorCode = 10008
	codeNoResources     jetstream.ErrorCode = 10023
	codeMemoryFull      jetstream.ErrorCode = 10028
	codeNoMessage       jetstream.ErrorCode = 10037
	codeStorageFull     jetstream.ErrorCode = 10047
	codeNoStream        jetstream.ErrorCode = 10059
	codeWrongStream     jetstream.ErrorCode = 10060
	codeWrongSequence   jetstream.ErrorCode = 10071
	codeStoreFailed     jetstream.ErrorCode = 10077
	codeSequenceInUse   jetstream.ErrorCode = 10164
	codeTooManyRequests jetstream.ErrorCode = 10167
)

// fromAPI translates a refusal of the server.
func fromAPI(bucket string, e *jetstream.APIError) error {
	switch e.ErrorCode {
	case codeNoMessage:
		return errAbsent
	case codeWrongSequence, codeSequenceInUse:
		return errMoved
	case codeNotAvailable, codeTooManyRequests:
		return fmt.Errorf("%w: %w", errUnknown, e)
	case codeStoreFailed, codeNoResources, codeStorageFull, codeAccountFull, codeMemoryFull:
		return snapshot.Errorf(snapshot.StoreFull,
			"bucket %q takes no more bytes; raise its limit or the servers' storage: deleting checkpoints frees no contents", bucket).Because(e)
	case codeNoStream, codeWrongStream:
		return snapshot.Errorf(snapshot.StoreUnavailable,
			"bucket %q does not exist; make it with \"agent init\", or check --store and the account", bucket).Because(e)
	}
	return snapshot.Errorf(snapshot.StoreUnavailable, "the server refused a request about bucket %q; see the worker's log", bucket).Because(e)
}

// fromClient translates a request that got no reply.
func fromClient(err error) error {
	switch {
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return snapshot.Errorf(snapshot.StoreUnavailable, "the connection to NATS is closed; start the worker again").Because(err)
	case errors.Is(err, nats.ErrMaxPayload):
		return snapshot.Errorf(snapshot.StoreUnavailable,
			"the server takes no messages of %d bytes; raise its max_payload to 1 MiB", chunkSize).Because(err)
	}
	return fmt.Errorf("%w: %w", errUnknown, err)
}

// settled turns what is left after all tries into what the caller may see.
func settled(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, snapshot.StoreUnavailable): // before the end of the time, or why nothing came until then
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errUnknown), errors.Is(err, errMoved):
		return silent(err)
	}
	return err
}

func silent(cause error) error {
	return snapshot.Errorf(snapshot.StoreUnavailable,
		"the object store does not answer; check the NATS servers and the space on their disks, then try again").Because(cause)
}

func missing(bucket, name string) error {
	return snapshot.Errorf(snapshot.MissingBlob,
		"object %q in bucket %q is missing or incomplete; saving its content again stores it anew", name, bucket)
}

func invalid(what, format string, args ...any) *snapshot.Error {
	return snapshot.Errorf(snapshot.InvalidBlob, "%s is damaged: %s; saving its content again may heal it",
		what, fmt.Sprintf(format, args...))
}

// unreadable tells whether the bytes themselves are the trouble.
func unreadable(err error) bool {
	return errors.Is(err, snapshot.MissingBlob) || errors.Is(err, snapshot.InvalidBlob)
}

// persist repeats fn while its outcome is unknown, for patience at most.
func persist(ctx context.Context, fn func() error) error {
	deadline := time.Now().Add(patience)
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := fn()
		if !errors.Is(err, errUnknown) || ctx.Err() != nil || time.Now().After(deadline) {
			return settled(ctx, err)
		}
		pause(ctx, wait)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
