package tests

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// item is what a tree has under one path.
type item struct {
	Kind  string
	Mode  fs.FileMode
	Bytes string // size and digest, or the target of a link
	Mtime int64  // files only
}

// readTree describes everything under a directory, at any depth of path.
func readTree(t *testing.T, dir string) map[string]item {
	t.Helper()
	root := openRoot(t, dir)
	tree := map[string]item{}
	err := fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		tree[path], err = readItem(root, path)
		return err
	})
	if err != nil {
		t.Fatalf("read tree: %v", err)
	}
	return tree
}

func openRoot(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func readItem(root *os.Root, path string) (item, error) {
	info, err := root.Lstat(path)
	if err != nil {
		return item{}, err
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		return item{Kind: "dir", Mode: info.Mode().Perm()}, nil
	case fs.ModeSymlink:
		target, err := root.Readlink(path)
		return item{Kind: "symlink", Bytes: target}, err
	case 0:
		f, err := root.Open(path)
		if err != nil {
			return item{}, err
		}
		defer f.Close()
		h := sha256.New()
		n, err := io.Copy(h, f)
		return item{"file", info.Mode().Perm(), fmt.Sprintf("%d %x", n, h.Sum(nil)), info.ModTime().UnixNano()}, err
	}
	return item{Kind: info.Mode().Type().String()}, nil
}

// builder makes a tree below a root; paths may be longer than the system's limit.
type builder struct {
	t    *testing.T
	root *os.Root
	rand *rand.Rand
}

func build(t *testing.T, dir string) *builder {
	t.Helper()
	return &builder{t, openRoot(t, dir), rand.New(rand.NewPCG(1, 2))}
}

func (b *builder) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("build tree: %v", err)
	}
}

func (b *builder) dir(path string, mode fs.FileMode) {
	b.t.Helper()
	b.must(b.root.MkdirAll(path, 0o755))
	b.must(b.root.Chmod(path, mode))
}

// file writes a file whose mtime has odd nanoseconds.
func (b *builder) file(path string, data []byte, mode fs.FileMode) {
	b.t.Helper()
	b.must(b.root.MkdirAll(filepath.Dir(path), 0o755))
	b.must(b.root.WriteFile(path, data, 0o644))
	b.must(b.root.Chmod(path, mode))
	at := time.Unix(1_600_000_000+b.rand.Int64N(1e8), b.rand.Int64N(1e9))
	b.must(b.root.Chtimes(path, at, at))
}

func (b *builder) link(path, target string) {
	b.t.Helper()
	b.must(b.root.MkdirAll(filepath.Dir(path), 0o755))
	b.must(b.root.Symlink(target, path))
}

// noise is incompressible.
func (b *builder) noise(n int) []byte {
	data := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		v := b.rand.Uint64()
		for j := range 8 {
			data[i+j] = byte(v >> (8 * j))
		}
	}
	return data
}

// deepPath is a path of nearly 4,096 bytes.
func deepPath() string {
	return strings.Repeat(strings.Repeat("d", 199)+"/", 20) + strings.Repeat("f", 90)
}

// source makes a tree like that of an agent at work, plus everything odd that
// can be kept.
func (b *builder) source() {
	b.t.Helper()
	b.dir("empty", 0o755)
	b.dir("empty private", 0o700)
	b.dir("nested/empty/below", 0o755)
	b.file("zero", nil, 0o644)
	b.file("big.bin", b.noise(40<<20), 0o644)
	b.file("all bytes", bytes.Repeat(allBytes(), 5), 0o600)
	b.file("text.txt", []byte("one\r\ntwo\n"), 0o644)
	b.file("run.sh", []byte("#!/bin/sh\necho hello\n"), 0o755)
	b.file("readonly/file", []byte("fixed"), 0o444)
	b.file(deepPath(), []byte("deep down"), 0o644)
	for i, name := range []string{"\u00e9", "e\u0301", "new\nline", " spaces at both ends ", "\U0001f9ea\U0001f469\u200d\U0001f52c", "*?[x]", "-rf", "\u202etxt", "quote\"'", strings.Repeat("\u6f22", 85)} {
		b.file("names/"+name, fmt.Appendf(nil, "name %d", i), 0o644)
	}
	for i := range 3000 {
		b.file(fmt.Sprintf("small/%02d/%04d.txt", i%50, i), fmt.Appendf(nil, "file %d\n%s", i, strings.Repeat("x", i%97)), 0o644)
	}
	for path, target := range links {
		b.link(path, target)
	}
	b.dir("readonly", 0o555)
	b.dir("small/00", 0o750)
}

// links are kept as they are; none may be followed.
var links = map[string]string{
	"links/relative": "../text.txt", "links/dangling": "nowhere/at all", "links/absolute": "/etc/passwd",
	"links/out": "../../../../outside", "links/loop": "loop", "links/dir": "../small", "links/\U0001f517": "\u00e9 \n",
}

func allBytes() []byte {
	out := make([]byte, 256)
	for i := range out {
		out[i] = byte(i)
	}
	return out
}

// change alters the tree in every way that a later save has to notice.
func (b *builder) change() {
	b.t.Helper()
	b.file("text.txt", []byte("three\n"), 0o644)
	b.must(b.root.Remove("zero"))
	b.must(b.root.Rename("run.sh", "moved.sh"))
	b.must(b.root.Chmod("all bytes", 0o640))
	b.must(b.root.RemoveAll("empty"))
	b.file("empty", []byte("now a file"), 0o644)
	b.must(b.root.Remove("links/relative"))
	b.link("links/relative", "../moved.sh")
	b.must(b.root.RemoveAll("names"))
	b.dir("names", 0o711)
	f, err := b.root.OpenFile("big.bin", os.O_WRONLY, 0)
	b.must(err)
	_, err = f.WriteAt([]byte("changed in the middle"), 20<<20)
	b.must(err)
	b.must(f.Close())
}

// code makes a tree of n files of some KB, quick to write and to save.
func (b *builder) code(n int) {
	b.t.Helper()
	for i := range n {
		b.file(fmt.Sprintf("src/%02d/%03d.go", i%20, i), b.noise(4096+b.rand.IntN(16384)), 0o644)
	}
}
