package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sandkeep/internal/snapshot"
)

// block is a fenced block of a document. Words are those after the fence.
type block struct {
	at    string // file:line, for messages
	words []string
	text  string
}

// is compares the first words of a block.
func (b block) is(words ...string) bool {
	return len(b.words) >= len(words) && slices.Equal(b.words[:len(words)], words)
}

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks returns the fenced blocks of a document in order.
func blocks(t *testing.T, name string) (out []block) {
	t.Helper()
	var open *block
	for i, line := range strings.Split(document(t, name), "\n") {
		rest, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{at: fmt.Sprintf("%s:%d", name, i+1), words: strings.Fields(rest)}
		case fence:
			out, open = append(out, *open), nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	if open != nil {
		t.Fatalf("%s: the block is not closed", open.at)
	}
	return out
}

// TestSubjects_Examples sends every example of subjects.md and compares the replies.
func TestSubjects_Examples(t *testing.T) {
	s := startServer(t, "--node", "edge")
	page := example{client: s.client, bound: map[string]string{}}
	all := blocks(t, "subjects.md")
	for i, b := range all {
		switch {
		case b.is("sh", "sandbox-root"):
			shell(t, s.sandboxes, b)
		case b.is("json", "object"):
			_, name, _ := strings.Cut(b.words[2], "/")
			if got := s.upload(name, []byte(b.text)); got != b.words[2] {
				t.Errorf("%s: the object is %q", b.at, got)
			}
		case b.is("json", "request"):
			if i+1 == len(all) || !all[i+1].is("json", "reply") {
				t.Fatalf("%s: no reply follows the request", b.at)
			}
			page.send(b, all[i+1])
		case b.is("json", "record"):
			page.record(b)
		case b.is("json", "event"):
			page.event(b)
		}
	}
}

// shell runs a block where the examples want it.
func shell(t *testing.T, dir string, b block) {
	t.Helper()
	cmd := exec.Command("sh", "-e", "-c", "umask 022\n"+b.text)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", b.at, err, out)
	}
}

// example compares replies with the ones written down. A string that ends in
// "…" stands for one that begins like it, a string that begins with "…" for any
// value; both are bound to the value that came, as JSON.
type example struct {
	client
	bound map[string]string
}

func (e example) send(request, reply block) {
	e.t.Helper()
	body := request.text
	for text, value := range e.bound {
		body = strings.ReplaceAll(body, `"`+text+`"`, value)
	}
	subject, found := strings.CutPrefix(request.words[2], e.prefix+".")
	if !found {
		e.t.Fatalf("%s: subject %q does not begin with %q", request.at, request.words[2], e.prefix)
	}
	msg := e.client.send(subject, body)
	decodeFailure(e.t, msg)
	e.check(reply, msg.Data)
}

// record compares what stands under a key of the store.
func (e example) record(b block) {
	e.t.Helper()
	kv, err := e.js().KeyValue(e.ctx(), "sandbox-state")
	if err != nil {
		e.t.Fatal(err)
	}
	entry, err := kv.Get(e.ctx(), b.words[2])
	if err != nil {
		e.t.Fatalf("%s: %v", b.at, err)
	}
	e.check(b, entry.Value())
}

// event compares the newest event of a subject, once it has come.
func (e example) event(b block) {
	e.t.Helper()
	stream, err := e.js().Stream(e.ctx(), "sandbox-events")
	if err != nil {
		e.t.Fatal(err)
	}
	var want, got any
	if err := json.Unmarshal([]byte(b.text), &want); err != nil {
		e.t.Fatalf("%s: %v", b.at, err)
	}
	var fault string
	defer func() {
		if fault != "" {
			e.t.Logf("%s: %s", b.at, fault)
		}
	}()
	within(e.t, eventPatience, "the event of "+b.at, func() bool {
		m, err := stream.GetLastMsgForSubject(e.t.Context(), b.words[2])
		if err == nil {
			err = json.Unmarshal(m.Data, &got)
		}
		if err != nil {
			fault = err.Error()
			return false
		}
		fault = e.compare("", want, got)
		return fault == ""
	})
}

func (e example) check(b block, raw []byte) {
	e.t.Helper()
	var want, got any
	if err := json.Unmarshal([]byte(b.text), &want); err != nil {
		e.t.Fatalf("%s: %v", b.at, err)
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		e.t.Fatalf("%s: what came is not JSON: %v: %.300s", b.at, err, raw)
	}
	if fault := e.compare("", want, got); fault != "" {
		shown, _ := json.MarshalIndent(got, "", "  ")
		e.t.Errorf("%s: %s; it is\n%s", b.at, fault, shown)
	}
}

