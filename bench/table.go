package main

import (
	"fmt"
	"slices"
	"strings"
)

// table has, for each step and peer, the figures of the rounds.
type table struct {
	steps, peers []string
	cells        map[[2]string][]float64
}

func newTable() *table { return &table{cells: map[[2]string][]float64{}} }

func (t *table) add(step, peer string, v float64) {
	if !slices.Contains(t.steps, step) {
		t.steps = append(t.steps, step)
	}
	if step != walk && !slices.Contains(t.peers, peer) {
		t.peers = append(t.peers, peer)
	}
	t.cells[[2]string{step, peer}] = append(t.cells[[2]string{step, peer}], v)
}

// String is the table in Markdown, and the walk in a line below it.
func (t *table) String() string {
	slices.Sort(t.peers)
	if i := slices.Index(t.peers, "sandkeep"); i > 0 {
		t.peers = slices.Insert(slices.Delete(t.peers, i, i+1), 0, "sandkeep")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|%s\n", strings.Join(escaped(t.peers), " | "), strings.Repeat(" --- |", len(t.peers)+1))
	for _, step := range t.steps {
		if step == walk {
			continue
		}
		fmt.Fprintf(&b, "| %s |", step)
		for _, p := range t.peers {
			fmt.Fprintf(&b, " %s |", cell(step, t.cells[[2]string{step, p}]))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "\n%s: %s\n", walk, cell(walk, t.cells[[2]string{walk, "lstat"}]))
	return b.String()
}

func escaped(names []string) (out []string) {
	for _, n := range names {
		out = append(out, strings.ReplaceAll(n, "|", `\|`))
	}
	return out
}

func cell(step string, values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	slices.Sort(values)
	low, high := values[0], values[len(values)-1]
	middle := (values[(len(values)-1)/2] + values[len(values)/2]) / 2
	if strings.HasPrefix(step, "stored") {
		return fmt.Sprintf("%.1f MB", middle)
	}
	return fmt.Sprintf("%.3f (%.3f–%.3f)", middle, low, high)
}
