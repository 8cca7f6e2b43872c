package workspace

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// partNames bounds the names of a directory that are looked up at once.
const partNames = 256

// dir is a directory of the tree. What is not fixed when it is made is there
// when its first part is scanned.
type dir struct {
	parent *dir   // nil: the root, which is open and which others close
	path   string // "" or "a/b/"
	down   *matches
	probe  bool // a look ahead of the order, out of the queue
	first  part

	handle   handle
	attr     attr
	rule     string // why it is not entered
	err      error
	count    int     // names
	parts    []*part // first of all the first
	promised bool    // it has no entry of its own, since something in it will be kept
}

func newDir(parent *dir, path string, down *matches) *dir {
	d := &dir{parent: parent, path: path, down: down, handle: noHandle}
	d.first.dir = d
	return d
}

// part is some of the names of a directory, in path order: the unit of the scan.
// Scanning the first one opens and lists the directory.
type part struct {
	dir    *dir
	names  []name
	places []place // what the scan found out about the names
	unread int     // places before this one were looked at by who reads ahead
	job
}

type name struct {
	path string
	kind kind
}

// place is what the scan knows of a name.
type place struct {
	path     string
	what     what
	onlyWalk bool // the policy excludes the directory, and not all that may be in it
	child    *dir
	// What a leaf was when it was looked up.
	attr
	target string // of a link
	note   string // the rule that excludes the name, or why it can't be kept
	err    error
	early  *early // nil: nothing to be read ahead
}

type what uint8

const (
	leafPlace what = iota
	dirPlace
	excludedPlace
	unsupportedPlace
)

func (p *part) isFirst() bool { return p == &p.dir.first }

func (d *dir) base(path string) string { return path[len(d.path):] }

// name is that of the directory in its parent.
func (d *dir) name() string { return strings.TrimSuffix(d.parent.base(d.path), "/") }

func (d *dir) shownPath() string { return strings.TrimSuffix(d.path, "/") }

// errReplaced is about an entry that was one thing when it was looked up and
// another when it was opened.
var errReplaced = errors.New("replaced while it was opened")

// replacedIf sorts out the errors of an open that mean another kind of entry:
// the given ones, and those without a number, by which os.Root refuses a link
// that leads out of it.
func replacedIf(err error, errnos ...syscall.Errno) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok || slices.Contains(errnos, errno) {
		return errReplaced
	}
	return err
}

// open enters the directory and lists it. One of the worker's own has a rule
// instead.
func (s *scan) open(d *dir) {
	if d.parent != nil {
		if d.rule, d.err = s.enter(d); d.rule != "" || d.err != nil {
			return
		}
	}
	if d.err = s.list(d); d.err != nil && d.parent != nil {
		d.close()
	}
}

func (d *dir) close() {
	if d.handle != noHandle && d.parent != nil {
		d.handle.close()
		d.handle = noHandle
	}
}

func (s *scan) enter(d *dir) (rule string, err error) {
	if err := s.fault("enter", d.shownPath()); err != nil {
		return "", err
	}
	if d.handle, err = d.parent.handle.open(d.name(), unix.O_DIRECTORY); err != nil {
		if a, lost := d.parent.handle.lstat(d.name()); lost == nil && s.isForbidden(a) {
			return ruleStore, nil
		}
		return "", replacedIf(err, unix.ENOTDIR, unix.ELOOP)
	}
	d.attr, err = d.handle.stat()
	if err == nil && s.isForbidden(d.attr) {
		rule = ruleStore
	}
	if err != nil || rule != "" {
		d.close()
	}
	return rule, err
}

func (s *scan) isForbidden(a attr) bool {
	return slices.ContainsFunc(s.forbidden, func(f stat) bool { return f.inode == a.inode && f.device == a.device })
}

// statsOf tells directories from others.
func statsOf(dirs []os.FileInfo) []stat {
	var out []stat
	for _, fi := range dirs {
		if s, ok := sysStat(fi); ok {
			out = append(out, s)
		}
	}
	return out
}

// lister is the room for listing a directory.
type lister struct {
	buf   [32 << 10]byte
	paths []byte
	ends  []end
}

type end struct {
	at   int
	kind kind
}

var listers = sync.Pool{New: func() any { return new(lister) }}

// list reads the names of an open directory and sorts them into parts.
func (s *scan) list(d *dir) error {
	if err := s.fault("list", d.path); err != nil {
		return err
	}
	l := listers.Get().(*lister)
	l.paths, l.ends = l.paths[:0], l.ends[:0]
	escape := false
	err := d.handle.names(l.buf[:], func(name []byte, k kind) {
		escape = escape || bytes.IndexByte(name, '/') >= 0
		l.paths = append(append(l.paths, d.path...), name...)
		l.ends = append(l.ends, end{len(l.paths), k})
	})
	if err == nil && escape {
		err = unix.EIO
	}
	names := l.names()
	if cap(l.paths) < 1<<20 {
		listers.Put(l)
	}
	if err == nil && len(names) > 0 && d.attr.mode&0o111 != 0o111 {
		_, err = d.handle.lstat(".") // whether names can be looked up
	}
	if err == nil {
		d.cut(names)
	}
	return err
}

// names gives what was listed, in order, in as much memory as it needs.
func (l *lister) names() []name {
	all, from := string(l.paths), 0
	out := make([]name, 0, len(l.ends))
	for _, e := range l.ends {
		out = append(out, name{all[from:e.at], e.kind})
		from = e.at
	}
	slices.SortFunc(out, func(a, b name) int { return strings.Compare(a.path, b.path) })
	return out
}

func (d *dir) cut(names []name) {
	d.count = len(names)
	d.first.names = names[:min(partNames, len(names))]
	d.parts = []*part{&d.first}
	for rest := names[len(d.first.names):]; len(rest) > 0; {
		n := min(partNames, len(rest))
		d.parts = append(d.parts, &part{dir: d, names: rest[:n]})
		rest = rest[n:]
	}
}
