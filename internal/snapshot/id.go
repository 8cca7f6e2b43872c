package snapshot

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxIDBytes bounds every identifier.
const MaxIDBytes = 500

// Identifiers are non-empty well-formed Unicode of at most MaxIDBytes bytes.
// They compare and sort by their UTF-8 bytes.
type (
	ThreadID     string
	RunID        string
	CheckpointID string
	ArtifactID   string
	InstanceKey  string
	LockName     string
	NodeName     string
)

func (id ThreadID) Validate() error     { return ValidateID("threadId", string(id)) }
func (id RunID) Validate() error        { return ValidateID("runId", string(id)) }
func (id CheckpointID) Validate() error { return ValidateID("checkpointId", string(id)) }
func (id ArtifactID) Validate() error   { return ValidateID("artifactId", string(id)) }
func (id InstanceKey) Validate() error  { return ValidateID("key", string(id)) }
func (id LockName) Validate() error     { return ValidateID("name", string(id)) }
func (id NodeName) Validate() error     { return ValidateID("node", string(id)) }

// Shown is how a message names a head: in quotes, or none.
func (id CheckpointID) Shown() string {
	if id == "" {
		return "none"
	}
	return strconv.Quote(string(id))
}

// ValidateID checks an identifier like its Validate and names it field.
func ValidateID(field, s string) error {
	switch {
	case s == "":
		return Errorf(InvalidID, "%s is empty; give 1 to %d bytes of Unicode text", field, MaxIDBytes)
	case len(s) > MaxIDBytes:
		return Errorf(InvalidID, "%s has %d bytes; at most %d are allowed", field, len(s), MaxIDBytes)
	case !utf8.ValidString(s):
		return Errorf(InvalidID, "%s is not well-formed UTF-8: %q", field, s)
	}
	return nil
}

// MaxPathBytes bounds the path of an entry.
const MaxPathBytes = 4096

// ValidatePath checks the path of an entry: relative, '/'-separated,
// normalised, free of NUL, backslash and drive letters. Anything else,
// newlines and spaces included, is valid. The error carries InvalidPath.
func ValidatePath(p string) error {
	reason := pathFault(p)
	if reason == "" {
		return nil
	}
	return Errorf(InvalidPath, "path %q %s; give a relative path like \"dir/file\"", p, reason)
}

func pathFault(p string) string {
	switch {
	case p == "":
		return "is empty"
	case len(p) > MaxPathBytes:
		return fmt.Sprintf("has %d bytes, %d are allowed", len(p), MaxPathBytes)
	case !utf8.ValidString(p):
		return "is not well-formed UTF-8"
	case strings.ContainsAny(p, "\x00\\"):
		return "has a NUL or a backslash"
	case isDrive(p):
		return "begins with a drive letter"
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == "" || part == "." || part == ".." {
			return "is not normalised or leaves its root"
		}
	}
	return ""
}

func isDrive(p string) bool {
	if len(p) < 2 || p[1] != ':' || len(p) > 2 && p[2] != '/' {
		return false
	}
	c := p[0] | 0x20
	return 'a' <= c && c <= 'z'
}
