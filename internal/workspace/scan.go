package workspace

import (
	"container/list"
	"errors"
	"runtime"

	"sync"

	"golang.org/x/sys/unix"
)

const (
	maxScanners = 4
	// maxAhead bounds the memory of what was scanned and not walked, in names
	// and in places; maxOpenAhead its handles.
	maxAhead     = 16 << 10
	maxOpenAhead = 128
)

// scan looks up the tree ahead of the walk: its workers take the parts in the
// order in which the walk will come to them. The walk itself scans what no
// worker has begun, so that it never waits for the queue.
type scan struct {
	policy    *policy
	redactor  *Redactor
	forbidden []stat
	fault     func(op, path string) error
	isNew     func(stat) bool // that the stat cache can't have it
	root      *dir

	workers sync.WaitGroup
	// mu guards what is below and the jobs of the parts. Of a part and its
	// directory, only who runs the part uses the rest until it is done.
	mu      sync.Mutex
	work    sync.Cond  // workers wait for something to do
	done    sync.Cond  // the walk waits for a worker
	queue   *list.List // of the parts that are not done or have unread files, in path order
	opened  map[*dir]struct{}
	ahead   int // names and places
	handles int // of directories
	full    bool
	waiting int // workers
	closed  bool
	reads   reads
}

// job is the state of a part in the queue.
type job struct {
	state state
	at    *list.Element
}

type state uint8

const (
	unscanned state = iota
	scanning
	scanned
)

func (t *Trees) newScan(rules *policy, root handle, isNew func(stat) bool) *scan {
	s := &scan{policy: rules, redactor: t.redactor, forbidden: statsOf(t.forbidden()), fault: t.fault, isNew: isNew,
		queue: list.New(), opened: map[*dir]struct{}{}}
	s.work.L, s.done.L = &s.mu, &s.mu
	s.root = newDir(nil, "", &matches{})
	s.root.handle = root
	s.root.first.at = s.queue.PushBack(&s.root.first)
	// With the walk they are one more than can run: one of them waits for the disk.
	for range min(runtime.GOMAXPROCS(0), maxScanners) {
		s.workers.Go(s.runAhead)
	}
	return s
}

// close waits for the workers and closes what the walk has not left.
func (s *scan) close() {
	s.mu.Lock()
	s.closed = true
	s.work.Broadcast()
	s.mu.Unlock()
	s.workers.Wait()
	for d := range s.opened {
		d.close()
	}
}

func (s *scan) runAhead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed {
		if s.readNext() {
			continue
		}
		if p := s.next(); p != nil {
			s.run(p, true)
			continue
		}
		s.waiting++
		s.work.Wait()
		s.waiting--
	}
}

// next is the nearest part that nobody has begun, if there is room for it.
func (s *scan) next() *part {
	s.full = s.full || s.ahead >= maxAhead || s.handles >= maxOpenAhead
	if s.full || s.reads.files >= maxUnread {
		return nil
	}
	for e := s.queue.Front(); e != nil; e = e.Next() {
		if p := e.Value.(*part); p.state == unscanned {
			return p
		}
	}
	return nil
}

// run scans a part. Called with the lock, it lets go of it meanwhile. A part
// ahead of the walk is put back if there is no handle for it now.
func (s *scan) run(p *part, ahead bool) {
	p.state = scanning
	s.mu.Unlock()
	next := s.scan(p)
	s.mu.Lock()
	defer s.done.Signal()
	if err := p.dir.err; ahead && p.isFirst() && (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) {
		p.dir.err, p.state, s.full = nil, unscanned, true
		return
	}
	p.state = scanned
	at := p.at
	for _, n := range next {
		n.at = s.queue.InsertAfter(n, at)
		at = n.at
	}
	wanted := p.wanted()
	if s.reads.files += wanted; wanted == 0 {
		s.queue.Remove(p.at)
		p.at = nil
	}
	s.ahead += len(p.places)
	if p.isFirst() && p.dir.handle != noHandle {
		s.opened[p.dir] = struct{}{}
		s.handles++
		s.ahead += p.dir.count
	}
	if len(next)+wanted > 0 && s.waiting > 0 && !s.full {
		s.work.Broadcast()
	}
}

// get gives the walk a part. While a worker has it, the walk scans another.
func (s *scan) get(p *part) []place {
	if p.dir.probe {
		if p.state != scanned {
			s.scan(p)
			p.state = scanned
		}
		return p.places
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p.state != scanned {
		next := p
		if p.state == scanning {
			next = s.next()
		}
		if next == nil {
			s.done.Wait()
			continue
		}
		s.run(next, next != p)
	}
	return p.places
}

// isUntouched reports whether nobody has begun to scan the directory.
func (s *scan) isUntouched(d *dir) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.first.state == unscanned
}

// begin is called when the walk comes to the names of a directory: they are no
// longer ahead of it.
func (s *scan) begin(d *dir) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles--
	s.release(d.count)
}

// pass is called when the walk has dealt with a part.
func (s *scan) pass(p *part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(p.places)
	p.places = nil
	if p.at != nil {
		s.queue.Remove(p.at)
	}
	s.release(n)
}

// release wakes the workers when half of the room is free.
func (s *scan) release(n int) {
	s.ahead -= n
	if s.full && s.ahead < maxAhead/2 && s.handles < maxOpenAhead/2 {
		s.full = false
		s.work.Broadcast()
	}
}

// leave is called when the walk is done with a directory.
func (s *scan) leave(d *dir) {
	s.mu.Lock()
	delete(s.opened, d)
	s.mu.Unlock()
	d.close()
}
