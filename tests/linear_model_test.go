package tests

import (
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// The sequential model that histories are checked against: some threads and
// the ids that they share. It allows too much rather than too little where the
// order of faults or the clock of the server is concerned, and nothing else.

const (
	linThreads = 4
	linIDs     = 10
	linLease   = 3 * time.Second
	// never is when an operation returns whose outcome nobody knows.
	never = math.MaxInt64
	// linSlack is for the clocks of the server and of the test, which tick apart.
	linSlack = int64(100 * time.Millisecond)
	// linMargin is the end of a lease in which a renewal is refused.
	linMargin = int64(time.Second)
	// pending is the code of a change that may happen at any time, or never.
	pending = "pending"
)

// linOp is a request. Times are nanoseconds since the test began.
type linOp struct {
	kind      string // the subject, or "source" for the reading half of a fork
	thread    int    // the one asked about or changed
	source    int    // where a fork copies from
	id        string // asked for, appended, deleted, or of the root of a fork
	expected  string // the head to append to, or the checkpoint to fork, "" for the head
	fence     uint64 // of the writer
	mark      int64  // createdAt: one for each request, its repetitions included
	sent, got int64
	excused   bool // another acquire of the thread was under way
}

// linReply is what came back.
type linReply struct {
	code  string // "" for a good reply
	head  string // headId, checkpointId or actualHead; "" for null
	fence uint64
	token string // with a fence
	seen  []linSeen
}

// linSeen is a checkpoint as a reply shows it.
type linSeen struct {
	linEntry
	thread int
	parent string
}

// linEntry is a checkpoint of a chain. Its content, the mark of the append that
// it was made by or copied from, is 0 if nobody knows.
type linEntry struct {
	id            string
	mark, content int64
	from          linSource
}

// linSource is what a fork root was copied from. An id of "" was the head then.
type linSource struct {
	fork   bool
	thread int
	id     string
}

func (s linSource) like(o linSource) bool {
	return s.fork && s.thread == o.thread && (s.id == o.id || s.id == "" || o.id == "")
}

func (e linEntry) shownAs(o linEntry) bool {
	return e.id == o.id && e.mark == o.mark && (e.content == o.content || e.content == 0)
}

// linHold is a thread's lease. A fence of 0 means that nobody had it yet.
type linHold struct {
	fence    uint64
	until    int64 // the server can't have let it expire before
	released int64 // when its release returned, 0 before
	fenced   bool  // a fork took the thread over
}

func (h linHold) held() bool { return h.fence > 0 && h.released == 0 && !h.fenced }

// free tells whether somebody else can have taken the thread by then.
func (h linHold) free(by int64) bool { return !h.held() || by >= h.until-linSlack }

// admits tells whether the writer of op may change the thread. After a release
// only what was sent before it may still land.
func (h linHold) admits(op linOp) bool {
	return h.fence == op.fence && !h.fenced && (h.released == 0 || op.sent < h.released)
}

func (h linHold) lost(op linOp) bool {
	by := op.got
	if op.kind == "writer.renew" {
		by += linMargin
	}
	return h.fence != op.fence || h.free(by)
}

type linThread struct {
	chain []linEntry
	hold  linHold
}

func (th linThread) head() string {
	if len(th.chain) == 0 {
		return ""
	}
	return th.chain[len(th.chain)-1].id
}

func (th linThread) parent(i int) string {
	if i == 0 {
		return ""
	}
	return th.chain[i-1].id
}

// linState is never changed once it was made.
type linState [linThreads]linThread

func (s *linState) with(i int, th linThread) *linState {
	next := *s
	next[i] = th
	return &next
}

// find returns where an id is visible; thread -1 if it is not.
func (s *linState) find(id string) (thread, depth int) {
	for t := range s {
		for d, e := range s[t].chain {
			if e.id == id {
				return t, d
			}
		}
	}
	return -1, 0
}

// holding is the newest checkpoint of a thread that can have the content.
func (s *linState) holding(thread int, content int64) string {
	for _, e := range slices.Backward(s[thread].chain) {
		if e.content == content || e.content == 0 {
			return e.id
		}
	}
	return ""
}

// done tells whether the append is in its thread already.
func (s *linState) done(op linOp) bool {
	t, d := s.find(op.id)
	return t == op.thread && s[t].chain[d].mark == op.mark && s[t].parent(d) == op.expected
}

func linModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return &linState{} },
		Step: func(state, input, output any) (bool, any) {
			next := state.(*linState).step(input.(linOp), output.(linReply))
			return next != nil, next
		},
		Equal: func(a, b any) bool {
			return slices.EqualFunc(a.(*linState)[:], b.(*linState)[:], func(a, b linThread) bool {
				return a.hold == b.hold && slices.Equal(a.chain, b.chain)
			})
		},
	}
}

// step returns the state after op, nil if the reply can't be.
func (s *linState) step(op linOp, r linReply) *linState {
	var next *linState
	switch {
	case r.code != "" && r.code != pending:
		if s.refuses(op, r) {
			next = s
		}
	case op.kind == "checkpoint.append":
		next = s.append(op, r)
	case op.kind == "checkpoint.delete-head":
		next = s.deleteHead(op, r)
	case op.kind == "checkpoint.fork" || op.kind == "fork":
		next = s.fork(op, r)
	case op.kind == "writer.acquire" || op.kind == "writer.renew" || op.kind == "writer.release":
		next = s.lease(op, r)
	case s.shows(op, r):
		next = s
	}
	if next == nil && r.code == pending {
		return s // it changes nothing
	}
	return next
}

