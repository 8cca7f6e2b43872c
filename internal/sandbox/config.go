package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/moby/patternmatcher"

	"sandkeep/internal/snapshot"
)

// DefaultName is the definition that is used when a configuration names none.
const DefaultName = "default"

// What a definition says about the sandbox of a thread.
const (
	ReuseThread = "thread"
	ReuseNone   = "none"
)

// Config is a checked set of definitions. It holds secrets and prints none.
type Config struct {
	defaultName string
	definitions map[string]snapshot.Definition
	secrets     []Secret
}

func (c *Config) String() string {
	return fmt.Sprintf("definitions %q, default %q, %d secrets %s", c.names(), c.defaultName, len(c.secrets), redacted)
}

// GoString hides the same as String.
func (c *Config) GoString() string { return c.String() }

func (c *Config) names() []string { return slices.Sorted(maps.Keys(c.definitions)) }

// Secrets are the values of all definitions, each once, for the redactor only.
func (c *Config) Secrets() []string {
	out := make([]string, 0, len(c.secrets))
	for _, s := range c.secrets {
		out = append(out, s.reveal())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Default is the configuration of a worker without a file: one definition.
func Default() *Config {
	def := snapshot.Definition{Name: DefaultName, Provider: LocalProvider, Reuse: ReuseThread}
	return &Config{defaultName: DefaultName, definitions: map[string]snapshot.Definition{DefaultName: def}}
}

// AddPolicy puts the policy of the command line on top of the default
// definition's: patterns are added, switches are turned on.
func (c *Config) AddPolicy(p snapshot.Policy) error {
	def := c.definitions[c.defaultName]
	def.Policy.Include = append(slices.Clone(def.Policy.Include), p.Include...)
	def.Policy.Exclude = append(slices.Clone(def.Policy.Exclude), p.Exclude...)
	def.Policy.NoDefaultExcludes = def.Policy.NoDefaultExcludes || p.NoDefaultExcludes
	def.Policy.IncludeCredentials = def.Policy.IncludeCredentials || p.IncludeCredentials
	def.Policy.Strict = def.Policy.Strict || p.Strict
	if err := errors.Join(patternFaults(def.Policy)...); err != nil {
		return err
	}
	c.definitions[c.defaultName] = def
	return nil
}

type fileConfig struct {
	Default     string                    `json:"default"`
	Definitions map[string]jsontext.Value `json:"definitions"`
	Unknown     map[string]jsontext.Value `json:",embed"`
}

type fileDefinition struct {
	Provider           string                    `json:"provider"`
	Reuse              string                    `json:"reuse"`
	SnapshotMaxAge     string                    `json:"snapshotMaxAge"`
	Include            []string                  `json:"include"`
	Exclude            []string                  `json:"exclude"`
	DefaultExcludes    *bool                     `json:"defaultExcludes"`
	IncludeCredentials bool                      `json:"includeCredentials"`
	Strict             bool                      `json:"strict"`
	Secrets            map[string]jsontext.Value `json:"secrets"`
	Unknown            map[string]jsontext.Value `json:",embed"`
}

// Load reads definitions from a JSON file:
//
//	{"default": "name",
//	 "definitions": {"name": {
//	   "provider": "local", "reuse": "thread" or "none", "snapshotMaxAge": "24h",
//	   "include": [], "exclude": [], "defaultExcludes": true,
//	   "includeCredentials": false, "strict": false,
//	   "secrets": {"API_KEY": {"env": "API_KEY"} or {"file": "path"} or {"value": "…"}}}}}
//
// A relative path of a secret begins at the folder of the configuration.
// Every member but "definitions" is optional. Unknown and duplicate members are
// refused. The error names all faults, one a line, and no secret.
func Load(path string) (*Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read sandbox definitions: %w; name a JSON file that is there and can be read", err)
	}
	cfg, err := parse(raw, filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("check sandbox definitions in %s: %w", path, err)
	}
	return cfg, nil
}

// parse checks definitions; dir is where relative names of files begin.
func parse(raw []byte, dir string) (*Config, error) {
	var file fileConfig
	if err := decode(raw, &file); err != nil {
		return nil, err
	}
	faults := unknownFaults(file.Unknown)
	cfg := &Config{defaultName: file.Default, definitions: map[string]snapshot.Definition{}}
	if cfg.defaultName == "" {
		cfg.defaultName = DefaultName
	}
	for _, name := range slices.Sorted(maps.Keys(file.Definitions)) {
		for _, err := range cfg.add(name, file.Definitions[name], dir) {
			faults = append(faults, fmt.Errorf("definition %q: %w", name, err))
		}
	}
	if _, ok := file.Definitions[cfg.defaultName]; !ok {
		faults = append(faults, fmt.Errorf(`the default definition %q is not among "definitions" %q`, cfg.defaultName, cfg.names()))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return cfg, nil
}

// add takes one definition and returns what is wrong with it.
func (c *Config) add(name string, raw jsontext.Value, dir string) []error {
	var d fileDefinition
	if err := decode(raw, &d); err != nil {
		return []error{err}
	}
	faults := unknownFaults(d.Unknown)
	if strings.TrimSpace(name) == "" || len(name) > snapshot.MaxIDBytes {
		faults = append(faults, fmt.Errorf("a name has 1 to %d bytes and is not blank", snapshot.MaxIDBytes))
	}
	def, err := d.domain(name)
	faults = append(faults, err...)
	for _, key := range slices.Sorted(maps.Keys(d.Secrets)) {
		secret, err := loadSecret(d.Secrets[key], dir)
		if err != nil {
			faults = append(faults, fmt.Errorf("secret %q: %w", key, err))
			continue
		}
		c.secrets = append(c.secrets, secret)
	}
	c.definitions[name] = def
	return faults
}

func (d fileDefinition) domain(name string) (def snapshot.Definition, faults []error) {
	def = snapshot.Definition{Name: name, Provider: d.Provider, Reuse: d.Reuse, Policy: snapshot.Policy{
		Include: d.Include, Exclude: d.Exclude, IncludeCredentials: d.IncludeCredentials, Strict: d.Strict,
		NoDefaultExcludes: d.DefaultExcludes != nil && !*d.DefaultExcludes,
	}}
	if def.Provider == "" {
		def.Provider = LocalProvider
	}
	if def.Reuse == "" {
		def.Reuse = ReuseThread
	}
	if !slices.Contains(providerNames, def.Provider) {
		faults = append(faults, fmt.Errorf("provider %q is unknown; known are %q", def.Provider, providerNames))
	}
	if def.Reuse != ReuseThread && def.Reuse != ReuseNone {
		faults = append(faults, fmt.Errorf("reuse %q is neither %q nor %q", def.Reuse, ReuseThread, ReuseNone))
	}
	if d.SnapshotMaxAge != "" {
		age, err := time.ParseDuration(d.SnapshotMaxAge)
		if err != nil || age <= 0 {
			faults = append(faults, fmt.Errorf("snapshotMaxAge %q is not a positive duration like \"24h\"", d.SnapshotMaxAge))
		}
		def.SnapshotMaxAge = age
	}
	return def, append(faults, patternFaults(def.Policy)...)
}

func patternFaults(p snapshot.Policy) (faults []error) {
	for _, pattern := range slices.Concat(p.Include, p.Exclude) {
		if _, err := patternmatcher.New([]string{pattern}); err != nil || strings.TrimSpace(pattern) == "" {
			faults = append(faults, fmt.Errorf("pattern %q is not in the .dockerignore dialect", pattern))
		}
	}
	return faults
}

func loadSecret(raw jsontext.Value, dir string) (Secret, error) {
	var source secretSource
	if err := json.Unmarshal(raw, &source, json.RejectUnknownMembers(true)); err != nil {
		// The library's text may quote the value.
		return Secret{}, errors.New(`give an object with exactly one of "env", "file" and "value", a string`)
	}
	return source.resolve(dir)
}

// decode is strict about duplicates and types. Unknown members are collected by
// the targets, so that all of them can be named.
func decode(raw []byte, into any) error {
	err := json.Unmarshal(raw, into)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return fmt.Errorf("member %q stands there twice", e.JSONPointer.LastToken())
		}
		return fmt.Errorf("byte %d is not JSON: %w", e.ByteOffset, e.Err)
	}
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		return fmt.Errorf("the value at %q has the wrong type %s; a Go %s is needed", "/"+strings.TrimPrefix(string(e.JSONPointer), "/"), e.JSONKind, e.GoType)
	}
	return fmt.Errorf("decode: %w", err)
}

func unknownFaults(unknown map[string]jsontext.Value) (faults []error) {
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		faults = append(faults, fmt.Errorf("member %q is unknown", name))
	}
	return faults
}
