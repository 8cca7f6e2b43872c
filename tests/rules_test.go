package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// kind says what a member of a request must be.
type kind int

const (
	anID kind = iota
	aText
	aNumber
	aList
	anObject
	aWriter
	base64Data
)

// served is a subject with all members that its requests may have. Those of
// optional may be absent or null.
type served struct {
	name     string
	required map[string]kind
	optional map[string]kind
}

var subjects = []served{
	{"snapshot.save", map[string]kind{"threadId": anID, "runId": anID}, map[string]kind{"label": aText, "sandbox": aText, "tenant": anObject,
		"adapterName": aText, "instanceKey": anID, "checkpointId": anID, "waitMs": aNumber, "include": aList}},
	{"fork", map[string]kind{"threadId": anID, "destinationThreadId": anID}, map[string]kind{"checkpointId": anID,
		"destinationCheckpointId": anID, "createdAt": aNumber, "waitMs": aNumber, "include": aList}},
	{"restore", map[string]kind{"threadId": anID, "path": aText}, map[string]kind{"checkpointId": anID, "into": aText, "node": anID}},
	{"file.read", map[string]kind{"checkpointId": anID, "path": aText}, map[string]kind{"offset": aNumber, "length": aNumber}},
	{"artifact.read", map[string]kind{"threadId": anID, "checkpointId": anID, "artifactId": anID}, map[string]kind{"maxInlineBytes": aNumber}},
	{"artifact.put", map[string]kind{"threadId": anID, "runId": anID, "artifactId": anID, "name": aText, "mimeType": aText, "data": base64Data}, map[string]kind{"createdAt": aNumber, "object": aText}},
	{"artifact.list", map[string]kind{"threadId": anID}, map[string]kind{"after": aText, "limit": aNumber}},
	{"artifact.delete", map[string]kind{"threadId": anID, "artifactId": anID}, nil},
	{"thread.load", map[string]kind{"threadId": anID}, nil},
	{"thread.save", map[string]kind{"threadId": anID, "messages": aList}, map[string]kind{"expectedRevision": aNumber}},
	{"checkpoint.get", map[string]kind{"checkpointId": anID}, map[string]kind{"include": aList}},
	{"checkpoint.list", map[string]kind{"threadId": anID}, map[string]kind{"include": aList, "after": aText, "limit": aNumber}},
	{"checkpoint.head", map[string]kind{"threadId": anID}, nil},
	{"checkpoint.files", map[string]kind{"checkpointId": anID}, map[string]kind{"prefix": aText, "after": aText, "limit": aNumber}},
	{"instance.get", map[string]kind{"key": anID}, nil},
	{"instance.upsert", map[string]kind{"record": anObject}, map[string]kind{"expectedRevision": aNumber}},
	{"instance.delete", map[string]kind{"key": anID}, map[string]kind{"expectedRevision": aNumber}},
	{"instance.list", nil, map[string]kind{"threadId": anID, "after": aText, "limit": aNumber}},
	{"instance.attach", map[string]kind{"threadId": anID, "name": aText}, map[string]kind{"node": anID, "sandbox": aText, "tenant": anObject, "runId": anID}},
	{"thread.delete", map[string]kind{"threadId": anID}, nil},
	{"checkpoint.delete-head", map[string]kind{"threadId": anID, "checkpointId": anID, "writer": aWriter}, nil},
	{"checkpoint.fork", map[string]kind{"sourceThreadId": anID, "sourceCheckpointId": anID, "destinationThreadId": anID,
		"destinationCheckpointId": anID, "createdAt": aNumber, "writer": aWriter}, map[string]kind{"include": aList}},
	{"checkpoint.diff", map[string]kind{"from": anID, "to": anID}, map[string]kind{"after": aText, "limit": aNumber}},
	{"blob.put", map[string]kind{"kind": aText, "data": base64Data}, map[string]kind{"object": aText}},
	{"blob.head", map[string]kind{"keys": aList}, nil},
	{"blob.get", map[string]kind{"key": aText}, map[string]kind{"checkpointId": anID, "maxInlineBytes": aNumber}},
	{"blob.references", nil, map[string]kind{"threadId": anID, "after": aText, "limit": aNumber}},
	{"writer.acquire", map[string]kind{"threadId": anID}, map[string]kind{"leaseDurationMs": aNumber, "waitMs": aNumber}},
	{"writer.renew", map[string]kind{"threadId": anID, "ownerToken": aText, "fence": aNumber}, nil},
	{"writer.release", map[string]kind{"threadId": anID, "ownerToken": aText, "fence": aNumber}, nil},
	{"lock.acquire", map[string]kind{"name": anID}, map[string]kind{"leaseDurationMs": aNumber, "waitMs": aNumber}},
	{"lock.renew", map[string]kind{"name": anID, "ownerToken": aText, "fence": aNumber}, nil},
	{"lock.release", map[string]kind{"name": anID, "ownerToken": aText, "fence": aNumber}, nil},
}

