// Command bench compares Sandkeep with tools that people use today, on the same
// trees in the same run. run.sh builds and starts it.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"
)

type flags struct {
	Trees  []string `arg:"" optional:"" help:"Trees: src, app, big or a directory of yours (default: src)."`
	Rounds int      `default:"3" help:"Rounds; the tables have medians with minimum and maximum."`
	Peers  []string `help:"Peers to run (default: all that are installed)."`
	Dir    string   `help:"Directory for everything, which is removed at the end (default: a new one in the current directory)." type:"path"`
	Bin    string   `required:"" type:"existingdir" help:"Directory with agent and nats-embedded."`
}

func main() {
	var f flags
	kong.Parse(&f, kong.Description("Compares Sandkeep with restic, borg, git, tar|zstd and cp -a."))
	if err := f.run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (f flags) run(out io.Writer) (err error) {
	if len(f.Trees) == 0 {
		f.Trees = []string{"src"}
	}
	if f.Dir == "" {
		if f.Dir, err = os.MkdirTemp(".", ".bench-"); err != nil {
			return err
		}
		if f.Dir, err = filepath.Abs(f.Dir); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, os.RemoveAll(f.Dir)) }()
	fmt.Fprintf(out, "%d rounds on %d cores, %s, %s. Seconds: median (minimum–maximum).\n", f.Rounds, runtime.NumCPU(), cpuName(), time.Now().Format(time.DateOnly))
	for _, name := range f.Trees {
		if err := f.one(out, name); err != nil {
			return fmt.Errorf("tree %s: %w", name, err)
		}
	}
	return nil
}

func cpuName() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	_, rest, ok := strings.Cut(string(info), "model name\t: ")
	if !ok {
		return runtime.GOARCH
	}
	name, _, _ := strings.Cut(rest, "\n")
	return name
}

func (f flags) peers() (out []peer) {
	all := []peer{sandkeep{bin: f.Bin, sync: "interval"}, sandkeep{bin: f.Bin, sync: "always"}}
	for _, p := range shellPeers {
		if p.missing() == nil {
			all = append(all, p)
		}
	}
	for _, p := range all {
		if len(f.Peers) == 0 || slices.Contains(f.Peers, p.name()) {
			out = append(out, p)
		}
	}
	return out
}

// bench is the comparison on one tree.
type bench struct {
	flags
	tree  string // a directory
	label string
	peers []peer
	repos []repo // of the peers, in this round
	table *table
}

// one runs the comparison on one tree and prints its table.
func (f flags) one(out io.Writer, name string) error {
	label := filepath.Base(name)
	b := &bench{flags: f, tree: filepath.Join(f.Dir, "trees", label), label: label, peers: f.peers(), table: newTable()}
	if err := os.MkdirAll(filepath.Dir(b.tree), 0o755); err != nil {
		return err
	}
	if err := makeTree(name, b.tree); err != nil {
		return fmt.Errorf("make it: %w", err)
	}
	all, err := files(b.tree)
	if err != nil {
		return err
	}
	for round := range f.Rounds {
		if err := b.with(fmt.Sprint("round", round), func() error { return b.round(round) }); err != nil {
			return err
		}
	}
	if len(all) > 100 && len(all) < 10_000 { // 1 % is something, and ten copies are no night
		if err := b.with("growth", func() error { return b.growth(len(all)) }); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "\n### %s: %s files\n\n%s", label, humanize.Comma(int64(len(all))), b.table)
	return b.memory(out)
}

// with gives each peer a repository while fn runs.
func (b *bench) with(name string, fn func() error) (err error) {
	b.repos = make([]repo, len(b.peers))
	defer func() {
		for _, r := range b.repos {
			if r != nil {
				err = errors.Join(err, r.close())
			}
		}
	}()
	for i, p := range b.peers {
		if b.repos[i], err = p.open(filepath.Join(b.Dir, b.label, name, fmt.Sprint("peer", i)), filepath.Dir(b.tree)); err == nil {
			err = b.repos[i].add(b.tree)
		}
		if err != nil {
			return fmt.Errorf("open repository of %s: %w", p.name(), err)
		}
	}
	return fn()
}

