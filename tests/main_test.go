// Package tests drives the two programs as processes, from outside, over plain
// NATS connections.
package tests

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"sandkeep/internal/leaktest"
)

// long runs the tests whose full size takes minutes at that size.
var long = flag.Bool("long", false, "run at full size what is shortened otherwise")

// Where TestMain has put the programs.
var agentProgram, embeddedProgram string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir+"/", "./cmd/agent", "./cmd/nats-embedded")
	build.Dir, build.Stdout, build.Stderr = "..", os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the programs:", err)
		return 1
	}
	agentProgram, embeddedProgram = filepath.Join(dir, "agent"), filepath.Join(dir, "nats-embedded")
	code := m.Run()
	if err := goleak.Find(leaktest.Known()...); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
