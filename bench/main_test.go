package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestBench_SmallTree(t *testing.T) {
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", bin+"/", "../cmd/...").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	tree := filepath.Join(t.TempDir(), "small")
	for i := range 120 {
		if err := writeFile(filepath.Join(tree, fmt.Sprint("dir", i%7), fmt.Sprint("file", i)), []byte(strings.Repeat(fmt.Sprintln(i), 20))); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	f := flags{Trees: []string{tree}, Rounds: 2, Peers: []string{"sandkeep", "cp -a"}, Dir: filepath.Join(t.TempDir(), "scratch"), Bin: bin}
	if err := f.run(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"### small: 120 files", "| | sandkeep | cp -a |", first, unchanged, oneFile, forked, restored, storedFirst, storedTen, storedSecond, "Peak memory"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}