// member writes one member; the value is JSON text.
func (s served) with(name, value string) string {
	members := s.valid()
	members[name] = value
	return join(members)
}

// valid has the required members, well formed, about things that do not exist.
func (s served) valid() map[string]string {
	out := map[string]string{}
	for name, k := range s.required {
		out[name] = map[kind]string{anID: `"nothing-` + name + `"`, aText: `"x"`, aList: `[]`, base64Data: `"AAAA"`, aNumber: `1`,
			aWriter:  `{"threadId":"nothing-threadId","ownerToken":"x","fence":1}`,
			anObject: `{"key":"k","provider":"p","providerSandboxId":"n/b","threadId":"nothing-threadId","updatedAt":1}`}[k]
	}
	return out
}

func join(members map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		out = append(out, fmt.Sprintf("%q:%s", name, members[name]))
	}
	return "{" + strings.Join(out, ",") + "}"
}

func (s served) all() map[string]kind {
	out := maps.Clone(s.optional)
	if out == nil {
		out = map[string]kind{}
	}
	maps.Copy(out, s.required)
	out["timeoutMs"] = aNumber
	return out
}

// wrong has a value of every type that a kind does not take.
var wrong = map[kind][]string{
	anID:       {`7`, `true`, `[]`, `{}`, `""`, `"\ud800"`, `"x\udfff"`, `"` + strings.Repeat("x", 501) + `"`, `"` + strings.Repeat("é", 251) + `"`},
	aText:      {`7`, `false`, `["x"]`, `{}`, `"\ud800"`, `"\udc00\ud800"`},
	aNumber:    {`"7"`, `true`, `[]`, `{}`, `"\ud800"`},
	aList:      {`7`, `"files"`, `{}`},
	anObject:   {`7`, `"x"`, `[]`, `{"unheard-of":1}`},
	aWriter:    {`7`, `"x"`, `[]`, `{"unheard-of":1}`},
	base64Data: {`7`, `[1,2]`, `"AAA"`, `"A-_A"`, `"\ud800"`},
}

const (
	badRequest = "SANDBOX_BAD_REQUEST"
	invalidID  = "SANDBOX_SNAPSHOT_INVALID_ID"
)

// storeSize is what all streams of the store hold.
func (c client) storeSize() map[string]uint64 {
	c.t.Helper()
	out := map[string]uint64{}
	lister := c.js().ListStreams(c.ctx())
	for info := range lister.Info() {
		out[info.Config.Name] = info.State.LastSeq
	}
	if err := lister.Err(); err != nil {
		c.t.Fatal(err)
	}
	return out
}

func TestMalformedRequestsAreRefusedAndChangeNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, sub := range subjects {
		t.Run(sub.name, func(t *testing.T) {
			c := s.client
			c.t = t
			before := c.storeSize()
			for _, body := range sub.malformed() {
				refused(c, sub.name, body, badRequest)
			}
			for name, k := range sub.all() {
				want := badRequest
				if k == anID {
					want = invalidID
				}
				for _, value := range wrong[k] {
					refused(c, sub.name, sub.with(name, value), want)
				}
				if _, required := sub.required[name]; required {
					refused(c, sub.name, sub.with(name, "null"), want)
				}
			}
			if after := c.storeSize(); !maps.Equal(before, after) {
				t.Errorf("refused requests changed the store: %v, then %v", before, after)
			}
		})
	}
}

