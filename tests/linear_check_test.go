package tests

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// linThought is how long an order is looked for: each change without a known
// outcome can double the search.
const linThought = 20 * time.Second

// undecided counts the groups of which there was too much to think about.
const undecided = "groups undecided"

// check looks for an order of what was done to a group.
func (b *linBench) check(g *linGroup) {
	result, info := porcupine.CheckOperationsVerbose(linModel(), g.history(), linThought)
	switch result {
	case porcupine.Ok:
		b.countExpired(longest(info))
	case porcupine.Illegal:
		b.t.Errorf("group %s: no order explains the replies: %s", g.name, stuck(g.history(), longest(info)))
	case porcupine.Unknown:
		b.count(undecided)
	}
}

// longest is the longest order that was found.
func longest(info porcupine.LinearizationInfo) (order []porcupine.Operation) {
	for _, o := range info.PartialLinearizationsOperations()[0] {
		if len(o) > len(order) {
			order = o
		}
	}
	return order
}

// countExpired counts the leases that went to another without a release.
func (b *linBench) countExpired(order []porcupine.Operation) {
	state := &linState{}
	for _, o := range order {
		op := o.Input.(linOp)
		next := state.step(op, o.Output.(linReply))
		if op.kind == "writer.acquire" && next != state && state[op.thread].hold.held() {
			b.count("leases taken over after they ran out")
		}
		state = next
	}
}

// stuck shows the end of the longest order that was found, and what does not
// fit behind it.
func stuck(history, order []porcupine.Operation) string {
	const shown = 25 // enough to see why
	state := &linState{}
	placed := map[linOp]bool{}
	for _, o := range order {
		op := o.Input.(linOp)
		placed[op], state = true, state.step(op, o.Output.(linReply))
	}
	rest := slices.DeleteFunc(slices.Clone(history), func(o porcupine.Operation) bool { return placed[o.Input.(linOp)] })
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	return fmt.Sprintf("%d of %d have an order, which ends with\n%sand leaves\n%+v\nbehind which nothing of this fits:\n%s", len(order), len(history),
		describe(order[max(0, len(order)-shown):]), *state, describe(rest[:min(len(rest), shown)]))
}

func describe(ops []porcupine.Operation) string {
	var lines strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&lines, "  %+v -> %+v\n", o.Input, o.Output)
	}
	return lines.String()
}

// history is what the model is asked about. Of the operations without a known
// outcome those are left out that change nothing the model knows of: reads, and
// acquires and renewals, whose leases no client has.
func (g *linGroup) history() (out []porcupine.Operation) {
	add := func(op linOp, r linReply) {
		out = append(out, porcupine.Operation{Input: op, Call: op.sent, Output: r, Return: op.got})
	}
	for _, rec := range g.ops {
		op, r := rec.op, rec.reply
		if r.code == pending && !slices.Contains(linChanges, op.kind) {
			continue
		}
		op.excused = r.code == fullCode("WRITER_CONFLICT") && g.acquiring(op)
		add(op, r)
		if strings.HasSuffix(op.kind, "fork") && r.code == "" && r.seen[0].mark == op.mark && !g.repeated(op) {
			add(linOp{kind: "source", thread: op.source, id: op.expected, sent: op.sent, got: op.got}, r)
		}
	}
	return out
}

// linKinds are the subjects that are used.
var linKinds = append([]string{"checkpoint.head", "checkpoint.get", "checkpoint.list", "writer.acquire", "writer.renew"}, linChanges...)

var linChanges = []string{"checkpoint.append", "checkpoint.delete-head", "checkpoint.fork", "fork", "writer.release"}

// acquiring tells whether something else that takes the thread's lease, if only
// for a moment, was under way during op. One that met a conflict itself never
// had it, unless it was slow.
func (g *linGroup) acquiring(op linOp) bool {
	return slices.ContainsFunc(g.ops, func(rec linRecord) bool {
		o := rec.op
		takes := o.kind == "writer.acquire" || o.kind == "fork"
		refused := rec.reply.code == fullCode("WRITER_CONFLICT") && o.got-o.sent < int64(linLease)/2
		return takes && !refused && o.thread == op.thread && o.sent <= op.got && op.sent <= o.got
	})
}

// repeated tells whether the request was sent more than once: then the source
// may have been read earlier.
func (g *linGroup) repeated(op linOp) bool {
	return slices.ContainsFunc(g.ops, func(rec linRecord) bool { return rec.op.mark == op.mark && rec.op.sent < op.sent })
}
