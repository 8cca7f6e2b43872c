package tests

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeep/internal/clustertest"
)

// cluster is three nats-embedded that keep everything three times.
type cluster struct {
	client
	node
	members []*member
	urls    string
}

// member is one server of a cluster, without a worker.
type member struct {
	name, url string
	args      []string
	proc      *process
}

// startMember starts a server and does not wait: it is ready when the cluster is.
func startMember(t *testing.T, n node, config string, flags ...string) *member {
	t.Helper()
	at := clustertest.FreeAddress(t)
	m := &member{name: strings.TrimSuffix(filepath.Base(config), ".conf"), url: "nats://" + at}
	m.args = append(n.flags(t.TempDir()), "--auth", "none", "--no-agent", "--replicas", "3", "--server-config", config, "--store-dir", t.TempDir(), "--allow-temp-store", "--listen", at)
	m.args = append(m.args, flags...)
	m.proc = start(t, embeddedProgram, m.args...)
	return m
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{client: client{t: t, prefix: "sandbox"}, node: newNode(t, "n1")}
	var urls []string
	for _, config := range clustertest.Configs(t) {
		m := startMember(t, c.node, config)
		c.members, urls = append(c.members, m), append(urls, m.url)
	}
	c.urls = strings.Join(urls, ",")
	for _, m := range c.members {
		m.proc.logged("ready")
	}
	c.nc = connect(t, c.members[0].url)
	return c
}

// worker runs a worker that connects to any of the servers.
func (c *cluster) worker(flags ...string) {
	c.t.Helper()
	args := append([]string{"serve", "--server", c.urls}, c.node.flags(c.t.TempDir())...)
	c.heard(start(c.t, agentProgram, append(args, flags...)...))
}

// leader is the member that leads a stream.
func (c *cluster) leader(stream string) (found *member) {
	c.t.Helper()
	eventually(c.t, "a leader of "+stream, func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
		defer cancel()
		s, err := c.js().Stream(ctx, stream)
		if err != nil || s.CachedInfo().Cluster == nil {
			return false
		}
		for _, m := range c.members {
			if m.name == s.CachedInfo().Cluster.Leader {
				found = m
			}
		}
		return found != nil
	})
	return found
}

// The leader of a stream may die in the middle of a save. What was acknowledged
// stays, and the answer is true.
func TestLeaderDiesInTheMiddleOfASave(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.worker("--lease", "10s")
	dir := c.sandbox(t, "work")
	b := build(t, dir)
	b.code(100)
	c.attach("t", "work")
	acknowledged := []string{c.save("t", "first").ID}
	for i, stream := range []string{"KV_sandbox-state", "OBJ_sandbox-packs"} {
		for k := range 60 {
			b.file(fmt.Sprintf("new%d/%02d", i, k), b.noise(50_000), 0o644)
		}
		victim := c.leader(stream)
		id := fmt.Sprint("round", i)
		request := object{"threadId": "t", "runId": "r", "checkpointId": id, "waitMs": 20_000}
		if f := c.saveWithout(victim, request); f != nil {
			t.Logf("round %d: %s: %s", i, f.Code, f.Message)
			if !f.Retryable && f.Code != fullCode("WRITER_LOST") {
				t.Errorf("round %d: %+v", i, f)
			}
			eventually(t, "the retry", func() bool {
				_, f := c.try("snapshot.save", request)
				return f == nil
			})
		}
		acknowledged = append(acknowledged, id)
		victim.proc = start(t, embeddedProgram, victim.args...)
		victim.proc.logged("ready")
		if got := c.chain("t"); fmt.Sprint(got) != fmt.Sprint(acknowledged) {
			t.Errorf("round %d: the chain is %q, acknowledged were %q", i, got, acknowledged)
		}
	}
	ok[restored](c.client, "restore", object{"threadId": "t", "path": "out"})
	sameTree(t, "the restored tree", readTree(t, dir), readTree(t, filepath.Join(c.restored, "out")))
}

// saveWithout sends a save and kills the member in the middle of its writes.
func (c *cluster) saveWithout(victim *member, request object) *failure {
	c.t.Helper()
	for _, m := range c.members {
		if m != victim {
			c.nc = connect(c.t, m.url)
		}
	}
	b := &bench{server: &server{client: c.client, node: c.node, url: c.nc.ConnectedUrl()}}
	var once sync.Once
	stop := b.writes(func(seen int64) {
		if seen >= 8 {
			once.Do(func() { _ = victim.proc.cmd.Process.Kill() })
		}
	})
	defer stop()
	f := decodeFailure(c.t, await(c.t, c.replyTo("snapshot.save", request)))
	victim.proc.kill()
	return f
}
