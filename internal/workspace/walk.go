package workspace

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// walk captures a directory that the scan has entered. After an error the
// directory stays open, since the scan may still be at what is in it.
func (c *capture) walk(ctx context.Context, d *dir) error {
	c.scan.begin(d)
	before := c.entries
	// What is in "a" comes behind "a.txt". Of the directories that wait for
	// that, the name of each is the beginning of the next one's.
	var pending []*dir
	for _, part := range d.parts {
		places := c.scan.get(part)
		for i := range places {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := &places[i]
			var err error
			if pending, err = c.descend(ctx, pending, p.path); err != nil {
				return err
			}
			sub, err := c.own(ctx, d, p)
			if err != nil {
				return err
			}
			if sub != nil {
				pending = append(pending, sub)
			}
		}
		c.scan.pass(part)
	}
	if _, err := c.descend(ctx, pending, ""); err != nil {
		return err
	}
	if d.promised && c.entries == before && !c.doomed() {
		c.report.unstable(d.shownPath())
	}
	c.scan.leave(d)
	return nil
}

// descend walks those of the pending directories whose names come before the
// path, or all if it is "".
func (c *capture) descend(ctx context.Context, pending []*dir, until string) ([]*dir, error) {
	for len(pending) > 0 {
		last := len(pending) - 1
		sub := pending[last]
		if until != "" && sub.path > until {
			break
		}
		pending = pending[:last]
		if err := c.walk(ctx, sub); err != nil {
			return nil, err
		}
	}
	return pending, nil
}

// own captures a file, a link or a directory's own entry. It returns a directory
// that is to be walked.
func (c *capture) own(ctx context.Context, d *dir, p *place) (*dir, error) {
	switch p.what {
	case excludedPlace:
		c.report.exclude(p.note)
		return nil, nil
	case unsupportedPlace:
		c.report.skip(p.path, p.note, snapshot.UnsupportedEntry)
		return nil, nil
	case dirPlace:
		return c.ownDir(ctx, p)
	}
	return nil, c.leaf(ctx, d, p)
}

func (c *capture) ownDir(ctx context.Context, p *place) (*dir, error) {
	sub := p.child
	c.scan.get(&sub.first)
	switch {
	case sub.rule != "":
		c.report.exclude(sub.rule)
		return nil, nil
	case errors.Is(sub.err, errReplaced):
		c.report.unstable(p.path)
		return nil, nil
	case sub.err != nil:
		return nil, c.failed(p.path, sub.err)
	}
	// A directory that the policy keeps has an entry if it has a mode of its own
	// or nothing in it; one that is only walked, if it has both a mode and
	// something in it that an exception or an include keeps.
	own := sub.attr.perm() != snapshot.DefaultDirMode
	entry := own
	if own == p.onlyWalk {
		held, err := c.holds(ctx, sub)
		if err != nil {
			return nil, err
		}
		entry, sub.promised = held == own, held && !own
	}
	if entry {
		return sub, c.add(ctx, snapshot.Entry{Path: p.path, Kind: snapshot.KindDir, Mode: sub.attr.perm()})
	}
	return sub, nil
}

// holds reports whether a walk of the directory will keep anything. It stops at
// the first such entry, and what it can't see is not there for it: the walk
// meets it again and reports it.
func (c *capture) holds(ctx context.Context, d *dir) (bool, error) {
	for _, part := range d.parts {
		places := c.scan.get(part)
		for i := range places {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			if kept, err := c.isKept(ctx, d, &places[i]); kept || err != nil {
				return kept, err
			}
		}
	}
	return false, nil
}

func (c *capture) isKept(ctx context.Context, d *dir, p *place) (bool, error) {
	switch {
	case p.what == dirPlace:
		return c.isDirKept(ctx, p)
	case p.what != leafPlace || p.err != nil:
		return false, nil
	case p.is(unix.S_IFLNK):
		return true, nil
	case !p.is(unix.S_IFREG):
		return false, nil
	case c.cache.foresees(p.path, p.stat):
		return true, nil // it was read before, and its permissions are as they were
	}
	f, _, err := c.scan.openFile(d, p)
	if err != nil {
		return false, nil
	}
	f.close()
	return true, nil
}

func (c *capture) isDirKept(ctx context.Context, p *place) (bool, error) {
	sub := p.child
	// The walk may be far from what is in directories that are only walked:
	// these are not kept in memory until then.
	if sub.probe || p.onlyWalk && c.scan.isUntouched(sub) {
		sub = newDir(sub.parent, sub.path, sub.down)
		sub.probe = true
		defer sub.close()
	}
	c.scan.get(&sub.first)
	switch {
	case sub.rule != "" || sub.err != nil:
		return false, nil
	case !p.onlyWalk:
		return true, nil // it has an entry, or something in it has
	}
	return c.holds(ctx, sub)
}
