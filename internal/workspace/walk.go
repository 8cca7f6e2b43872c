package workspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"sandkeep/internal/snapshot"
)

// stagingPrefix begins the names of directories that a restore fills.
const stagingPrefix = ".sandkeep-restore-"

// dirWalk is an open directory on the way of a walk.
type dirWalk struct {
	root     *os.Root
	path     string // "" or "a/b/"
	down     *matches
	mode     os.FileMode
	promised bool // it has no entry of its own, since something in it will be kept
}

// item is a place in the order of a directory: key is a name, or a directory's
// name and "/" for what is in it, which sorts behind "name.txt".
type item struct {
	key string
	dir bool
}

// walk captures a directory. It leaves its root open.
func (c *capture) walk(ctx context.Context, d *dirWalk) error {
	before := c.entries
	items, err := c.list(d)
	switch {
	case err != nil && d.path == "":
		return rootFault(err)
	case err != nil:
		return c.failed(strings.TrimSuffix(d.path, "/"), err)
	}
	open := map[string]*dirWalk{} // entered, their children not yet walked
	defer func() {
		for _, sub := range open {
			_ = sub.root.Close()
		}
	}()
	for _, it := range items {
		if err := ctx.Err(); err != nil {
			return err
		}
		name, isChildren := strings.CutSuffix(it.key, "/")
		if !isChildren {
			if err := c.own(ctx, d, it, open); err != nil {
				return err
			}
		} else if sub := open[name]; sub != nil {
			delete(open, name)
			err := c.walk(ctx, sub)
			_ = sub.root.Close()
			if err != nil {
				return err
			}
		}
	}
	if d.promised && c.entries == before && !c.doomed() {
		c.report.unstable(strings.TrimSuffix(d.path, "/"))
	}
	return nil
}

// list returns the places in a directory, in path order.
func (c *capture) list(d *dirWalk) ([]item, error) {
	if err := c.t.fault("list", d.path); err != nil {
		return nil, err
	}
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	items := make([]item, 0, len(names))
	for _, n := range names {
		items = append(items, item{n.Name(), n.IsDir()})
		if n.IsDir() {
			items = append(items, item{n.Name() + "/", true})
		}
	}
	slices.SortFunc(items, func(a, b item) int { return strings.Compare(a.key, b.key) })
	return items, nil
}

// sift decides about a name before anything is looked up. reason is why a name
// that the policy keeps can't be kept.
func (c *capture) sift(d *dirWalk, name string, isDir bool) (v verdict, reason string) {
	path := d.path + name
	if isDir && strings.HasPrefix(name, stagingPrefix) {
		return verdict{rule: ruleStore}, ""
	}
	v = c.policy.judge(d.down, path, name, isDir)
	if v.rule != "" && !v.walk {
		return v, ""
	}
	switch {
	case !utf8.ValidString(path):
		return v, "name is not UTF-8"
	case len(path) > snapshot.MaxPathBytes:
		return v, "path is too long"
	case snapshot.ValidatePath(path) != nil:
		return v, "name has a backslash or a drive letter"
	case c.t.redactor.Text(path) != path:
		return v, "secret in its name"
	}
	return v, ""
}

// own captures a file, a link or a directory's own entry. A directory that is
// to be walked is put into open.
func (c *capture) own(ctx context.Context, d *dirWalk, it item, open map[string]*dirWalk) error {
	path := d.path + it.key
	v, reason := c.sift(d, it.key, it.dir)
	switch {
	case v.rule != "" && !v.walk:
		c.report.exclude(v.rule)
		return nil
	case reason != "":
		c.report.skip(path, reason, snapshot.UnsupportedEntry)
		return nil
	case it.dir:
		sub, err := c.ownDir(ctx, d, it.key, v)
		if sub != nil {
			open[it.key] = sub
		}
		return err
	}
	return c.leaf(ctx, d, it.key)
}

func (c *capture) ownDir(ctx context.Context, d *dirWalk, name string, v verdict) (*dirWalk, error) {
	sub, rule, err := c.enter(d, name, v)
	switch {
	case rule != "":
		c.report.exclude(rule)
		return nil, nil
	case errors.Is(err, errReplaced):
		c.report.unstable(d.path + name)
		return nil, nil
	case err != nil:
		return nil, c.failed(d.path+name, err)
	}
	// A directory that the policy keeps has an entry if it has a mode of its own
	// or nothing in it; one that is only walked, if it has both a mode and
	// something in it that an exception or an include keeps.
	own, onlyWalked := sub.mode != snapshot.DefaultDirMode, v.rule != ""
	entry := own
	if own == onlyWalked {
		held, err := c.holds(ctx, sub)
		if err != nil {
			_ = sub.root.Close()
			return nil, c.failed(d.path+name, err)
		}
		entry, sub.promised = held == own, held && !own
	}
	if entry {
		err = c.add(ctx, snapshot.Entry{Path: d.path + name, Kind: snapshot.KindDir, Mode: uint16(sub.mode)})
	}
	return sub, err
}

// errReplaced is about an entry that was one thing when it was looked up and
// another when it was opened.
var errReplaced = errors.New("replaced while it was opened")

// enter opens a directory. One of the worker's own has a rule instead.
func (c *capture) enter(d *dirWalk, name string, v verdict) (sub *dirWalk, rule string, err error) {
	if err := c.t.fault("enter", d.path+name); err != nil {
		return nil, "", err
	}
	seen, err := d.root.Lstat(name)
	switch {
	case err != nil:
		return nil, "", err
	case sameAny(seen, c.forbidden):
		return nil, ruleStore, nil
	}
	root, err := openSeen(d.root, name, seen)
	if err != nil {
		return nil, "", err
	}
	return &dirWalk{root: root, path: d.path + name + "/", down: v.down, mode: seen.Mode().Perm()}, "", nil
}

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

// holds reports whether a walk of the directory will keep anything. It stops at
// the first such entry, and what it can't see is not there for it: the walk
// meets it again and reports it.
func (c *capture) holds(ctx context.Context, d *dirWalk) (bool, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return false, err
	}
	defer f.Close()
	for {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		names, err := f.ReadDir(64)
		for _, n := range names {
			if ok, err := c.isKept(ctx, d, n); ok || err != nil {
				return ok, err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}

func (c *capture) isKept(ctx context.Context, d *dirWalk, n fs.DirEntry) (bool, error) {
	v, reason := c.sift(d, n.Name(), n.IsDir())
	switch {
	case reason != "" || v.rule != "" && !v.walk:
		return false, nil
	case n.IsDir():
		sub, rule, err := c.enter(d, n.Name(), v)
		if rule != "" || err != nil {
			return false, nil
		}
		defer sub.root.Close()
		if v.rule == "" {
			return true, nil // it has an entry, or something in it has
		}
		return c.holds(ctx, sub)
	case n.Type() == fs.ModeSymlink:
		_, reason, err := c.readlink(d, n.Name())
		return reason == "" && err == nil, nil
	case n.Type().IsRegular():
		f, _, err := c.open(d, n.Name())
		if err != nil {
			return false, nil
		}
		return true, f.Close()
	}
	return false, nil
}
