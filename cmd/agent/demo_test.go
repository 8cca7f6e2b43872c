package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandkeep/internal/agent"
	"sandkeep/internal/snapshot"
)

func decodeReport(t *testing.T, text string) report {
	t.Helper()
	var r report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("decode report %q: %v", text, err)
	}
	return r
}

func TestDemo(t *testing.T) {
	m := newMachine(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	m.want(0, "Equal: ", "demo", "--sync", "interval")
	r := decodeReport(t, m.want(0, "", "demo", "--json", "--sync", "interval"))
	want := []change{{".git/HEAD", "modified"}, {"README.md", "mode"}, {"src/main.go", "removed"}, {added, "added"}}
	if !r.Equal || r.Excluded != 4 || len(r.Steps) != 7 || !cmp.Equal(r.Changes, want) {
		t.Errorf("report = %+v", r)
	}
	r = decodeReport(t, m.want(0, "", "demo", "--json", "--no-default-excludes", "--sync", "interval"))
	if !r.Equal || r.Excluded != 0 || r.Compared != 17 {
		t.Errorf("report without exclusions = %+v", r)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v, %v", left, err)
	}
}

// The directory that is given stays as it is, also when the demo works inside.
func TestDemo_Directory(t *testing.T) {
	m := newMachine(t)
	dir := filepath.Join(t.TempDir(), "mine")
	if err := smallWorkspace(dir); err != nil {
		t.Fatal(err)
	}
	secretURL := "[remote \"origin\"]\n\turl = https://me:hunter2@example.org/r.git\n"
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, ".git", "config"), []byte(secretURL), 0o600),
		os.Mkdir(filepath.Join(dir, "readonly"), 0o755),
		os.WriteFile(filepath.Join(dir, "readonly", "f"), []byte("x"), 0o444),
		os.Chmod(filepath.Join(dir, "readonly"), 0o555),
		os.Mkdir(filepath.Join(dir, "tmp"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "readonly"), 0o755) })
	before, err := readTree(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", filepath.Join(dir, "tmp"))
	if r := decodeReport(t, m.want(0, "", "demo", "--json", "--sync", "interval", dir)); !r.Equal {
		t.Errorf("report = %+v", r)
	}
	after, err := readTree(t.Context(), dir)
	if err != nil || !cmp.Equal(before, after, cmp.AllowUnexported(node{})) {
		t.Errorf("the directory was changed: %v\n%s", err, cmp.Diff(before, after, cmp.AllowUnexported(node{})))
	}
}

// What can't be kept is counted, and no difference.
func TestDemo_Skipped(t *testing.T) {
	m := newMachine(t)
	dir := filepath.Join(t.TempDir(), "mine")
	if err := smallWorkspace(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"\xff/inside", "only/\xfe", "back\\slash", "long/" + strings.Repeat("ö", 120) + "/" + strings.Repeat("ü", 120) + "\xff"} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte("x"), 0o644)); err != nil {
			t.Skipf("no such names here: %v", err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := decodeReport(t, m.want(0, "", "demo", "--json", "--sync", "interval", dir))
	if want := 6; !r.Equal || r.Skipped != want {
		t.Errorf("report = %+v, want %d skipped", r, want)
	}
	m.want(0, "6 can't be kept", "demo", "--sync", "interval", dir)
	for i := range snapshot.MaxCoverageRows {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("\xff%d", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if r = decodeReport(t, m.want(0, "", "demo", "--json", "--sync", "interval", dir)); !r.Equal || r.Skipped != 6+snapshot.MaxCoverageRows {
		t.Errorf("report of many = %+v", r)
	}
}

func TestDemo_Interrupted(t *testing.T) {
	newMachine(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, log strings.Builder
	std := agent.IO{In: strings.NewReader(""), Out: &out, Err: &log}
	if code := (agent.Program{Name: "agent", CLI: &cli{}}).Run(ctx, std, []string{"demo"}); code != agent.ExitInterrupted {
		t.Errorf("exit code %d, %s", code, log.String())
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v, %v", left, err)
	}
}

// Whatever differs in the restored tree is found.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	saved := filepath.Join(dir, "saved")
	if err := smallWorkspace(saved); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, "copy", name) }
	for _, tc := range []struct {
		name, want string
		change     func() error
	}{
		{"nothing", "", func() error { return nil }},
		{"bytes", "README.md: bytes differs", func() error { return os.WriteFile(at("README.md"), []byte("# A small workspacE\n"), 0o644) }},
		{"mode", "bin/run.sh: mode differs", func() error { return os.Chmod(at("bin/run.sh"), 0o644) }},
		{"directory mode", "empty: mode differs", func() error { return os.Chmod(at("empty"), 0o755) }},
		{"mtime", "README.md: mtime differs", func() error { return touch(at("README.md")) }},
		{"target", "link: link target differs", func() error {
			_ = os.Remove(at("link"))
			return os.Symlink("README.md", at("link"))
		}},
		{"kind", "link: kind differs", func() error {
			_ = os.Remove(at("link"))
			return os.Mkdir(at("link"), 0o755)
		}},
		{"missing", "src/empty.txt: is missing", func() error { return os.Remove(at("src/empty.txt")) }},
		{"missing directory", "empty: is missing", func() error { return os.Remove(at("empty")) }},
		{"more", "more: was not there", func() error { return os.WriteFile(at("more"), nil, 0o644) }},
		{"left out by a rule", "", func() error { return os.RemoveAll(at("node_modules")) }},
		{"left out without a rule", ".env: is missing", func() error { return os.Remove(at(".env")) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := copyTree(t.Context(), saved, at(""), dir+"/none"); err != nil {
				t.Fatal(err)
			}
			defer removeTree(at(""))
			if err := tc.change(); err != nil {
				t.Fatal(err)
			}
			before, err := readTree(t.Context(), saved)
			if err != nil {
				t.Fatal(err)
			}
			after, err := readTree(t.Context(), at(""))
			if err != nil {
				t.Fatal(err)
			}
			d := &demo{}
			d.compare(before, after, snapshot.Coverage{Excluded: map[string]int64{"node_modules": 1}}, nil)
			got := strings.Join(d.report.Differences, "; ")
			if got != tc.want || d.report.Equal != (tc.want == "") {
				t.Errorf("differences %q, equal %t, want %q", got, d.report.Equal, tc.want)
			}
		})
	}
}

func touch(at string) error {
	info, err := os.Stat(at)
	if err != nil {
		return err
	}
	return os.Chtimes(at, info.ModTime(), info.ModTime().Add(1))
}