// malformed are requests whose shape is wrong whatever their values.
func (s served) malformed() []string {
	valid := join(s.valid())
	out := []string{"", " ", "null", "7", `"text"`, "[]", "[" + valid + "]", valid + valid, valid + "x", strings.TrimSuffix(valid, "}"),
		"\xff", "\xef\xbb\xbf" + valid, s.with("unheard-of", "1"), s.with("", "1"), s.with("$unheard", "1"), s.with("\xff", "1"), s.with("async", "true")}
	for name, k := range s.all() {
		capital := strings.ToUpper(name[:1]) + name[1:]
		value := map[kind]string{anID: `"a"`, aText: `"a"`, aNumber: `1`, aList: `[]`, anObject: `{}`, aWriter: `{}`, base64Data: `""`}[k]
		rest := strings.TrimPrefix(valid, "{")
		if rest == "}" {
			rest = fmt.Sprintf("%q:%s}", name, value)
		} else if _, required := s.required[name]; !required {
			rest = fmt.Sprintf("%q:%s,", name, value) + rest
		}
		out = append(out, fmt.Sprintf("{%q:%s,", name, value)+rest, s.with(capital, value), s.with(strings.ToUpper(name), value), s.with(name, "\"\xc3\x28\""))
	}
	return out
}

// First the shape, then identifiers, then the rest.
func TestOrderOfFaults(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, sub := range subjects {
		for name, k := range sub.all() {
			if k != anID {
				continue
			}
			members := sub.valid()
			members[name], members["timeoutMs"] = `""`, `"soon"`
			refused(s.client, sub.name, join(members), invalidID)
			members["unheard-of"] = "1"
			refused(s.client, sub.name, join(members), badRequest)
		}
	}
	record := `{"record":{"key":"","provider":7,"providerSandboxId":"x","threadId":"t","updatedAt":1}}`
	refused(s.client, "instance.upsert", record, invalidID)
	refused(s.client, "instance.upsert", strings.Replace(record, "provider\"", "Provider\"", 1), badRequest)
}

// Null stands for an absent optional member.
func TestNullIsAbsent(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, sub := range subjects {
		nulls := sub.valid()
		for name := range sub.optional {
			nulls[name] = "null"
		}
		nulls["timeoutMs"] = "null"
		if sub.name == "lock.acquire" { // the one without nulls holds its lock
			nulls["name"] = `"another"`
		}
		_, plain := s.try(sub.name, join(sub.valid()))
		_, withNulls := s.try(sub.name, join(nulls))
		switch {
		case (plain == nil) != (withNulls == nil):
			t.Errorf("%s: %+v without, %+v with nulls", sub.name, plain, withNulls)
		case plain != nil && plain.Code != withNulls.Code:
			t.Errorf("%s: %s without, %s with nulls", sub.name, plain.Code, withNulls.Code)
		}
	}
	record := `{"record":{"key":"k","provider":"p","providerSandboxId":"x","threadId":"t","updatedAt":1.5,"latestSnapshotId":null,"latestRunId":null}}`
	ok[revision](s.client, "instance.upsert", record)
	got := ok[instanceOrNull](s.client, "instance.get", object{"key": "k"}).Record
	if got.LatestRunID != nil || got.LatestSnapshotID != nil || got.UpdatedAt != 1.5 {
		t.Errorf("record is %+v", got)
	}
}

// oddIDs are valid identifiers, up to the longest.
var oddIDs = []string{
	strings.Repeat("x", 500), strings.Repeat("é", 250), strings.Repeat("\U0001f9ea", 125), strings.Repeat("*", 250) + strings.Repeat(">", 250),
	"a b.c*d>e/f\\g", "..", "$KV.sandbox-state.>", "line\nbreak\ttab", "nul\x00 del\x7f", "=2E", "e\u0301", "\u202e\ufeff", "x" + strings.Repeat(" ", 499),
}

func TestIdentifiersOfAnyText(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "box")).file("file", []byte("x"), 0o644)
	for _, x := range oddIDs {
		t.Run(fmt.Sprintf("%.20q", x), func(t *testing.T) {
			c := s.client
			c.t = t
			lifeOfIDs(c, x)
		})
	}
}

