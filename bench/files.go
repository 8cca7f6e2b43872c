package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"time"
)

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

// writable are the files that an edit may change: not what git has in its store.
func writable(dir string) (paths []string, sizes []int64, err error) {
	all, err := files(dir)
	for _, p := range all {
		info, err := os.Lstat(p)
		if err != nil {
			return nil, nil, err
		}
		if info.Mode()&0o200 != 0 {
			paths, sizes = append(paths, p), append(sizes, info.Size())
		}
	}
	return paths, sizes, err
}

// largest finds the largest of them.
func largest(dir string) (path string, size int64, err error) {
	paths, sizes, err := writable(dir)
	for i, p := range paths {
		if sizes[i] > size {
			path, size = p, sizes[i]
		}
	}
	return path, size, err
}

// edit puts a line into the middle of n files of the tree, spread over it.
func edit(dir string, n int, round int) error {
	all, _, err := writable(dir)
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

// patch overwrites n bytes of a file.
func patch(path string, offset int64, n int) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	data := make([]byte, n)
	_, _ = rand.Read(data) // never fails
	_, err = f.WriteAt(data, offset)
	return errors.Join(err, f.Close())
}

// sameFiles compares the regular files of two trees by their bytes.
func sameFiles(want, got string) error {
	all, err := files(want)
	if err != nil {
		return err
	}
	restored, err := files(got)
	if err != nil {
		return err
	}
	if len(restored) != len(all) {
		return fmt.Errorf("%d files of %d", len(restored), len(all))
	}
	for i, p := range all {
		a, err := digest(p)
		if err != nil {
			return err
		}
		b, err := digest(restored[i])
		if err != nil {
			return err
		}
		if p[len(want):] != restored[i][len(got):] || !bytes.Equal(a, b) {
			return fmt.Errorf("%s differs", restored[i][len(got)+1:])
		}
	}
	return nil
}

func digest(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), errors.Join(err, f.Close())
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
		return 0, fmt.Errorf("du %s: %w", dir, err)
	}
	var n int64
	_, err = fmt.Sscan(string(out), &n)
	return n, err
}
