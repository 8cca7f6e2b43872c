package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

func TestCapture_PathOrder(t *testing.T) {
	b := newBench(t)
	b.write("a/b", "1", "a.txt", "2", "a-b/c", "3", "a0", "4", "a/b.d/x", "5", "a/b!", "6", "e/", "", "a!/", "", "f/g/h/", "")
	must(t, os.Chmod(filepath.Join(b.ws, "a-b"), 0o700))
	tree, got := b.capture(snapshot.Policy{})
	want := "a! a-b a-b/c a.txt a/b a/b! a/b.d/x a0 e f/g/h"
	if tree.paths() != want {
		t.Errorf("paths are %q, want %q", tree.paths(), want)
	}
	if e := tree.find(t, "a-b"); e.Kind != snapshot.KindDir || e.Mode != 0o700 {
		t.Errorf("a-b is %+v", e)
	}
	if s := got.Stats; s.Files != 6 || s.Dirs != 4 || s.Bytes != 6 {
		t.Errorf("stats are %+v", s)
	}
}

func TestCapture_DirectoryWithNothingKept(t *testing.T) {
	b := newBench(t)
	b.write("d/node_modules/x", "1", "d.txt", "2", "g/.env", "3", "h/h/.ssh/k", "4")
	tree, got := b.capture(snapshot.Policy{})
	if tree.paths() != "d d.txt g h/h" {
		t.Errorf("paths are %q", tree.paths())
	}
	if e := got.Coverage.Excluded; e["node_modules"] != 1 || e[".env*"] != 1 || e[".ssh"] != 1 || len(e) != 3 {
		t.Errorf("excluded is %v", e)
	}
}

func TestCapture_ModesLinksAndSpecialFiles(t *testing.T) {
	b := newBench(t)
	b.write("run.sh", "#!/bin/sh\n", "plain", "x")
	must(t, os.Chmod(filepath.Join(b.ws, "run.sh"), 0o755|os.ModeSetuid))
	must(t, os.Symlink("/nowhere/at/all", filepath.Join(b.ws, "abs")))
	must(t, os.Symlink("../../..", filepath.Join(b.ws, "out")))
	must(t, os.Symlink("plain", filepath.Join(b.ws, "in")))
	must(t, os.Link(filepath.Join(b.ws, "plain"), filepath.Join(b.ws, "hard")))
	must(t, syscall.Mkfifo(filepath.Join(b.ws, "pipe"), 0o644))
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(socket)
	must(t, os.Chdir(b.ws))
	must(t, unix.Bind(socket, &unix.SockaddrUnix{Name: "sock"}))
	must(t, os.Chdir("/"))

	tree, got := b.capture(snapshot.Policy{})
	if tree.paths() != "abs hard in out plain run.sh" {
		t.Errorf("paths are %q", tree.paths())
	}
	if e := tree.find(t, "run.sh"); e.Mode != 0o755 {
		t.Errorf("mode of run.sh is %o", e.Mode)
	}
	if e := tree.find(t, "out"); e.Kind != snapshot.KindSymlink || e.Target != "../../.." {
		t.Errorf("out is %+v", e)
	}
	want := []snapshot.Skipped{{Path: "pipe", Reason: "named pipe"}, {Path: "sock", Reason: "socket"}}
	if fmt.Sprint(got.Coverage.Skipped) != fmt.Sprint(want) {
		t.Errorf("skipped is %v", got.Coverage.Skipped)
	}

	_, err = b.Capture(t.Context(), b.ws, snapshot.Policy{Strict: true}, "", newMemTree())
	wantCode(t, err, snapshot.UnsupportedEntry)
	if paths := snapshot.AsError(err).Details["paths"]; fmt.Sprint(paths) != "[pipe sock]" {
		t.Errorf("paths of the error are %v", paths)
	}
}

