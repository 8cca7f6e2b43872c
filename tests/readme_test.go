package tests

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// readme runs the blocks of README.md as they stand. `go build` gives the
// programs built for the tests, `nats request` is a request by the agent.
type readme struct {
	t   *testing.T
	dir string
	env []string
}

const shims = `mkdir shims
cat > shims/go <<'END'
#!/bin/sh
case "$*" in
"build -o bin/ ./cmd/...") mkdir -p bin && ln -sf "$AGENT" bin/agent && ln -sf "$EMBEDDED" bin/nats-embedded; exit ;;
"test ./...") exit 0 ;;
esac
echo "not a command of this test: go $*" >&2
exit 2
END
cat > shims/nats <<'END'
#!/bin/sh
case "$1" in
request|req) exec "$AGENT" request "$2" "$3" ;;
esac
echo "not a command of this test: $1" >&2
exit 2
END
chmod 755 shims/*
`

func newReadme(t *testing.T) *readme {
	t.Helper()
	r := &readme{t: t, dir: t.TempDir()}
	r.env = []string{"PATH=" + r.dir + "/shims:" + os.Getenv("PATH"), "HOME=" + r.dir, "AGENT=" + agentProgram, "EMBEDDED=" + embeddedProgram,
		"SANDBOX_LISTEN=127.0.0.1:0", "SANDBOX_ALLOW_TEMP_STORE=true", "SANDBOX_LOG_FORMAT=json"}
	shell(t, r.dir, block{at: "shims", text: shims})
	return r
}

// sh runs a block to its end. What it exports is there for the blocks after it.
func (r *readme) sh(b block) string {
	r.t.Helper()
	script := "set -e\n" + strings.ReplaceAll(b.text, "nats://127.0.0.1:4222", "$ADDRESS") + "\nenv > .env.after\n"
	out := r.run(b, "sh", "-c", script)
	after, err := os.ReadFile(filepath.Join(r.dir, ".env.after"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.env = strings.Split(strings.TrimSpace(string(after)), "\n")
	return out
}

func (r *readme) run(b block, program string, args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), program, args...)
	cmd.Dir, cmd.Env = r.dir, r.env
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("%s: %v\n%s%s", b.at, err, out, stderr.String())
	}
	return string(out)
}

// goProgram builds a snippet with the modules of this one and runs it.
func (r *readme) goProgram(b block) string {
	r.t.Helper()
	source, program := filepath.Join(r.dir, "main.go"), filepath.Join(r.dir, "snippet")
	r.write(source, b.text)
	if out, err := exec.CommandContext(r.t.Context(), "go", "build", "-o", program, source).CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", b.at, err, out)
	}
	return r.run(b, program)
}

