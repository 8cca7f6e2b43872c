package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// peer keeps saves of a tree in a repository of its own. The commands that it
// returns are what is timed.
type peer interface {
	name() string
	// open makes an empty repository in dir for trees in the directory trees.
	open(dir, trees string) (repo, error)
}

type repo interface {
	// add tells of a tree before its first save.
	add(tree string) error
	save(tree string, n int) *exec.Cmd
	// restore brings the newest save, n, back into the directory to, which does not exist.
	restore(tree string, n int, to string) *exec.Cmd
	// fork makes an independent branch of save n; nil if the peer can't.
	fork(tree string, n int, to string) *exec.Cmd
	// stored is the directory with everything that is kept.
	stored() string
	close() error
}

// shellPeer is a peer made of shell commands, which get R (the repository), W
// (the tree), N (the number of a save) and O (where to).
type shellPeer struct {
	title, needs                string
	init, saveSh, restSh, forks string
	env                         []string
}

func (p shellPeer) name() string { return p.title }

func (p shellPeer) missing() error {
	for tool := range strings.FieldsSeq(p.needs) {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	return nil
}

func (p shellPeer) open(dir, _ string) (repo, error) {
	r := shellRepo{p, dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if p.init == "" {
		return r, nil
	}
	return r, run(r.cmd(p.init, "", 0, ""))
}

type shellRepo struct {
	shellPeer
	dir string
}

func (r shellRepo) cmd(script, tree string, n int, to string) *exec.Cmd {
	cmd := exec.Command("sh", "-ec", script)
	cmd.Env = append(os.Environ(), r.env...)
	cmd.Env = append(cmd.Env, "R="+r.dir, "W="+tree, fmt.Sprint("N=", n), "O="+to)
	return cmd
}

func (r shellRepo) add(string) error                  { return nil }
func (r shellRepo) save(tree string, n int) *exec.Cmd { return r.cmd(r.saveSh, tree, n, "") }
func (r shellRepo) stored() string                    { return r.dir }
func (r shellRepo) close() error                      { return nil }

func (r shellRepo) restore(tree string, n int, to string) *exec.Cmd {
	return r.cmd(r.restSh, tree, n, to)
}

func (r shellRepo) fork(tree string, n int, to string) *exec.Cmd {
	if r.forks == "" {
		return nil
	}
	return r.cmd(r.forks, tree, n, to)
}

var shellPeers = []shellPeer{
	{title: "restic", needs: "restic", init: `restic init -q --repo "$R/repo"`,
		saveSh: `restic backup -q --repo "$R/repo" --cache-dir "$R/cache" "$W"`,
		restSh: `restic restore -q --repo "$R/repo" --cache-dir "$R/cache" --target "$O" latest`,
		env:    []string{"RESTIC_PASSWORD=bench"}},
	{title: "borg", needs: "borg", init: `borg init -e none "$R/repo"`,
		saveSh: `borg create "$R/repo::$N" "$W"`,
		restSh: `mkdir "$O"; cd "$O"; borg extract "$R/repo::$N"`,
		env:    []string{"BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes", "BORG_RELOCATED_REPO_ACCESS_IS_OK=yes"}},
	{title: "git", needs: "git", init: `git init -q --bare "$R/repo"`,
		saveSh: `export GIT_DIR="$R/repo" GIT_WORK_TREE="$W"; cd "$W"; git -c core.bare=false add -Af .
git -c core.bare=false -c user.name=b -c user.email=b@localhost -c gc.auto=0 commit -q --allow-empty -m "$N"`,
		restSh: `mkdir "$O"; git --git-dir "$R/repo" archive HEAD | tar -xf - -C "$O"`,
		forks:  `git --git-dir "$R/repo" branch "$(basename "$O")"`},
	{title: "tar|zstd", needs: "tar zstd",
		saveSh: `tar -cf - -C "$W" . | zstd -1 -q -o "$R/$N.tar.zst"`,
		restSh: `mkdir "$O"; zstd -dcq "$R/$N.tar.zst" | tar -xf - -C "$O"`,
		forks:  `cp "$R/$N.tar.zst" "$O"`},
	{title: "cp -a", needs: "cp",
		saveSh: `cp -a "$W" "$R/$N"`, restSh: `cp -a "$R/$N" "$O"`, forks: `cp -a "$R/$N" "$O"`},
}

func run(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// sandkeep is nats-embedded with its worker, and agent as its client.
type sandkeep struct {
	bin, sync string
	split     bool // the worker in a process of its own
}

func (p sandkeep) name() string {
	if p.sync == "always" {
		return "sandkeep (fsync)"
	}
	return "sandkeep"
}

type sandkeepRepo struct {
	sandkeep
	dir     string
	env     []string
	running []*exec.Cmd // the worker is the last
}

func (p sandkeep) open(dir, trees string) (repo, error) {
	state := filepath.Join(dir, "state")
	r := &sandkeepRepo{sandkeep: p, dir: dir}
	r.env = append(os.Environ(), "SANDBOX_STATE_DIR="+state, "SANDBOX_SANDBOX_ROOT="+trees, "SANDBOX_NODE=bench",
		"SANDBOX_RESTORE_ROOT="+filepath.Join(dir, "restored"), "SANDBOX_NO_DEFAULT_EXCLUDES=true", "SANDBOX_INCLUDE_CREDENTIALS=true")
	args := []string{"--store-dir", filepath.Join(dir, "store"), "--allow-temp-store", "--listen", "127.0.0.1:0", "--sync", p.sync}
	if p.split {
		args = append(args, "--no-agent")
	}
	err := r.start("nats-embedded", args...)
	if err == nil && p.split {
		err = r.start("agent", "serve")
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// start runs a program until it says, in its log, that it is ready.
func (r *sandkeepRepo) start(program string, args ...string) error {
	cmd := exec.Command(filepath.Join(r.bin, program), append(args, "--log-format", "json")...)
	cmd.Env = r.env
	log, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.running = append(r.running, cmd)
	var said bytes.Buffer
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var line struct{ Message string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "ready" {
			go func() { _, _ = io.Copy(io.Discard, log) }() // ends with the program
			return nil
		}
		said.Write(append(lines.Bytes(), '\n'))
	}
	return fmt.Errorf("%s did not start: %s", program, said.String())
}

func (r *sandkeepRepo) agent(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(r.bin, "agent"), args...)
	cmd.Env = r.env
	return cmd
}

// add makes a thread of the tree's name.
func (r *sandkeepRepo) add(tree string) error {
	return run(r.agent("instance", "attach", filepath.Base(tree), filepath.Base(tree)))
}

func (r *sandkeepRepo) save(tree string, n int) *exec.Cmd {
	return r.agent("save", filepath.Base(tree), "--id", checkpoint(tree, n))
}

func checkpoint(tree string, n int) string { return fmt.Sprint(filepath.Base(tree), "-", n) }

func (r *sandkeepRepo) stored() string { return filepath.Join(r.dir, "store") }

// restore ignores where to: a worker writes below its restore root.
func (r *sandkeepRepo) restore(tree string, _ int, to string) *exec.Cmd {
	return r.agent("restore", filepath.Base(tree), filepath.Base(to))
}

func (r *sandkeepRepo) fork(tree string, n int, to string) *exec.Cmd {
	return r.agent("fork", filepath.Base(tree), filepath.Base(to), "--checkpoint", checkpoint(tree, n))
}

// peak is the largest memory that the worker had, in bytes.
func (r *sandkeepRepo) peak() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.running[len(r.running)-1].Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kb int64
	_, err = fmt.Sscan(rest, &kb)
	return kb << 10, err
}

func (r *sandkeepRepo) close() error {
	var errs []error
	for i := len(r.running) - 1; i >= 0; i-- {
		cmd := r.running[i]
		kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		errs = append(errs, cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
		kill.Stop()
	}
	return errors.Join(errs...)
}
