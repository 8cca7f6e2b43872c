package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"sandkeep/internal/snapshot"
)

// capture is one walk over a tree. It holds the names of the directories on the
// way to where it is and what the scan has ahead of it, never the tree.
type capture struct {
	t        *Trees
	strict   bool
	root     *os.File
	start    time.Time
	scan     *scan
	w        snapshot.TreeWriter
	cache    *statCache
	report   *report
	stats    snapshot.Stats
	entries  int64
	read     snapshot.Phase
	readTime time.Duration
	seen     attr // the file or link that is being added, as it was read
}

// Capture hands the tree under dir to w, in path order. Coverage.Phases has
// "scan" and "read"; read counts the files whose bytes were read, and its time
// has what w did with them.
func (t *Trees) Capture(ctx context.Context, dir string, pol snapshot.Policy, cacheKey string, w snapshot.TreeWriter) (snapshot.Captured, error) {
	rules, err := compile(pol)
	if err != nil {
		return snapshot.Captured{}, err
	}
	if err := t.CheckRoot(dir); err != nil {
		return snapshot.Captured{}, err
	}
	if err := t.settleDir(dir); err != nil {
		return snapshot.Captured{}, err
	}
	root, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return snapshot.Captured{}, rootFault(err)
	}
	c := t.newCapture(root, rules, pol, cacheKey, w)
	defer c.close()
	c.strict = pol.Strict
	if err := c.run(ctx, dir); err != nil {
		return snapshot.Captured{}, err
	}
	c.cache.commit()
	c.report.cov.Phases = c.phases(time.Since(c.start))
	return snapshot.Captured{Stats: c.stats, Coverage: c.report.cov}, nil
}

// newCapture makes the walk of an open directory ready. It must be closed.
func (t *Trees) newCapture(root *os.File, rules *policy, pol snapshot.Policy, cacheKey string, w snapshot.TreeWriter) *capture {
	start := time.Now()
	cache := t.openCache(root, pol, cacheKey, start)
	return &capture{t: t, w: w, root: root, start: start, report: newReport(t.redactor),
		cache: cache, scan: t.newScan(rules, handle(root.Fd()), cache.misses)}
}

func (c *capture) close() {
	c.scan.close()
	c.cache.close()
	_ = c.root.Close() // nothing was written
}

func (c *capture) run(ctx context.Context, dir string) error {
	if err := c.walkRoot(ctx); err != nil {
		return err
	}
	return c.check(dir, c.root)
}

func (c *capture) walkRoot(ctx context.Context) error {
	root := c.scan.root
	if c.scan.get(&root.first); root.err != nil {
		return rootFault(root.err)
	}
	return c.walk(ctx, root)
}

func rootFault(err error) error {
	return snapshot.Errorf(snapshot.InvalidWorkspace, "the workspace can't be opened (%s); give the worker access to it", errnoText(err)).Because(err)
}

// check fails the capture of a directory that was removed or replaced meanwhile,
// whose missing files would otherwise look deleted, and that of a strict policy.
func (c *capture) check(dir string, root *os.File) error {
	now, err := os.Stat(dir)
	if err == nil {
		var then os.FileInfo
		if then, err = root.Stat(); err == nil && !os.SameFile(now, then) {
			err = errors.New("another directory is in its place")
		}
	}
	if err != nil {
		return snapshot.Errorf(snapshot.WorkspaceChanged, "the workspace was removed or replaced while it was read; save again").Because(err)
	}
	if c.strict {
		return c.report.strict()
	}
	return nil
}

func (c *capture) phases(total time.Duration) map[string]snapshot.Phase {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	c.read.Ms = ms(c.readTime)
	return map[string]snapshot.Phase{
		"scan": {Ms: ms(total - c.readTime), Count: c.entries, Bytes: c.stats.Bytes},
		"read": c.read,
	}
}

// doomed reports whether a strict save has failed already: then only the list of
// its faults is still of use, and nothing more is read.
func (c *capture) doomed() bool { return c.strict && len(c.report.faults) > 0 }

// add hands an entry to the writer and counts it.
func (c *capture) add(ctx context.Context, e snapshot.Entry) error {
	if err := c.w.Add(ctx, e); err != nil {
		return fmt.Errorf("add entry %q: %w", e.Path, err)
	}
	c.entries++
	switch e.Kind {
	case snapshot.KindFile:
		c.stats.Files++
		c.stats.Bytes += e.Size
	case snapshot.KindDir:
		c.stats.Dirs++
	case snapshot.KindSymlink:
		c.stats.Symlinks++
	}
	return nil
}

// failed reports an error of the file system: what vanished was never there,
// what is denied is skipped, and anything else is returned and fails the save.
func (c *capture) failed(path string, err error) error {
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		c.report.skip(path, "permission denied", snapshot.UnreadableEntry)
		return nil
	}
	return snapshot.Errorf(snapshot.UnreadableEntry, "reading %q in the workspace failed: %s; mend that or exclude it", c.report.show(path), errnoText(err)).Because(err)
}
