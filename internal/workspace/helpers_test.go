package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"sandkeep/internal/snapshot"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("SANDKEEP_TEST_UNREADABLE"); dir != "" {
		os.Exit(captureUnreadable(dir))
	}
	if args := os.Getenv(killVar); args != "" {
		os.Exit(exactUntilKilled(args))
	}
	goleak.VerifyTestMain(m)
}

// memTree keeps a tree in memory and checks what a writer may rely on.
type memTree struct {
	contents map[snapshot.Digest][]byte
	entries  []snapshot.Entry
	puts     int
	putErr   error
}

func newMemTree() *memTree { return &memTree{contents: map[snapshot.Digest][]byte{}} }

func (m *memTree) Known(_ string, d snapshot.Digest, size int64) bool {
	b, ok := m.contents[d]
	return ok && int64(len(b)) == size
}

func (m *memTree) Put(_ context.Context, r io.Reader) (snapshot.Digest, int64, error) {
	if m.putErr != nil {
		return snapshot.Digest{}, 0, m.putErr
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return snapshot.Digest{}, 0, fmt.Errorf("read content: %w", err)
	}
	m.puts++
	d := snapshot.Digest(sha256.Sum256(b))
	m.contents[d] = b
	return d, int64(len(b)), nil
}

func (m *memTree) PutBytes(_ context.Context, data []byte, d snapshot.Digest) error {
	if m.putErr != nil {
		return m.putErr
	}
	m.puts++
	if d != sha256.Sum256(data) {
		return fmt.Errorf("digest %s is not that of the bytes", d)
	}
	m.contents[d] = bytes.Clone(data)
	return nil
}

func (m *memTree) Add(_ context.Context, e snapshot.Entry) error {
	if n := len(m.entries); n > 0 && m.entries[n-1].Path >= e.Path {
		return fmt.Errorf("entry %q after %q", e.Path, m.entries[n-1].Path)
	}
	if e.Kind == snapshot.KindFile && !m.Known(e.Path, e.Digest, e.Size) {
		return fmt.Errorf("content of %q is not known", e.Path)
	}
	m.entries = append(m.entries, e)
	return snapshot.ValidatePath(e.Path)
}

func (m *memTree) Finish(context.Context) (snapshot.List, int64, error) {
	return snapshot.List{}, 0, nil
}
func (m *memTree) Abort() {}

func (m *memTree) all() iter.Seq2[snapshot.Entry, error] {
	return func(yield func(snapshot.Entry, error) bool) {
		for _, e := range m.entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (m *memTree) open(_ context.Context, e snapshot.Entry) (io.ReadCloser, error) {
	b, ok := m.contents[e.Digest]
	if !ok {
		return nil, snapshot.Errorf(snapshot.MissingBlob, "no content of %q", e.Path)
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

// next starts another tree over the same contents.
func (m *memTree) next() *memTree { return &memTree{contents: m.contents} }

func (m *memTree) sort() {
	slices.SortFunc(m.entries, func(a, b snapshot.Entry) int { return strings.Compare(a.Path, b.Path) })
}

func (m *memTree) paths() string {
	var out []string
	for _, e := range m.entries {
		out = append(out, e.Path)
	}
	return strings.Join(out, " ")
}

func (m *memTree) find(t *testing.T, path string) snapshot.Entry {
	t.Helper()
	for _, e := range m.entries {
		if e.Path == path {
			return e
		}
	}
	t.Fatalf("no entry %q in %q", path, m.paths())
	return snapshot.Entry{}
}

// bench is a worker's directories for one test.
type bench struct {
	*Trees
	t    testing.TB
	base string
	ws   string // a sandbox
	path string // of the destination of restores in place
}

func newBench(t testing.TB, secrets ...string) *bench {
	t.Helper()
	base := t.TempDir()
	t.Cleanup(func() { _ = removeAll(filepath.Join(base, "state")) }) // with what only its owner may not remove
	return benchIn(t, base, secrets...)
}

func benchIn(t testing.TB, base string, secrets ...string) *bench {
	t.Helper()
	r, err := NewRedactor(secrets)
	must(t, err)
	state := filepath.Join(base, "state")
	trees, err := New(Options{SandboxRoot: filepath.Join(state, "sandboxes"), RestoreRoot: filepath.Join(state, "restored"),
		StateDir: state, Forbidden: []string{filepath.Join(base, "store")}, Redactor: r})
	must(t, err)
	b := &bench{Trees: trees, t: t, base: base, ws: filepath.Join(state, "sandboxes", "ws"), path: "dest"}
	must(t, os.MkdirAll(b.ws, 0o755))
	must(t, os.MkdirAll(filepath.Join(state, "restored"), 0o755))
	must(t, os.MkdirAll(filepath.Join(base, "store"), 0o755))
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes files of the workspace from path, content pairs; a path that ends
// in "/" is a directory.
func (b *bench) write(pairs ...string) {
	b.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		full := filepath.Join(b.ws, pairs[i])
		if strings.HasSuffix(pairs[i], "/") {
			must(b.t, os.MkdirAll(full, 0o755))
			continue
		}
		must(b.t, os.MkdirAll(filepath.Dir(full), 0o755))
		must(b.t, os.WriteFile(full, []byte(pairs[i+1]), 0o644))
	}
}

// captureIn is capture for a process without a test.
func (b *bench) captureIn(ctx context.Context) (*memTree, error) {
	tree := newMemTree()
	_, err := b.Capture(ctx, b.ws, snapshot.Policy{}, "", tree)
	return tree, err
}

func (b *bench) capture(pol snapshot.Policy) (*memTree, snapshot.Captured) {
	b.t.Helper()
	tree := newMemTree()
	got, err := b.Capture(b.t.Context(), b.ws, pol, "", tree)
	must(b.t, err)
	return tree, got
}

// Open streams the whole content of a file's entry.
type Open = func(context.Context, snapshot.Entry) (io.ReadCloser, error)

// loose are contents without packs.
type loose Open

func (l loose) OpenFile(ctx context.Context, e snapshot.Entry, _, _ int64) (io.ReadCloser, error) {
	return l(ctx, e)
}

func (loose) ReadPack(context.Context, []snapshot.Piece, func(int, []byte) error) error {
	return errors.New("there are no packs")
}

// Restore restores into a new directory.
func (b *bench) Restore(ctx context.Context, root, path string, entries iter.Seq2[snapshot.Entry, error], open Open) (files, bytes int64, err error) {
	return b.Trees.Restore(ctx, snapshot.Target{Root: root, Path: path}, entries, loose(open))
}

func (b *bench) restore(path string, tree *memTree) error {
	_, _, err := b.Restore(b.t.Context(), "restore", path, tree.all(), tree.open)
	return err
}

func (b *bench) restored(path string) string { return filepath.Join(b.options.RestoreRoot, path) }

// describe lists a directory: path, mode, and content, target or mtime.
func describe(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		switch {
		case rel == ".":
		case d.IsDir():
			out[rel] = info.Mode().String()
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out[rel] = fmt.Sprintf("%s %d %q", info.Mode(), info.ModTime().UnixNano(), data)
		default:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			out[rel] = "-> " + target
		}
		return nil
	}))
	return out
}

func wantCode(t testing.TB, err error, code snapshot.Code) {
	t.Helper()
	if got := snapshot.AsError(err); got == nil || got.Code != code {
		t.Fatalf("error is %v, want %s", err, code)
	}
}

func bg() context.Context { return context.Background() }