// varying are the numbers that differ from run to run, besides those of phases.
var varying = map[string]bool{"createdAt": true, "updatedAt": true, "mtime": true, "expiresAt": true, "since": true, "deletedAt": true}

// compare says what differs, "" for nothing.
func (e example) compare(at string, want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		return e.compareObjects(at, w, got)
	case []any:
		return e.compareLists(at, w, got)
	case string:
		if prefix, open := strings.CutSuffix(w, "…"); open {
			return e.bind(at, prefix, got)
		}
		if strings.HasPrefix(w, "…") {
			return e.keep(w, got)
		}
	case float64:
		if _, number := got.(float64); number && (varying[at[strings.LastIndexByte(at, '.')+1:]] || strings.Contains(at, ".phases.")) {
			return ""
		}
	}
	if want != got {
		return fmt.Sprintf("%s is %v, documented as %v", at, got, want)
	}
	return ""
}

func (e example) bind(at, prefix string, got any) string {
	s, isString := got.(string)
	switch {
	case prefix == "":
		return "" // anything
	case !isString || !strings.HasPrefix(s, prefix):
		return fmt.Sprintf("%s is %v, documented to begin with %q", at, got, prefix)
	}
	return e.keep(prefix+"…", s)
}

// keep binds a text of the page to the value that came in its place.
func (e example) keep(text string, got any) string {
	value, err := json.Marshal(got)
	if err != nil {
		return err.Error()
	}
	e.bound[text] = string(value)
	return ""
}

func (e example) compareObjects(at string, want map[string]any, got any) string {
	g, isObject := got.(map[string]any)
	if !isObject {
		return fmt.Sprintf("%s is %v, documented as an object", at, got)
	}
	for _, name := range slices.Sorted(maps.Keys(g)) {
		if _, documented := want[name]; !documented {
			return fmt.Sprintf("%s.%s is %v and not documented", at, name, g[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		value, there := g[name]
		if !there {
			return fmt.Sprintf("%s.%s is documented and absent", at, name)
		}
		if fault := e.compare(at+"."+name, want[name], value); fault != "" {
			return fault
		}
	}
	return ""
}

func (e example) compareLists(at string, want []any, got any) string {
	g, isList := got.([]any)
	if !isList || len(g) != len(want) {
		return fmt.Sprintf("%s is %v, documented as %d items", at, got, len(want))
	}
	for i := range want {
		if fault := e.compare(fmt.Sprintf("%s[%d]", at, i), want[i], g[i]); fault != "" {
			return fault
		}
	}
	return ""
}

// section is what subjects.md says about one subject.
type section struct {
	subject string
	members map[string]string // name → type, from the table
}

// nested are the types of members that are objects with identifiers.
var nested = map[string]bool{"Instance": true, "Writer": true, "NewCheckpoint": true}

var (
	subjectHeading = regexp.MustCompile("^### [0-9.]+ `sandbox\\.([^`]+)`$")
	memberRow      = regexp.MustCompile("^\\| ((?:`[a-zA-Z]+\\??`(?:, | or )?)+) \\| ([^|]*) \\|")
	memberName     = regexp.MustCompile("`([a-zA-Z]+)\\??`")
	nodeSubject    = "node.<node>.<subject>"
)

func sections(t *testing.T) (out []section) {
	t.Helper()
	var open *section
	for line := range strings.Lines(document(t, "subjects.md")) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "#") {
			open = nil
		}
		if m := subjectHeading.FindStringSubmatch(line); m != nil {
			out = append(out, section{subject: m[1], members: map[string]string{}})
			open = &out[len(out)-1]
		}
		if row := memberRow.FindStringSubmatch(line); row != nil && open != nil {
			for _, m := range memberName.FindAllStringSubmatch(row[1], -1) {
				open.members[m[1]] = row[2]
			}
		}
	}
	return out
}

// TestSubjects_Endpoints compares the subjects of the page with those of the service.
func TestSubjects_Endpoints(t *testing.T) {
	s := startServer(t, "--node", "edge")
	codes := document(t, "subjects.md")
	codes = codes[strings.Index(codes, "\n## 20."):strings.Index(codes, "\n## 21.")]
	var documented []string
	for _, sec := range sections(t) {
		documented = append(documented, sec.subject)
		if !strings.Contains(codes, "| `"+sec.subject+"` |") {
			t.Errorf("the table of codes by subject leaves %s out", sec.subject)
		}
	}
	slices.Sort(documented)
	if got := servedSubjects(t, s); !slices.Equal(got, documented) {
		t.Errorf("served are\n%q\nsubjects.md has\n%q", got, documented)
	}
}

// servedSubjects are the subjects of the endpoints that the service reports, sorted.
func servedSubjects(t *testing.T, s *server) (subjects []string) {
	t.Helper()
	msg, err := s.nc.Request("$SRV.INFO.sandbox", nil, patience)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Endpoints []struct{ Name, Subject string }
	}
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		t.Fatal(err)
	}
	for _, e := range info.Endpoints {
		name, subject := strings.ReplaceAll(strings.TrimPrefix(e.Subject, "sandbox."), ".", "-"), strings.TrimPrefix(e.Subject, "sandbox.")
		if subject == "node.edge.>" {
			name, subject = "node", nodeSubject
		}
		if e.Name != name {
			t.Errorf("the endpoint of %s is called %q, documented as %q", e.Subject, e.Name, name)
		}
		subjects = append(subjects, subject)
	}
	slices.Sort(subjects)
	return subjects
}