// lifeOfIDs uses one text as every identifier of every subject.
func lifeOfIDs(c client, x string) {
	c.t.Helper()
	ok[attached](c, "instance.attach", object{"threadId": x, "name": "box", "runId": x})
	ok[artifact](c, "artifact.put", object{"threadId": x, "runId": x, "artifactId": x, "name": x, "mimeType": "m", "data": "AAAA"})
	ok[revision](c, "thread.save", object{"threadId": x, "messages": []string{x}})
	cp := ok[checkpoint](c, "snapshot.save", object{"threadId": x, "runId": x, "checkpointId": x, "label": x})
	if cp.ID != x || cp.ThreadID != x || deref(cp.SourceRunID) != x || deref(cp.Label) != x || len(cp.Artifacts) != 1 || cp.Artifacts[0].ID != x {
		c.t.Errorf("the checkpoint has other identifiers: %+v", cp)
	}
	if got := c.chain(x); !slices.Equal(got, []string{x}) {
		c.t.Errorf("chain is %q", got)
	}
	ok[checkpointOrNull](c, "checkpoint.get", object{"checkpointId": x})
	ok[entryPage](c, "checkpoint.files", object{"checkpointId": x})
	ok[fileData](c, "file.read", object{"checkpointId": x, "path": "file"})
	ok[artifactData](c, "artifact.read", object{"threadId": x, "checkpointId": x, "artifactId": x})
	branch := "Z" + x[len(string([]rune(x)[:1])):]
	ok[checkpoint](c, "fork", object{"threadId": x, "checkpointId": x, "destinationThreadId": branch, "destinationCheckpointId": branch})
	if got := ok[thread](c, "thread.load", object{"threadId": branch}); got.Revision != 0 || len(got.Messages) != 1 {
		c.t.Errorf("the branch has %+v", got)
	}
	ok[restored](c, "restore", object{"threadId": branch, "checkpointId": branch, "path": fmt.Sprintf("out-%x", x[:2])})
	record := object{"key": x, "provider": x, "providerSandboxId": x, "threadId": x, "latestRunId": x, "latestSnapshotId": x, "updatedAt": 1}
	rev := ok[revision](c, "instance.upsert", object{"record": record}).Revision
	if got := ok[instanceOrNull](c, "instance.get", object{"key": x}); got.Revision != rev || got.Record == nil || got.Record.ProviderSandboxID != x {
		c.t.Errorf("the record is %+v", got)
	}
	if n := len(ok[instancePage](c, "instance.list", object{"threadId": x}).Records); n != 2 {
		c.t.Errorf("%d records of the thread, want 2", n)
	}
	ok[empty](c, "instance.delete", object{"key": x, "expectedRevision": rev})
	ok[empty](c, "artifact.delete", object{"threadId": x, "artifactId": x})
	if n := len(ok[artifactPage](c, "artifact.list", object{"threadId": x}).Artifacts); n != 0 {
		c.t.Errorf("%d artifacts left", n)
	}
}

// Messages are any JSON text, kept byte for byte.
func TestMessagesAreKeptByteForByte(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "box")).file("file", []byte("x"), 0o644)
	s.attach("t", "box")
	messages := []string{`"\ud800"`, `1.0e2`, `-0.0`, `1E400`, `0.1234567890123456789`, `null`, `[ ]`, "{ \"a\" :\t1,\n\"a\": 2 }", `"<&>\u003c\u2028é\u00e9\/"`,
		`{"":{"\udc00":[true,false,null]}}`, "\"\u2028\U0001f9ea\"", strings.Repeat("[", 500) + strings.Repeat("]", 500), `"` + strings.Repeat("long ", 20_000) + `"`}
	body := `{"messages": [ ` + strings.Join(messages, " ,\n") + ` ],"threadId":"t"}`
	ok[revision](s.client, "thread.save", body)
	same := func(what string, got []json.RawMessage) {
		t.Helper()
		for i, want := range messages {
			if i >= len(got) || string(got[i]) != want {
				t.Errorf("%s: message %d is not %.100s", what, i, want)
			}
		}
	}
	same("thread.load", ok[thread](s.client, "thread.load", object{"threadId": "t"}).Messages)
	saved := ok[checkpoint](s.client, "snapshot.save", object{"threadId": "t", "runId": "r", "include": []string{"conversation"}})
	same("snapshot.save", saved.Conversation)
	ok[revision](s.client, "thread.save", object{"threadId": "t", "messages": []string{}, "expectedRevision": 1})
	ok[checkpoint](s.client, "fork", object{"threadId": "t", "destinationThreadId": "branch"})
	same("a branch", ok[thread](s.client, "thread.load", object{"threadId": "branch"}).Messages)
	if got := ok[thread](s.client, "thread.load", object{"threadId": "t"}); got.Revision != 2 || got.Messages == nil || len(got.Messages) != 0 {
		t.Errorf("the emptied conversation is %+v", got)
	}
	if got := ok[thread](s.client, "thread.load", object{"threadId": "nobody"}); got.Revision != 0 || got.Messages == nil {
		t.Errorf("an unknown thread is %+v", got)
	}
}
