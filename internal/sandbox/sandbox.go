// Package sandbox knows the sandboxes of a node: their definitions, the keys
// under which instances are recorded, and the providers that make them
// available as directories.
package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sandkeep/internal/snapshot"
)

// Provider makes sandboxes of one kind available on this node.
type Provider interface {
	// Resume finds a running sandbox by the provider's own id and makes
	// nothing. An unknown id is MissingReusableSandbox.
	Resume(ctx context.Context, id, adapter string) (snapshot.Sandbox, error)
	// Node is the node that a sandbox lives on, "" if any node can reach it.
	Node(id string) snapshot.NodeName
}

// providerNames are the providers that a definition may name.
var providerNames = []string{LocalProvider}

// Registry implements snapshot.Sandboxes.
type Registry struct {
	config    *Config
	local     local
	providers map[string]Provider
}

var _ snapshot.Sandboxes = (*Registry)(nil)

// New returns the sandboxes of a node, whose local ones are the directories in
// root. The root is made if it is absent.
func New(config *Config, node snapshot.NodeName, root string) (*Registry, error) {
	if err := node.Validate(); err != nil {
		return nil, fmt.Errorf("check node name: %w", err)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("find sandbox root: %w", err)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("make sandbox root: %w", err)
	}
	dirs := local{node: node, root: root}
	return &Registry{config: config, local: dirs, providers: map[string]Provider{LocalProvider: dirs}}, nil
}

// Definition finds a definition, the default one for "".
func (r *Registry) Definition(name string) (snapshot.Definition, error) {
	if name == "" {
		name = r.config.defaultName
	}
	def, ok := r.config.definitions[name]
	if !ok {
		return snapshot.Definition{}, snapshot.Errorf(snapshot.MissingSandbox,
			"there is no sandbox definition %q; this node knows %q", name, r.config.names()).With("sandbox", name)
	}
	return def, nil
}

// Key computes the instance key of a thread's sandbox: the same in every
// process, another one when the thread, the definition's name, provider or
// workspace, or the tenant is another.
func (r *Registry) Key(thread snapshot.ThreadID, def snapshot.Definition, tenant snapshot.Tenant) snapshot.InstanceKey {
	return key(thread, def, tenant)
}

// Resume finds the sandbox that a record stands for. A record of another
// provider than the definition's is missing. One that lives on another node is
// NodeUnreachable: requests are passed to that node first, so this happens only
// when the record moved meanwhile, and the same request finds the new node.
func (r *Registry) Resume(ctx context.Context, rec snapshot.Instance, def snapshot.Definition, adapter string) (snapshot.Sandbox, error) {
	provider, ok := r.providers[rec.Provider]
	if !ok || rec.Provider != def.Provider {
		return snapshot.Sandbox{}, snapshot.Errorf(snapshot.MissingReusableSandbox,
			"sandbox %q is of provider %q and definition %q uses %q; attach or restore one for the thread first",
			rec.ProviderSandboxID, rec.Provider, def.Name, def.Provider).With("providerSandboxId", rec.ProviderSandboxID)
	}
	return provider.Resume(ctx, rec.ProviderSandboxID, adapter)
}

// Node is the node that the record's sandbox lives on; "" if any node can
// answer for it, as for a record that no provider knows.
func (r *Registry) Node(rec snapshot.Instance) snapshot.NodeName {
	provider, ok := r.providers[rec.Provider]
	if !ok {
		return ""
	}
	return provider.Node(rec.ProviderSandboxID)
}

// Adopt gives the providerSandboxId of the existing directory name under this
// node's sandbox root. A name that is not one of a directory directly in the
// root is InvalidPath, one of no directory MissingReusableSandbox.
func (r *Registry) Adopt(_ context.Context, name string) (string, error) {
	return r.local.adopt(name)
}
