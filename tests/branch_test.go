package tests

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// A branch goes on by itself: its sandbox, conversation and artifacts are its
// own, and the source is not touched.
func TestBranchGoesOn(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := build(t, s.sandbox(t, "work"))
	b.code(20)
	s.attach("t", "work")
	s.putArtifact("t", "kept", "kept")
	s.putArtifact("t", "replaced", "old bytes")
	s.putArtifact("t", "removed", "removed")
	ok[revision](s.client, "thread.save", object{"threadId": "t", "messages": []string{"one"}})
	first := s.save("t", "r1")
	before := s.state("t")
	ok[checkpoint](s.client, "fork", object{"threadId": "t", "destinationThreadId": "branch"})
	ok[restored](s.client, "restore", object{"threadId": "branch", "path": "branch", "into": "sandbox"})
	build(t, filepath.Join(s.sandboxes, "branch")).file("src/00/000.go", []byte("on the branch"), 0o644)
	s.putArtifact("branch", "replaced", "new bytes")
	s.putArtifact("branch", "added", "added")
	ok[empty](s.client, "artifact.delete", object{"threadId": "branch", "artifactId": "removed"})
	ok[empty](s.client, "artifact.delete", object{"threadId": "branch", "artifactId": "never there"})
	ok[revision](s.client, "thread.save", object{"threadId": "branch", "messages": []string{"one", "two"}, "expectedRevision": 0})
	child := ok[checkpoint](s.client, "snapshot.save", object{"threadId": "branch", "runId": "r2", "include": []string{"conversation"}})
	if len(child.Conversation) != 2 || child.Stats.NewBytes > 1000 {
		t.Errorf("the branch's checkpoint is %+v", child)
	}
	var names []string
	for _, a := range child.Artifacts {
		got := ok[artifactData](s.client, "artifact.read", object{"threadId": "branch", "checkpointId": child.ID, "artifactId": a.ID})
		names = append(names, a.ID+"="+string(*got.Data))
	}
	slices.Sort(names)
	if want := []string{"added=added", "kept=kept", "replaced=new bytes"}; !slices.Equal(names, want) {
		t.Errorf("artifacts of the branch are %q, want %q", names, want)
	}
	if got := s.chain("branch"); len(got) != 2 || got[1] != child.ID {
		t.Errorf("branch is %q", got)
	}
	after := s.state("t")
	for what := range before {
		if !strings.HasPrefix(what, "instance") && before[what] != after[what] {
			t.Errorf("%s of the source became %s", what, after[what])
		}
	}
	if got := s.content(child.ID, "src/00/000.go"); got != "on the branch" || s.content(first.ID, "src/00/000.go") == got {
		t.Errorf("the branch has %q", got)
	}
}

// A checkpoint keeps the artifacts that it was made with.
func TestCheckpointKeepsItsArtifacts(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "work")).file("file", []byte("x"), 0o644)
	s.attach("t", "work")
	s.putArtifact("t", "art", "first")
	first := s.save("t", "r1")
	s.putArtifact("t", "art", "second")
	second := s.save("t", "r2")
	ok[empty](s.client, "artifact.delete", object{"threadId": "t", "artifactId": "art"})
	third := s.save("t", "r3")
	for id, want := range map[string]string{first.ID: "first", second.ID: "second"} {
		got := ok[artifactData](s.client, "artifact.read", object{"threadId": "t", "checkpointId": id, "artifactId": "art"})
		if string(*got.Data) != want {
			t.Errorf("%s has %q, want %q", id, *got.Data, want)
		}
	}
	refused(s.client, "artifact.read", object{"threadId": "t", "checkpointId": third.ID, "artifactId": "art"}, fullCode("MISSING_CHECKPOINT_ARTIFACT"))
}

// outcomes sends requests at once and counts the codes of their replies, "" for
// success.
func (c client) outcomes(n int, request func(i int) (subject string, body any)) map[string]int {
	c.t.Helper()
	var replies []<-chan *nats.Msg
	for i := range n {
		subject, body := request(i)
		replies = append(replies, c.replyTo(subject, body))
	}
	out := map[string]int{}
	for _, ch := range replies {
		code := ""
		if f := decodeFailure(c.t, await(c.t, ch)); f != nil {
			code = f.Code
		}
		out[code]++
	}
	return out
}

