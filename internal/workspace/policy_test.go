package workspace

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandkeep/internal/snapshot"
)

func TestCapture_Policy(t *testing.T) {
	files := []string{"src/a.go", "src/gen/b.go", "src/gen/keep.go", "a.log", "x/b.log", "x/keep.log", ".env", ".env.example", "x/.envrc",
		"x/node_modules/m/i.js", ".npmrc", "x/.aws/credentials", ".docker/config.json", ".docker/other", "k/id_rsa", "k/id_rsa.pub", "tls/c.pem",
		".git/HEAD", "new\nline/b.log"}
	rest := "src/a.go src/gen/b.go src/gen/keep.go a.log x/b.log x/keep.log .docker/other .git/HEAD new\nline/b.log"
	credentials := " .npmrc x/.aws/credentials .docker/config.json k/id_rsa k/id_rsa.pub tls/c.pem"
	environment := " .env .env.example x/.envrc x/node_modules/m/i.js"
	for name, c := range map[string]struct {
		pol  snapshot.Policy
		want string
	}{
		"default":             {snapshot.Policy{}, rest},
		"no defaults":         {snapshot.Policy{NoDefaultExcludes: true}, rest + environment},
		"include credentials": {snapshot.Policy{IncludeCredentials: true}, rest + credentials},
		"everything":          {snapshot.Policy{NoDefaultExcludes: true, IncludeCredentials: true}, rest + environment + credentials},
		"exclude":             {snapshot.Policy{Exclude: []string{"*.log", "src/gen", ".git"}}, "src/a.go x/b.log x/keep.log .docker/other new\nline/b.log"},
		"exclude deep":        {snapshot.Policy{Exclude: []string{"**/*.log", "/src"}}, ".docker/other .git/HEAD"},
		"exception":           {snapshot.Policy{Exclude: []string{"**/*.log", "src/gen", "!src/gen/keep.go", "!**/keep.log", ".*"}}, "src/a.go src/gen/keep.go x/keep.log"},
		"exception of a default, not of a credential": {snapshot.Policy{Exclude: []string{"**", "!**/.env.example", "!x/node_modules/m", "!.npmrc", "!k/**"}}, ".env.example x/node_modules/m/i.js"},
		"include":                     {snapshot.Policy{Include: []string{"src/gen", "x"}}, "src/gen/b.go src/gen/keep.go x/b.log x/keep.log"},
		"include deep":                {snapshot.Policy{Include: []string{"**/keep.*", "k"}}, "src/gen/keep.go x/keep.log"},
		"include with exception":      {snapshot.Policy{Include: []string{"src", "!src/gen/b*"}}, "src/a.go src/gen/keep.go"},
		"include everything":          {snapshot.Policy{Include: []string{"."}, Exclude: []string{" .git "}}, strings.Replace(rest, " .git/HEAD", "", 1)},
		"include and exclude at once": {snapshot.Policy{Include: []string{"x"}, Exclude: []string{"x/b*"}}, "x/keep.log"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			for _, f := range files {
				b.write(f, f)
			}
			tree, got := b.capture(c.pol)
			var kept []string
			for _, e := range tree.entries {
				if e.Kind == snapshot.KindFile {
					kept = append(kept, e.Path)
				}
			}
			want := strings.Split(c.want, " ")
			slices.Sort(want)
			if !slices.Equal(kept, want) {
				t.Errorf("kept %q\nwant %q\nexcluded %v", kept, want, got.Coverage.Excluded)
			}
		})
	}
}

// A directory that is walked for something in it keeps its mode, so that what
// was closed to others is not open after a restore.
func TestCapture_ModeAbovePartlyKept(t *testing.T) {
	for name, pol := range map[string]snapshot.Policy{
		"include":   {Include: []string{"private/*.go", "private/deep/keep"}},
		"exception": {Exclude: []string{"**", "!private/*.go", "!private/deep/keep"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.write("private/a.go", "1", "private/deep/keep/x", "2", "private/other/y", "3", "plain/z", "4")
			for _, dir := range []string{"private/other", "private/deep", "private"} {
				must(t, os.Chmod(filepath.Join(b.ws, dir), 0o700))
			}
			tree, _ := b.capture(pol)
			if got := tree.paths(); got != "private private/a.go private/deep private/deep/keep/x" {
				t.Errorf("entries are %q", got)
			}
			must(t, b.restore("r", tree))
			if got := describe(t, b.restored("r")); got["private"] != "drwx------" || got["private/deep"] != "drwx------" {
				t.Errorf("restored are %q", got)
			}
		})
	}
}

