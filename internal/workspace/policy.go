package workspace

import (
	"path"
	"strings"

	"github.com/moby/patternmatcher"

	"sandkeep/internal/snapshot"
)

// Rules in Coverage.Excluded that are not a pattern of the policy.
const (
	ruleStore   = "store"   // directories of the worker itself
	ruleInclude = "include" // what no include pattern names
	ruleOutside = "outside" // what an exact restore does not look at
)

// pattern is one line of a policy in the .dockerignore dialect.
type pattern struct {
	text    string // as it was given, for the report
	negated bool
	parts   []string
	m       *patternmatcher.PatternMatcher
}

// policy decides what of a tree is kept.
type policy struct {
	snapshot.Policy
	include, exclude []pattern
	only             string // names that do not lie at or under it are left out; "" for none
}

// matches is what a directory hands down: the rules that matched it or a parent.
type matches struct {
	rule             string // default exclusion
	include, exclude []bool
}

// verdict says what to do with a path. With a rule it is excluded, and walk
// tells whether something below it may be kept all the same. Only a directory
// that is kept or walked needs what it hands down.
type verdict struct {
	rule string
	walk bool
	down *matches
}

// ValidatePolicy checks the patterns of a policy. The error carries BadRequest.
func ValidatePolicy(p snapshot.Policy) error {
	_, err := compile(p)
	return err
}

func compile(p snapshot.Policy) (*policy, error) {
	out := &policy{Policy: p}
	var err error
	if out.include, err = compilePatterns("include", p.Include); err != nil {
		return nil, err
	}
	out.exclude, err = compilePatterns("exclude", p.Exclude)
	return out, err
}

// compilePatterns keeps the patterns apart, since the library does not tell
// which of several matched.
func compilePatterns(list string, texts []string) ([]pattern, error) {
	var out []pattern
	for _, text := range texts {
		p := pattern{text: text}
		rest := strings.TrimSpace(text)
		if rest == "" {
			continue
		}
		rest, p.negated = strings.CutPrefix(rest, "!")
		if rest = strings.TrimSpace(rest); rest == "" { // it would take back everything
			return nil, snapshot.Errorf(snapshot.BadRequest, "%s pattern %q names nothing; write what it takes back after the !", list, text)
		}
		rest = strings.TrimPrefix(path.Clean("/"+rest), "/")
		if rest == "" {
			rest = "**" // "." or "/": everything
		}
		p.parts = strings.Split(rest, "/")
		m, err := patternmatcher.New([]string{oneLine(rest)})
		if err == nil {
			_, err = m.MatchesOrParentMatches("x") // compiles it
		}
		if err != nil {
			return nil, snapshot.Errorf(snapshot.BadRequest, "%s pattern %q is malformed; write it as in a .dockerignore file", list, text).Because(err)
		}
		p.m = m
		out = append(out, p)
	}
	return out, nil
}

// oneLine keeps line feeds away from the library, whose ** stops at them.
func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "\r") }

func (p *pattern) match(name string) bool {
	ok, _, err := p.m.MatchesUsingParentResults(name, patternmatcher.MatchInfo{})
	return err == nil && ok
}

// mayReach reports whether the pattern can match something below dir.
func (p *pattern) mayReach(dir string) bool {
	rest := p.parts
	for part := range strings.SplitSeq(dir, "/") {
		if len(rest) == 0 {
			return true // it matched a parent
		}
		if strings.Contains(rest[0], "**") {
			return true
		}
		if ok, err := path.Match(rest[0], part); err == nil && !ok {
			return false
		}
		rest = rest[1:]
	}
	return true
}

// judge decides about the path name, whose last part is base and whose parent
// handed down up.
func (p *policy) judge(up *matches, name, base string, isDir bool) verdict {
	if !p.IncludeCredentials {
		if rule := credentialRule(name, base); rule != "" {
			return verdict{rule: rule}
		}
	}
	rule := up.rule
	if rule == "" && !p.NoDefaultExcludes {
		rule = defaultRule(base)
	}
	if len(p.include)+len(p.exclude) == 0 { // the most common policy
		return verdict{rule: rule, down: up} // what a default rule excludes is not walked
	}
	return p.judgePatterns(up, rule, name, isDir)
}

func (p *policy) judgePatterns(up *matches, rule, name string, isDir bool) verdict {
	down := matches{rule: rule}
	excluded, included := rule, len(p.include) == 0
	line := oneLine(name)
	for i := range p.exclude {
		hit := i < len(up.exclude) && up.exclude[i] || p.exclude[i].match(line)
		if isDir {
			down.exclude = append(down.exclude, hit)
		}
		if hit && p.exclude[i].negated {
			excluded = ""
		} else if hit {
			excluded = p.exclude[i].text
		}
	}
	for i := range p.include {
		hit := i < len(up.include) && up.include[i] || p.include[i].match(line)
		if isDir {
			down.include = append(down.include, hit)
		}
		if hit {
			included = !p.include[i].negated
		}
	}
	v := verdict{rule: excluded}
	if excluded == "" && !included {
		v.rule = ruleInclude
	}
	if isDir {
		v.walk = (excluded == "" || anyReaches(p.exclude, true, name)) && (included || anyReaches(p.include, false, name))
		v.down = &matches{down.rule, down.include, down.exclude}
	}
	return v
}

func anyReaches(list []pattern, negated bool, dir string) bool {
	for i := range list {
		if list[i].negated == negated && list[i].mayReach(dir) {
			return true
		}
	}
	return false
}

func defaultRule(base string) string {
	switch {
	case base == "node_modules":
		return "node_modules"
	case strings.HasPrefix(base, ".env"):
		return ".env*"
	}
	return ""
}

// Credentials by convention: whole names, the last two parts of a path, and
// beginnings and endings of names.
var (
	credentialNames = set(
		".npmrc", ".netrc", "_netrc", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd", ".dockercfg", ".git-credentials",
		".vault-token", ".terraformrc", ".s3cfg", ".boto", ".aws", ".ssh", ".gnupg", ".azure")
	credentialPaths = set(
		".docker/config.json", ".kube/config", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials",
		".config/gcloud", ".config/gh", ".terraform.d/credentials.tfrc.json", ".composer/auth.json")
	credentialPrefixes = []string{"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"}
	credentialSuffixes = []string{".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".ppk", ".kdbx"}
)

func set(names ...string) map[string]bool {
	out := map[string]bool{}
	for _, n := range names {
		out[n] = true
	}
	return out
}

func credentialRule(name, base string) string {
	if credentialNames[base] {
		return base
	}
	if above := len(name) - len(base) - 1; above > 0 {
		if two := name[strings.LastIndexByte(name[:above], '/')+1:]; credentialPaths[two] {
			return two
		}
	}
	for _, prefix := range credentialPrefixes {
		if strings.HasPrefix(base, prefix) {
			return prefix + "*"
		}
	}
	for _, suffix := range credentialSuffixes {
		if strings.HasSuffix(base, suffix) {
			return "*" + suffix
		}
	}
	return ""
}
