package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"
)

// bench is the comparison on one tree.
type bench struct {
	dir    string // for all of it
	bin    string
	rounds int
	peers  []peer
	tree   string
	table  *table
}

const (
	first     = "first save"
	unchanged = "save, nothing changed"
	oneFile   = "save, one file changed"
	forked    = "fork"
	restored  = "restore"
	walk      = "lstat of every entry, in process"
	start     = "start of the agent command alone"

	storedFirst  = "stored, one save"
	storedPatch  = "stored, 100 bytes changed in the middle of the largest file"
	storedTen    = "stored, ten saves, 1 % of the files changed between them"
	storedSecond = "stored, those and a second tree, 5 % of its files changed"

	memorySave    = "memory of the worker, save"
	memoryRestore = "memory of the worker, restore"
)

const (
	few  = 100       // so many files are removed at once, and don't make later rounds dearer
	many = 10_000    // ten copies of more files than that are a night
	huge = 100 << 20 // a change in a file from here on is a row of its own
)

// run makes the tree, compares on it, and prints the table.
func (b *bench) run(ctx context.Context, out io.Writer, name string) error {
	label, about, err := b.make(ctx, name)
	if err != nil {
		return fmt.Errorf("make it: %w", err)
	}
	all, err := files(b.tree)
	if err != nil {
		return err
	}
	size, err := diskUse(b.tree)
	if err != nil {
		return err
	}
	kept := b.rounds + 1
	if len(all) <= few {
		kept = 1
	}
	if err := enough(b.dir, size*int64(2*len(b.peers)+4)*int64(kept)); err != nil {
		return err
	}
	b.table = newTable(b.peers)
	for round := range b.rounds {
		err := b.with(ctx, fmt.Sprint("round", round), len(all) <= few, func(repos []repo) error { return b.round(ctx, round, repos) })
		if err != nil {
			return err
		}
	}
	if err := b.with(ctx, "stored", len(all) <= few, func(repos []repo) error { return b.stored(ctx, len(all), repos) }); err != nil {
		return err
	}
	if err := b.memory(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\n### %s: %s files, %s on the disk (%s)\n\n%s", label, humanize.Comma(int64(len(all))), humanize.Bytes(uint64(size)), about, b.table)
	return err
}

func (b *bench) make(ctx context.Context, name string) (label, about string, err error) {
	if label, err = treeLabel(name); err != nil {
		return "", "", err
	}
	b.tree = filepath.Join(b.dir, "trees", label)
	if err = os.MkdirAll(filepath.Dir(b.tree), 0o755); err == nil {
		about, err = makeTree(ctx, name, b.tree)
	}
	return label, about, err
}

func (b *bench) place(name string, i int) string {
	return filepath.Join(b.dir, name, fmt.Sprint("peer", i))
}

// with gives each peer a repository while fn runs. Nothing is removed before
// the end if it is many files: making files is dearer for a while after that.
func (b *bench) with(ctx context.Context, name string, remove bool, fn func([]repo) error) (err error) {
	repos := make([]repo, len(b.peers))
	defer func() {
		for _, r := range repos {
			if r != nil {
				err = errors.Join(err, r.close())
			}
		}
		if remove {
			err = errors.Join(err, os.RemoveAll(filepath.Join(b.dir, name)))
		}
	}()
	for i, p := range b.peers {
		if repos[i], err = p.open(ctx, b.place(name, i), filepath.Dir(b.tree)); err == nil {
			err = repos[i].add(ctx, b.tree)
		}
		if err != nil {
			return fmt.Errorf("open repository of %s: %w", p.name(), err)
		}
	}
	return fn(repos)
}

// round has every peer do each step before any of them does the next. Who
// begins changes from round to round.
func (b *bench) round(ctx context.Context, round int, repos []repo) error {
	each := func(step string, command func(repo) *exec.Cmd) error {
		for i := range b.peers {
			i = (i + round) % len(b.peers)
			if err := b.time(ctx, step, b.peers[i].name(), command(repos[i])); err != nil {
				return err
			}
		}
		return nil
	}
	save := func(n int) func(repo) *exec.Cmd {
		return func(r repo) *exec.Cmd { return r.save(b.tree, n) }
	}
	if err := each(first, save(1)); err != nil {
		return err
	}
	if err := b.measures(ctx); err != nil {
		return err
	}
	if err := each(unchanged, save(2)); err != nil {
		return err
	}
	// The same file in each round, or its size would show in the row.
	if err := edit(b.tree, 1, 1); err != nil {
		return err
	}
	if err := each(oneFile, save(3)); err != nil {
		return err
	}
	if err := each(forked, func(r repo) *exec.Cmd { return r.fork(b.tree, 3, "forked") }); err != nil {
		return err
	}
	if err := each(restored, func(r repo) *exec.Cmd { return r.restore(b.tree, 3, "restored") }); err != nil {
		return err
	}
	if round < b.rounds-1 {
		return nil
	}
	for i, p := range b.peers {
		if err := sameFiles(b.tree, filepath.Join(b.place(fmt.Sprint("round", round), i), "out", "restored")); err != nil {
			return fmt.Errorf("what %s restored is not what it saved: %w", p.name(), err)
		}
	}
	return nil
}

// time runs a command when everything written before is on the disk.
func (b *bench) time(ctx context.Context, step, name string, cmd *exec.Cmd) error {
	if cmd == nil {
		return nil
	}
	if err := run(ctx, exec.Command("sync")); err != nil {
		return err
	}
	began := time.Now()
	if err := run(ctx, cmd); err != nil {
		return fmt.Errorf("%s, %s: %w", name, step, err)
	}
	b.table.add(step, name, time.Since(began).Seconds())
	return nil
}

// measures takes the times that a save can be held against.
func (b *bench) measures(ctx context.Context) error {
	if err := b.time(ctx, start, "", exec.Command(filepath.Join(b.bin, "agent"), "--version")); err != nil {
		return err
	}
	took, err := lstatWalk(b.tree)
	b.table.add(walk, "", took.Seconds())
	return err
}