func TestCapture_Names(t *testing.T) {
	b := newBench(t)
	good := []string{"new\nline", " space ", "emoji 🦀", "e\u0301", "\u00e9", "a:b", "*?[x]", "-rf", "..."}
	for _, n := range good {
		b.write(n, n)
	}
	bad := []string{"\xfe", "\xff", "back\\slash", "c:", "d:/x"}
	for _, n := range bad {
		b.write(n, n)
	}
	tree, got := b.capture(snapshot.Policy{})
	if len(tree.entries) != len(good) {
		t.Errorf("paths are %q", tree.paths())
	}
	for _, n := range good {
		tree.find(t, n)
	}
	if s := fmt.Sprintf("%q", got.Coverage.Skipped); len(got.Coverage.Skipped) != len(bad) ||
		!strings.Contains(s, `\\xfe`) || !strings.Contains(s, `\\xff`) || !strings.Contains(s, `back\\\\slash`) {
		t.Errorf("skipped is %s", s)
	}
	must(t, b.restore("r", tree))
}

func TestCapture_DeepPaths(t *testing.T) {
	b := newBench(t)
	root, err := os.OpenRoot(b.ws)
	must(t, err)
	defer root.Close()
	deep := strings.Repeat("d/", 2046) + "f123" // 4,096 bytes
	must(t, root.MkdirAll(deep[:len(deep)-5], 0o755))
	must(t, root.WriteFile(deep, []byte("x"), 0o644))
	must(t, root.WriteFile(deep+"4", []byte("x"), 0o644))
	tree, got := b.capture(snapshot.Policy{})
	if tree.paths() != deep {
		t.Errorf("%d entries", len(tree.entries))
	}
	if s := got.Coverage.Skipped; len(s) != 1 || s[0].Reason != "path is too long" || len(s[0].Path) > maxShownPath+8 {
		t.Errorf("skipped is %.200v", s)
	}
	must(t, b.restore("r", tree))
}

func TestCapture_ManySmallFiles(t *testing.T) {
	b := newBench(t)
	for i := range 3000 {
		b.write(fmt.Sprintf("d%d/f%d", i%50, i), fmt.Sprint(i))
	}
	tree, got := b.capture(snapshot.Policy{})
	if len(tree.entries) != 3000 || got.Stats.Files != 3000 {
		t.Errorf("%d entries, stats %+v", len(tree.entries), got.Stats)
	}
	must(t, b.restore("r", tree))
	if n := len(describe(t, b.restored("r"))); n != 3050 {
		t.Errorf("%d paths restored", n)
	}
}

func TestCapture_CoverageIsBounded(t *testing.T) {
	b := newBench(t)
	for i := range 150 {
		must(t, syscall.Mkfifo(filepath.Join(b.ws, fmt.Sprintf("p%03d", i)), 0o644))
	}
	_, got := b.capture(snapshot.Policy{})
	if c := got.Coverage; len(c.Skipped) != 100 || c.More != 50 {
		t.Errorf("%d skipped, %d more", len(c.Skipped), c.More)
	}
	_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{Strict: true}, "", newMemTree())
	wantCode(t, err, snapshot.UnsupportedEntry)
	if d := snapshot.AsError(err).Details; len(d["paths"].([]string)) != 100 || d["count"] != int64(150) {
		t.Errorf("details are %v", d)
	}
}

// at runs fn the first times that op is about to happen on path.
func (b *bench) at(op, path string, times int, fn func()) {
	var mu sync.Mutex // guards times
	b.fault = func(o, p string) error {
		mu.Lock()
		defer mu.Unlock()
		if o == op && p == path && times > 0 {
			times--
			fn()
		}
		return nil
	}
}

