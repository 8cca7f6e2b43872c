package tests

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/klauspost/compress/zstd"
)

// canaries are secrets that nothing may keep or say: a plain one, one that can
// be a path of two parts, one with what has to be escaped in a quoted text, and
// one that is longer than what an error quotes.
var canaries = []string{"Zq7-canary-plain-Xw3", "Zq7 \"canary<&>/\u00fc\U0001f426 Xw3", "Zq7 \"canary\\\t'$Xw3", longCanary[:400]}

var longCanary = "Zq7LongCanary" + strings.Repeat("0123456789abcdefghijklmnop", 16)

func withSecrets(t *testing.T) []string {
	t.Helper()
	secrets := map[string]object{}
	for i, c := range canaries {
		secrets[fmt.Sprint("KEY", i)] = object{"value": c}
	}
	config := encode(t, object{"definitions": object{"default": object{}, "other": object{"secrets": secrets}}})
	return append(configFile(t, string(config)), "--log-level", "debug")
}

// leaks finds a canary as it is, in base64, or in a quoted text.
func leaks(text []byte) string {
	for _, c := range canaries {
		quoted, _ := json.Marshal(c)
		plain, _ := json.Marshal(strconv.Quote(c)) // a quoted text that is quoted again
		for _, spelling := range []string{c, string(quoted[1 : len(quoted)-1]), strings.Trim(strconv.Quote(c), `"`),
			string(plain[3 : len(plain)-3]), unescapeHTML(string(quoted[1 : len(quoted)-1])), unescapeHTML(string(plain[3 : len(plain)-3])),
			longCanary[:30], base64.StdEncoding.EncodeToString([]byte(c))} {
			if bytes.Contains(text, []byte(spelling)) {
				return spelling
			}
		}
	}
	return ""
}

// unescapeHTML undoes what only this package's encoder escapes.
func unescapeHTML(s string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(s)
}

// unicodeEscaped spells every character of a string as \uXXXX.
func unicodeEscaped(s string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(s)) {
		fmt.Fprintf(&b, `\u%04x`, unit)
	}
	return b.String()
}

// tell sends a request with canaries; whatever the reply is, it has none.
func (c client) tell(subject string, body any) {
	c.t.Helper()
	msg := c.send(subject, body)
	if s := leaks(msg.Data); s != "" {
		c.t.Errorf("the reply to %s says %q: %.500s", subject, s, msg.Data)
	}
	for name, values := range msg.Header {
		if s := leaks([]byte(strings.Join(values, "\n"))); s != "" {
			c.t.Errorf("the header %s of the reply to %s says %q", name, subject, s)
		}
	}
}

func TestSecretsAreInNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t, withSecrets(t)...)
	dir := s.sandbox(t, "work")
	b := build(t, dir)
	for i, c := range canaries {
		b.file(fmt.Sprint("file", i), []byte("key="+c+"\nkey="+c), 0o644)
		large := b.noise(17 << 20)
		for at := 65530; at+100 < len(large); at += 1<<20 - 7 {
			copy(large[at:], c)
		}
		b.file(fmt.Sprint("large", i), large, 0o644)
		if len(c) < 200 { // the longest name that there can be has 255 bytes
			b.file("names/"+c+"/name", []byte("x"), 0o644)
			b.file("names/x"+c+"y", []byte("x"), 0o644)
		}
		b.link(fmt.Sprint("link", i), c)
		s.saySecret(c, i)
	}
	s.attach("t", "work")
	s.tell("snapshot.save", object{"threadId": "t", "runId": "r", "label": strings.Join(canaries, " "), "include": []string{"files", "conversation"}})
	if s.head("t") == "" {
		t.Fatal("nothing was saved")
	}
	s.tell("fork", object{"threadId": "t", "destinationThreadId": "fork"})
	for _, subject := range []string{"thread.load", "checkpoint.list", "artifact.list"} {
		s.tell(subject, object{"threadId": "t"})
	}
	s.tell("instance.list", object{})
	s.readsRedacted(dir)
	s.nothingKept()
}

// saySecret puts a canary into every member that is stored, and into every
// error that could quote it.
func (s *server) saySecret(c string, i int) {
	s.t.Helper()
	quoted, _ := json.Marshal(c)
	messages := []string{string(quoted), `"` + unicodeEscaped(c) + `"`, `{"a` + unicodeEscaped(c) + `":{"k":["x` + unicodeEscaped(c) + `y"]}}`}
	s.tell("thread.save", fmt.Sprintf(`{"threadId":"t","messages":[%s]}`, strings.Join(messages, ",")))
	put := artifactBody(object{"threadId": "t", "artifactId": fmt.Sprint("a", i), "name": "n" + c, "mimeType": c, "data": []byte("<" + c + ">")})
	s.tell("artifact.put", put)
	s.tell("instance.upsert", object{"record": object{"key": fmt.Sprint("k", i), "provider": c, "providerSandboxId": "x/" + c, "threadId": "t", "latestSnapshotId": c, "updatedAt": 1}})
	for subject, body := range map[string]object{
		"snapshot.save":    {"threadId": c, "runId": c, "checkpointId": c},
		"fork":             {"threadId": "t", "destinationThreadId": c},
		"restore":          {"threadId": "t", "path": "../" + c},
		"file.read":        {"checkpointId": c, "path": c},
		"artifact.read":    {"threadId": c, "checkpointId": c, "artifactId": c},
		"artifact.put":     {c: 1},
		"artifact.list":    {"threadId": "t", "after": c},
		"artifact.delete":  {"threadId": c, "artifactId": c},
		"thread.save":      {"threadId": c, "messages": []string{c}},
		"checkpoint.files": {"checkpointId": c, "prefix": "../" + c},
		"checkpoint.head":  {"threadId": c},
		"instance.get":     {"key": c},
		"instance.upsert":  {"record": object{"key": c, "provider": "p", "providerSandboxId": "x", "threadId": c, "updatedAt": 1}},
		"instance.attach":  {"threadId": "t", "name": c, "sandbox": c, "node": c},
	} {
		s.tell(subject, body)
	}
	s.tell("snapshot.save", object{"threadId": "t", "runId": "r", "sandbox": c, "adapterName": c})
	s.tell("restore", object{"threadId": "t", "path": c, "into": c})
	s.tell("restore", object{"threadId": "t", "path": "p", "node": c})
	s.tell("node.n1."+"unheard-of", object{"x": c})
}

