package kvstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/kvstore"
	"sandkeep/internal/snapshot"
)

// What a cluster answers that has not all of its servers yet passes: whoever
// waits for it has to know that.
func TestInit_ClusterNotReady(t *testing.T) {
	for _, code := range []int{10004, 10005, 10006, 10007, 10008, 10009, 10010} {
		for _, from := range []string{"STREAM.CREATE.KV_sandbox-state", "STREAM.CREATE.sandbox-events", "STREAM.INFO.KV_sandbox-state"} {
			t.Run(fmt.Sprint(code, from), func(t *testing.T) {
				w := newWorld(t)
				js := w.notReady(t, from, code)
				_, err := kvstore.Init(t.Context(), js, kvstore.Config{Store: "sandbox"})
				if strings.HasPrefix(from, "STREAM.INFO.") {
					_, err = kvstore.Open(t.Context(), js, kvstore.Options{Store: "sandbox"})
				}
				wantCode(t, err, snapshot.StoreUnavailable)
			})
		}
	}
}

// notReady is an API that refuses some requests.
func (w *world) notReady(t *testing.T, refused string, code int) jetstream.JetStream {
	t.Helper()
	_, err := w.nc.Subscribe("NOTREADY.API.>", func(m *nats.Msg) {
		if api := strings.TrimPrefix(m.Subject, "NOTREADY.API."); api != refused {
			_ = w.nc.PublishRequest("$JS.API."+api, m.Reply, m.Data)
			return
		}
		_ = m.Respond(fmt.Appendf(nil, `{"error":{"code":500,"err_code":%d,"description":"not now"}}`, code))
	})
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.NewWithAPIPrefix(w.nc, "NOTREADY.API")
	if err != nil {
		t.Fatal(err)
	}
	return js
}
