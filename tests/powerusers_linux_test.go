package tests

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// user is a client that sends requests of one kind, one after the other.
type user interface {
	step()               // sends one request, or again the one that got no answer
	lost() []string      // what was acknowledged and is not there
	readable(all bool)   // reads what is there
	count() (done int64) // acknowledged requests
}

// kept is an acknowledged checkpoint.
type kept struct {
	thread, id string
	tree       map[string]item
}

// ids lists a thread's checkpoints.
func (m *machine) ids(thread string) []string {
	m.t.Helper()
	var ids []string
	for after := ""; ; {
		page := ok[checkpointPage](m.client, "checkpoint.list", object{"threadId": thread, "after": after})
		for _, cp := range page.Checkpoints {
			ids = append(ids, cp.ID)
		}
		if after = page.Next; after == "" {
			return ids
		}
	}
}

// missing tells which checkpoints a thread should have and has not, and which
// it has without reason.
func (m *machine) missing(thread string, acked []kept, asked *kept) (out []string) {
	m.t.Helper()
	ids := m.ids(thread)
	for i, k := range acked {
		if i >= len(ids) || ids[i] != k.id {
			out = append(out, fmt.Sprintf("checkpoint %q of %q (there are %d)", k.id, thread, len(ids)))
		}
	}
	for i := len(acked); i < len(ids); i++ {
		if asked == nil || ids[i] != asked.id {
			m.t.Errorf("cut %d: %q has the checkpoint %q, which nobody asked for", m.cuts, thread, ids[i])
		}
	}
	return out
}

// verify restores checkpoints: the last ones and some others, or all.
func (m *machine) verify(list []kept, all bool) {
	m.t.Helper()
	for i, k := range list {
		if !all && i < len(list)-4 && m.rand.IntN(len(list)) >= 4 {
			continue
		}
		out := fmt.Sprintf("%s-%d-%t", k.id, m.cuts, all)
		sameTree(m.t, fmt.Sprintf("cut %d: %s", m.cuts, k.id), k.tree, m.restoreTree(k.thread, k.id, out))
		if err := os.RemoveAll(filepath.Join(m.restored, out)); err != nil {
			m.t.Error(err)
		}
	}
}

// saver changes a sandbox and saves it.
type saver struct {
	*machine
	thread string
	dir    string
	tree   *builder
	asked  *kept
	mu     sync.Mutex // guards acked against the forker
	acked  []kept
}

func (u *saver) step() {
	if u.tree == nil {
		if u.dir == "" {
			u.dir = u.sandbox(u.t, u.thread)
		}
		if !u.ask("instance.attach", object{"threadId": u.thread, "name": u.thread}, nil) {
			return
		}
		u.tree = build(u.t, u.dir)
		u.tree.code(12)
	}
	if u.asked == nil {
		n := len(u.acked)
		u.tree.file(fmt.Sprintf("src/%02d/%03d.go", n%12, n%12), u.tree.noise(1000+u.tree.rand.IntN(30_000)), 0o644)
		if n%6 == 5 { // so that the store's files fill up and are followed by others
			u.tree.file("big", u.tree.noise(700_000), 0o644)
		}
		u.tree.file(fmt.Sprintf("log/%d", n%5), fmt.Appendf(nil, "save %d", n), 0o600)
		u.asked = &kept{u.thread, fmt.Sprintf("save-%04d", n), readTree(u.t, u.dir)}
	}
	if u.ask("snapshot.save", object{"threadId": u.thread, "runId": "r", "checkpointId": u.asked.id, "waitMs": 30_000}, nil) {
		u.mu.Lock()
		u.acked, u.asked = append(u.acked, *u.asked), nil
		u.mu.Unlock()
	}
}

func (u *saver) lost() []string { return u.missing(u.thread, u.acked, u.asked) }

func (u *saver) readable(all bool) {
	u.chain(u.thread)
	u.verify(u.acked, all)
}

func (u *saver) count() int64 { return int64(len(u.acked)) }

// some is any checkpoint that there is.
func (u *saver) some(r *rand.Rand) (kept, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.acked) == 0 {
		return kept{}, false
	}
	return u.acked[r.IntN(len(u.acked))], true
}

// forker copies saved checkpoints to threads of their own.
type forker struct {
	*machine
	of    *saver
	asked *kept
	from  string
	acked []kept
}

func (u *forker) step() {
	if u.asked == nil {
		source, found := u.of.some(rand.New(rand.NewPCG(uint64(len(u.acked)), 2)))
		if !found {
			u.ask("checkpoint.head", object{"threadId": u.of.thread}, nil)
			return
		}
		name := fmt.Sprintf("fork-%04d", len(u.acked))
		u.asked, u.from = &kept{name, name, source.tree}, source.id
	}
	if u.ask("fork", object{"threadId": u.of.thread, "checkpointId": u.from, "destinationThreadId": u.asked.thread,
		"destinationCheckpointId": u.asked.id, "waitMs": 30_000}, nil) {
		u.acked, u.asked = append(u.acked, *u.asked), nil
	}
}

