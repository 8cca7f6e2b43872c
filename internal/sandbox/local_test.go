package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sandkeep/internal/sandbox"
	"sandkeep/internal/snapshot"
)

// localRoot is a sandbox root with the directory "box" and everything that must
// not be taken for one.
func localRoot(t *testing.T, node snapshot.NodeName) (*sandbox.Registry, string) {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "sandboxes")
	r, err := sandbox.New(sandbox.Default(), node, root)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "box", "inside"), 0o755),
		os.MkdirAll(filepath.Join(dir, "outside"), 0o755),
		os.WriteFile(filepath.Join(root, "file"), nil, 0o644),
		os.Symlink("box", filepath.Join(root, "link")),
		os.Symlink("../outside", filepath.Join(root, "escape")),
		os.Symlink(filepath.Join(dir, "outside"), filepath.Join(root, "absolute")),
		os.Symlink("nowhere", filepath.Join(root, "dangling")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return r, root
}

func TestResume(t *testing.T) {
	r, root := localRoot(t, "here/é")
	def, err := r.Definition("")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		provider, id string
		want         error
	}{
		{"local", "here/é/box", nil},
		{"local", "here/é/absent", snapshot.MissingReusableSandbox},
		{"local", "here/é/file", snapshot.MissingReusableSandbox},
		{"local", "here/é/link", snapshot.MissingReusableSandbox},
		{"local", "here/é/escape", snapshot.MissingReusableSandbox},
		{"local", "here/é/absolute", snapshot.MissingReusableSandbox},
		{"local", "here/é/dangling", snapshot.MissingReusableSandbox},
		{"local", "here/é/", snapshot.MissingReusableSandbox},
		{"local", "here/é/.", snapshot.MissingReusableSandbox},
		{"local", "here/é/..", snapshot.MissingReusableSandbox},
		{"local", "here/é/a\x00b", snapshot.MissingReusableSandbox},
		{"local", `here/é/..\outside`, snapshot.MissingReusableSandbox},
		{"local", "here/é/" + strings.Repeat("n", 400), snapshot.MissingReusableSandbox},
		{"local", "", snapshot.MissingReusableSandbox},
		{"local", "/", snapshot.MissingReusableSandbox},
		{"local", "/box", snapshot.MissingReusableSandbox},
		{"local", "i-0123456789", snapshot.MissingReusableSandbox},
		{"docker", "here/é/box", snapshot.MissingReusableSandbox},
		{"", "here/é/box", snapshot.MissingReusableSandbox},
		// The last slash divides, so these are of other nodes.
		{"local", "here/box", snapshot.NodeUnreachable},
		{"local", "here/é/box/inside", snapshot.NodeUnreachable},
		{"local", "here/é/../outside", snapshot.NodeUnreachable},
		{"local", root, snapshot.NodeUnreachable},
	} {
		got, err := r.Resume(t.Context(), snapshot.Instance{Provider: tc.provider, ProviderSandboxID: tc.id}, def, "adapter")
		if !errors.Is(err, tc.want) {
			t.Errorf("Resume(%q, %q): %v, want %v", tc.provider, tc.id, err, tc.want)
		}
		if tc.want == nil && got.Dir != filepath.Join(root, "box") {
			t.Errorf("Resume(%q) = %q", tc.id, got.Dir)
		}
		if e := snapshot.AsError(err); e != nil && tc.id != root && strings.Contains(e.Message, root) {
			t.Errorf("the message names a host path: %s", e.Message)
		}
	}
	docker := def
	docker.Provider = "docker"
	if _, err := r.Resume(t.Context(), snapshot.Instance{Provider: "local", ProviderSandboxID: "here/é/box"}, docker, ""); !errors.Is(err, snapshot.MissingReusableSandbox) {
		t.Errorf("a record of another provider than the definition's: %v", err)
	}
}

