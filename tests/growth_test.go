package tests

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// contents is what the buckets of objects hold, in bytes and messages.
func (c client) contents() map[string]string {
	c.t.Helper()
	out := map[string]string{}
	lister := c.js().ListStreams(c.ctx())
	for info := range lister.Info() {
		if strings.HasPrefix(info.Config.Name, "OBJ_") {
			out[info.Config.Name] = fmt.Sprint(info.State.Bytes, " bytes in ", info.State.Msgs, " messages")
		}
	}
	if err := lister.Err(); err != nil || len(out) == 0 {
		c.t.Fatalf("list streams: %v, %v", out, err)
	}
	return out
}

// Saves of what has not changed store nothing but their records.
func TestUnchangedSavesStoreNothing(t *testing.T) {
	t.Parallel()
	n := 100
	if *long {
		n = 1000
	}
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	b.code(300)
	b.file("big", b.noise(20<<20), 0o644)
	s.attach("t", "work")
	for i := range 20 {
		s.putArtifact("t", fmt.Sprint("artifact-", i), strings.Repeat("artifact ", i*100))
	}
	ok[revision](s.client, "thread.save", object{"threadId": "t", "messages": strings.Split(strings.Repeat("a message,", 3000), ",")})
	s.save("t", "first")
	before := s.contents()
	for i := range n {
		if cp := s.save("t", fmt.Sprint(i)); cp.Stats.NewBytes != 0 {
			t.Fatalf("save %d stored %d bytes anew", i, cp.Stats.NewBytes)
		}
	}
	if after := s.contents(); !maps.Equal(before, after) {
		t.Errorf("%d saves of the same made %v of %v", n, after, before)
	}
	for i := range 20 {
		ok[checkpoint](s.client, "fork", object{"threadId": "t", "destinationThreadId": fmt.Sprint("fork", i)})
	}
	if after := s.contents(); !maps.Equal(before, after) {
		t.Errorf("forks made %v of %v", after, before)
	}
}

// Equal trees of different threads share their contents, whoever saved first.
func TestEqualTreesAreStoredOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, name := range []string{"one", "two"} {
		b := build(t, s.sandbox(t, name))
		b.code(300) // the same in both: builders draw the same bytes
		s.attach(name, name)
	}
	s.save("one", "r")
	before := s.contents()["OBJ_sandbox-packs"]
	if cp := s.save("two", "r"); cp.Stats.NewBytes != 0 {
		t.Errorf("the second thread stored %d bytes anew", cp.Stats.NewBytes)
	}
	if after := s.contents()["OBJ_sandbox-packs"]; after != before {
		t.Errorf("the second thread made %s of %s", after, before)
	}
}

// A conversation that grows by one message adds about that.
func TestGrowingConversation(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "work")).file("file", []byte("x"), 0o644)
	s.attach("t", "work")
	noise := build(t, t.TempDir())
	var messages []object
	for i := range 400 {
		messages = append(messages, object{"role": "user", "n": i, "content": noise.noise(750)})
	}
	ok[revision](s.client, "thread.save", object{"threadId": "t", "messages": messages})
	size := func() (n uint64) {
		for name := range s.contents() {
			stream, err := s.js().Stream(s.ctx(), name)
			if err != nil {
				t.Fatal(err)
			}
			n += stream.CachedInfo().State.Bytes
		}
		return n
	}
	before := size()
	for i := range 20 {
		messages = append(messages, object{"role": "user", "n": 400 + i, "content": noise.noise(750)})
		ok[revision](s.client, "thread.save", object{"threadId": "t", "messages": messages})
	}
	if grown := size() - before; grown > 20*80<<10 || before < 300_000 {
		t.Errorf("20 messages of 1 KB added %d bytes to %d", grown, before)
	}
}
