package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// peer keeps saves of a tree in a repository of its own. The commands that it
// returns are what is timed.
type peer interface {
	name() string
	// syncs reports whether a save is on the disk when its command ends.
	syncs() bool
	// open makes an empty repository in dir, which is new, for trees in the
	// directory trees.
	open(ctx context.Context, dir, trees string) (repo, error)
}

type repo interface {
	// add tells of a tree before its first save.
	add(ctx context.Context, tree string) error
	save(tree string, n int) *exec.Cmd
	// restore brings the newest save, n, back into the new directory out/<to>
	// beside what is stored.
	restore(tree string, n int, to string) *exec.Cmd
	// fork makes an independent branch of save n; nil if the peer can't.
	fork(tree string, n int, to string) *exec.Cmd
	// tidy is what the peer does at times to need less space; nil if nothing.
	tidy() *exec.Cmd
	// stored is the directory with everything that is kept, without caches.
	stored() string
	close() error
}

// shellPeer is a peer made of shell commands. They run in the tree and get R
// (the repository), C (for caches), N (the number of a save) and O (where to).
type shellPeer struct {
	title, needs, version                string
	fsync                                bool
	init, saveSh, restSh, forkSh, tidySh string
	env                                  []string
}

func (p shellPeer) name() string { return p.title }
func (p shellPeer) syncs() bool  { return p.fsync }

// packages are Debian's that have the tools, where the name is another one.
var packages = map[string]string{"borg": "borgbackup", "cp": "coreutils"}

// missing names what to install, if anything.
func (p shellPeer) missing() string {
	var out []string
	for tool := range strings.FieldsSeq(p.needs) {
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		if name, ok := packages[tool]; ok {
			tool = name
		}
		out = append(out, tool)
	}
	return strings.Join(out, " ")
}

func (p shellPeer) open(ctx context.Context, dir, _ string) (repo, error) {
	r := shellRepo{p, dir}
	for _, name := range []string{"repo", "cache", "out"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return nil, err
		}
	}
	return r, run(ctx, r.cmd(p.init, dir, 0, ""))
}

type shellRepo struct {
	shellPeer
	dir string
}

func (r shellRepo) cmd(script, tree string, n int, to string) *exec.Cmd {
	if script == "" {
		return nil
	}
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), r.env...)
	cmd.Env = append(cmd.Env, "R="+r.stored(), "C="+filepath.Join(r.dir, "cache"), fmt.Sprint("N=", n), "O="+filepath.Join(r.dir, "out", to),
		"BORG_BASE_DIR="+filepath.Join(r.dir, "cache"))
	return cmd
}

func (r shellRepo) add(context.Context, string) error { return nil }
func (r shellRepo) save(tree string, n int) *exec.Cmd { return r.cmd(r.saveSh, tree, n, "") }
func (r shellRepo) restore(tree string, n int, to string) *exec.Cmd {
	return r.cmd(r.restSh, tree, n, to)
}
func (r shellRepo) fork(tree string, n int, to string) *exec.Cmd {
	return r.cmd(r.forkSh, tree, n, to)
}
func (r shellRepo) tidy() *exec.Cmd { return r.cmd(r.tidySh, r.dir, 0, "") }
func (r shellRepo) stored() string  { return filepath.Join(r.dir, "repo") }
func (r shellRepo) close() error    { return nil }

// shellPeers run with their defaults, but for what is said here. borg does not
// encrypt, git leaves the tidying for later and takes bytes as they are.
var shellPeers = []shellPeer{
	{title: "restic", needs: "restic", version: "restic version", fsync: true,
		init:   `restic init -q --repo "$R"`,
		saveSh: `restic backup -q --repo "$R" --cache-dir "$C" .`,
		restSh: `restic restore -q --repo "$R" --cache-dir "$C" --target "$O" latest`,
		env:    []string{"RESTIC_PASSWORD=bench"}},
	{title: "borg", needs: "borg", version: "borg --version", fsync: true,
		init:   `borg init -e none "$R"`,
		saveSh: `borg create "$R::$N" .`,
		restSh: `mkdir "$O"; cd "$O"; borg extract "$R::$N"`,
		env:    []string{"BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes", "BORG_RELOCATED_REPO_ACCESS_IS_OK=yes"}},
	{title: "git", needs: "git", version: "git --version",
		init: `git init -q --bare "$R"; cd "$R"
git config core.bare false; git config gc.auto 0; git config user.name b; git config user.email b@localhost
mkdir -p info; echo '* -text -ident -filter -working-tree-encoding' >info/attributes`,
		saveSh: `export GIT_DIR="$R" GIT_WORK_TREE="$PWD"; git add -Af .; git commit -q --allow-empty -m "$N"`,
		restSh: `mkdir "$O"; cd "$O"; export GIT_DIR="$R" GIT_WORK_TREE="$O" GIT_INDEX_FILE="$C/index"
git read-tree HEAD; git checkout-index -aq`,
		forkSh: `git --git-dir "$R" branch "$(basename "$O")"`,
		tidySh: `git --git-dir "$R" gc -q`},
	{title: "tar|zstd", needs: "tar zstd", version: "zstd --version",
		saveSh: `tar -cf - . | zstd -1 -q -o "$R/$N.tar.zst"`,
		restSh: `mkdir "$O"; zstd -dcq "$R/$N.tar.zst" | tar -xf - -C "$O"`,
		forkSh: `cp "$R/$N.tar.zst" "$O"`},
	{title: "cp -a", needs: "cp", version: "cp --version",
		saveSh: `cp -a . "$R/$N"`, restSh: `cp -a "$R/$N" "$O"`, forkSh: `cp -a "$R/$N" "$O"`},
}

// run runs a command, unless it is nil, to its end.
func run(ctx context.Context, cmd *exec.Cmd) error {
	if cmd == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
