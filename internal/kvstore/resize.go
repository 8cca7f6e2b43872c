package kvstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

// resize gives a stream these replicas and this limit; 0 leaves one as it is.
// JetStream changes no stream conditionally, so it looks again afterwards: who
// changed other settings at the same time may have written these back.
func (b *bucket) resize(ctx context.Context, stream string, replicas int, maxBytes int64) error {
	if replicas == 0 && maxBytes == 0 {
		return nil
	}
	began := time.Now()
	patient, cancel := context.WithTimeout(ctx, b.limits.patience)
	defer cancel()
	for try := 0; ; try++ {
		changed, err := b.resizeOnce(patient, stream, replicas, maxBytes)
		switch {
		case err == nil && !changed:
			return nil
		case err != nil && !errors.Is(err, errBusy) && !errors.Is(err, errLost):
			return fmt.Errorf("change stream %s: %w", stream, err)
		}
		if err == nil {
			err = errBusy // with others' changes, if that is how it ends
		}
		if pause(patient, try) != nil {
			return fmt.Errorf("change stream %s: %w", stream, gaveUp(ctx, b.silent(began, err)))
		}
	}
}

// resizeOnce sends the whole configuration back as it came, so that settings
// that this client does not know survive.
func (b *bucket) resizeOnce(ctx context.Context, stream string, replicas int, maxBytes int64) (changed bool, err error) {
	config, err := b.configure(ctx, "INFO", stream, struct{}{})
	if err != nil {
		return false, err
	}
	for key, n := range map[string]int64{"num_replicas": int64(replicas), "max_bytes": maxBytes} {
		if text := strconv.FormatInt(n, 10); n != 0 && string(config[key]) != text {
			config[key], changed = json.RawMessage(text), true
		}
	}
	if changed {
		_, err = b.configure(ctx, "UPDATE", stream, config)
	}
	return changed, err
}

// configure makes a request about a stream and returns its configuration.
func (b *bucket) configure(ctx context.Context, op, stream string, req any) (map[string]json.RawMessage, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	m, err := b.request(ctx, &nats.Msg{Subject: b.api + "STREAM." + op + "." + stream, Data: body})
	if err != nil {
		return nil, err
	}
	var r struct {
		Error  *jetstream.APIError        `json:"error"`
		Config map[string]json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return nil, fmt.Errorf("%w: decode the store's reply: %w", errLost, err)
	}
	if r.Error != nil {
		return nil, noRoom(stream, refusal(r.Error))
	}
	return r.Config, nil
}

// noRoom tells a full server from a full stream.
func noRoom(stream string, err error) error {
	if errors.Is(err, snapshot.StoreFull) {
		return snapshot.Errorf(snapshot.StoreFull, "the NATS servers have no room for stream %s as it shall be; give a smaller --max-bytes, or give them more storage", stream).Because(err)
	}
	return err
}