func TestCapture_SwappedBetweenListAndOpen(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte("outside"), 0o600))
	for name, swap := range map[string]func(file string) error{
		"pipe":   func(f string) error { return syscall.Mkfifo(f, 0o644) },
		"escape": func(f string) error { return os.Symlink(secret, f) },
		"inside": func(f string) error { return os.Symlink("other", f) },
		"dir":    func(f string) error { return os.Mkdir(f, 0o755) },
		"gone":   func(string) error { return nil },
	} {
		for _, op := range []string{"lstat", "open"} {
			t.Run(name+" before "+op, func(t *testing.T) {
				b := newBench(t)
				b.write("file", "x", "other", "y")
				b.at(op, "file", 1, func() {
					must(t, os.Remove(filepath.Join(b.ws, "file")))
					must(t, swap(filepath.Join(b.ws, "file")))
				})
				tree, _ := b.capture(snapshot.Policy{})
				for _, e := range tree.entries {
					if e.Path == "file" && e.Kind == snapshot.KindFile {
						t.Errorf("captured %+v", e)
					}
				}
				for _, content := range tree.contents {
					if string(content) == "outside" {
						t.Error("captured a file outside of the workspace")
					}
				}
			})
		}
	}
}

func TestCapture_SwappedDirectory(t *testing.T) {
	b := newBench(t)
	outside := filepath.Join(b.base, "outside")
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "x"), []byte("outside"), 0o644))
	b.write("d/x", "1", "e", "2")
	b.at("enter", "d", 1, func() {
		must(t, os.RemoveAll(filepath.Join(b.ws, "d")))
		must(t, os.Symlink(outside, filepath.Join(b.ws, "d")))
	})
	tree, got := b.capture(snapshot.Policy{})
	if tree.paths() != "e" || fmt.Sprint(got.Coverage.Unstable) != "[d]" {
		t.Errorf("paths are %q, coverage %+v", tree.paths(), got.Coverage)
	}
}

func TestCapture_GrowingFile(t *testing.T) {
	b := newBench(t)
	const start = maxEarlyFile + 1 // not read ahead
	b.write("log", strings.Repeat("x", start))
	file := filepath.Join(b.ws, "log")
	grow := func() {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteString(strings.Repeat("x", 100<<10))
		must(t, errors.Join(err, f.Close()))
	}
	b.at("read", "log", 1<<30, grow) // grows faster than it is read
	tree, got := b.capture(snapshot.Policy{})
	e := tree.find(t, "log")
	if int64(len(tree.contents[e.Digest])) != e.Size || fmt.Sprint(got.Coverage.Unstable) != "[log]" || tree.puts != 3 {
		t.Errorf("size %d, %d puts, coverage %+v", e.Size, tree.puts, got.Coverage)
	}
	_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{Strict: true}, "", newMemTree())
	wantCode(t, err, snapshot.WorkspaceChanged)

	must(t, os.Truncate(file, start))
	b.at("read", "log", 1, grow) // once: the second read is good
	tree, got = b.capture(snapshot.Policy{})
	if e := tree.find(t, "log"); e.Size != start+100<<10 || len(got.Coverage.Unstable) != 0 || tree.puts != 2 {
		t.Errorf("size %d, %d puts, coverage %+v", e.Size, tree.puts, got.Coverage)
	}
}

func TestCapture_TruncatedAndReplacedFile(t *testing.T) {
	b := newBench(t)
	b.write("f", strings.Repeat("old", maxEarlyFile))
	b.at("read", "f", 1, func() { must(t, os.Truncate(filepath.Join(b.ws, "f"), 0)) })
	tree, got := b.capture(snapshot.Policy{})
	if e := tree.find(t, "f"); e.Size != 0 || tree.puts != 2 || len(got.Coverage.Unstable) != 0 {
		t.Errorf("truncated: %+v, %d puts", e, tree.puts)
	}
	b.at("read", "f", 1, func() {
		b.write("g", "new")
		must(t, os.Rename(filepath.Join(b.ws, "g"), filepath.Join(b.ws, "f")))
	})
	tree, _ = b.capture(snapshot.Policy{})
	if e := tree.find(t, "f"); string(tree.contents[e.Digest]) != "new" {
		t.Errorf("replaced: %+v", e)
	}
}

