package main

import (
	"bufio"
	"bytes"
	"context"
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

// sandkeep is nats-embedded with its worker, and agent as its client.
type sandkeep struct {
	bin, sync string
	split     bool // the worker in a process of its own
}

func (p sandkeep) name() string {
	if p.syncs() {
		return "sandkeep (fsync)"
	}
	return "sandkeep"
}

func (p sandkeep) syncs() bool { return p.sync == "always" }

type sandkeepRepo struct {
	sandkeep
	dir     string
	env     []string
	running []*exec.Cmd // the worker is the last
}

func (p sandkeep) open(_ context.Context, dir, trees string) (repo, error) {
	r := &sandkeepRepo{sandkeep: p, dir: dir}
	r.env = append(os.Environ(), "SANDBOX_STATE_DIR="+filepath.Join(dir, "state"), "SANDBOX_SANDBOX_ROOT="+trees, "SANDBOX_NODE=bench",
		"SANDBOX_RESTORE_ROOT="+filepath.Join(dir, "out"), "SANDBOX_NO_DEFAULT_EXCLUDES=true", "SANDBOX_INCLUDE_CREDENTIALS=true")
	args := []string{"--store-dir", r.stored(), "--allow-temp-store", "--listen", "127.0.0.1:0", "--sync", p.sync}
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

// freshWorker stops the worker, which is a process of its own, and starts
// another one.
func (r *sandkeepRepo) freshWorker() error {
	last := len(r.running) - 1
	worker := r.running[last]
	r.running = r.running[:last]
	return errors.Join(stop(worker), r.start("agent", "serve"))
}

func (r *sandkeepRepo) agent(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(r.bin, "agent"), args...)
	cmd.Env = r.env
	return cmd
}

// add makes a thread of the tree's name.
func (r *sandkeepRepo) add(ctx context.Context, tree string) error {
	return run(ctx, r.agent("instance", "attach", filepath.Base(tree), filepath.Base(tree)))
}

func (r *sandkeepRepo) save(tree string, n int) *exec.Cmd {
	return r.agent("save", filepath.Base(tree), "--id", checkpoint(tree, n))
}

func checkpoint(tree string, n int) string { return fmt.Sprint(filepath.Base(tree), "-", n) }

func (r *sandkeepRepo) restore(tree string, _ int, to string) *exec.Cmd {
	return r.agent("restore", filepath.Base(tree), to)
}

func (r *sandkeepRepo) fork(tree string, n int, to string) *exec.Cmd {
	return r.agent("fork", filepath.Base(tree), to, "--checkpoint", checkpoint(tree, n))
}

func (r *sandkeepRepo) tidy() *exec.Cmd { return nil }
func (r *sandkeepRepo) stored() string  { return filepath.Join(r.dir, "store") }

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
		errs = append(errs, stop(r.running[i]))
	}
	return errors.Join(errs...)
}

func stop(cmd *exec.Cmd) error {
	kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
}