// readsRedacted compares what is kept with what it is to be: zero bytes in the
// place of a secret, and everything else as it was.
func (s *server) readsRedacted(dir string) {
	s.t.Helper()
	ok[restored](s.client, "restore", object{"threadId": "t", "path": "out"})
	for _, name := range []string{"file0", "file1", "file2", "file3", "large0", "large3"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, c := range canaries {
			want = bytes.ReplaceAll(want, []byte(c), make([]byte, len(c)))
		}
		got, err := os.ReadFile(filepath.Join(s.restored, "out", name))
		if err != nil || !bytes.Equal(got, want) {
			s.t.Errorf("%s is not what it was with zero bytes for secrets: %d bytes, %v", name, len(got), err)
		}
	}
	for path := range readTree(s.t, filepath.Join(s.restored, "out")) {
		if c := leaks([]byte(path)); c != "" {
			s.t.Errorf("the path %q was kept", path)
		}
	}
}

// nothingKept looks through everything that the program wrote.
func (s *server) nothingKept() {
	s.t.Helper()
	s.objectsKeepNothing()
	s.proc.stop()
	for what, log := range map[string]string{"stderr": s.proc.stderr.String(), "stdout": s.proc.stdout.String()} {
		if c := leaks([]byte(log)); c != "" {
			s.t.Errorf("%s says %q", what, c)
		}
	}
	files := 0
	for _, dir := range []string{s.storeDir, s.stateDir} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			if c := leaks(raw); c != "" {
				s.t.Errorf("%s keeps %q", path, c)
			}
			files++
			return err
		})
		if err != nil {
			s.t.Error(err)
		}
	}
	if files < 10 {
		s.t.Errorf("only %d files were looked at", files)
	}
}

// objectsKeepNothing looks into the objects, which may be compressed.
func (s *server) objectsKeepNothing() {
	s.t.Helper()
	dec, err := zstd.NewReader(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer dec.Close()
	packs := 0
	for stream := range s.contents() {
		bucket := strings.TrimPrefix(stream, "OBJ_")
		list, err := s.bucket(bucket).List(s.ctx())
		if err != nil {
			continue // an empty bucket
		}
		for _, info := range list {
			raw := s.fetch(bucket + "/" + info.Name)
			if plain, err := dec.DecodeAll(raw, nil); err == nil {
				raw, packs = plain, packs+1
			}
			if c := leaks(raw); c != "" {
				s.t.Errorf("%s/%s keeps %q", bucket, info.Name, c)
			}
		}
	}
	if packs == 0 {
		s.t.Error("no object could be decompressed")
	}
}

// What is no secret stays: only whole values are taken out.
func TestTextLikeSecretsStays(t *testing.T) {
	t.Parallel()
	s := startServer(t, withSecrets(t)...)
	near := canaries[0][:len(canaries[0])-1]
	build(t, s.sandbox(t, "work")).file("file", []byte(near+" "+near), 0o644)
	s.attach("t", "work")
	cp := s.save("t", "r")
	if got := ok[fileData](s.client, "file.read", object{"checkpointId": cp.ID, "path": "file"}); string(got.Data) != near+" "+near || cp.Coverage.Redactions != 0 {
		t.Errorf("kept %q, %d redactions", got.Data, cp.Coverage.Redactions)
	}
	ok[revision](s.client, "thread.save", object{"threadId": "t", "messages": []string{near, "a" + canaries[0] + "b"}})
	got := ok[thread](s.client, "thread.load", object{"threadId": "t"}).Messages
	if string(got[0]) != `"`+near+`"` || string(got[1]) != `"a[redacted]b"` {
		t.Errorf("kept %s", got)
	}
}

// Secrets that are too short to be told from other text are refused at start,
// without being said.
func TestShortSecretIsRefused(t *testing.T) {
	t.Parallel()
	flags := configFile(t, `{"definitions":{"default":{"secrets":{"KEY":{"value":"zq9xw"}}}}}`)
	code, _, stderr := run(t, embeddedProgram, append(append(newNode(t, "n1").flags(t.TempDir()), flags...), "--store-dir", t.TempDir(), "--allow-temp-store", "--listen", "127.0.0.1:0")...)
	if code == 0 || strings.Contains(stderr, "zq9xw") || !strings.Contains(stderr, "KEY") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}
