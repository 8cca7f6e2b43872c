package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// smallTree makes 120 files and builds the programs.
func smallTree(t *testing.T) (tree, bin string) {
	t.Helper()
	bin = t.TempDir()
	if out, err := exec.Command("go", "build", "-o", bin+"/", "../cmd/...").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	tree = filepath.Join(t.TempDir(), "small")
	for i := range 120 {
		if err := writeFile(filepath.Join(tree, fmt.Sprint("dir", i%7), fmt.Sprint("file", i)), []byte(strings.Repeat(fmt.Sprintln(i), 20))); err != nil {
			t.Fatal(err)
		}
	}
	return tree, bin
}

func TestBench_SmallTree(t *testing.T) {
	tree, bin := smallTree(t)
	var out strings.Builder
	dir := t.TempDir()
	f := flags{Trees: []string{tree}, Rounds: 2, Peers: []string{"sandkeep", "cp -a"}, Dir: dir, Bin: bin}
	if err := f.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"### small: 120 files", "| | sandkeep | cp -a |", first, unchanged, oneFile, forked, restored, storedFirst, storedTen, storedSecond, memorySave, memoryRestore, walk, start, "×"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(tree, "dir0", "file0")); err != nil {
		t.Errorf("the tree that was given: %v", err)
	}
}

// Peers that are not there are named with what to install, and the rest runs.
func TestBench_MissingPeers(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	found, missing, err := flags{}.peers()
	if err != nil || len(found) != 2 {
		t.Errorf("%d peers: %v", len(found), err)
	}
	for _, want := range []string{"borg (apt-get install borgbackup)", "tar|zstd (apt-get install tar zstd)"} {
		if !strings.Contains(strings.Join(missing, "\n"), want) {
			t.Errorf("missing %q, want %q", missing, want)
		}
	}
	if _, _, err := (flags{Peers: []string{"rustic"}}).peers(); err == nil {
		t.Error("a peer that nobody knows")
	}
}

// A restore with other bytes, or with a file less, is no result.
func TestSameFiles(t *testing.T) {
	want, got := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		if err := writeFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(want, "a", "f"), "1")
	if sameFiles(want, got) == nil {
		t.Error("a file is missing, and nobody says so")
	}
	write(filepath.Join(got, "a", "f"), "2")
	if sameFiles(want, got) == nil {
		t.Error("a file differs, and nobody says so")
	}
	write(filepath.Join(got, "a", "f"), "1")
	if err := sameFiles(want, got); err != nil {
		t.Error(err)
	}
}

// The figures are medians, and the ratios those of the rounds, against the
// Sandkeep that syncs where the peer does.
func TestTable(t *testing.T) {
	peers := []peer{sandkeep{sync: "interval"}, sandkeep{sync: "always"}, shellPeer{title: "slow", fsync: true}, shellPeer{title: "quick"}}
	table := newTable(peers)
	for i, v := range []float64{1, 3, 2} {
		table.add(first, "sandkeep", v)
		table.add(first, "sandkeep (fsync)", 2*v)
		table.add(first, "slow", 8*v)
		table.add(first, "quick", float64(i))
	}
	table.add(walk, "", 0.5)
	want := `| | sandkeep | sandkeep (fsync) | slow | quick |
| --- | --- | --- | --- | --- |
| first save | 2.00 (1.00–3.00) | 4.00 (2.00–6.00) | 16.00 (8.00–24.00) ×4 | 1.00 (0.000–2.00) ×0.333 |

lstat of every entry, in process: 0.500 (0.500–0.500)
`
	if got := table.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