func TestCapture_Faults(t *testing.T) {
	b := newBench(t)
	b.write("a", "1", "d/b", "2", "e/c", "3")
	for _, op := range []string{"list d/", "enter d", "lstat a", "open a", "read a"} {
		for errno, fails := range map[syscall.Errno]bool{syscall.EIO: true, syscall.EACCES: false, syscall.EPERM: false, syscall.ENOENT: false} {
			b.fault = func(o, p string) error {
				if o+" "+p == op {
					return &os.PathError{Op: o, Path: "/host/" + p, Err: errno}
				}
				return nil
			}
			_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{}, "", newMemTree())
			if fails != (err != nil) {
				t.Errorf("%s with %v: %v", op, errno, err)
			}
			if fails {
				wantCode(t, err, snapshot.UnreadableEntry)
				if msg := snapshot.AsError(err).Message; strings.Contains(msg, "/host") || !strings.Contains(msg, errno.Error()) {
					t.Errorf("message is %q", msg)
				}
			}
			_, err = b.Capture(t.Context(), b.ws, snapshot.Policy{Strict: true}, "", newMemTree())
			if strict := errno != syscall.ENOENT; strict != (err != nil) {
				t.Errorf("strict, %s with %v: %v", op, errno, err)
			}
		}
	}
	b.fault = func(o, p string) error {
		if o == "list" && p == "" {
			return syscall.EACCES
		}
		return nil
	}
	_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{}, "", newMemTree())
	wantCode(t, err, snapshot.InvalidWorkspace)
}

func TestCapture_WriterFails(t *testing.T) {
	b := newBench(t)
	b.write("a", "1")
	tree := newMemTree()
	tree.putErr = snapshot.Errorf(snapshot.StoreFull, "full")
	_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{}, "", tree)
	wantCode(t, err, snapshot.StoreFull)
}

func TestCapture_WorkspaceReplaced(t *testing.T) {
	b := newBench(t)
	b.write("a", "1", "b", "2")
	b.at("lstat", "a", 1, func() { must(t, os.RemoveAll(b.ws)) })
	_, err := b.Capture(t.Context(), b.ws, snapshot.Policy{}, "", newMemTree())
	wantCode(t, err, snapshot.WorkspaceChanged)
}

// captureUnreadable runs in a process of its own without privileges.
func captureUnreadable(base string) int {
	trees, err := New(Options{SandboxRoot: base})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	tree := newMemTree()
	got, err := trees.Capture(bg(), filepath.Join(base, "ws"), snapshot.Policy{}, "", tree)
	fmt.Println(tree.paths(), got.Coverage.Skipped, err)
	_, err = trees.Capture(bg(), filepath.Join(base, "ws"), snapshot.Policy{Strict: true}, "", newMemTree())
	fmt.Println(errors.Is(err, snapshot.UnreadableEntry))
	return 0
}