// withoutIDs are members and answers of the subjects that need no identifier.
var withoutIDs = map[string]struct {
	members object
	code    string
}{
	"instance.list":   {nil, ""},
	"blob.put":        {object{"kind": "file", "data": ""}, ""},
	"blob.head":       {object{"keys": []string{}}, ""},
	"blob.get":        {object{"key": snapshot.FileBlobPrefix + strings.Repeat("0", 64)}, string(snapshot.MissingBlob)},
	"blob.references": {nil, ""},
}

// TestSubjects_Members compares the tables of request members with what the
// service takes: a request of which only the identifiers are missing is
// INVALID_ID, one with a member that the subject does not have BAD_REQUEST.
func TestSubjects_Members(t *testing.T) {
	s := startServer(t, "--node", "edge")
	universe := map[string]bool{"operationId": true, "async": true, "prefix": true, "mode": true, "writer": true}
	for _, sec := range sections(t) {
		for name := range sec.members {
			universe[name] = true
		}
	}
	for _, sec := range sections(t) {
		if sec.subject == nodeSubject {
			continue
		}
		t.Run(sec.subject, func(t *testing.T) {
			c := s.client
			c.t = t
			body := object{"timeoutMs": nil}
			for name, kind := range sec.members {
				if body[name] = nil; nested[kind] {
					body[name] = object{}
				}
			}
			want := string(snapshot.InvalidID)
			if good, exempt := withoutIDs[sec.subject]; exempt {
				maps.Copy(body, good.members)
				want = good.code
			}
			if want == "" {
				ok[map[string]any](c, sec.subject, body)
			} else {
				refused(c, sec.subject, body, want)
			}
			for name := range universe {
				if _, listed := sec.members[name]; !listed {
					more := maps.Clone(body)
					more[name] = nil
					refused(c, sec.subject, more, string(snapshot.BadRequest))
				}
			}
		})
	}
}

var codeRow = regexp.MustCompile("^\\| (\\d+) \\| \\*?`([A-Z_]+)`\\*? \\| (yes|no) \\|")

// TestSubjects_Codes compares the table of error codes with the one in the code.
func TestSubjects_Codes(t *testing.T) {
	seen := map[snapshot.Code]bool{}
	text := document(t, "subjects.md")
	for line := range strings.Lines(text) {
		row := codeRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		code := snapshot.Code(row[2])
		if seen[code] {
			t.Errorf("%s has two rows", code)
		}
		seen[code] = true
		if want := strconv.Itoa(code.Status()); row[1] != want || (row[3] == "yes") != code.Retryable() {
			t.Errorf("%s is documented as %s, again %s; it is %s, again %t", code, row[1], row[3], want, code.Retryable())
		}
	}
	for _, code := range snapshot.Codes() {
		if !seen[code] {
			t.Errorf("%s is not documented", code)
		}
	}
	for _, word := range regexp.MustCompile(`SANDBOX_[A-Z_]+[A-Z]`).FindAllString(text, -1) {
		if !seen[snapshot.Code(word)] && word != "SANDBOX_SNAPSHOT" {
			t.Errorf("%s is mentioned and is no code", word)
		}
	}
}
