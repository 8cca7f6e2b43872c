package workspace

import (
	"bytes"
	"slices"
	"sync"
)

// automaton is the Aho-Corasick machine of a set of words: one table lookup for
// each byte, whatever the number of words.
type automaton struct {
	class   [256]uint8 // bytes that no word has share class 0
	classes int
	starts  [256]bool // bytes that begin a word
	next    []int32   // state*classes+class
	depth   []int32   // length of the longest word beginning that a state stands for
	longest []int32   // length of the longest word that ends in a state, 0: none
	buffers sync.Pool
}

// buffer gives out room for a held back word and a read.
func (a *automaton) buffer() *[]byte {
	if b, ok := a.buffers.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 64<<10+slices.Max(a.depth))
	return &b
}

func (a *automaton) release(b *[]byte) {
	if b != nil {
		a.buffers.Put(b)
	}
}

func newAutomaton(words [][]byte) *automaton {
	a := &automaton{classes: 1}
	for _, w := range words {
		for _, b := range w {
			if a.class[b] == 0 {
				// At most 255 distinct bytes: words have no NUL.
				a.class[b] = uint8(a.classes)
				a.classes++
			}
		}
	}
	a.grow(0)
	for _, w := range words {
		a.starts[w[0]] = true
		s := int32(0)
		for _, b := range w {
			slot := int(s)*a.classes + int(a.class[b])
			if a.next[slot] == 0 {
				a.next[slot] = a.grow(a.depth[s] + 1)
			}
			s = a.next[slot]
		}
		a.longest[s] = int32(len(w))
	}
	a.link()
	return a
}

func (a *automaton) grow(depth int32) int32 {
	a.next = append(a.next, make([]int32, a.classes)...)
	a.depth, a.longest = append(a.depth, depth), append(a.longest, 0)
	return int32(len(a.depth) - 1)
}

// link fills the missing transitions, breadth first, from the state of the
// longest proper suffix.
func (a *automaton) link() {
	suffix := make([]int32, len(a.depth))
	queue := []int32{0}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		for c := range a.classes {
			to := &a.next[int(s)*a.classes+c]
			var fallback int32
			if s != 0 {
				fallback = a.next[int(suffix[s])*a.classes+c]
			}
			if *to == 0 {
				*to = fallback
				continue
			}
			suffix[*to] = fallback
			if a.longest[*to] == 0 {
				a.longest[*to] = a.longest[fallback]
			}
			queue = append(queue, *to)
		}
	}
}

// span is a covered part of a text, from and to in bytes from its beginning.
type span struct{ from, to int64 }

// matcher runs an automaton over a text that comes in parts. Overlapping
// matches are merged into one span.
type matcher struct {
	a     *automaton
	state int32
	pos   int64
	spans []span
}

func (m *matcher) scan(p []byte) {
	a, s := m.a, m.state
	next, longest, classes := a.next, a.longest, a.classes
	for i := 0; i < len(p); i++ {
		if s == 0 { // most bytes begin nothing
			for i < len(p) && !a.starts[p[i]] {
				i++
			}
			if i == len(p) {
				break
			}
		}
		s = next[int(s)*classes+int(a.class[p[i]])]
		if n := longest[s]; n > 0 {
			end := m.pos + int64(i) + 1
			m.add(span{end - int64(n), end})
		}
	}
	m.state = s
	m.pos += int64(len(p))
}

func (m *matcher) add(s span) {
	for len(m.spans) > 0 && m.spans[len(m.spans)-1].to > s.from {
		s.from = min(s.from, m.spans[len(m.spans)-1].from)
		m.spans = m.spans[:len(m.spans)-1]
	}
	m.spans = append(m.spans, s)
}

// settled is the position before which no later match can begin.
func (m *matcher) settled() int64 { return m.pos - int64(m.a.depth[m.state]) }

func (a *automaton) find(p []byte) []span {
	m := matcher{a: a}
	m.scan(p)
	return m.spans
}

// replace returns p with the spans replaced.
func replace(p []byte, spans []span, by string) []byte {
	var out bytes.Buffer
	last := int64(0)
	for _, s := range spans {
		if s.from < last { // both end within one escape
			last = max(last, s.to)
			continue
		}
		out.Write(p[last:s.from])
		out.WriteString(by)
		last = s.to
	}
	out.Write(p[last:])
	return out.Bytes()
}
