package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/clustertest"
	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
)

// TestPut_ClearsNothingAcknowledged lets an upload see one chunk too many: a
// third one closes the chunks and opens them again when it finds the info of a
// second one, whose put is acknowledged meanwhile. Its chunks must stay.
func TestPut_ClearsNothingAcknowledged(t *testing.T) {
	srv := startServer(t)
	js := connect(t, srv)
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	s, second := open(t, js), open(t, connect(t, srv))
	b := newBlob(17, 3*objstore.ChunkSize)
	lost, looked, closed := false, false, uint64(0)
	s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		if isWrite(msg) && !lost { // the second one has sent its chunks
			lost = true
			for at := 0; at < len(b.data); at += objstore.ChunkSize {
				publish(t, js, b.chunks(), b.data[at:at+objstore.ChunkSize])
			}
			return nil, nats.ErrTimeout
		}
		reply, err := send(ctx, msg)
		switch {
		case lost && !looked && strings.Contains(msg.Subject, ".MSG.GET.") && strings.Contains(string(msg.Data), b.chunks()):
			looked = true
			if _, err := b.put(t.Context(), second); err != nil {
				t.Error(err)
			}
			ack, err := js.Publish(t.Context(), b.chunks(), nil)
			if err != nil {
				t.Error(err)
			}
			closed = ack.Sequence
		case closed > 0 && strings.Contains(msg.Subject, ".STREAM.INFO."):
			if err := stream(t, js, artifacts).DeleteMsg(t.Context(), closed); err != nil {
				t.Error(err)
			}
			closed = 0
		}
		if isWrite(msg) && len(msg.Data) == 0 { // whoever frees the chunks may die right after it
			if err := b.read(t.Context(), second); err != nil {
				t.Errorf("an acknowledged object is gone: %v", err)
			}
		}
		if strings.Contains(msg.Subject, ".STREAM.PURGE.") {
			t.Error("the chunks of an acknowledged object were purged")
		}
		return reply, err
	})
	if _, err := b.put(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if !looked || closed != 0 {
		t.Fatal("the race did not happen")
	}
	b.mustReadPlain(t, js)
}

// TestPut_WhileAnotherGivesUp completes an upload while the one who began it,
// whose source is wrong at its end, is about to purge the chunks.
func TestPut_WhileAnotherGivesUp(t *testing.T) {
	srv := startServer(t)
	js := connect(t, srv)
	if err := objstore.Init(t.Context(), js, objstore.Config{Store: "box", Replicas: clustertest.Replicas}); err != nil {
		t.Fatal(err)
	}
	s, second := open(t, js), open(t, connect(t, srv))
	b := newBlob(22, 3*objstore.ChunkSize)
	var once sync.Once
	s.Intercept(func(ctx context.Context, msg *nats.Msg, send objstore.Send) (*nats.Msg, error) {
		if strings.Contains(msg.Subject, ".STREAM.PURGE.") {
			once.Do(func() {
				if _, err := b.put(t.Context(), second); err != nil {
					t.Error(err)
				}
			})
		}
		return send(ctx, msg)
	})
	_, err := s.PutArtifact(t.Context(), b.digest, b.size(), func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(b.data), strings.NewReader("more"))), nil
	})
	if !errors.Is(err, snapshot.InvalidBlob) {
		t.Fatalf("put of too many bytes: %v", err)
	}
	b.mustReadPlain(t, js)
}
