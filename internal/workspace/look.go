package workspace

import (
	"errors"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// stagingPrefix begins the names of directories that a restore fills.
const stagingPrefix = ".sandkeep-restore-"

// scan finds out about the names of a part. It returns the parts that can be
// scanned then, in path order.
func (s *scan) scan(p *part) (next []*part) {
	d := p.dir
	if p.isFirst() {
		if s.open(d); d.rule != "" || d.err != nil {
			return nil
		}
	}
	p.places = make([]place, len(p.names))
	for i, n := range p.names {
		at := &p.places[i]
		at.path = n.path
		s.judge(d, at, n.kind)
		s.want(d, at)
		if at.child != nil {
			next = append(next, &at.child.first)
		}
	}
	if p.isFirst() {
		next = append(next, d.parts[1:]...)
	}
	return next
}

// judge decides what is done with a name, and looks up what is not excluded.
func (s *scan) judge(d *dir, p *place, k kind) {
	if k == kindUnknown {
		if s.look(d, p); p.is(unix.S_IFDIR) {
			k = kindDir
		}
	}
	v, reason := s.sift(d, p.path, k == kindDir)
	switch {
	case v.rule != "" && !v.walk:
		p.what, p.note = excludedPlace, v.rule
	case reason != "":
		p.what, p.note = unsupportedPlace, reason
	case k == kindDir:
		p.what, p.onlyWalk = dirPlace, v.rule != ""
		p.child = newDir(d, p.path+"/", v.down)
		p.child.probe = d.probe
	case k == kindLeaf:
		s.look(d, p)
	}
}

// sift decides about a name before anything is looked up. reason is why a name
// that the policy keeps can't be kept.
func (s *scan) sift(d *dir, path string, isDir bool) (v verdict, reason string) {
	name := d.base(path)
	if only := s.policy.only; !isWithin(path, only) && !isBelow(only, path) {
		return verdict{rule: ruleOutside}, ""
	}
	if isDir && strings.HasPrefix(name, stagingPrefix) {
		return verdict{rule: ruleStore}, ""
	}
	v = s.policy.judge(d.down, path, name, isDir)
	if v.rule != "" && !v.walk {
		return v, ""
	}
	switch {
	case !utf8.ValidString(name):
		return v, "name is not UTF-8"
	case len(path) > snapshot.MaxPathBytes:
		return v, "path is too long"
	// What is valid by itself is valid in a valid directory, and quicker to check.
	case snapshot.ValidatePath(name) != nil && snapshot.ValidatePath(path) != nil:
		return v, "name has a backslash or a drive letter"
	case s.redactor.Text(path) != path:
		return v, "secret in its name"
	}
	return v, ""
}

// look finds out what a leaf is now.
func (s *scan) look(d *dir, p *place) {
	p.what, p.note = leafPlace, ""
	if p.err = s.fault("lstat", p.path); p.err != nil {
		return
	}
	if p.attr, p.err = d.handle.lstat(d.base(p.path)); p.err != nil || !p.is(unix.S_IFLNK) {
		return
	}
	p.target, p.err = d.handle.readlink(d.base(p.path))
	switch {
	case errors.Is(p.err, unix.EINVAL):
		p.err = errReplaced
	case p.err != nil:
	case !utf8.ValidString(p.target):
		p.what, p.note = unsupportedPlace, "target is not UTF-8"
	case s.redactor.Text(p.target) != p.target:
		p.what, p.note = unsupportedPlace, "secret in its target"
	}
}