func TestResume_MakesNothing(t *testing.T) {
	r, root := localRoot(t, "here")
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	def, _ := r.Definition("")
	if _, err := r.Resume(t.Context(), snapshot.Instance{Provider: "local", ProviderSandboxID: "here/box"}, def, ""); err == nil {
		t.Error("a sandbox was found without a root")
	}
	if _, err := os.Lstat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root was made: %v", err)
	}
}

func TestAdopt(t *testing.T) {
	r, root := localRoot(t, "here")
	for name, want := range map[string]error{
		"box": nil, "absent": snapshot.MissingReusableSandbox, "file": snapshot.MissingReusableSandbox,
		"link": snapshot.MissingReusableSandbox, "escape": snapshot.MissingReusableSandbox,
		"": snapshot.InvalidPath, ".": snapshot.InvalidPath, "..": snapshot.InvalidPath, "../outside": snapshot.InvalidPath,
		"box/inside": snapshot.InvalidPath, root: snapshot.InvalidPath, "box\x00": snapshot.InvalidPath, `a\b`: snapshot.InvalidPath,
		"\xff": snapshot.InvalidPath, "C:": snapshot.InvalidPath,
	} {
		id, err := r.Adopt(t.Context(), name)
		if !errors.Is(err, want) || want == nil && id != "here/box" {
			t.Errorf("Adopt(%q) = %q, %v, want %v", name, id, err, want)
		}
	}
	// Any worker may answer, so the message says which one has looked.
	for name, want := range map[string]string{
		"absent":                 `node "here" has no directory "absent"`,
		"file":                   `"file" in the sandbox root of node "here" is a file`,
		"link":                   `"link" in the sandbox root of node "here" is a link`,
		strings.Repeat("n", 400): `node "here" has no directory`,
	} {
		_, err := r.Adopt(t.Context(), name)
		if e := snapshot.AsError(err); e == nil || !strings.Contains(e.Message, want) || strings.Contains(e.Message, root) {
			t.Errorf("Adopt(%q): %v, want %s", name, err, want)
		}
	}
}

func TestNode(t *testing.T) {
	r := registry(t, sandbox.Default())
	for _, tc := range []struct {
		provider, id string
		want         snapshot.NodeName
	}{
		{"local", "a/b/c", "a/b"}, {"local", "here/box", "here"}, {"local", "box", ""}, {"local", "a/..", ""}, {"other", "a/b", ""},
	} {
		if got := r.Node(snapshot.Instance{Provider: tc.provider, ProviderSandboxID: tc.id}); got != tc.want {
			t.Errorf("Node(%q, %q) = %q, want %q", tc.provider, tc.id, got, tc.want)
		}
	}
}

func TestNew_Refuses(t *testing.T) {
	if _, err := sandbox.New(sandbox.Default(), "", t.TempDir()); !errors.Is(err, snapshot.InvalidID) {
		t.Errorf("an empty node name: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.New(sandbox.Default(), "n", file); err == nil {
		t.Error("a file was taken as the root")
	}
}

func TestLocalID_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := snapshot.NodeName(rapid.StringN(1, 20, 200).Draw(t, "node"))
		name := rapid.StringMatching(`[a-zA-Z ä🚀:*>-][a-z. ä🚀\n]{0,20}x`).Draw(t, "name")
		gotNode, gotName, err := sandbox.ParseLocalID(sandbox.LocalID(node, name))
		if err != nil || gotNode != node || gotName != name {
			t.Fatalf("%q %q comes back as %q %q, %v", node, name, gotNode, gotName, err)
		}
	})
}

func FuzzParseLocalID(f *testing.F) {
	for _, s := range []string{"n/b", "a/b/c", "/", "n/..", "n/a\x00", "", "n/\\", "n/c:"} {
		f.Add(s)
	}
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, id string) {
		node, name, err := sandbox.ParseLocalID(id)
		if err != nil {
			return
		}
		if sandbox.LocalID(node, name) != id {
			t.Errorf("%q comes back as %q", id, sandbox.LocalID(node, name))
		}
		if filepath.Dir(filepath.Join(root, name)) != root {
			t.Errorf("%q leaves the root: %q", id, name)
		}
	})
}
