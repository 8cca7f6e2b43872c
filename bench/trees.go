package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

//go:embed app/package.json
var appPackage []byte

// treeLabel is the name of a tree in the table.
func treeLabel(name string) (string, error) {
	if slices.Contains([]string{"src", "app", "big"}, name) {
		return name, nil
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return "", fmt.Errorf("tree %s: there is no such directory; the trees that can be made are src, app and big", name)
	}
	return filepath.Base(path), nil
}

// makeTree makes one of the known trees in dir, or copies the directory of that
// name, and says which it was. src and big are the same bytes each time.
func makeTree(ctx context.Context, name, dir string) (about string, err error) {
	switch name {
	case "src":
		return "made: text in 775 directories", makeSrc(dir)
	case "big":
		return "made: 1 GiB that does not compress, 10 × 50 MB of text", makeBig(dir)
	case "app":
		return makeApp(ctx, dir)
	}
	// git can't save a repository.
	script := `cp -a -- "$0" "$1"; find "$1" -name .git -prune -exec rm -rf {} +`
	return "a copy of a directory, without .git", run(ctx, exec.Command("sh", "-ec", script, name, dir))
}

// makeSrc makes 2,000 text files, 20 MB, in 775 directories.
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

// makeApp has npm install what app/package.json names, some 26,000 files. Where
// it can't, a tree of that shape is made.
func makeApp(ctx context.Context, dir string) (about string, err error) {
	if _, err := exec.LookPath("npm"); err != nil {
		return "made in the shape of a node_modules: npm is not installed", makeAppLike(dir)
	}
	if err := writeFile(filepath.Join(dir, "package.json"), appPackage); err != nil {
		return "", err
	}
	cmd := exec.Command("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
	cmd.Dir = dir
	if err := run(ctx, cmd); err != nil {
		fmt.Fprintln(os.Stderr, "bench: the tree app is made without npm:", err)
		return "made in the shape of a node_modules: npm could not install one", errors.Join(os.Rename(dir, dir+".npm"), makeAppLike(dir))
	}
	return "a node_modules, by npm install", nil
}

// makeAppLike makes 26,000 files, 200 MB, in 2,600 directories: half of the
// files below 1 KB, one in a hundred above 80 KB, three programs.
func makeAppLike(dir string) error {
	rnd := rand.New(rand.NewPCG(3, 3))
	pool := text(rnd, 64<<20)
	file := func(path string, size int) error {
		from := rnd.IntN(len(pool) - size)
		return writeFile(filepath.Join(dir, "node_modules", path), pool[from:from+size])
	}
	for i := range 26_000 {
		pkg, sub := i/60, i/10%6
		size := min(int(815*math.Exp(2*rnd.NormFloat64())), 3<<20)
		if err := file(fmt.Sprintf("@scope%d/package%03d/dist/part%d/module%05d.js", pkg%20, pkg, sub, i), size); err != nil {
			return err
		}
	}
	for i, size := range []int{10_000_000, 22_000_000, 24_000_000} {
		if err := file(fmt.Sprintf("@native/tool%d/bin/tool", i), size); err != nil {
			return err
		}
	}
	return nil
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
