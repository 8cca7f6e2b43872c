package tests

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/clustertest"
)

// What one server is and does by itself is tested by those that make theirs
// without startServer: full disks, power cuts, deep paths, the README.

// join starts two more servers, which are ready when this one runs too.
func (s *server) join() {
	s.t.Helper()
	configs := clustertest.Configs(s.t)
	for _, config := range configs[1:] {
		s.peers = append(s.peers, startMember(s.t, s.node, config, s.flags...))
	}
	s.flags = append(s.flags, "--replicas", "3", "--server-config", configs[0])
}

// urls is where workers connect: to other servers than the test, if there are
// some, so that they read elsewhere than was written.
func (s *server) urls() string {
	if len(s.peers) == 0 {
		return s.url
	}
	var urls []string
	for _, p := range s.peers {
		urls = append(urls, p.url)
	}
	return strings.Join(urls, ",")
}

// heard waits until the client's server knows what the worker has subscribed to
// at its own one: it hears of it in order.
func (c client) heard(worker *process) {
	c.t.Helper()
	url, _ := worker.logged("ready")["url"].(string)
	there, inbox := connect(c.t, url), nats.NewInbox()
	sub, err := there.SubscribeSync(inbox)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := there.FlushTimeout(patience); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "the worker at "+url+" to be known elsewhere", func() bool {
		if err := c.nc.Publish(inbox, nil); err != nil {
			c.t.Fatal(err)
		}
		_, err := sub.NextMsg(20 * time.Millisecond)
		return err == nil
	})
}