// refuses tells whether the thread is such that op fails with that code.
func (s *linState) refuses(op linOp, r linReply) bool {
	th := s[op.thread]
	at, _ := s.find(op.id)
	source, _ := s.find(op.expected)
	switch r.code {
	case fullCode("WRITER_LOST"):
		return th.hold.lost(op)
	case fullCode("WRITER_CONFLICT"):
		return th.hold.held() || op.excused
	case fullCode("DUPLICATE_ID"):
		return at >= 0 && !s.done(op)
	case fullCode("STALE_HEAD"):
		return r.head == th.head() && r.head != op.expected && !s.done(op)
	case fullCode("NOT_HEAD"):
		return r.head == th.head() && r.head != op.id
	case fullCode("FORK_SOURCE_NOT_FOUND"):
		return source < 0 && (op.expected != "" || len(s[op.source].chain) == 0)
	case fullCode("FORK_SOURCE_THREAD_MISMATCH"):
		return source >= 0 && source != op.source
	case fullCode("FORK_DESTINATION_NOT_EMPTY"):
		return at >= 0 || len(th.chain) > 0
	}
	return false
}

// shows tells whether a reading op sees the state.
func (s *linState) shows(op linOp, r linReply) bool {
	switch op.kind {
	case "checkpoint.head":
		return r.head == s[op.thread].head()
	case "checkpoint.list":
		chain := s[op.thread].chain
		if len(chain) != len(r.seen) {
			return false
		}
		for d, e := range chain {
			i := slices.IndexFunc(r.seen, func(seen linSeen) bool { return seen.id == e.id })
			if i < 0 || !s.showsAt(op.thread, d, r.seen[i]) {
				return false
			}
		}
		return true
	}
	if op.kind == "source" && op.id == "" { // the head then: its content tells which
		op.id = s.holding(op.thread, r.seen[0].content)
	}
	t, d := s.find(op.id)
	if t < 0 || len(r.seen) == 0 {
		return t < 0 && len(r.seen) == 0
	}
	if op.kind == "source" { // the copy, of which only the content tells
		e := s[t].chain[d]
		return t == op.thread && (e.content == 0 || r.seen[0].content == e.content)
	}
	return s.showsAt(t, d, r.seen[0])
}

func (s *linState) showsAt(t, d int, seen linSeen) bool {
	return seen.thread == t && seen.parent == s[t].parent(d) && s[t].chain[d].shownAs(seen.linEntry)
}

func (s *linState) append(op linOp, r linReply) *linState {
	th := s[op.thread]
	at, _ := s.find(op.id)
	switch {
	case r.code != pending && r.head != op.id:
		return nil
	case s.done(op):
		return s
	case at >= 0 || th.head() != op.expected || !th.hold.admits(op):
		return nil
	}
	th.chain = append(slices.Clone(th.chain), linEntry{id: op.id, mark: op.mark, content: op.mark})
	return s.with(op.thread, th)
}

func (s *linState) deleteHead(op linOp, r linReply) *linState {
	th := s[op.thread]
	if len(th.chain) == 0 || th.head() != op.id || !th.hold.admits(op) {
		return nil
	}
	th.chain = th.chain[: len(th.chain)-1 : len(th.chain)-1]
	if r.code != pending && r.head != th.head() {
		return nil
	}
	return s.with(op.thread, th)
}

// fork is the writing half of a fork. One that is there already is the answer.
func (s *linState) fork(op linOp, r linReply) *linState {
	th := s[op.thread]
	root := linEntry{id: op.id, mark: op.mark, from: linSource{true, op.source, op.expected}}
	at, depth := s.find(op.id)
	if at == op.thread && th.chain[depth].from.like(root.from) {
		if r.code == pending || s.showsAt(at, depth, r.seen[0]) {
			return s
		}
		return nil
	}
	if at >= 0 || len(th.chain) > 0 {
		return nil
	}
	switch {
	case op.kind == "checkpoint.fork" && !th.hold.admits(op), op.kind == "fork" && !th.hold.free(op.got):
		return nil
	case op.kind == "fork":
		th.hold.fenced = th.hold.fence > 0 // whoever had the thread is fenced off
	}
	if r.code != pending {
		root.content = r.seen[0].content
	}
	th.chain = []linEntry{root}
	next := s.with(op.thread, th)
	if r.code != pending && !next.showsAt(op.thread, 0, r.seen[0]) {
		return nil
	}
	return next
}

func (s *linState) lease(op linOp, r linReply) *linState {
	th := s[op.thread]
	h := &th.hold
	switch op.kind {
	case "writer.acquire":
		if r.fence <= h.fence || !h.free(op.got) {
			return nil
		}
		*h = linHold{fence: r.fence, until: op.sent + int64(linLease)}
	case "writer.renew":
		if !h.admits(op) {
			return nil
		}
		h.until = max(h.until, op.sent+int64(linLease))
	case "writer.release":
		if h.fence == op.fence && h.held() {
			h.released = op.got
		}
	}
	return s.with(op.thread, th)
}
