package kvstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

const (
	defaultPrefix  = "sandbox"
	eventsAge      = 7 * 24 * time.Hour
	eventsBytes    = 1 << 30
	minEventsBytes = 1 << 20
)

// EventsName is the name of a store's stream of events.
func EventsName(store string) string { return store + "-events" }

// eventsConfig is a stream that the server fills from the state bucket. It has
// no subjects, so nobody can publish an event.
func eventsConfig(cfg Config, state jetstream.StreamConfig) jetstream.StreamConfig {
	pre, event := "$KV."+BucketName(cfg.Store)+".", cfg.Prefix+".event."
	return jetstream.StreamConfig{
		Name:        EventsName(cfg.Store),
		Description: "events of the checkpoint store " + cfg.Store,
		Metadata:    map[string]string{"sandbox.format": fmt.Sprint(format), "sandbox.role": "events"},
		Sources: []*jetstream.StreamSource{{Name: state.Name, SubjectTransforms: []jetstream.SubjectTransformConfig{
			{Source: pre + "thread.*", Destination: event + "thread.{{wildcard(1)}}"},
			{Source: pre + "log.*.*", Destination: event + "checkpoint.{{wildcard(1)}}.{{wildcard(2)}}"},
			{Source: pre + "instance.*", Destination: event + "instance.{{wildcard(1)}}"},
			{Source: pre + "writer.*", Destination: event + "writer.{{wildcard(1)}}"},
			{Source: pre + "lock.*", Destination: event + "lock.{{wildcard(1)}}"},
		}}},
		MaxAge: eventsAge, MaxBytes: eventsBytes, MaxMsgs: -1, MaxMsgSize: -1, MaxConsumers: -1,
		Replicas: state.Replicas, Storage: state.Storage, Discard: jetstream.DiscardOld, AllowDirect: true,
	}
}

// makeEvents makes the stream of events unless it is there. A server reserves
// a stream's bytes when it is made: where there is less room, it keeps less.
func makeEvents(ctx context.Context, js jetstream.JetStream, cfg Config, state jetstream.StreamConfig) error {
	c := eventsConfig(cfg, state)
	stream, err := makeStream(ctx, js, c)
	for err != nil && errors.Is(streamError(err, cfg.Store), snapshot.StoreFull) && c.MaxBytes > minEventsBytes {
		c.MaxBytes /= 2
		stream, err = makeStream(ctx, js, c)
	}
	if err != nil {
		err = noRoom(c.Name, streamError(err, cfg.Store))
	} else {
		err = checkEvents(stream.CachedInfo().Config, c)
	}
	if err != nil {
		return fmt.Errorf("make event stream of store %q: %w", cfg.Store, err)
	}
	return nil
}

// checkEvents accepts a stream that was made before, also with another prefix.
func checkEvents(have, want jetstream.StreamConfig) error {
	ours := slices.ContainsFunc(have.Sources, func(s *jetstream.StreamSource) bool { return s.Name == want.Sources[0].Name })
	if !ours || len(have.Subjects) > 0 {
		return snapshot.Errorf(snapshot.FormatUnsupported, "stream %s is not the event stream of this store; remove or rename it, or use another --store", want.Name)
	}
	return nil
}

// checkPrefix takes what can begin a subject.
func checkPrefix(prefix string) error {
	for part := range strings.SplitSeq(prefix, ".") {
		if !storeName.MatchString(part) {
			return snapshot.Errorf(snapshot.BadRequest, "subject prefix %q is not made of letters, digits, '-' and '_' in parts joined by dots", prefix)
		}
	}
	return nil
}