const (
	first     = "first save"
	unchanged = "save, nothing changed"
	oneFile   = "save, one file changed"
	restored  = "restore"
	forked    = "fork"
	walk      = "lstat of every entry, in process"

	storedFirst  = "stored, first save"
	storedTen    = "stored, ten saves, 1 % of the files changed between them"
	storedSecond = "stored, those and a second tree, 5 % of its files changed"
)

// round has every peer do each step before any of them does the next.
func (b *bench) round(round int) error {
	each := func(step string, command func(r repo, to string) *exec.Cmd) error {
		for i := range b.peers {
			i = (i + round) % len(b.peers)
			to := filepath.Join(b.Dir, b.label, fmt.Sprint("round", round), fmt.Sprint("out", i, step[:4]))
			if err := b.time(step, b.peers[i], command(b.repos[i], to)); err != nil {
				return err
			}
		}
		return nil
	}
	save := func(n int) func(repo, string) *exec.Cmd {
		return func(r repo, _ string) *exec.Cmd { return r.save(b.tree, n) }
	}
	if err := each(first, save(1)); err != nil {
		return err
	}
	if err := b.sizes(storedFirst); err != nil {
		return err
	}
	took, err := lstatWalk(b.tree)
	if err != nil {
		return err
	}
	b.table.add(walk, "lstat", took.Seconds())
	if err := each(unchanged, save(2)); err != nil {
		return err
	}
	if err := edit(b.tree, 1, round); err != nil {
		return err
	}
	if err := each(oneFile, save(3)); err != nil {
		return err
	}
	if err := each(forked, func(r repo, to string) *exec.Cmd { return r.fork(b.tree, 3, to) }); err != nil {
		return err
	}
	return each(restored, func(r repo, to string) *exec.Cmd { return r.restore(b.tree, 3, to) })
}

// time runs a command when everything written before is on the disk.
func (b *bench) time(step string, p peer, cmd *exec.Cmd) error {
	if cmd == nil {
		return nil
	}
	if err := exec.Command("sync").Run(); err != nil {
		return err
	}
	began := time.Now()
	if err := run(cmd); err != nil {
		return fmt.Errorf("%s, %s: %w", p.name(), step, err)
	}
	b.table.add(step, p.name(), time.Since(began).Seconds())
	return nil
}

// growth saves the tree ten times with changes between, then one like it.
func (b *bench) growth(files int) error {
	for n := range 10 {
		if err := b.saveAll(b.tree, n+1); err != nil {
			return err
		}
		if err := edit(b.tree, files/100, 100+n); err != nil {
			return err
		}
	}
	if err := b.sizes(storedTen); err != nil {
		return err
	}
	second := b.tree + "-2"
	if err := run(exec.Command("cp", "-a", b.tree, second)); err != nil {
		return err
	}
	if err := edit(second, files/20, 200); err != nil {
		return err
	}
	for _, r := range b.repos {
		if err := r.add(second); err != nil {
			return err
		}
	}
	if err := b.saveAll(second, 11); err != nil {
		return err
	}
	return b.sizes(storedSecond)
}

func (b *bench) saveAll(tree string, n int) error {
	for i, r := range b.repos {
		if err := run(r.save(tree, n)); err != nil {
			return fmt.Errorf("%s, save %d: %w", b.peers[i].name(), n, err)
		}
	}
	return nil
}

func (b *bench) sizes(step string) error {
	for i, r := range b.repos {
		n, err := diskUse(r.stored())
		if err != nil {
			return err
		}
		b.table.add(step, b.peers[i].name(), float64(n)/1e6)
	}
	return nil
}

// memory saves and restores once more, with the worker in a process of its own.
func (b *bench) memory(out io.Writer) error {
	p := sandkeep{bin: b.Bin, sync: "interval", split: true}
	if len(b.Peers) > 0 && !slices.Contains(b.Peers, p.name()) {
		return nil
	}
	opened, err := p.open(filepath.Join(b.Dir, b.label, "memory"), filepath.Dir(b.tree))
	if err != nil {
		return err
	}
	r := opened.(*sandkeepRepo)
	err = errors.Join(r.add(b.tree), run(r.save(b.tree, 1)))
	saving, err2 := r.peak()
	err = errors.Join(err, err2, run(r.restore(b.tree, 1, "out")))
	restoring, err2 := r.peak()
	if err := errors.Join(err, err2, r.close()); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nPeak memory of the worker: %d MiB after the save, %d MiB after the restore.\n", saving>>20, restoring>>20)
	return nil
}
