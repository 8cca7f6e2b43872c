package sandbox_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sandkeep/internal/sandbox"
	"sandkeep/internal/snapshot"
)

var update = flag.Bool("update", false, "write the golden files anew")

type keyInput struct {
	thread snapshot.ThreadID
	def    snapshot.Definition
	tenant snapshot.Tenant
}

// goldenKeys are inputs whose keys may never change: recorded sandboxes are
// found by them.
func goldenKeys() []keyInput {
	def := snapshot.Definition{Name: "default", Provider: "local", Reuse: "thread"}
	other := snapshot.Definition{Name: "go <&> \u2028", Provider: "local", Policy: snapshot.Policy{
		Include: []string{"src"}, Exclude: []string{"*.o", "!keep.o"}, NoDefaultExcludes: true, IncludeCredentials: true}}
	return []keyInput{
		{"t", def, snapshot.Tenant{}},
		{"thread one / ünï 🚀 *.>\n\"\\", def, snapshot.Tenant{}},
		{"t", def, snapshot.Tenant{UserID: "u", OrgID: "o"}},
		{"t", other, snapshot.Tenant{OrgID: "o"}},
	}
}

func TestKey_Golden(t *testing.T) {
	r := registry(t, sandbox.Default())
	var got strings.Builder
	for _, in := range goldenKeys() {
		fmt.Fprintln(&got, r.Key(in.thread, in.def, in.tenant))
	}
	path := filepath.Join("testdata", "keys.golden")
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("keys have changed, every recorded sandbox would be lost:\n%s\nwant\n%s", got.String(), want)
	}
}

// Whatever two inputs are, their keys are equal exactly when their parts are.
func TestKey_Property(t *testing.T) {
	r := registry(t, sandbox.Default())
	text := rapid.SampledFrom([]string{"", "a", "b", "a\"", `a","b`, "ä", "a\u0308", "🚀", "\u2028"})
	list := rapid.SliceOfN(text, 0, 2)
	input := rapid.Custom(func(t *rapid.T) keyInput {
		return keyInput{
			thread: snapshot.ThreadID(text.Draw(t, "thread")),
			def: snapshot.Definition{Name: text.Draw(t, "name"), Provider: text.Draw(t, "provider"),
				Policy: snapshot.Policy{Include: list.Draw(t, "include"), Exclude: list.Draw(t, "exclude"),
					NoDefaultExcludes: rapid.Bool().Draw(t, "all"), IncludeCredentials: rapid.Bool().Draw(t, "credentials")}},
			tenant: snapshot.Tenant{UserID: text.Draw(t, "user"), OrgID: text.Draw(t, "org")},
		}
	})
	form := regexp.MustCompile(`^[0-9a-f]{64}$`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := input.Draw(t, "a"), input.Draw(t, "b")
		if rapid.Bool().Draw(t, "alike") {
			b = a
			b.def.Reuse, b.def.SnapshotMaxAge, b.def.Policy.Strict = "none", time.Hour, true
		}
		keyA, keyB := r.Key(a.thread, a.def, a.tenant), r.Key(b.thread, b.def, b.tenant)
		if !form.MatchString(string(keyA)) {
			t.Fatalf("key %q is not 64 hex digits", keyA)
		}
		same := fmt.Sprintf("%q", parts(a)) == fmt.Sprintf("%q", parts(b))
		if same != (keyA == keyB) {
			t.Fatalf("same parts %t, same key %t: %q %q", same, keyA == keyB, parts(a), parts(b))
		}
	})
}

func parts(in keyInput) []any {
	p := in.def.Policy
	return []any{string(in.thread), in.def.Name, in.def.Provider, append([]string{}, p.Include...), append([]string{}, p.Exclude...),
		fmt.Sprint(p.NoDefaultExcludes, p.IncludeCredentials), in.tenant.UserID, in.tenant.OrgID}
}

func TestKey_ManyThreads(t *testing.T) {
	t.Parallel()
	r := registry(t, sandbox.Default())
	def, err := r.Definition("")
	if err != nil {
		t.Fatal(err)
	}
	threads := 64_000
	if raceDetector() { // ten times slower, and there is nothing to race
		threads = 2_000
	}
	seen := make(map[snapshot.InstanceKey]int, threads)
	for i := range threads {
		k := r.Key(snapshot.ThreadID(fmt.Sprintf("thread-%d", i)), def, snapshot.Tenant{})
		if j, ok := seen[k]; ok {
			t.Fatalf("threads %d and %d share the key %s", i, j, k)
		}
		seen[k] = i
	}
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
