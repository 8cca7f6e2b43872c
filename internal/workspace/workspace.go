package workspace

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandkeep/internal/snapshot"
)

// Options say where a worker's trees are and what must not be captured.
type Options struct {
	SandboxRoot string    // directory of the sandboxes
	RestoreRoot string    // directory of the restored trees
	StateDir    string    // keeps the stat caches, and a key without which no other process undoes a restore; "" for neither. It is never captured
	Forbidden   []string  // further directories that are never captured, such as the store's
	Redactor    *Redactor // nil: no secrets

	// Undone is told of each restore in place that broke off and was taken back.
	// nil: nobody is. Several goroutines call it.
	Undone func(Undone)
}

// Undone is a restore in place that a process which died has left half done, and
// that another one took back.
type Undone struct {
	Dir     string   // host path of the directory
	Entries int      // how many were taken back
	Kept    []string // names, beside the directory, under which what was written since is kept
}

// Trees captures and restores directory trees. It is safe for concurrent use.
type Trees struct {
	options  Options
	redactor *Redactor
	salt     []byte // of the fingerprints in the stat caches, and key of the journals
	// fault stands before each use of the file system, so that tests can make
	// it fail or change the tree at that moment. Several goroutines call it.
	fault func(op, path string) error
}

var _ snapshot.Workspaces = (*Trees)(nil)

// New makes what it needs in the state directory, and undoes in the roots what
// dead restores left half done.
func New(o Options) (*Trees, error) {
	t := &Trees{options: o, redactor: o.Redactor, fault: func(string, string) error { return nil }}
	if t.redactor == nil {
		t.redactor = &Redactor{}
	}
	if err := t.openState(); err != nil {
		return nil, err
	}
	for _, dir := range []string{o.SandboxRoot, o.RestoreRoot} {
		if root, err := os.OpenRoot(dir); err == nil {
			t.removeStale(root)
			t.followSigns(root)
			_ = root.Close()
		}
	}
	return t, nil
}

func (t *Trees) openState() (err error) {
	if t.options.StateDir == "" {
		t.salt = make([]byte, saltBytes)
		_, _ = rand.Read(t.salt) // never fails
		return nil
	}
	if err := os.MkdirAll(t.cacheDir(), 0o700); err != nil {
		return fmt.Errorf("make directory of the stat caches: %w", err)
	}
	t.pruneCaches(time.Now().Add(-cacheLife))
	t.salt, err = loadSalt(filepath.Join(t.cacheDir(), saltName))
	return err
}

func (t *Trees) cacheDir() string { return filepath.Join(t.options.StateDir, "stat-cache") }

// cacheLife is how long the stat cache of a sandbox outlives its last save.
const cacheLife = 30 * 24 * time.Hour

// pruneCaches removes what was last written before the time, halves of dead
// processes included. It fails silently: what stays is only in the way of space.
func (t *Trees) pruneCaches(before time.Time) {
	files, _ := os.ReadDir(t.cacheDir())
	for _, f := range files {
		info, err := f.Info()
		if err == nil && f.Name() != saltName && info.ModTime().Before(before) {
			_ = os.Remove(filepath.Join(t.cacheDir(), f.Name()))
		}
	}
}

const (
	saltName  = "salt"
	saltBytes = 32
)

// loadSalt makes the salt if there is none. Of two that do so at once the first wins.
func loadSalt(file string) ([]byte, error) {
	salt, err := os.ReadFile(file)
	if err == nil && len(salt) == saltBytes {
		return salt, nil
	}
	if err == nil { // damaged; without it the old caches mean nothing
		err = os.Remove(file)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read salt of the stat caches: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), "salt-*")
	if err != nil {
		return nil, fmt.Errorf("make salt of the stat caches: %w", err)
	}
	defer os.Remove(tmp.Name())
	salt = make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails
	_, err = tmp.Write(salt)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return nil, fmt.Errorf("write salt of the stat caches: %w", err)
	}
	if err = os.Link(tmp.Name(), file); errors.Is(err, fs.ErrExist) {
		return loadSalt(file)
	}
	return salt, err
}

