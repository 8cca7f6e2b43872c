package objstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

// Config says how Init makes the buckets.
type Config struct {
	Store    string                // prefix of the bucket names
	Replicas int                   // 0: 1 for new buckets, others stay as they are
	MaxBytes int64                 // of each bucket; 0: no limit for new buckets, others stay as they are
	Storage  jetstream.StorageType // of new buckets; the default is file storage
}

var storeName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,200}$`)

// claimAge is how long objects of the claim-check buckets are kept.
const claimAge = time.Hour

var buckets = []struct {
	suffix, description string
	maxAge              time.Duration
}{
	{"-packs", "Packs of file contents and of manifest and conversation pages", 0},
	{"-artifacts", "Artifacts, named by their digest", 0},
	{"-files", "File contents that clients stored by themselves", 0},
	{"-uploads", "Requests too large for a message, kept for an hour", claimAge},
	{"-replies", "Replies too large for a message, kept for an hour", claimAge},
}

// StreamNames are the names of the buckets' streams.
func StreamNames(store string) []string {
	var names []string
	for _, b := range buckets {
		names = append(names, streamName(store+b.suffix))
	}
	return names
}

// Init makes the buckets that are missing and changes replicas and limit of
// the others if cfg names different ones. Every other setting stays as it is.
func Init(ctx context.Context, js jetstream.JetStream, cfg Config) error {
	if !storeName.MatchString(cfg.Store) {
		return snapshot.Errorf(snapshot.BadRequest, "store name %q is not 1 to 200 of A-Z a-z 0-9 _ -", cfg.Store)
	}
	return newAPI(js).ensureAll(ctx, cfg)
}

func (a api) ensureAll(ctx context.Context, cfg Config) error {
	for _, b := range buckets {
		want := bucketConfig(cfg, b.suffix)
		want.Description, want.MaxAge = b.description, b.maxAge
		if err := a.ensure(ctx, cfg, cfg.Store+b.suffix, want); err != nil {
			return fmt.Errorf("init bucket %s: %w", cfg.Store+b.suffix, err)
		}
	}
	return nil
}

func bucketConfig(cfg Config, suffix string) jetstream.StreamConfig {
	bucket := cfg.Store + suffix
	limit := cfg.MaxBytes
	if limit <= 0 {
		limit = -1
	}
	return jetstream.StreamConfig{
		Name:        streamName(bucket),
		Subjects:    []string{"$O." + bucket + ".C.>", "$O." + bucket + ".M.>"},
		MaxBytes:    limit,
		Storage:     cfg.Storage,
		Replicas:    max(cfg.Replicas, 1),
		Discard:     jetstream.DiscardNew,
		AllowRollup: true,
		AllowDirect: true,
		// The server's defaults, so that the request says all that it means.
		MaxMsgs: -1, MaxMsgSize: -1, MaxConsumers: -1, MaxMsgsPerSubject: -1,
	}
}

// ensure looks again at what it has changed: JetStream changes no stream
// conditionally, so who changed other settings at the same time may have
// written these back.
func (a api) ensure(ctx context.Context, cfg Config, bucket string, want jetstream.StreamConfig) error {
	return persist(ctx, func() error {
		changed, err := a.ensureOnce(ctx, cfg, bucket, want)
		switch {
		case err == nil && changed:
			return errUnknown
		case errors.Is(err, snapshot.StoreFull):
			return snapshot.Errorf(snapshot.StoreFull, "the NATS servers have no room for bucket %q as it shall be; give a smaller --max-bytes, or give them more storage", bucket).Because(err)
		}
		return err
	})
}

func (a api) ensureOnce(ctx context.Context, cfg Config, bucket string, want jetstream.StreamConfig) (changed bool, err error) {
	var info struct {
		Config map[string]json.RawMessage `json:"config"`
	}
	err = a.call(ctx, "STREAM.INFO", bucket, struct{}{}, &info)
	if errors.Is(err, snapshot.StoreUnavailable) {
		if apiErr, ok := errors.AsType[*jetstream.APIError](err); ok && apiErr.ErrorCode == codeNoStream {
			return false, a.call(ctx, "STREAM.CREATE", bucket, want, &struct{}{})
		}
	}
	if err != nil {
		return false, err
	}
	return a.adjust(ctx, cfg, bucket, info.Config, want)
}

// adjust sends the whole configuration back as it came, so that settings that
// this client does not know survive.
func (a api) adjust(ctx context.Context, cfg Config, bucket string, have map[string]json.RawMessage, want jetstream.StreamConfig) (changed bool, err error) {
	var subjects []string
	if err := json.Unmarshal(have["subjects"], &subjects); err != nil || !slices.Equal(subjects, want.Subjects) {
		return false, snapshot.Errorf(snapshot.StoreUnavailable,
			"stream %q exists but is no object bucket of its own; choose another --store", want.Name)
	}
	set := func(key string, wanted bool, n int64) {
		if text := strconv.FormatInt(n, 10); wanted && string(have[key]) != text {
			have[key], changed = json.RawMessage(text), true
		}
	}
	set("max_bytes", cfg.MaxBytes != 0, want.MaxBytes)
	set("num_replicas", cfg.Replicas != 0, int64(want.Replicas))
	if changed {
		err = a.call(ctx, "STREAM.UPDATE", bucket, have, &struct{}{})
	}
	return changed, err
}