func TestCapture_ExcludedCounts(t *testing.T) {
	b := newBench(t)
	b.write("a/node_modules/x", "1", "node_modules/y", "1", "b.log", "2", "c.log", "3", "k/id_ed25519", "4", "dist/x/y", "5", "src/x", "6")
	_, got := b.capture(snapshot.Policy{Exclude: []string{"*.log", "dist"}})
	want := map[string]int64{"node_modules": 2, "*.log": 2, "dist": 1, "id_ed25519*": 1}
	if !maps.Equal(got.Coverage.Excluded, want) {
		t.Errorf("excluded is %v", got.Coverage.Excluded)
	}
	_, got = b.capture(snapshot.Policy{Include: []string{"src"}})
	if want := map[string]int64{"include": 5, "node_modules": 1}; got.Coverage.Excluded["include"] == 0 {
		t.Errorf("excluded is %v, want about %v", got.Coverage.Excluded, want)
	}
}

func TestValidatePolicy(t *testing.T) {
	for _, p := range []snapshot.Policy{{Include: []string{"["}}, {Exclude: []string{"ok", "a[b-"}}, {Exclude: []string{"!["}}, {Exclude: []string{"!"}}, {Include: []string{"a", " ! "}}} {
		wantCode(t, ValidatePolicy(p), snapshot.BadRequest)
	}
	for _, p := range []snapshot.Policy{{}, {Exclude: []string{"", " ", "**", "a/../b", "!*.x"}}} {
		if err := ValidatePolicy(p); err != nil {
			t.Errorf("%q: %v", p.Exclude, err)
		}
	}
}

func TestGitConfig(t *testing.T) {
	for path, want := range map[string]bool{
		".git/config": true, "a/b/.git/config": true, ".git/modules/x/y/config": true, ".git/worktrees/w/config.worktree": true, "bare.git/config": true,
		".git/modules/objects/config": true, ".git/modules/lib/refs/config": true,
		"config": false, ".github/config": false, ".git/refs/heads/config": false, ".git/logs/refs/heads/config": false, ".git/config/x": false,
	} {
		if isGitConfig(path) != want {
			t.Errorf("isGitConfig(%q) is %v", path, !want)
		}
	}
	in := `[remote "origin"]
	url = https://alice:pa:ss@w@example.com/x.git
	pushurl = https://example.com/@x:y@z
[url "https://ghp_0123456789abcdefghij@github.com/"]
	insteadOf = gh: # git@github.com:a/b
[http "https://h"] extraHeader = "AUTHORIZATION: basic Zm9v"
	EXTRAHEADER=a\
  b
	extraheader =
	proxy = http://u:p@proxy:1
`
	want := `[remote "origin"]
	url = https://alice:xxxxxxx@example.com/x.git
	pushurl = https://example.com/@x:y@z
[url "https://xxxxxxxxxxxxxxxxxxxxxxxx@github.com/"]
	insteadOf = gh: # git@github.com:a/b
[http "https://h"] extraHeader = xxxxxxxxxxxxxxxxxxxxxxxxxxx
	EXTRAHEADER=x\
xxx
	extraheader =
	proxy = http://u:x@proxy:1
`
	b := newBench(t)
	b.write(".git/config", in, "config", in)
	tree, got := b.capture(snapshot.Policy{})
	content := func(p string) string { return string(tree.contents[tree.find(t, p).Digest]) }
	if content(".git/config") != want || got.Coverage.Redactions != 5 {
		t.Errorf("content is\n%s\n%d redactions", content(".git/config"), got.Coverage.Redactions)
	}
	if content("config") != in {
		t.Error("a file that is no git configuration was changed")
	}
	b.write(".git/config", strings.Repeat("#", maxGitConfig+1))
	if _, got = b.capture(snapshot.Policy{}); len(got.Coverage.Skipped) != 1 {
		t.Errorf("coverage is %+v", got.Coverage)
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add("*.log", "!a/b", "a/b/c", true)
	f.Add("**/x", "[a-z]*", "x\ny/z", false)
	f.Fuzz(func(t *testing.T, one, two, path string, include bool) {
		pol := snapshot.Policy{Exclude: []string{one, two}}
		if include {
			pol = snapshot.Policy{Include: []string{one, two}}
		}
		rules, err := compile(pol)
		if err != nil || snapshot.ValidatePath(path) != nil {
			return
		}
		// A directory that is not walked must not hide anything that is kept.
		hidden, at := false, ""
		down := &matches{}
		parts := strings.Split(path, "/")
		for i, part := range parts {
			at = strings.Join(parts[:i+1], "/")
			if credentialRule(at, part) != "" { // whatever the patterns
				return
			}
			v := rules.judge(down, at, part, i < len(parts)-1)
			if hidden && v.rule == "" {
				t.Fatalf("%q is kept below a directory that is not walked", at)
			}
			hidden = hidden || v.rule != "" && !v.walk
			down = v.down
		}
	})
}

func ExampleValidatePolicy() {
	fmt.Println(ValidatePolicy(snapshot.Policy{Exclude: []string{"[a"}}))
	// Output: SANDBOX_BAD_REQUEST: exclude pattern "[a" is malformed; write it as in a .dockerignore file: syntax error in pattern
}
