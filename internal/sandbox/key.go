package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/gowebpki/jcs"

	"sandkeep/internal/snapshot"
)

// keyParts is what an instance key stands for. Its canonical JSON (RFC 8785) is
// a format: a change would lose every sandbox that is recorded.
type keyParts struct {
	Thread     snapshot.ThreadID `json:"thread"`
	Definition string            `json:"definition"`
	Provider   string            `json:"provider"`
	Workspace  string            `json:"workspace"`
	Tenant     snapshot.Tenant   `json:"tenant"`
}

// workspaceParts is the part of a definition that decides what a sandbox
// holds. Secrets, reuse and strictness have no part in it.
type workspaceParts struct {
	Include            []string `json:"include"`
	Exclude            []string `json:"exclude"`
	DefaultExcludes    bool     `json:"defaultExcludes"`
	IncludeCredentials bool     `json:"includeCredentials"`
}

// key is the SHA-256 in hex over the canonical JSON of the parts.
func key(thread snapshot.ThreadID, def snapshot.Definition, tenant snapshot.Tenant) snapshot.InstanceKey {
	p := def.Policy
	workspace := canonicalHash(workspaceParts{
		Include: append([]string{}, p.Include...), Exclude: append([]string{}, p.Exclude...),
		DefaultExcludes: !p.NoDefaultExcludes, IncludeCredentials: p.IncludeCredentials,
	})
	return snapshot.InstanceKey(canonicalHash(keyParts{
		Thread: thread, Definition: def.Name, Provider: def.Provider, Workspace: workspace, Tenant: tenant,
	}))
}

func canonicalHash(v any) string {
	raw, err := json.Marshal(v)
	if err == nil {
		raw, err = jcs.Transform(raw)
	}
	if err != nil {
		// Structs of strings and booleans always have a canonical form.
		panic(fmt.Sprintf("canonical JSON of %T: %v", v, err))
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