func TestCapture_WithoutPermission(t *testing.T) {
	b := newBench(t)
	b.write("open/x", "1", "noread/x", "2", "nosearch/x", "3", "secret", "4", "z", "5")
	must(t, os.Chmod(filepath.Join(b.ws, "noread"), 0o111))
	must(t, os.Chmod(filepath.Join(b.ws, "nosearch"), 0o444))
	must(t, os.Chmod(filepath.Join(b.ws, "secret"), 0))
	// The test's own directory and binary may be out of the reach of others.
	base, err := os.MkdirTemp("", "sandkeep-unreadable-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	must(t, os.Chmod(base, 0o755))
	must(t, os.Rename(b.ws, filepath.Join(base, "ws")))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"SANDKEEP_TEST_UNREADABLE=" + base}
	if os.Geteuid() == 0 {
		self, err := os.ReadFile("/proc/self/exe")
		must(t, err)
		must(t, os.WriteFile(filepath.Join(base, "test.exe"), self, 0o755))
		cmd = exec.Command(filepath.Join(base, "test.exe"))
		cmd.Env = []string{"SANDKEEP_TEST_UNREADABLE=" + base}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	must(t, err)
	want := "open/x z [{noread permission denied} {nosearch permission denied} {secret permission denied}] <nil>\ntrue\n"
	if string(out) != want {
		t.Errorf("output is %q, want %q", out, want)
	}
}

func TestCheckRoot(t *testing.T) {
	b := newBench(t)
	home := filepath.Join(b.base, "users", "agent")
	must(t, os.MkdirAll(filepath.Join(home, "project"), 0o755))
	must(t, os.MkdirAll(filepath.Join(b.base, "store", "jetstream"), 0o755))
	t.Setenv("HOME", home)
	must(t, os.Symlink(home, filepath.Join(b.base, "link")))
	b.write("file", "x")
	for _, dir := range []string{"/", home, filepath.Dir(home), b.base, filepath.Join(b.base, "link"), filepath.Join(b.base, "store"),
		filepath.Join(b.base, "store", "jetstream"), b.options.StateDir, b.cacheDir(), b.options.SandboxRoot, b.options.RestoreRoot,
		filepath.Join(b.base, "none"), filepath.Join(b.ws, "file"), ""} {
		err := b.CheckRoot(dir)
		wantCode(t, err, snapshot.InvalidWorkspace)
		if strings.Contains(snapshot.AsError(err).Message, b.base) {
			t.Errorf("message has a host path: %v", err)
		}
	}
	for _, dir := range []string{b.ws, filepath.Join(home, "project"), filepath.Join(b.base, "link", "project")} {
		if err := b.CheckRoot(dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// A root in a directory of the worker excuses nothing that is in it.
func TestCheckRoot_RootInOwnDirectory(t *testing.T) {
	b := newBench(t)
	store := filepath.Join(b.base, "store")
	must(t, os.MkdirAll(filepath.Join(store, "jetstream", "x"), 0o755))
	must(t, os.Symlink(filepath.Join(store, "jetstream"), filepath.Join(b.base, "link")))
	for _, root := range []string{store, filepath.Join(store, "jetstream"), filepath.Join(b.base, "link"), b.options.StateDir, b.base} {
		b.options.SandboxRoot, b.options.RestoreRoot = root, root
		for _, dir := range []string{filepath.Join(store, "jetstream"), filepath.Join(store, "jetstream", "x"), filepath.Join(b.base, "link", "x"), b.cacheDir()} {
			wantCode(t, b.CheckRoot(dir), snapshot.InvalidWorkspace)
		}
		if err := b.CheckRoot(b.ws); err != nil {
			t.Errorf("with the root %s: %v", root, err)
		}
	}
	tree := newMemTree()
	b.options.RestoreRoot = store
	_, _, err := b.Trees.Restore(bg(), snapshot.Target{Root: "restore", Path: "jetstream", Exact: true}, tree.all(), loose(tree.open))
	wantCode(t, err, snapshot.InvalidWorkspace)
	if _, err := os.Stat(filepath.Join(store, "jetstream", "x")); err != nil {
		t.Error(err)
	}
}

func TestOptions_Owner(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	must(t, os.MkdirAll(at("state"), 0o755))
	must(t, os.Symlink(at("state"), at("to-state")))
	must(t, os.Symlink(at("state"), at("state/restored")))
	o := Options{StateDir: at("to-state"), Forbidden: []string{at("store")}} // that is yet to be made
	for dir, want := range map[string]string{
		"state": at("to-state"), "to-state": at("to-state"), "state/new": at("to-state"), "to-state/stat-cache/x": at("to-state"),
		"state/restored": at("to-state"), "store": at("store"), "store/a/b": at("store"), "state/../store/sandboxes": at("store"),
		"": "", "else": "", "state/sandboxes": "", "state/sandboxes/a/b": "", "storeroom": "", "sandboxes": "",
	} {
		if got := o.Owner(at(dir)); got != want {
			t.Errorf("the owner of %q is %q, want %q", dir, got, want)
		}
	}
	o = Options{StateDir: at("state"), Forbidden: []string{at("state/sandboxes")}}
	if got := o.Owner(at("state/sandboxes/x")); got != at("state/sandboxes") {
		t.Errorf("the owner in a store at a default root is %q", got)
	}
	if got := (Options{}).Owner(at("x")); got != "" {
		t.Errorf("the owner without directories is %q", got)
	}
}

func TestCapture_LeavesTheWorkersDirectoriesOut(t *testing.T) {
	b := newBench(t)
	b.write("store/block", "1", "sub/a", "2", ".sandkeep-restore-X/half", "3")
	b.options.Forbidden = []string{filepath.Join(b.ws, "store")}
	tree, got := b.capture(snapshot.Policy{})
	if tree.paths() != "sub/a" || got.Coverage.Excluded["store"] != 2 {
		t.Errorf("paths are %q, coverage %+v", tree.paths(), got.Coverage)
	}
}

func TestCapture_Redaction(t *testing.T) {
	b := newBench(t, "hunter2-hunter2", "tok_123456")
	b.write("conf", "a=hunter2-hunter2\nb=tok_123456\n", "x-tok_123456", "1", "sub-tok_123456/y", "2", "ok", "3")
	must(t, os.Symlink("/run/tok_123456", filepath.Join(b.ws, "ln")))
	tree, got := b.capture(snapshot.Policy{})
	if tree.paths() != "conf ok" || got.Coverage.Redactions != 2 {
		t.Errorf("paths are %q, coverage %+v", tree.paths(), got.Coverage)
	}
	want := "a=" + strings.Repeat("\x00", 15) + "\nb=" + strings.Repeat("\x00", 10) + "\n"
	if e := tree.find(t, "conf"); string(tree.contents[e.Digest]) != want {
		t.Errorf("content is %q", tree.contents[e.Digest])
	}
	if s := fmt.Sprint(got.Coverage.Skipped); s != "[{ln secret in its target} {sub-[redacted] secret in its name} {x-[redacted] secret in its name}]" {
		t.Errorf("skipped is %s", s)
	}
}

func TestCapture_DirectoryEmptiedMeanwhile(t *testing.T) {
	b := newBench(t)
	b.write("d/x", "1", "d.txt", "2")
	b.at("list", "d/", 1, func() { must(t, os.Remove(filepath.Join(b.ws, "d/x"))) })
	tree, got := b.capture(snapshot.Policy{})
	if tree.paths() != "d d.txt" || len(got.Coverage.Unstable) != 0 {
		t.Errorf("emptied before it was listed: paths are %q, coverage %+v", tree.paths(), got.Coverage)
	}
	b.write("d/x", strings.Repeat("1", maxEarlyFile+1)) // not read ahead
	opened := 0
	b.at("open", "d/x", 2, func() {
		if opened++; opened == 2 { // the first one shows that the directory needs no entry
			must(t, os.Remove(filepath.Join(b.ws, "d/x")))
		}
	})
	tree, got = b.capture(snapshot.Policy{})
	if tree.paths() != "d.txt" || fmt.Sprint(got.Coverage.Unstable) != "[d]" {
		t.Errorf("emptied later: paths are %q, coverage %+v", tree.paths(), got.Coverage)
	}
}

func TestCapture_Canceled(t *testing.T) {
	b := newBench(t)
	b.write("a", "1", "b", "2")
	for _, op := range []string{"lstat", "read"} {
		ctx, cancel := context.WithCancel(t.Context())
		b.at(op, "a", 1, cancel)
		_, err := b.Capture(ctx, b.ws, snapshot.Policy{}, "box", newMemTree())
		wantCode(t, err, snapshot.Canceled)
	}
	if left, _ := filepath.Glob(filepath.Join(b.cacheDir(), "new-*")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}
