package tests

import (
	"fmt"
	"strings"
	"testing"
)

// A worker outlives its server: when that is back, on the same directories and
// address, requests are answered again.
func TestWorkerSurvivesItsServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--no-agent")
	s.flags = append(s.flags, "--listen", strings.TrimPrefix(s.url, "nats://"))
	w := s.worker(s.node, "--lease", shortLease)
	b := build(t, s.sandbox(t, "work"))
	b.code(50)
	s.attach("t", "work")
	cp := s.save("t", "r")
	for i := range 2 {
		reply := s.replyTo("snapshot.save", object{"threadId": "t", "runId": "cut", "checkpointId": fmt.Sprint("cut", i), "waitMs": 20_000})
		s.proc.kill()
		s.run()
		select {
		case <-reply:
		default:
		}
		eventually(t, "the worker to be back", func() bool {
			msg, err := s.nc.Request("sandbox.checkpoint.head", []byte(`{"threadId":"t"}`), patience/10)
			return err == nil && decodeFailure(t, msg) == nil
		})
		b.file("file", fmt.Append(nil, i), 0o644)
		eventually(t, "a save", func() bool {
			_, f := s.try("snapshot.save", object{"threadId": "t", "runId": "r", "checkpointId": fmt.Sprint("back", i), "waitMs": 20_000})
			if f != nil && !f.Retryable {
				t.Fatalf("%+v", f)
			}
			return f == nil
		})
		if got := s.chain("t"); got[0] != cp.ID || got[len(got)-1] != fmt.Sprint("back", i) {
			t.Errorf("chain is %q", got)
		}
	}
	w.stop()
}