// Of many that compete for one thing exactly one wins.
func TestCompetition(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.worker(s.node)
	build(t, s.sandbox(t, "work")).code(20)
	s.attach("t", "work")
	s.save("t", "r")
	got := s.outcomes(20, func(i int) (string, any) {
		return "fork", object{"threadId": "t", "destinationThreadId": "one", "waitMs": 20_000}
	})
	if got[""] != 1 || got[""]+got[fullCode("FORK_DESTINATION_NOT_EMPTY")]+got[fullCode("WRITER_CONFLICT")] != 20 || len(s.chain("one")) != 1 {
		t.Errorf("forks into one thread: %v", got)
	}
	got = s.outcomes(20, func(i int) (string, any) {
		return "fork", object{"threadId": "t", "destinationThreadId": fmt.Sprint("many", i)}
	})
	if got[""] != 20 {
		t.Errorf("forks into many threads: %v", got)
	}
	got = s.outcomes(20, func(i int) (string, any) {
		return "fork", object{"threadId": "t", "destinationThreadId": fmt.Sprint("id", i), "destinationCheckpointId": "same"}
	})
	if got[""] != 1 || got[""]+got[fullCode("FORK_DESTINATION_NOT_EMPTY")] != 20 {
		t.Errorf("forks under one id: %v", got)
	}
	got = s.outcomes(20, func(i int) (string, any) {
		return "thread.save", object{"threadId": "talk", "messages": []int{i}, "expectedRevision": 0}
	})
	if got[""] != 1 || got["SANDBOX_STALE_REVISION"] != 19 {
		t.Errorf("conditional saves of a conversation: %v", got)
	}
	got = s.outcomes(20, func(i int) (string, any) { return "thread.save", object{"threadId": "blind", "messages": []int{i}} })
	if rev := ok[thread](s.client, "thread.load", object{"threadId": "blind"}).Revision; got[""] != 20 || rev != 20 {
		t.Errorf("saves of a conversation: %v, revision %d", got, rev)
	}
	got = s.outcomes(20, func(i int) (string, any) {
		return "instance.upsert", object{"record": recordBody(object{"key": "one"}), "expectedRevision": 0}
	})
	if got[""] != 1 || got["SANDBOX_STALE_REVISION"] != 19 {
		t.Errorf("conditional upserts: %v", got)
	}
	got = s.outcomes(20, func(i int) (string, any) {
		return "restore", object{"threadId": "t", "path": "one"}
	})
	if got[""] != 1 || got[fullCode("DESTINATION_NOT_EMPTY")] != 19 {
		t.Errorf("restores into one directory: %v", got)
	}
	sameTree(t, "the restored directory", readTree(t, filepath.Join(s.sandboxes, "work")), readTree(t, filepath.Join(s.restored, "one")))
}

func TestInstanceRevisions(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	if got := ok[instanceOrNull](s.client, "instance.get", object{"key": "k"}); got.Record != nil || got.Revision != 0 {
		t.Errorf("a missing record is %+v", got)
	}
	ok[empty](s.client, "instance.delete", object{"key": "k"})
	rec := recordBody(object{"key": "k", "latestRunId": "r", "latestSnapshotId": "s"})
	first := ok[revision](s.client, "instance.upsert", object{"record": rec, "expectedRevision": 0}).Revision
	second := ok[revision](s.client, "instance.upsert", object{"record": recordBody(object{"key": "k"}), "expectedRevision": first}).Revision
	got := ok[instanceOrNull](s.client, "instance.get", object{"key": "k"})
	if got.Revision != second || second <= first || got.Record.LatestRunID != nil || got.Record.LatestSnapshotID != nil {
		t.Errorf("a full replace left %+v", got)
	}
	refused(s.client, "instance.delete", object{"key": "k", "expectedRevision": first}, "SANDBOX_STALE_REVISION")
	ok[empty](s.client, "instance.delete", object{"key": "k", "expectedRevision": second})
	if got := ok[instanceOrNull](s.client, "instance.get", object{"key": "k"}); got.Record != nil || got.Revision != 0 {
		t.Errorf("a deleted record is %+v", got)
	}
	third := ok[revision](s.client, "instance.upsert", object{"record": rec, "expectedRevision": 0}).Revision
	if third <= second {
		t.Errorf("revision %d after %d", third, second)
	}
	if n := len(ok[instancePage](s.client, "instance.list", object{}).Records); n != 1 {
		t.Errorf("%d records", n)
	}
}