func (u *forker) lost() (out []string) {
	for _, k := range u.acked {
		out = append(out, u.missing(k.thread, []kept{k}, nil)...)
	}
	return out
}

func (u *forker) readable(all bool) { u.verify(u.acked, all) }
func (u *forker) count() int64      { return int64(len(u.acked)) }

// talker saves a conversation. What it says follows from the revision.
type talker struct {
	*machine
	revision int64 // acknowledged
	asked    bool  // the next one may be there as well
}

func talk(revision int64) (messages []string) {
	for i := range revision%20 + 1 {
		r := rand.New(rand.NewPCG(uint64(revision/20), uint64(i)))
		text := make([]byte, r.IntN(8000))
		for n := range text {
			text[n] = ' ' + byte(r.IntN(95)) // does not compress well
		}
		messages = append(messages, string(text))
	}
	return messages
}

func (u *talker) step() {
	var got revision
	u.asked = true
	if !u.ask("thread.save", object{"threadId": "talk", "messages": talk(u.revision + 1), "expectedRevision": u.revision}, &got) {
		return
	}
	if u.revision, u.asked = u.revision+1, false; got.Revision != u.revision {
		u.t.Errorf("cut %d: revision %d, want %d", u.cuts, got.Revision, u.revision)
	}
}

func (u *talker) lost() []string {
	got := ok[thread](u.client, "thread.load", object{"threadId": "talk"})
	if got.Revision < u.revision {
		return []string{fmt.Sprintf("revision %d (there is %d)", u.revision, got.Revision)}
	}
	if got.Revision > u.revision+1 || got.Revision > u.revision && !u.asked {
		u.t.Errorf("cut %d: revision %d, want %d", u.cuts, got.Revision, u.revision)
	}
	u.revision, u.asked = got.Revision, false
	return nil
}

func (u *talker) readable(bool) {
	got := ok[thread](u.client, "thread.load", object{"threadId": "talk"})
	var messages []string
	for _, raw := range got.Messages {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			u.t.Error(err)
		}
		messages = append(messages, text)
	}
	if got.Revision > 0 && !slices.Equal(messages, talk(got.Revision)) {
		u.t.Errorf("cut %d: revision %d has %d messages: %.200q", u.cuts, got.Revision, len(messages), messages)
	}
}

func (u *talker) count() int64 { return u.revision }

// appender appends checkpoints of its own making.
type appender struct {
	*machine
	thread string
	made   int // also those that were lost on the way
	asked  *kept
	acked  []kept
}

func (u *appender) step() {
	if u.asked != nil {
		return // the power failed
	}
	var lease, blob object
	data := bytes.Repeat(fmt.Appendf(nil, "%d ", u.made), 100+u.made*97%2000)
	if !u.ask("writer.acquire", object{"threadId": u.thread, "leaseDurationMs": 3000, "waitMs": 30_000}, &lease) ||
		!u.ask("blob.put", object{"kind": "file", "data": data}, &blob) {
		return
	}
	for _, member := range []string{"expiresAt", "renewAfterMs"} {
		delete(lease, member)
	}
	u.asked = u.make(data)
	var head *string
	if n := len(u.acked); n > 0 {
		head = &u.acked[n-1].id
	}
	cp := object{"id": u.asked.id, "threadId": u.thread, "createdAt": u.mtime(), "reason": "automatic", "conversation": []int{}, "artifacts": []int{},
		"files": []object{{"path": "made", "kind": "file", "blobKey": blob["key"], "size": len(data), "mtime": u.mtime()}}}
	if head != nil {
		cp["parentCheckpointId"] = *head
	}
	if u.ask("checkpoint.append", object{"checkpoint": cp, "expectedHeadId": head, "writer": lease}, nil) {
		u.acked, u.asked = append(u.acked, *u.asked), nil
	}
	u.ask("writer.release", lease, nil)
}

func (u *appender) make(data []byte) *kept {
	u.made++
	tree := map[string]item{"made": {"file", 0o644, fmt.Sprintf("%d %x", len(data), sha256.Sum256(data)), u.mtime() * 1e6}}
	return &kept{u.thread, fmt.Sprintf("append-%04d", u.made), tree}
}

// mtime is that of the file in ms; it serves as the checkpoint's time as well.
func (u *appender) mtime() int64 { return 1_700_000_000_000 + int64(u.made) }

// lost also learns whether the append that had no answer is there.
func (u *appender) lost() []string {
	out := u.missing(u.thread, u.acked, u.asked)
	if ids := u.ids(u.thread); u.asked != nil && slices.Contains(ids, u.asked.id) {
		u.acked = append(u.acked, *u.asked)
	}
	u.asked = nil
	return out
}

func (u *appender) readable(all bool) {
	u.chain(u.thread)
	u.verify(u.acked, all)
}

func (u *appender) count() int64 { return int64(len(u.acked)) }
