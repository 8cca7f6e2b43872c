package workspace

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// move is a step of an exact restore. It can be undone whether it was made or
// not, since nothing else has the inode of what it moves.
type move struct {
	Do    moveKind `json:"do"`
	Path  string   `json:"path"` // "" for the directory itself
	Inode uint64   `json:"inode"`
	Slot  string   `json:"slot,omitempty"`  // of an entry that is displaced
	Dir   bool     `json:"dir,omitempty"`   // it is a directory, which goes only if it is empty
	Must  bool     `json:"must,omitempty"`  // it has to go, since another takes its place
	Maybe bool     `json:"maybe,omitempty"` // only if it is there
	Was   *look    `json:"was,omitempty"`
	Now   *look    `json:"now,omitempty"`
}

type moveKind string

const (
	moveOut  moveKind = "out"  // from its path to its slot
	moveIn   moveKind = "in"   // from its path in the stage to its path
	moveLook moveKind = "look" // from one mode and mtime to others
)

type look struct {
	Mode  uint32 `json:"mode"`
	Mtime *int64 `json:"mtime,omitempty"` // of a file
}

// planner finds the moves. First all that bars the way is opened, then what is
// not wanted goes, then what is new comes, then the modes are set.
type planner struct {
	*exact
	diff  *difference
	rules *policy
	own   []stat // the worker's own directories
	way   way    // in the directory
	slots int

	moves []move
	looks map[string]look // that are wanted at last
	gone  map[string]bool
}

func (x *exact) plan(d *difference, late []lateMode) ([]move, error) {
	rules, err := compile(x.to.Policy)
	if err != nil {
		return nil, err
	}
	p := &planner{exact: x, diff: d, rules: rules, own: statsOf(x.t.forbidden()), way: way{top: x.top}, looks: map[string]look{}, gone: map[string]bool{}}
	defer p.way.leave()
	for _, step := range []func() error{p.remove, p.removeDirs, p.bring, p.touch, func() error { return p.setLate(late) }, p.open} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p.moves, nil
}

// lstat looks an entry of the directory up.
func (p *planner) lstat(path string) (attr, error) {
	if path == "" {
		return p.top.stat()
	}
	dir, name := split(path)
	in, err := p.way.enter(dir, openDirectory)
	if err != nil {
		return attr{}, err
	}
	return in.lstat(name)
}

func (p *planner) out(path string, a attr) *move {
	p.slots++
	p.gone[path] = true
	if _, seen := p.diff.before[path]; !seen && !a.is(unix.S_IFDIR) {
		p.diff.before[path] = a // the policy hides it from the survey
	}
	p.moves = append(p.moves, move{Do: moveOut, Path: path, Inode: a.inode, Slot: strconv.Itoa(p.slots)})
	return &p.moves[len(p.moves)-1]
}

// remove displaces the leaves that are not wanted.
func (p *planner) remove() error {
	for _, path := range p.diff.removed {
		a, err := p.lstat(path)
		switch {
		case isAbsent(err):
			continue
		case err != nil:
			return changed(path, err)
		case a.is(unix.S_IFDIR):
			return changed(path, errReplaced)
		}
		p.out(path, a)
	}
	return nil
}

// removeDirs displaces the directories that are not wanted, the deepest first,
// unless they still hold something when their turn comes.
func (p *planner) removeDirs() error {
	for _, path := range slices.Backward(slices.Sorted(maps.Keys(p.diff.was))) {
		if _, wanted := p.diff.dirs[path]; wanted || p.rules.excludes(path) {
			continue
		}
		a, err := p.lstat(path)
		switch {
		case isAbsent(err):
			continue
		case err != nil || !a.is(unix.S_IFDIR):
			return changed(path, err)
		}
		m := p.out(path, a)
		m.Dir, m.Must = true, p.isStaged(path)
	}
	return nil
}

func (p *planner) isStaged(path string) bool {
	w := way{top: p.fresh}
	defer w.leave()
	dir, name := split(path)
	in, err := w.enter(dir, openDirectory)
	if err == nil {
		_, err = in.lstat(name)
	}
	return err == nil
}

// bring finds out how what is in the stage comes to its place.
func (p *planner) bring() error { return p.bringAll(p.fresh, p.top, "") }

