package tests

import (
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// plainServer is a nats-server without anything of this project in it.
func plainServer(t *testing.T, storeDir string) *natsserver.Server {
	t.Helper()
	ns, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: storeDir, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(patience) {
		t.Fatal("the server takes no connections")
	}
	return ns
}

// A plain nats-server whose disk is full turns its JetStream off and answers
// nothing any more, so nobody can tell that from a server that is away. The
// time of the request is not to blame, however short it is.
func TestFullDiskOfAPlainServer(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 64<<20)
	ns := plainServer(t, disk)
	s := &server{client: client{t: t, prefix: "sandbox", nc: connect(t, ns.ClientURL())}, node: newNode(t, "n1"), url: ns.ClientURL()}
	if code, _, stderr := run(t, agentProgram, "init", "--server", s.url, "--state-dir", t.TempDir()); code != 0 {
		t.Fatal(stderr)
	}
	s.worker(s.node)
	b, _ := s.fullThread()
	hog(t, disk, 0)
	b.file("large", b.noise(8<<20), 0o644)
	refused(s.client, "snapshot.save", object{"threadId": "t", "runId": "r2", "timeoutMs": 8000}, "SANDBOX_STORE_UNAVAILABLE")
	timeouts := []int{3000}
	if *long {
		timeouts = append(timeouts, 10_000, 60_000)
	}
	for _, timeout := range timeouts {
		replies := map[string]<-chan *nats.Msg{}
		for _, r := range []errorRow{
			{"snapshot.save", object{"threadId": "t", "runId": "r2"}, ""}, {"checkpoint.head", object{"threadId": "t"}, ""}, {"lock.acquire", object{"name": "l"}, ""},
			{"file.read", object{"checkpointId": "t-1", "path": "small"}, ""}, {"thread.save", object{"threadId": "t", "messages": []int{}}, ""},
			{"blob.put", object{"kind": "file", "data": "AAAA"}, ""}, {"thread.delete", object{"threadId": "gone"}, ""},
		} {
			r.body["timeoutMs"] = timeout
			replies[r.subject] = s.replyTo(r.subject, r.body)
		}
		for subject, reply := range replies {
			if f := decodeFailure(t, await(t, reply)); f == nil || f.Code != "SANDBOX_STORE_UNAVAILABLE" || !f.Retryable {
				t.Errorf("%s with timeoutMs %d: %+v", subject, timeout, f)
			}
		}
	}
}
