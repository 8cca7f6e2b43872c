package objstore

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

// packLooks asks, once for each pack that a save may refer to, whether it is
// whole: what was lost must not be reused.
type packLooks struct {
	s      *Store
	ctx    context.Context
	group  errgroup.Group
	chunks bool                     // they count as well, not only the info
	anew   map[snapshot.Digest]bool // packs that are not to be referred to again

	mu    sync.Mutex // guards what follows
	packs map[snapshot.Digest]*packLook
	err   error // why a question had no answer
}

// packLook is one question; whole is set when done closes.
type packLook struct {
	ref   packRef
	done  chan struct{}
	whole bool
}

func newPackLooks(ctx context.Context, s *Store, chunks bool) *packLooks {
	l := &packLooks{s: s, ctx: ctx, chunks: chunks, packs: map[snapshot.Digest]*packLook{}}
	l.group.SetLimit(lookups)
	return l
}

func (l *packLooks) ask(name snapshot.Digest) *packLook {
	l.mu.Lock()
	look, asked := l.packs[name]
	if !asked {
		look = &packLook{ref: packRef{name: name, closed: true}, done: make(chan struct{})}
		l.packs[name] = look
	}
	l.mu.Unlock()
	if !asked {
		l.group.Go(func() error { l.look(look); return nil })
	}
	return look
}

func (l *packLooks) look(look *packLook) {
	defer close(look.done)
	bucket, name := l.s.packs(), objectName(look.ref.name)
	switch {
	case l.failure() != nil: // one is enough
		return
	case l.s.suspects.has(bucket, name): // the next pack of that name is compared with it
		return
	case l.anew[look.ref.name]:
		return
	}
	info, _, err := l.s.info(l.ctx, bucket, name)
	whole := info != nil
	if whole && l.chunks {
		whole, err = l.s.whole(l.ctx, bucket, info, false)
	}
	switch {
	case err != nil:
		l.fail(err)
	case !whole:
		l.s.suspects.add(bucket, name)
	}
	look.whole = whole && err == nil
}

func (l *packLooks) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// failure is why a question had no answer.
func (l *packLooks) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// isWhole waits for the answer.
func (l *packLook) isWhole() bool {
	<-l.done
	return l.whole
}

// spans returns where the pieces of the row lie that only selects; none if a
// pack of theirs is lost.
func (l *packLooks) spans(r *rowReader, only func(rowPiece) bool) (spans []span) {
	lost := false
	r.eachPiece(func(p rowPiece) {
		if lost || !only(p) {
			return
		}
		look := l.ask(r.packs[p.pack])
		lost = !look.isWhole()
		spans = append(spans, spanOf(p, &look.ref))
	})
	if lost {
		return nil
	}
	return spans
}

// holds reports whether the piece can be reused. It goes by the answer for its
// pack: of those that proved unreadable the store forgets some.
func (l *packLooks) holds(p snapshot.Piece) bool {
	return l.s.reusable(p) && l.ask(p.Pack).isWhole()
}

// askPages asks for the pages of a list, which may be in the cache while the
// store has lost them.
func (l *packLooks) askPages(list snapshot.List) error {
	err := l.s.reuse(l.ctx, list, func(r snapshot.PageRef, _ bool) bool {
		l.ask(r.Pack)
		return true
	})
	_ = l.group.Wait() // its functions return none
	if err == nil || unreadable(err) {
		err = l.failure()
	}
	if err != nil {
		return fmt.Errorf("look for the pages before: %w", err)
	}
	return nil
}