func (p *planner) bringAll(staged, there handle, dir string) error {
	names, err := listNames(staged)
	if err != nil {
		return diskFault("list", dir, err)
	}
	for _, name := range names {
		path := name
		if dir != "" {
			path = dir + "/" + name
		}
		enters, err := p.bringOne(staged, there, path)
		if err != nil {
			return err
		}
		if enters {
			if err := p.bringBelow(staged, there, path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *planner) bringBelow(staged, there handle, path string) error {
	_, name := split(path)
	from, err := openDirectory(staged, name)
	if err != nil {
		return diskFault("open", path, err)
	}
	defer from.close()
	to, err := openDirectory(there, name)
	if err != nil {
		return changed(path, err)
	}
	defer to.close()
	return p.bringAll(from, to, path)
}

// bringOne plans for one entry, unless it is a directory that is there already.
func (p *planner) bringOne(staged, there handle, path string) (enters bool, err error) {
	_, name := split(path)
	fresh, err := staged.lstat(name)
	if err != nil {
		return false, diskFault("look at", path, err)
	}
	is, err := there.lstat(name)
	if err != nil && !isAbsent(err) {
		return false, changed(path, err)
	}
	_, captured := p.diff.was[path]
	switch isDir := is.is(unix.S_IFDIR); {
	case err != nil || p.gone[path]:
	case isDir && fresh.is(unix.S_IFDIR):
		if slices.ContainsFunc(p.own, func(o stat) bool { return o.inode == is.inode && o.device == is.device }) {
			return false, conflict(path)
		}
		if mode := p.diff.dirs[path]; !captured && isWithin(path, p.to.Prefix) && uint32(is.perm()) != uint32(mode) {
			p.looks[path] = look{Mode: uint32(mode)}
		}
		return true, nil
	case isDir || fresh.is(unix.S_IFDIR):
		return false, conflict(path)
	default:
		p.out(path, is)
	}
	p.moves = append(p.moves, move{Do: moveIn, Path: path, Inode: fresh.inode})
	return false, nil
}

// touch notes what modes and mtimes are wanted of what stays.
func (p *planner) touch() error {
	maps.Copy(p.looks, p.diff.touched)
	for path, mode := range p.diff.dirs {
		if was, ok := p.diff.was[path]; ok && was != mode && isWithin(path, p.to.Prefix) {
			p.looks[path] = look{Mode: uint32(mode)}
		}
	}
	return nil
}

// setLate notes the modes of new directories that could not be filled with them.
func (p *planner) setLate(late []lateMode) error {
	for _, l := range late {
		if _, err := p.lstat(l.path); err == nil && !isWithin(l.path, p.to.Prefix) {
			continue // it is there, and nobody asked for it
		}
		if _, there := p.diff.was[l.path]; !there {
			p.looks[l.path] = look{Mode: l.mode}
		}
	}
	return nil
}

// open makes the directories writable in which something moves, and turns the
// wanted modes into moves, the deepest first, since they may bar the way.
func (p *planner) open() error {
	var opens, looks []move
	opened := map[string]bool{}
	for path := range p.changing() {
		a, err := p.lstat(path)
		if isAbsent(err) || err == nil && !a.is(unix.S_IFDIR) {
			continue // it comes out of the stage
		}
		if err != nil {
			return changed(path, err)
		}
		mode := a.bits()
		if mode&0o700 == 0o700 {
			continue
		}
		m := move{Do: moveLook, Path: path, Inode: a.inode, Was: &look{Mode: mode}, Now: &look{Mode: mode | 0o700}}
		opens = append(opens, m)
		opened[path] = true
		if _, wanted := p.looks[path]; !wanted || p.gone[path] {
			m.Was, m.Now, m.Maybe = m.Now, m.Was, p.gone[path]
			looks = append(looks, m)
		}
	}
	for path, now := range p.looks {
		m, err := p.lookMove(path, now)
		if err != nil {
			return err
		}
		if opened[path] {
			m.Was.Mode |= 0o700
		}
		looks = append(looks, m)
	}
	slices.SortFunc(opens, func(a, b move) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortFunc(looks, func(a, b move) int { return cmp.Compare(b.Path, a.Path) })
	p.moves = slices.Concat(opens, p.moves, looks)
	return nil
}

// changing are the directories in which something moves, and those that move.
func (p *planner) changing() map[string]bool {
	out := map[string]bool{}
	for _, m := range p.moves {
		dir, _ := split(m.Path)
		out[dir] = true
		if m.Dir {
			out[m.Path] = true
		}
	}
	return out
}

func (p *planner) lookMove(path string, now look) (move, error) {
	a, err := p.lstat(path)
	if isAbsent(err) || errors.Is(err, errReplaced) || p.gone[path] {
		w := way{top: p.fresh}
		defer w.leave()
		var h handle
		if h, err = w.enter(path, openDirectory); err == nil {
			a, err = h.stat()
		}
	}
	if err != nil {
		return move{}, changed(path, err)
	}
	m := move{Do: moveLook, Path: path, Inode: a.inode, Was: &look{Mode: a.bits()}, Now: &now}
	now.Mode |= a.special() // no checkpoint has them
	if now.Mtime != nil {
		m.Was.Mtime = &a.mtime
	}
	return m, nil
}

// listNames are the names in an open directory, in order.
func listNames(h handle) ([]string, error) {
	again, err := h.open(".", unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer again.close()
	var out []string
	err = again.names(make([]byte, 8<<10), func(name []byte, _ kind) { out = append(out, string(name)) })
	slices.Sort(out)
	return out, err
}

// isWithin reports whether a path lies at or under a prefix, "" for all.
func isWithin(path, prefix string) bool {
	return prefix == "" || path == prefix || isBelow(path, prefix)
}

// excludes reports whether the policy excludes a directory.
func (p *policy) excludes(path string) bool {
	down, end := &matches{}, 0
	for part := range strings.SplitSeq(path, "/") {
		end += len(part)
		v := p.judge(down, path[:end], part, true)
		if end == len(path) || v.rule != "" && !v.walk {
			return v.rule != ""
		}
		down = v.down
		end++
	}
	return false
}
