package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandkeep/internal/sandbox"
	"sandkeep/internal/snapshot"
)

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandboxes.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func registry(t testing.TB, cfg *sandbox.Config) *sandbox.Registry {
	t.Helper()
	r, err := sandbox.New(cfg, "here", filepath.Join(t.TempDir(), "sandboxes"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLoad(t *testing.T) {
	t.Setenv("SANDKEEP_TEST_KEY", "from-the-environment")
	secretFile := write(t, "from-a-file\n")
	config := write(t, fmt.Sprintf(`{"default": "go", "definitions": {
		"go": {"provider": "local", "reuse": "none", "snapshotMaxAge": "24h", "include": ["src"], "exclude": ["*.o"],
			"defaultExcludes": false, "includeCredentials": true, "strict": true,
			"secrets": {"A": {"env": "SANDKEEP_TEST_KEY"}, "B": {"file": %q}, "D": {"file": "beside/it"}, "C": {"value": "spelled-out"}}},
		"plain": {"secrets": {"C": {"value": "spelled-out"}}}}}`, secretFile))
	beside := filepath.Join(filepath.Dir(config), "beside")
	for _, err := range []error{os.Mkdir(beside, 0o700), os.WriteFile(filepath.Join(beside, "it"), []byte("beside-the-file"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := sandbox.Load(config)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"beside-the-file", "from-a-file", "from-the-environment", "spelled-out"}
	if got := cfg.Secrets(); !slices.Equal(got, want) {
		t.Errorf("Secrets() = %q, want %q", got, want)
	}
	r := registry(t, cfg)
	for name, want := range map[string]snapshot.Definition{
		"": {Name: "go", Provider: "local", Reuse: "none", SnapshotMaxAge: 24 * time.Hour, Policy: snapshot.Policy{
			Include: []string{"src"}, Exclude: []string{"*.o"}, NoDefaultExcludes: true, IncludeCredentials: true, Strict: true}},
		"plain": {Name: "plain", Provider: "local", Reuse: "thread"},
	} {
		got, err := r.Definition(name)
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("Definition(%q) = %+v, %v, want %+v", name, got, err, want)
		}
	}
	if _, err := r.Definition("go "); !errors.Is(err, snapshot.MissingSandbox) {
		t.Errorf("unknown definition: %v", err)
	}
}

func TestLoad_Faults(t *testing.T) {
	long := write(t, strings.Repeat("x", 70_000))
	for _, tc := range []struct{ name, text, want string }{
		{"not JSON", `{`, "is not JSON"},
		{"not an object", `[]`, "wrong type"},
		{"trailing text", `{} {}`, "is not JSON"},
		{"no definition", `{"definitions": {}}`, `default definition "default"`},
		{"absent default", `{"default": "b", "definitions": {"a": {}}}`, `default definition "b"`},
		{"unknown member", `{"definitons": {}}`, `"definitons" is unknown`},
		{"other case", `{"Definitions": {}}`, `"Definitions" is unknown`},
		{"duplicate", `{"default": "a", "default": "a", "definitions": {"a": {}}}`, `"default" stands there twice`},
		{"duplicate definition", `{"definitions": {"default": {}, "default": {}}}`, `"default" stands there twice`},
		{"duplicate inside", `{"definitions": {"default": {"reuse": "none", "reuse": "none"}}}`, `"reuse" stands there twice`},
		{"unknown inside", `{"definitions": {"default": {"exclud": []}}}`, `"exclud" is unknown`},
		{"wrong type", `{"definitions": {"default": {"strict": "yes"}}}`, "/strict"},
		{"provider", `{"definitions": {"default": {"provider": "docker9"}}}`, `provider "docker9" is unknown`},
		{"reuse", `{"definitions": {"default": {"reuse": "run"}}}`, `reuse "run"`},
		{"age", `{"definitions": {"default": {"snapshotMaxAge": "1 day"}}}`, `snapshotMaxAge "1 day"`},
		{"negative age", `{"definitions": {"default": {"snapshotMaxAge": "-1h"}}}`, `snapshotMaxAge "-1h"`},
		{"pattern", `{"definitions": {"default": {"exclude": ["[a"]}}}`, `pattern "[a"`},
		{"blank name", `{"definitions": {"default": {}, " ": {}}}`, "not blank"},
		{"short secret", `{"definitions": {"default": {"secrets": {"K": {"value": "12345"}}}}}`, `secret "K": the value has 5 bytes`},
		{"no source", `{"definitions": {"default": {"secrets": {"K": {}}}}}`, "exactly one of"},
		{"two sources", `{"definitions": {"default": {"secrets": {"K": {"value": "123456", "env": "PATH"}}}}}`, "exactly one of"},
		{"unset", `{"definitions": {"default": {"secrets": {"K": {"env": "SANDKEEP_UNSET"}}}}}`, `"SANDKEEP_UNSET" is not set`},
		{"absent file", `{"definitions": {"default": {"secrets": {"K": {"file": "/absent/file"}}}}}`, "/absent/file"},
		{"large file", fmt.Sprintf(`{"definitions": {"default": {"secrets": {"K": {"file": %q}}}}}`, long), "more than 65536 bytes"},
		{"bare secret", `{"definitions": {"default": {"secrets": {"K": "hunter2hunter2"}}}}`, "exactly one of"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := sandbox.Load(write(t, tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("Load: %v, want a fault with %q", err, tc.want)
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "12345") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestLoad_AllFaultsAtOnce(t *testing.T) {
	_, err := sandbox.Load(write(t, `{"default": "c", "x": 1, "definitions": {
		"a": {"y": 1, "z": 2, "reuse": "run", "secrets": {"K": {"value": "short"}, "L": {}}},
		"b": {"strict": 3}}}`))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`"x"`, `"y"`, `"z"`, `"run"`, `"K"`, `"L"`, `"b"`, `"c"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not named in: %v", want, err)
		}
	}
}

func TestConfig_HidesSecrets(t *testing.T) {
	cfg, err := sandbox.Load(write(t, `{"definitions": {"default": {"secrets": {"K": {"value": "hunter2hunter2"}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		Shown  any
		hidden *sandbox.Config
		deep   sandbox.Config
	}
	r := registry(t, cfg)
	for _, v := range []any{cfg, *cfg, r, *r, holder{Shown: cfg, hidden: cfg, deep: *cfg}, []any{cfg, *cfg}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			shown := fmt.Sprintf(verb, v)
			if strings.Contains(shown, "hunter2") || strings.Contains(shown, "68756e746572") {
				t.Errorf("%s of %T shows a secret: %s", verb, v, shown)
			}
		}
	}
	var s sandbox.Secret
	if s.String() != "[redacted]" || s.GoString() != "[redacted]" || fmt.Sprintf("%d", s) != "[redacted]" {
		t.Errorf("Secret prints %v, %#v, %d", s, s, s)
	}
}

func TestAddPolicy(t *testing.T) {
	cfg := sandbox.Default()
	if err := cfg.AddPolicy(snapshot.Policy{Exclude: []string{"[x"}, Strict: true}); err == nil {
		t.Error("a bad pattern was taken")
	}
	if err := cfg.AddPolicy(snapshot.Policy{Exclude: []string{"dist"}, IncludeCredentials: true}); err != nil {
		t.Fatal(err)
	}
	if err := cfg.AddPolicy(snapshot.Policy{Exclude: []string{"!dist/keep"}}); err != nil {
		t.Fatal(err)
	}
	got, err := registry(t, cfg).Definition("default")
	want := snapshot.Policy{Exclude: []string{"dist", "!dist/keep"}, IncludeCredentials: true}
	if err != nil || !cmp.Equal(got.Policy, want) {
		t.Errorf("policy = %+v, %v, want %+v", got.Policy, err, want)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(`{"default": "a", "definitions": {"a": {"reuse": "none", "secrets": {"K": {"value": "123456"}}}}}`)
	f.Add(`{"definitions": null}`)
	f.Add(`{"definitions": {"default": null}}`)
	f.Fuzz(func(t *testing.T, text string) {
		cfg, err := sandbox.Load(write(t, text))
		if err != nil {
			return
		}
		if _, err := registry(t, cfg).Definition(""); err != nil {
			t.Errorf("a configuration was taken that has no default: %v", err)
		}
		for _, s := range cfg.Secrets() {
			if len(s) < sandbox.MinSecretBytes {
				t.Errorf("a secret of %d bytes was taken", len(s))
			}
		}
	})
}