func (r *readme) javaScript(t *testing.T, b block) {
	dir := t.TempDir()
	if err := os.Rename(filepath.Join(javaScriptClient(t), "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "list.mjs") // without a package.json, as a reader would
	r.write(program, b.text)
	all := r.run(b, "node", program)
	if !strings.HasPrefix(all, "c1 first 1\n") || strings.Count(all, "\n") < 2 {
		t.Errorf("%s: the program prints %q", b.at, all)
	}
	short := strings.Replace(b.text, `threadId: "t1"`, `threadId: "t1", limit: 1`, 1)
	if r.write(program, short); short == b.text || r.run(b, "node", program) != all {
		t.Errorf("%s: with short pages the program does not print the same", b.at)
	}
}

func (r *readme) write(path, text string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// TestReadme runs every command and program of README.md in order.
func TestReadme(t *testing.T) {
	r := newReadme(t)
	for _, b := range blocks(t, "README.md") {
		switch {
		case b.is("sh", "server"):
			url, _ := startIn(t, r.env, "sh", "-c", "cd "+r.dir+" && exec "+b.text).logged("ready")["url"].(string)
			r.env = append(r.env, "ADDRESS="+url)
		case b.is("sh"):
			if out := r.sh(b); strings.Contains(out, `"error"`) {
				t.Errorf("%s: %s", b.at, out)
			}
		case b.is("go"):
			if out := r.goProgram(b); !strings.Contains(out, `"sourceRunId":"r2"`) {
				t.Errorf("%s: the program prints %q", b.at, out)
			}
		case b.is("js"):
			t.Run("JavaScript", func(t *testing.T) { r.javaScript(t, b) })
		}
	}
	restored, err := os.ReadFile(filepath.Join(r.dir, "sandkeep/state/restored/second/main.py"))
	if err != nil || string(restored) != "print(\"hello\")\n" {
		t.Errorf("the restored file is %q, %v", restored, err)
	}
}

var (
	number = regexp.MustCompile(`[0-9][0-9.,]*( ?(ns|µs|ms|s|B|kB|MB|GB)\b)?`)
	spaces = regexp.MustCompile(` +`)
	ends   = regexp.MustCompile(` +\n`)
)

// shape is a line without the numbers in it.
func shape(s string) string {
	return strings.TrimSpace(spaces.ReplaceAllString(ends.ReplaceAllString(number.ReplaceAllString(s, "#"), "\n"), " "))
}

// TestReadme_Demo compares what the demo prints with what README.md says.
func TestReadme_Demo(t *testing.T) {
	r := newReadme(t)
	var printed string
	for _, b := range blocks(t, "README.md") {
		switch {
		case b.is("sh", "demo"):
			printed = r.sh(b)
		case b.is("text", "demo"):
			if shape(printed) != shape(b.text) {
				t.Errorf("%s: the demo prints\n%s", b.at, printed)
			}
		}
	}
}

// TestReadme_Length keeps it short.
func TestReadme_Length(t *testing.T) {
	if n := strings.Count(document(t, "README.md"), "\n"); n >= 150 {
		t.Errorf("README.md has %d lines, fewer than 150 are wanted", n)
	}
}

var documents = []string{"README.md", "subjects.md", "CHANGELOG.md", "docs/architecture.md", "docs/operating.md", "docs/exclusions.md", "docs/formats.md", "docs/speed.md"}

var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

// TestDocuments_Links checks that what the documents link to is there.
func TestDocuments_Links(t *testing.T) {
	for _, name := range documents {
		for _, m := range link.FindAllStringSubmatch(document(t, name), -1) {
			if _, err := os.Stat(filepath.Join("..", filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			}
		}
	}
}

// find is the one block of a document with these words.
func find(t *testing.T, name string, words ...string) block {
	t.Helper()
	for _, b := range blocks(t, name) {
		if b.is(words...) {
			return b
		}
	}
	t.Fatalf("%s has no block %q", name, words)
	return block{}
}

// TestOperating_Permissions serves with the permissions of docs/operating.md:
// an admin makes the buckets, a worker and a client do all their work.
func TestOperating_Permissions(t *testing.T) {
	n, url := newNode(t, "n1"), restrictedServer(t)
	args := append([]string{"serve", "--server", url, "--user", "worker", "--password", "secretOfWorker"}, n.flags(t.TempDir())...)
	worker := start(t, agentProgram, args...)
	worker.logged("ready")
	c := client{t: t, nc: connect(t, url, nats.UserInfo("client", "# secret of: client, 1")), prefix: "sandbox"}
	for _, user := range []string{"admin", "worker", "client"} {
		for _, guess := range []string{"$" + strings.ToUpper(user) + "_PASSWORD", ""} {
			if nc, err := nats.Connect(url, nats.UserInfo(user, guess)); err == nil {
				nc.Close()
				t.Errorf("%s got in with the password %q", user, guess)
			}
		}
	}

	if err := os.WriteFile(filepath.Join(n.sandbox(t, "box"), "large"), bytes.Repeat([]byte("0123456789abcdef"), 300_000), 0o644); err != nil {
		t.Fatal(err)
	}
	ok[attached](c, "instance.attach", object{"threadId": "t", "name": "box"})
	upload := c.upload("big", []byte(`{"threadId": "t", "messages": ["`+strings.Repeat("m", 2<<20)+`"]}`))
	ok[revision](c, "thread.save", object{"$object": upload})
	ok[checkpoint](c, "snapshot.save", object{"threadId": "t", "runId": "r", "checkpointId": "c"})
	ok[checkpoint](c, "fork", object{"threadId": "t", "destinationThreadId": "f"})
	ok[restored](c, "restore", object{"threadId": "f", "path": "copy"})
	second := newNode(t, "n2")
	args = append([]string{"serve", "--server", url, "--user", "worker", "--password", "secretOfWorker"}, second.flags(t.TempDir())...)
	other := start(t, agentProgram, args...)
	other.logged("ready")
	for _, n := range []string{"n1", "n2"} { // one of the two is passed on
		ok[restored](c, "restore", object{"threadId": "f", "path": "copy", "into": "sandbox", "node": n})
	}
	ok[artifact](c, "artifact.put", object{"threadId": "t", "runId": "r", "artifactId": "a", "name": "a", "mimeType": "text/plain", "data": "YQ=="})
	ok[object](c, "blob.put", object{"kind": "file", "data": "YQ=="})
	writer := ok[held](c, "writer.acquire", object{"threadId": "t"})
	refused(c, "writer.acquire", object{"threadId": "t", "waitMs": 50}, "SANDBOX_SNAPSHOT_WRITER_CONFLICT")
	ok[empty](c, "writer.release", writer.Writer)
	ok[object](c, "thread.delete", object{"threadId": "t"})
	var reply struct {
		Object string `json:"$object"`
	}
	decodeStrict(t, c.send("thread.load", object{"threadId": "f"}).Data, &reply)
	if got := c.fetch(reply.Object); len(got) < 2<<20 {
		t.Errorf("the conversation has %d bytes", len(got))
	}
	for _, p := range []*process{worker, other} {
		if strings.Contains(strings.ToLower(p.stderr.String()), "permissions violation") {
			t.Errorf("the worker lacks a permission:\n%s", p.stderr.String())
		}
	}
}

// restrictedServer runs a server with the permissions of docs/operating.md.
func restrictedServer(t *testing.T) (url string) {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "server.conf")
	text := find(t, "docs/operating.md", "conf", "permissions").text
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := environment(t, "ADMIN_PASSWORD=secretOfAdmin", "WORKER_PASSWORD=secretOfWorker", `CLIENT_PASSWORD="# secret of: client, 1"`)
	p := startIn(t, env, embeddedProgram, "--no-agent", "--store-dir", filepath.Join(dir, "store"), "--allow-temp-store", "--state-dir", filepath.Join(dir, "state"),
		"--listen", "127.0.0.1:0", "--server-config", conf, "--user", "admin", "--password", "secretOfAdmin", "--log-format", "json")
	url, _ = p.logged("ready")["url"].(string)
	return url
}

// TestOperating_Definitions starts a worker with the example of docs/operating.md.
func TestOperating_Definitions(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "definitions.json")
	text := find(t, "docs/operating.md", "json", "definitions").text
	for name, content := range map[string]string{"definitions.json": text, "deploy-key.txt": "a deploy key\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := startIn(t, environment(t, "API_KEY=an api key", "SANDBOX_LOG_FORMAT=json"), embeddedProgram, "--config", config, "--store-dir", filepath.Join(dir, "store"),
		"--allow-temp-store", "--listen", "127.0.0.1:0", "--auth", "none")
	url, _ := p.logged("ready")["url"].(string)
	c := client{t: t, nc: connect(t, url), prefix: "sandbox"}
	refused(c, "snapshot.save", object{"threadId": "t", "runId": "r", "sandbox": "scratch"}, "SANDBOX_SNAPSHOT_REUSE_NONE")
	refused(c, "snapshot.save", object{"threadId": "t", "runId": "r", "label": "an api key", "sandbox": "python"}, "SANDBOX_SNAPSHOT_MISSING_REUSABLE_SANDBOX")
	refused(c, "snapshot.save", object{"threadId": "t with a deploy key", "runId": "r"}, "SANDBOX_SNAPSHOT_INVALID_ID")
}

var flagName = regexp.MustCompile(`--[a-z][a-z-]+`)

// TestOperating_Flags compares the flags of docs/operating.md with those of the programs.
func TestOperating_Flags(t *testing.T) {
	text := document(t, "docs/operating.md")
	known := map[string]bool{"--help": true, "--version": true}
	for _, command := range [][]string{{embeddedProgram}, {agentProgram, "serve"}, {agentProgram, "init"}} {
		code, help, _ := run(t, command[0], append(command[1:], "--help")...)
		if code != 0 {
			t.Fatalf("%q --help ended with %d", command, code)
		}
		for _, flag := range flagName.FindAllString(help, -1) {
			if known[flag] {
				continue
			}
			if known[flag] = true; !strings.Contains(text, "`"+flag) {
				t.Errorf("%s of %s is not documented", flag, filepath.Base(command[0]))
			}
		}
	}
	_, help, _ := run(t, agentProgram, "save", "--help") // README.md shows it
	for _, flag := range flagName.FindAllString(help, -1) {
		known[flag] = true
	}
	for _, program := range []string{embeddedProgram, agentProgram} {
		if code, version, _ := run(t, program, "--version"); code != 0 || version != "0.0.0-dev\n" {
			t.Errorf("%s --version ends with %d and prints %q", filepath.Base(program), code, version)
		}
	}
	for _, name := range documents {
		for _, flag := range flagName.FindAllString(document(t, name), -1) {
			if !known[flag] {
				t.Errorf("%s names %s, which is no flag", name, flag)
			}
		}
	}
}
