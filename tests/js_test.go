package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// javaScriptClient is a directory with the JavaScript client installed. Without
// node or a registry the test is left out and says so.
func javaScriptClient(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("LEFT OUT: %s is not installed, so nothing was tried in JavaScript", program)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "example.js"} {
		text, err := os.ReadFile(filepath.Join("js", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	npm := exec.Command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefer-offline")
	npm.Dir = dir
	out, err := npm.CombinedOutput()
	for _, code := range []string{"ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH"} {
		if err != nil && strings.Contains(string(out), code) {
			t.Skipf("LEFT OUT: the npm registry can't be reached, so nothing was tried in JavaScript: %s", out)
		}
	}
	if err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return dir
}

func TestClientInJavaScript(t *testing.T) {
	t.Parallel()
	dir := javaScriptClient(t)
	s := startServer(t, "--auth", "token")
	build(t, s.sandbox(t, "work")).file("gr\u00fc\u00dfe/file.txt", []byte("hello \U0001f680"), 0o644)
	s.attach("t", "work")
	token, err := os.ReadFile(filepath.Join(s.stateDir, "token"))
	if err != nil {
		t.Fatal(err)
	}
	node := func(args ...string) (string, error) {
		cmd := exec.Command("node", append([]string{"example.js"}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(environment(t), "NATS_URL="+s.url, "NATS_TOKEN="+strings.TrimSpace(string(token)))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := node("t", "gr\u00fc\u00dfe/file.txt")
	var got struct{ Saved, Root, Reason, Text string }
	if err != nil || json.Unmarshal([]byte(out), &got) != nil {
		t.Fatalf("the example failed: %v\n%s", err, out)
	}
	if got.Saved != s.head("t") || got.Root != s.head("t-fork") || got.Reason != "fork-root" || got.Text != "hello \U0001f680" {
		t.Errorf("the example printed %s", out)
	}
	if out, err := node("nobody", "x"); err == nil || !strings.Contains(out, "SANDBOX_SNAPSHOT_MISSING_REUSABLE_SANDBOX") {
		t.Errorf("the example about a thread that is not there: %v\n%s", err, out)
	}
}
