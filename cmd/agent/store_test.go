package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommands_Diff(t *testing.T) {
	m := newMachine(t).start()
	m.write("box/changed", "one", 0o644)
	m.write("box/removed", "x", 0o644)
	m.write("box/run", "x", 0o644)
	m.write("box/same", "x", 0o644)
	m.want(0, "", "instance", "attach", "t", "box")
	m.want(0, "", "save", "t", "--id", "c1")
	m.write("box/changed", "two!", 0o644)
	m.write("box/added\n", "x", 0o644)
	box := filepath.Join(m.dir, "state", "sandboxes", "box")
	for _, err := range []error{os.Remove(filepath.Join(box, "removed")), os.Chmod(filepath.Join(box, "run"), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m.want(0, "", "save", "t", "--id", "c2")
	want := "added     \"added\\n\"\nmodified  changed\nremoved   removed\nmode      run  0644 -> 0755\n"
	if out := m.want(0, "", "diff", "c1", "c2"); out != want {
		t.Errorf("diff prints %q, want %q", out, want)
	}
	if out := m.want(0, "", "diff", "c1", "c1"); out != "" {
		t.Errorf("diff of one with itself prints %q", out)
	}
	m.want(0, `"change":"added"`, "--json", "diff", "c1", "c2")
	m.want(4, "SANDBOX_SNAPSHOT_CHECKPOINT_NOT_FOUND", "diff", "c1", "c3")
}

// lease acquires, and returns the file with the lease and its token.
func (m *machine) lease(args ...string) (file, token string) {
	m.t.Helper()
	out := m.want(0, `"ownerToken"`, append(args, "--ttl", "60s")...)
	_, rest, _ := strings.Cut(out, `"ownerToken":"`)
	token, _, _ = strings.Cut(rest, `"`)
	file = filepath.Join(m.dir, "lease-"+args[0])
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return file, token
}

func TestCommands_Writer(t *testing.T) {
	m := newMachine(t).start()
	m.write("box/f", "x", 0o644)
	m.want(0, "", "instance", "attach", "t", "box")
	m.want(0, "", "save", "t", "--id", "c1")
	m.want(0, "", "save", "t", "--id", "c2")
	lease, token := m.lease("writer", "acquire", "t")
	m.want(5, "SANDBOX_SNAPSHOT_WRITER_CONFLICT", "writer", "acquire", "t", "--wait", "1ms")
	m.want(5, "; --wait makes it wait (SANDBOX_SNAPSHOT_WRITER_CONFLICT)", "save", "t")
	m.want(1, "SANDBOX_BAD_REQUEST", "writer", "acquire", "u", "--ttl", "1s")
	m.want(5, "SANDBOX_SNAPSHOT_WRITER_CONFLICT", "thread", "delete", "t")
	m.want(0, "held until 20", "writer", "renew", lease)
	m.want(5, "SANDBOX_SNAPSHOT_NOT_HEAD", "delete-head", "t", "c1", lease)
	m.want(5, "SANDBOX_SNAPSHOT_WRITER_LOST", "delete-head", "u", "c1", lease)
	m.want(0, "c1\n", "delete-head", "t", "c2", lease)
	m.want(0, "no checkpoint is left", "delete-head", "t", "c1", lease)
	text, err := os.ReadFile(lease)
	if err != nil {
		t.Fatal(err)
	}
	if code, out, log := m.run(string(text), "writer", "release", "-"); code != 0 || out != "" {
		t.Errorf("release from stdin: %d %q %s", code, out, log)
	}
	for _, args := range [][]string{{"writer", "renew", lease}, {"--json", "delete-head", "t", "c", lease}, {"--log-level", "debug", "writer", "renew", lease}} {
		if code, out, log := m.run("", args...); code != 5 || strings.Contains(out+log, token) {
			t.Errorf("%q: %d %s%s", args, code, out, log)
		}
	}
	for _, bad := range []string{"", "{}", token, `{"ownerToken":"` + token, `{"ownerToken":["` + token + `"]}`, `{"ownerToken":"` + token + `","fence":"` + token + `"}`} {
		if code, out, log := m.run(bad, "writer", "renew", "-"); code != 2 || strings.Contains(out+log, token) {
			t.Errorf("%q: %d %s%s", bad, code, out, log)
		}
	}
	m.want(1, "no such file", "writer", "renew", lease+"x")
}

func TestCommands_Lock(t *testing.T) {
	m := newMachine(t).start()
	lease, token := m.lease("lock", "acquire", "a lock")
	m.want(5, "SANDBOX_LOCK_CONFLICT", "lock", "acquire", "a lock")
	m.want(0, `"expiresAt"`, "--json", "lock", "renew", lease)
	m.want(0, "", "lock", "release", lease)
	m.want(0, "", "lock", "release", lease)
	if code, out, log := m.run("", "lock", "renew", lease); code != 5 || !strings.Contains(log, "SANDBOX_LOCK_LOST") || strings.Contains(out+log, token) {
		t.Errorf("renew of a lost lock: %d %s%s", code, out, log)
	}
}

func TestCommands_Blob(t *testing.T) {
	m := newMachine(t).start()
	large := strings.Repeat("0123456789abcdef", 100_000)
	file := filepath.Join(m.dir, "large")
	if err := os.WriteFile(file, []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	key := func(kind, text string) string {
		return fmt.Sprintf("sandbox-%ss/sha256/%x", kind, sha256.Sum256([]byte(text)))
	}
	for _, kind := range []string{"file", "artifact"} {
		if code, out, log := m.run("small", "blob", "put", "-", "--kind", kind); code != 0 || out != key(kind, "small")+"\n" {
			t.Errorf("put of a small %s: %d %q %s", kind, code, out, log)
		}
		m.want(0, key(kind, large), "blob", "put", file, "--kind", kind)
		for _, text := range []string{"small", large} {
			if out := m.want(0, "", "blob", "get", key(kind, text)); out != text {
				t.Errorf("%s of %d bytes came with %d", kind, len(text), len(out))
			}
		}
	}
	present, absent := key("file", "small"), key("file", "none")
	if out := m.want(0, "", "blob", "head", present, absent); out != "      5 B  "+present+"\n  missing  "+absent+"\n" {
		t.Errorf("head prints %q", out)
	}
	m.want(7, "SANDBOX_SNAPSHOT_MISSING_BLOB", "blob", "get", absent)
	m.want(2, "--kind", "blob", "put", file, "--kind", "other")

	for name, text := range map[string]string{"box/f": "packed", "box/g": large + "packed"} {
		m.write(name, text, 0o644)
	}
	m.want(0, "", "instance", "attach", "t", "box")
	m.want(0, "", "save", "t", "--id", "c")
	for _, text := range []string{"packed", large + "packed"} {
		if out := m.want(0, "", "blob", "get", key("file", text), "--checkpoint", "c"); out != text {
			t.Errorf("packed blob of %d bytes came with %d", len(text), len(out))
		}
	}
}

func TestCommands_ThreadDelete(t *testing.T) {
	m := newMachine(t).start()
	m.write("box/f", "x", 0o644)
	m.want(0, "", "instance", "attach", "t", "box")
	m.want(0, "", "save", "t", "--id", "c1")
	m.want(0, "", "save", "t", "--id", "c2")
	m.want(0, "2 checkpoints deleted", "thread", "delete", "t")
	m.want(0, "0 checkpoints deleted", "thread", "delete", "unknown")
	m.want(0, "", "instance", "attach", "u", "box")
	m.want(0, " 1 file, ", "save", "u", "--id", "u1")
	m.want(0, "  1 file  ", "log", "u")
	m.want(0, "1 checkpoint deleted", "thread", "delete", "u")
	m.want(4, "no checkpoint", "head", "t")
	m.want(5, "SANDBOX_THREAD_DELETED", "save", "t")
}
