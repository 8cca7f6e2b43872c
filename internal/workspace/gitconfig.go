package workspace

import (
	"bytes"
	"regexp"
	"strings"
)

// maxGitConfig bounds what is read into memory as a git configuration.
const maxGitConfig = 1 << 20

// minTokenBytes is the length from which the user of a URL counts as a token,
// as in https://<token>@host/ and https://<token>:x-oauth-basic@host/.
const minTokenBytes = 20

// isGitConfig finds the configurations of repositories, nested and bare ones,
// submodules and work trees included.
func isGitConfig(path string) bool {
	parts := strings.Split(path, "/")
	last := len(parts) - 1
	if parts[last] != "config" && parts[last] != "config.worktree" {
		return false
	}
	inGit := false
	for _, part := range parts[:last] {
		switch {
		case inGit && part == "modules":
			return true // whatever the submodule is called
		case inGit && (part == "refs" || part == "objects"):
			return false // a branch may be called config
		}
		inGit = inGit || strings.HasSuffix(part, ".git")
	}
	return inGit
}

var (
	gitUserinfo    = regexp.MustCompile(`://([^/\s]*)@`)
	gitExtraHeader = regexp.MustCompile(`(?i)extraheader[ \t]*=[ \t]*`)
)

// redactGitConfig overwrites the passwords of URLs and the values of
// extraHeader with x bytes, so that git can still read the file.
func redactGitConfig(data []byte) (redactions int64) {
	for _, m := range gitUserinfo.FindAllSubmatchIndex(data, -1) {
		user, password := data[m[2]:m[3]], []byte(nil)
		if colon := bytes.IndexByte(user, ':'); colon >= 0 {
			user, password = user[:colon], user[colon+1:]
		}
		if len(user) < minTokenBytes {
			user = nil
		}
		if len(user)+len(password) > 0 {
			fillX(user)
			fillX(password)
			redactions++
		}
	}
	for _, m := range gitExtraHeader.FindAllIndex(data, -1) {
		if value := data[m[1]:valueEnd(data, m[1])]; len(value) > 0 {
			maskValue(value)
			redactions++
		}
	}
	return redactions
}

func fillX(p []byte) {
	for i := range p {
		p[i] = 'x'
	}
}

// valueEnd is the end of a value that may go on after a backslash at a line's end.
func valueEnd(data []byte, from int) int {
	for i := from; i < len(data); i++ {
		if data[i] == '\n' && !continued(data[from:i]) {
			return i
		}
	}
	return len(data)
}

func continued(line []byte) bool {
	line = bytes.TrimSuffix(line, []byte("\r"))
	return (len(line)-len(bytes.TrimRight(line, `\`)))%2 == 1
}

// maskValue leaves line ends, and the backslashes before them, alone.
func maskValue(value []byte) {
	for i, b := range value {
		rest := value[i+1:]
		joins := b == '\\' && len(rest) > 0 && (rest[0] == '\n' || rest[0] == '\r')
		if b != '\n' && b != '\r' && !joins {
			value[i] = 'x'
		}
	}
}