// syncSalt makes the salt outlive a power cut. At the start it would drag along
// the names of what a server without syncs has just made, and not its bytes.
func (t *Trees) syncSalt() error {
	if t.options.StateDir == "" {
		return nil
	}
	for _, path := range []string{filepath.Join(t.cacheDir(), saltName), t.cacheDir(), t.options.StateDir} {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// CheckRoot refuses "/", the home directory and whatever is above it, and a
// directory of the worker's own: one that is, or lies in, the state directory
// or a forbidden one, as Owner says.
func (t *Trees) CheckRoot(dir string) error {
	real, err := resolve(dir)
	if err != nil {
		return snapshot.Errorf(snapshot.InvalidWorkspace, "the workspace does not exist or is not a directory; make it or attach another").Because(err)
	}
	info, err := os.Stat(real)
	if err != nil || !info.IsDir() {
		return snapshot.Errorf(snapshot.InvalidWorkspace, "the workspace does not exist or is not a directory; make it or attach another").Because(err)
	}
	if isHomeOrAbove(info) {
		return snapshot.Errorf(snapshot.InvalidWorkspace, "the workspace is the home directory or one above it; give a directory of its own")
	}
	if sameAny(info, t.roots()) || t.options.Owner(real) != "" {
		return snapshot.Errorf(snapshot.InvalidWorkspace, "the workspace is, or lies in, a directory of the worker itself; give a directory of its own")
	}
	return nil
}

func (t *Trees) roots() []os.FileInfo {
	dirs := []string{t.options.SandboxRoot, t.options.RestoreRoot}
	if t.options.StateDir != "" {
		for _, name := range defaultRoots {
			dirs = append(dirs, filepath.Join(t.options.StateDir, name))
		}
	}
	return infos(dirs...)
}

// Names of the default roots in the state directory.
const (
	DefaultSandboxes = "sandboxes"
	DefaultRestored  = "restored"
)

var defaultRoots = []string{DefaultSandboxes, DefaultRestored}

// Owner is which of the worker's own directories, the state directory or a
// forbidden one, dir is or lies in, also through links; "" if none. None owns the
// default roots in the state directory and what is in them. dir may have yet to
// be made.
func (o Options) Owner(dir string) string {
	own := map[string]string{}
	for _, d := range append([]string{o.StateDir}, o.Forbidden...) {
		if d != "" {
			own[resolveFar(d)] = d
		}
	}
	state := resolveFar(o.StateDir)
	for at := range upwards(resolveFar(dir)) {
		for real, given := range own {
			if isSame(at, real) {
				return given
			}
		}
		if o.StateDir != "" && slices.Contains(defaultRoots, filepath.Base(at)) && isSame(filepath.Dir(at), state) {
			return ""
		}
	}
	return ""
}

func isSame(a, b string) bool {
	if a == b {
		return true
	}
	is, err := os.Stat(a)
	return err == nil && sameAny(is, infos(b))
}

func (t *Trees) forbidden() []os.FileInfo {
	return infos(append([]string{t.options.StateDir}, t.options.Forbidden...)...)
}

// infos describes the directories that exist.
func infos(dirs ...string) []os.FileInfo {
	var out []os.FileInfo
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err == nil {
			out = append(out, info)
		}
	}
	return out
}

func sameAny(info os.FileInfo, among []os.FileInfo) bool {
	for _, other := range among {
		if os.SameFile(info, other) {
			return true
		}
	}
	return false
}

func isHomeOrAbove(info os.FileInfo) bool {
	home := os.Getenv("HOME")
	if real, err := resolve(home); home != "" && err == nil {
		home = real
	}
	for at := range upwards(filepath.Join("/", home)) {
		if here, err := os.Stat(at); err == nil && os.SameFile(here, info) {
			return true
		}
	}
	return false
}

func resolve(dir string) (string, error) {
	if dir == "" {
		return "", fs.ErrNotExist
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// resolveFar resolves as much of a path as exists.
func resolveFar(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	for at := range upwards(abs) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, strings.TrimPrefix(abs, at))
		}
	}
	return abs
}

// upwards yields dir and its parents, up to the root.
func upwards(dir string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for yield(dir) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
		}
	}
}
