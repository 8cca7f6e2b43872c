package kvstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"

	"sandkeep/internal/snapshot"
)

const (
	format    = 1
	markerTTL = 10 * time.Minute // of the markers that wake those who wait for a lease
)

// Config says how Init makes a bucket and a stream of events. A new stream takes
// replicas and storage from the bucket.
type Config struct {
	Store    string
	Prefix   string                // of the subjects of events, "sandbox" if ""
	Replicas int                   // 0: 1 for new ones, others stay as they are
	MaxBytes int64                 // of the bucket; 0: no limit for a new one, others stay as they are
	Storage  jetstream.StorageType // of new ones; file by default
}

// StreamName is the name of the stream of a store's state bucket.
func StreamName(store string) string { return "KV_" + BucketName(store) }

// BucketName is the name of a store's state bucket; its stream is "KV_" + that.
func BucketName(store string) string { return store + "-state" }

var storeName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,200}$`)

func checkStoreName(name string) error {
	if !storeName.MatchString(name) {
		return snapshot.Errorf(snapshot.BadRequest, "store name %q is not 1 to 200 letters, digits, '-' or '_'", name)
	}
	return nil
}

// Init makes the state bucket and the stream of events and writes the store's
// identity, once; later calls return the identity that is there, and change
// replicas and limit if cfg names different ones. Every other setting stays as
// it is, the prefix of events too.
func Init(ctx context.Context, js jetstream.JetStream, cfg Config) (storeID string, err error) {
	if err := checkStoreName(cfg.Store); err != nil {
		return "", err
	}
	cfg.Prefix = cmp.Or(cfg.Prefix, defaultPrefix)
	if err := checkPrefix(cfg.Prefix); err != nil {
		return "", err
	}
	stream, err := makeStream(ctx, js, streamConfig(cfg))
	if err != nil {
		return "", fmt.Errorf("make state bucket of store %q: %w", cfg.Store, noRoom(StreamName(cfg.Store), streamError(err, cfg.Store)))
	}
	state := stream.CachedInfo().Config
	if err := checkStream(state); err != nil {
		return "", err
	}
	b := newBucket(js, cfg.Store)
	if err := b.resize(ctx, state.Name, cfg.Replicas, cfg.MaxBytes); err != nil {
		return "", err
	}
	state.Replicas, state.MaxBytes = cmp.Or(cfg.Replicas, state.Replicas), cmp.Or(cfg.MaxBytes, state.MaxBytes)
	if err := makeEvents(ctx, js, cfg, state); err != nil {
		return "", err
	}
	if err := b.resize(ctx, EventsName(cfg.Store), cfg.Replicas, 0); err != nil {
		return "", err
	}
	if storeID, err = b.identify(ctx); err == nil {
		b.fillReserve(ctx, reserveSize(state.MaxBytes))
	}
	return storeID, err
}

// makeStream returns a stream, after it has made it if need be. A full server
// has no room to make it also if it is there.
func makeStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (jetstream.Stream, error) {
	stream, err := js.CreateStream(ctx, want)
	there := errors.Is(err, jetstream.ErrStreamNameAlreadyInUse)
	if there || err != nil && errors.Is(streamError(err, ""), snapshot.StoreFull) {
		found, looked := js.Stream(ctx, want.Name)
		if looked == nil || there {
			return found, looked
		}
	}
	return stream, err
}

// identify returns the store's identity, after it has given it one if need be.
func (b *bucket) identify(ctx context.Context) (storeID string, err error) {
	data, err := json.Marshal(storeInfo{Format: format, StoreID: ulid.Make().String()})
	if err != nil {
		return "", err
	}
	for try := 0; ; try++ {
		info, err := b.readStoreInfo(ctx)
		if err != nil || info != nil {
			return info.id(), err
		}
		if _, err = b.put(ctx, write{key: storeKey, value: data, expect: absent}); err != nil && !isAgain(err) {
			return "", fmt.Errorf("write the store's identity: %w", err)
		}
		if err := pause(ctx, try); err != nil {
			return "", ended(ctx)
		}
	}
}

func streamConfig(cfg Config) jetstream.StreamConfig {
	bucket := BucketName(cfg.Store)
	maxBytes := cfg.MaxBytes
	if maxBytes <= 0 {
		maxBytes = -1
	}
	return jetstream.StreamConfig{
		Name: StreamName(cfg.Store), Subjects: []string{"$KV." + bucket + ".>"},
		Description:       "state of the checkpoint store " + cfg.Store,
		Metadata:          map[string]string{"sandbox.format": fmt.Sprint(format), "sandbox.role": "state"},
		MaxMsgsPerSubject: 1, // with more, an expired lease shows its older value again
		MaxBytes:          maxBytes, MaxMsgs: -1, MaxMsgSize: -1, MaxConsumers: -1,
		Replicas: max(cfg.Replicas, 1), Storage: cfg.Storage,
		Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true, AllowDirect: true,
		AllowMsgTTL: true, SubjectDeleteMarkerTTL: markerTTL,
	}
}

// checkStream refuses a bucket whose settings would lose or wrongly keep data.
func checkStream(c jetstream.StreamConfig) error {
	wrong := ""
	switch {
	case c.MaxMsgsPerSubject != 1:
		wrong = "a history other than 1"
	case c.Discard != jetstream.DiscardNew:
		wrong = "a discard policy that drops old values"
	case c.MaxAge != 0:
		wrong = "an age limit"
	case !c.AllowMsgTTL || c.SubjectDeleteMarkerTTL <= 0:
		wrong = "no time limits and markers per key"
	case !c.AllowRollup:
		wrong = "no rollups"
	default:
		return nil
	}
	return snapshot.Errorf(snapshot.FormatUnsupported, "stream %s has %s; remove it if it is empty and run `agent init`, or use another --store", c.Name, wrong)
}

// streamError translates what the JetStream client returns about the stream.
func streamError(err error, store string) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return notInitialized(store).Because(err)
	case errors.As(err, &api):
		if err := refusal(api); !errors.Is(err, errBusy) {
			return err
		}
	}
	return snapshot.Errorf(snapshot.StoreUnavailable, "the store does not answer; check the NATS servers").Because(err)
}

func notInitialized(store string) *snapshot.Error {
	return snapshot.Errorf(snapshot.StoreUnavailable, "store %q does not exist here; run `agent init`", store)
}

// readStoreInfo returns nil if the store has no identity yet.
func (b *bucket) readStoreInfo(ctx context.Context) (*storeInfo, error) {
	e, err := b.get(ctx, storeKey)
	if err != nil || !e.live {
		return nil, err
	}
	var info storeInfo
	if err := json.Unmarshal(e.value, &info); err != nil || info.Format < 1 || info.StoreID == "" {
		return nil, snapshot.Errorf(snapshot.FormatUnsupported, "the store's identity is damaged; restore the key %q of its state bucket", storeKey).Because(err)
	}
	if info.Format > format {
		return nil, snapshot.Errorf(snapshot.FormatUnsupported, "the store has format %d, this version reads up to %d; run a newer version", info.Format, format).
			With("format", info.Format).With("supported", format)
	}
	return &info, nil
}

func (i *storeInfo) id() string {
	if i == nil {
		return ""
	}
	return i.StoreID
}
