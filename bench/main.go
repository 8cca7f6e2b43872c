// Command bench compares Sandkeep with tools that people use today, on the same
// trees in the same run. run.sh builds and starts it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"
)

type flags struct {
	Trees  []string `arg:"" optional:"" help:"Trees: src (made here: 2,000 files, 20 MB), app (26,000 files, 220 MB: a node_modules by npm, or made here where there is no npm), big (made here: 1 GiB that does not compress and 500 MB that do), or a directory of yours, which is copied (default: src app)."`
	Rounds int      `default:"3" help:"Rounds; the tables have medians with minimum and maximum (default: 3)."`
	Peers  []string `placeholder:"NAME,…" help:"Who takes part, by the names in the table (default: all that are installed)."`
	Dir    string   `type:"existingdir" default:"." help:"Directory on the disk to measure; all is made in a new directory in it, which is removed at the end (default: the current one)."`
	Bin    string   `required:"" hidden:"" type:"existingdir"`
}

func main() {
	var f flags
	kong.Parse(&f, kong.Name("bench/run.sh"), kong.Description("Compares Sandkeep with restic, borg, git, tar|zstd and cp -a on the same trees in the same run, and prints tables in Markdown."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := f.run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (f flags) run(ctx context.Context, out io.Writer) (err error) {
	if f.Rounds < 1 {
		return fmt.Errorf("%d rounds: give 1 or more", f.Rounds)
	}
	if len(f.Trees) == 0 {
		f.Trees = []string{"src", "app"}
	}
	for _, name := range f.Trees {
		if _, err := treeLabel(name); err != nil {
			return err
		}
	}
	peers, missing, err := f.peers()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(f.Dir, ".bench-")
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeAll(dir)) }()
	fmt.Fprintf(out, "%s\n", machine(ctx, dir, peers))
	if len(missing) > 0 {
		fmt.Fprintf(out, "\nNot installed, left out: %s.\n", strings.Join(missing, ", "))
	}
	for i, name := range f.Trees {
		b := &bench{dir: filepath.Join(dir, fmt.Sprint(i)), bin: f.Bin, rounds: f.Rounds, peers: peers}
		if err := b.run(ctx, out, name); err != nil {
			return fmt.Errorf("tree %s: %w", name, err)
		}
	}
	return nil
}

// peers are those that take part, and what to install for the others.
func (f flags) peers() (found []peer, missing []string, err error) {
	all := []peer{sandkeep{bin: f.Bin, sync: "interval"}, sandkeep{bin: f.Bin, sync: "always"}}
	for _, p := range shellPeers {
		all = append(all, p)
	}
	var names []string
	for _, p := range all {
		names = append(names, p.name())
		if len(f.Peers) > 0 && !slices.Contains(f.Peers, p.name()) {
			continue
		}
		if s, ok := p.(shellPeer); ok && s.missing() != "" {
			missing = append(missing, fmt.Sprintf("%s (apt-get install %s)", p.name(), s.missing()))
			continue
		}
		found = append(found, p)
	}
	for _, p := range f.Peers {
		if !slices.Contains(names, p) {
			return nil, nil, fmt.Errorf("no peer %q; there are: %s", p, strings.Join(names, ", "))
		}
	}
	return found, missing, nil
}

// removeAll makes directories writable that a tree had read-only.
func removeAll(dir string) error {
	fmt.Fprintln(os.Stderr, "removing", dir)
	if os.RemoveAll(dir) == nil {
		return nil
	}
	_ = exec.Command("chmod", "-R", "u+w", dir).Run()
	return os.RemoveAll(dir)
}

// enough refuses to begin what the disk has no room for.
func enough(dir string, need int64) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look at the free space of %s: %w", dir, err)
	}
	if free := int64(fs.Bavail) * int64(fs.Bsize); free < need {
		return fmt.Errorf("needs about %s of disk, and %s are free: give another --dir, fewer --rounds or fewer --peers",
			humanize.Bytes(uint64(need)), humanize.Bytes(uint64(free)))
	}
	return nil
}
