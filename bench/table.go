package main

import (
	"fmt"
	"slices"
	"strings"
)

// table has, for each step and peer, the figures of the rounds.
type table struct {
	peers []peer
	steps []string
	cells map[[2]string][]float64
}

func newTable(peers []peer) *table { return &table{peers: peers, cells: map[[2]string][]float64{}} }

func (t *table) add(step, who string, v float64) {
	if !slices.Contains(t.steps, step) {
		t.steps = append(t.steps, step)
	}
	t.cells[[2]string{step, who}] = append(t.cells[[2]string{step, who}], v)
}

func (t *table) has(who string) bool {
	return slices.ContainsFunc(t.peers, func(p peer) bool { return p.name() == who })
}

// String is the table in Markdown, and what is no peer's in lines below it.
func (t *table) String() string {
	var b, below strings.Builder
	b.WriteString("| |")
	for _, p := range t.peers {
		fmt.Fprintf(&b, " %s |", strings.ReplaceAll(p.name(), "|", `\|`))
	}
	fmt.Fprintf(&b, "\n|%s\n", strings.Repeat(" --- |", len(t.peers)+1))
	for _, step := range t.steps {
		if alone := t.cells[[2]string{step, ""}]; alone != nil {
			fmt.Fprintf(&below, "\n%s: %s\n", step, cell(step, alone))
			continue
		}
		fmt.Fprintf(&b, "| %s |", step)
		for _, p := range t.peers {
			fmt.Fprintf(&b, " %s%s |", cell(step, t.cells[[2]string{step, p.name()}]), t.ratio(step, p))
		}
		b.WriteByte('\n')
	}
	return b.String() + below.String()
}

// ratio is how many times Sandkeep's figure the peer's is, by the median of the
// rounds. Peers that sync are held against the Sandkeep that does.
func (t *table) ratio(step string, p peer) string {
	ours := t.cells[[2]string{step, sandkeep{sync: syncOf(p)}.name()}]
	if ours == nil {
		ours = t.cells[[2]string{step, sandkeep{}.name()}]
	}
	theirs := t.cells[[2]string{step, p.name()}]
	if _, own := p.(sandkeep); own || len(theirs) == 0 || len(ours) != len(theirs) {
		return ""
	}
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = theirs[i] / ours[i]
	}
	return fmt.Sprintf(" ×%.3g", middle(ratios))
}

func syncOf(p peer) string {
	if p.syncs() {
		return "always"
	}
	return "interval"
}

func cell(step string, values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	switch {
	case strings.HasPrefix(step, "stored"):
		return megabytes(middle(values))
	case strings.HasPrefix(step, "memory"):
		return fmt.Sprintf("%.0f MiB", middle(values))
	}
	return fmt.Sprintf("%s (%s–%s)", seconds(middle(values)), seconds(slices.Min(values)), seconds(slices.Max(values)))
}

func seconds(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.3f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// middle is the median.
func middle(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func megabytes(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.3f MB", v)
	}
	return fmt.Sprintf("%.1f MB", v)
}
