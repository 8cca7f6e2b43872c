package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"time"
)

//go:embed app/package.json
var appPackage []byte

// makeTree makes one of the known trees in dir, or copies the directory of that
// name. src and big are the same bytes each time.
func makeTree(name, dir string) error {
	switch name {
	case "src":
		return makeSrc(dir)
	case "big":
		return makeBig(dir)
	case "app":
		return makeApp(dir)
	}
	return exec.Command("cp", "-a", name, dir).Run()
}

// makeSrc makes 2,000 text files, 20 MB, in 750 directories.
func makeSrc(dir string) error {
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range 2000 {
		path := filepath.Join(dir, fmt.Sprintf("pkg%02d", i%25), fmt.Sprintf("part%02d", i%750/25), fmt.Sprintf("file%04d.go", i))
		if err := writeFile(path, text(rnd, 5_000+rnd.IntN(10_000))); err != nil {
			return err
		}
	}
	return nil
}

// makeBig makes a file of 1 GiB that does not compress and ten of 50 MB that do.
func makeBig(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "random.bin"))
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), 1<<30)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	rnd := rand.New(rand.NewPCG(2, 2))
	for i := range 10 {
		if err := writeFile(filepath.Join(dir, fmt.Sprintf("text%d.log", i)), text(rnd, 50_000_000)); err != nil {
			return err
		}
	}
	return nil
}

// makeApp has npm install what app/package.json names: some 26,000 files.
func makeApp(dir string) error {
	if err := writeFile(filepath.Join(dir, "package.json"), appPackage); err != nil {
		return err
	}
	cmd := exec.Command("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	return cmd.Run()
}

func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

var words = []string{"agent", "branch", "chunk", "func", "head", "index", "lease", "node", "pack", "page", "return", "slot", "thread", "value", "writer", "{", "}", "=="}

func text(rnd *rand.Rand, size int) []byte {
	var b bytes.Buffer
	for b.Len() < size {
		for range 3 + rnd.IntN(9) {
			b.WriteString(words[rnd.IntN(len(words))])
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%x\n", rnd.Uint32())
	}
	return b.Bytes()[:size]
}

// files lists the regular files of a tree, in order.
func files(dir string) (paths []string, err error) {
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			paths = append(paths, p)
		}
		return err
	})
	sort.Strings(paths)
	return paths, err
}

// edit puts a line into the middle of n files of the tree, spread over it.
func edit(dir string, n int, round int) error {
	all, err := files(dir)
	if err != nil || len(all) == 0 {
		return err
	}
	n = min(max(n, 1), len(all))
	for i := range n {
		path := all[(i*len(all)/n+round*7919)%len(all)]
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("edited %d %d\n", round, i)
		mid := len(data) / 2
		data = append(data[:mid:mid], append([]byte(line), data[mid:]...)...)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// lstatWalk is the least that finding out about changes costs.
func lstatWalk(dir string) (time.Duration, error) {
	began := time.Now()
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			_, err = os.Lstat(p)
		}
		return err
	})
	return time.Since(began), err
}

// diskUse is the sum of the allocated blocks, as du counts.
func diskUse(dir string) (int64, error) {
	out, err := exec.Command("du", "-s", "--block-size=1", dir).Output()
	if err != nil {
		return 0, err
	}
	var n int64
	_, err = fmt.Sscan(string(out), &n)
	return n, err
}
