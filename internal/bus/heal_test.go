package bus_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/bus"
)

// A crash between the two files that describe a stream does not cost the
// stream; a description that went bad is not taken for good.
func TestServer_HealsStreams(t *testing.T) {
	for name, c := range map[string]struct {
		crash func(text, sum string) error
		lost  bool
	}{
		"untouched":         {crash: func(_, _ string) error { return nil }},
		"made, no checksum": {crash: func(_, sum string) error { return os.Remove(sum) }},
		"changed, old checksum": {crash: func(text, sum string) error {
			old := time.Now().Add(-time.Hour)
			return errors.Join(os.WriteFile(sum, []byte("0123456789abcdef"), 0o600), os.Chtimes(sum, old, old))
		}},
		"gone bad": {lost: true, crash: func(_, sum string) error { return os.WriteFile(sum, []byte("0123456789abcdef"), 0o600) }},
	} {
		t.Run(name, func(t *testing.T) {
			o := bus.ServerOptions{StoreDir: filepath.Join(t.TempDir(), "a [b]*"), AllowTempStore: true, Listen: "127.0.0.1:0"}
			s := run(t, o)
			js, err := bus.JetStream(connect(t, s), bus.ConnectOptions{Embedded: s})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
				t.Fatal(err)
			}
			if _, err := js.Publish(t.Context(), "s", []byte("kept")); err != nil {
				t.Fatal(err)
			}
			if err := s.Shutdown(); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(o.StoreDir, "jetstream", "$G", "streams", "S")
			if err := c.crash(filepath.Join(dir, "meta.inf"), filepath.Join(dir, "meta.sum")); err != nil {
				t.Fatal(err)
			}
			for range 2 { // what was mended stays so
				s = run(t, o)
				js, err := bus.JetStream(connect(t, s), bus.ConnectOptions{Embedded: s})
				if err != nil {
					t.Fatal(err)
				}
				stream, err := js.Stream(t.Context(), "S")
				if lost := errors.Is(err, jetstream.ErrStreamNotFound); lost != c.lost || err != nil && !lost {
					t.Fatalf("the stream: %v", err)
				}
				if !c.lost && stream.CachedInfo().State.Msgs != 1 {
					t.Errorf("the stream has %d messages", stream.CachedInfo().State.Msgs)
				}
				if err := s.Shutdown(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
