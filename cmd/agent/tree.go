package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// node is all that a checkpoint keeps of one entry of a tree.
type node struct {
	kind   string // "file", "dir", "symlink"
	mode   fs.FileMode
	mtime  int64 // ns; files only
	size   int64
	digest [sha256.Size]byte
	target string
}

// tree is a directory tree by path.
type tree map[string]node

// readTree reads a whole tree. Other kinds than files, directories and links
// are left out.
func readTree(ctx context.Context, dir string) (tree, error) {
	out := tree{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || at == dir {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		n, err := readNode(at, d)
		if err == nil && n.kind != "" {
			out[filepath.ToSlash(rel)] = n
		}
		return err
	})
	return out, err
}

func readNode(at string, d fs.DirEntry) (node, error) {
	info, err := d.Info()
	if err != nil {
		return node{}, err
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		return node{kind: "dir", mode: info.Mode().Perm()}, nil
	case fs.ModeSymlink:
		target, err := os.Readlink(at)
		return node{kind: "symlink", target: target}, err
	case 0:
		n := node{kind: "file", mode: info.Mode().Perm(), mtime: info.ModTime().UnixNano(), size: info.Size()}
		n.digest, err = digest(at)
		return n, err
	}
	return node{}, nil
}

func digest(at string) (sum [sha256.Size]byte, err error) {
	f, err := os.Open(at)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return sum, err
	}
	h.Sum(sum[:0])
	return sum, nil
}

// difference says in a word what differs first, or "".
func (n node) difference(other node) string {
	switch {
	case n.kind != other.kind:
		return "kind"
	case n.digest != other.digest:
		return "bytes"
	case n.size != other.size:
		return "size"
	case n.mode != other.mode:
		return "mode"
	case n.target != other.target:
		return "link target"
	case n.mtime != other.mtime:
		return "mtime"
	}
	return ""
}

// paths are the tree's paths in order.
func (t tree) paths() []string { return slices.Sorted(maps.Keys(t)) }

// excludedBy finds the rule that leaves a path out: one that matches a part of
// it, as all default rules do.
func excludedBy(p string, rules []string) bool {
	for part := range strings.SplitSeq(p, "/") {
		for _, rule := range rules {
			if ok, err := path.Match(path.Base(rule), part); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// copier copies a directory tree and never changes the source.
type copier struct {
	ctx     context.Context
	avoid   string   // a directory that is not copied
	skipped []string // of kinds that can't be copied
	dirs    []copiedDir
}

type copiedDir struct {
	path string
	mode fs.FileMode
}

// copyTree copies files with modes and times, directories with modes, and
// links as links into the new directory to. The directory avoid, which may lie
// in the source, stays out. It returns what could not be copied.
func copyTree(ctx context.Context, from, to, avoid string) (skipped []string, err error) {
	if from, err = filepath.EvalSymlinks(from); err != nil {
		return nil, err
	}
	c := copier{ctx: ctx, avoid: avoid}
	err = filepath.WalkDir(from, func(at string, d fs.DirEntry, err error) error {
		if err != nil && d != nil && at != from {
			return c.skip(at, d, err)
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		rel, err := filepath.Rel(from, at)
		if err != nil {
			return err
		}
		return c.entry(at, filepath.Join(to, rel), d)
	})
	for _, d := range slices.Backward(c.dirs) { // last, so that read-only ones can be filled
		if err == nil {
			err = os.Chmod(d.path, d.mode)
		}
	}
	return c.skipped, err
}

func (c *copier) skip(at string, d fs.DirEntry, cause error) error {
	if !errors.Is(cause, fs.ErrPermission) {
		return cause
	}
	c.skipped = append(c.skipped, fmt.Sprintf("%s: %v", at, cause))
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

func (c *copier) entry(from, to string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		if here, err := os.Stat(c.avoid); err == nil && os.SameFile(here, info) {
			return fs.SkipDir
		}
		c.dirs = append(c.dirs, copiedDir{to, info.Mode().Perm()})
		return os.Mkdir(to, 0o700)
	case fs.ModeSymlink:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case 0:
		if err := copyFile(from, to, info); err != nil {
			return c.skip(from, d, err)
		}
		return nil
	}
	c.skipped = append(c.skipped, from+": not a file, directory or link")
	return nil
}

func copyFile(from, to string, info fs.FileInfo) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Chmod(info.Mode().Perm()), out.Close()); err != nil {
		return err
	}
	return os.Chtimes(to, time.Time{}, info.ModTime())
}

// removeTree removes a tree also where directories are read-only.
func removeTree(dir string) error {
	_ = filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(at, 0o700) // what can't be changed shows when it can't be removed
		}
		return nil
	})
	return os.RemoveAll(dir)
}
