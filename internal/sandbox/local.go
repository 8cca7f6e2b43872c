package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"sandkeep/internal/snapshot"
)

// LocalProvider is the provider of directories under a node's sandbox root.
const LocalProvider = "local"

// LocalID is the providerSandboxId of the directory name on a node.
func LocalID(node snapshot.NodeName, name string) string { return string(node) + "/" + name }

// ParseLocalID splits an id at its last '/', since node names may have slashes.
// The name is one that can't leave the sandbox root.
func ParseLocalID(id string) (snapshot.NodeName, string, error) {
	i := strings.LastIndexByte(id, '/')
	if i < 0 {
		return "", "", fmt.Errorf("sandbox id %q is not <node>/<name>", id)
	}
	node, name := snapshot.NodeName(id[:i]), id[i+1:]
	if err := node.Validate(); err != nil {
		return "", "", fmt.Errorf("parse sandbox id: %w", err)
	}
	// Without a slash a valid entry path is a single name.
	if err := snapshot.ValidatePath(name); err != nil {
		return "", "", fmt.Errorf("parse sandbox id: %w", err)
	}
	return node, name, nil
}

type local struct {
	node snapshot.NodeName
	root string
}

// Resume finds the directory. It follows no link: a link in the root would let
// a record name any directory of the machine.
func (l local) Resume(_ context.Context, id, _ string) (snapshot.Sandbox, error) {
	node, name, err := ParseLocalID(id)
	if err != nil {
		return snapshot.Sandbox{}, missing(id).Because(err)
	}
	if node != l.node {
		return snapshot.Sandbox{}, snapshot.Errorf(snapshot.NodeUnreachable,
			"sandbox %q lives on node %q and the request was answered by node %q; send it again", id, node, l.node).
			With("node", string(node))
	}
	return l.directory(name)
}

// Node is the node that the id names, "" for an id of another form.
func (l local) Node(id string) snapshot.NodeName {
	node, _, err := ParseLocalID(id)
	if err != nil {
		return ""
	}
	return node
}

// adopt gives the id of an existing directory in the root.
func (l local) adopt(name string) (string, error) {
	if err := snapshot.ValidatePath(name); err != nil {
		return "", err
	}
	if strings.Contains(name, "/") {
		return "", snapshot.Errorf(snapshot.InvalidPath,
			"sandbox name %q has a '/'; give the name of a directory that lies directly in the sandbox root", name)
	}
	if _, err := l.directory(name); err != nil {
		return "", err
	}
	return LocalID(l.node, name), nil
}

// directory looks at a valid name in the root.
func (l local) directory(name string) (snapshot.Sandbox, error) {
	id := LocalID(l.node, name)
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return snapshot.Sandbox{}, fmt.Errorf("open sandbox root: %w", err)
	}
	defer root.Close()
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENAMETOOLONG):
		return snapshot.Sandbox{}, missing(id).Because(err)
	case err != nil:
		return snapshot.Sandbox{}, fmt.Errorf("look for sandbox %q: %w", id, err)
	case !info.IsDir():
		return snapshot.Sandbox{}, missing(id).Because(fmt.Errorf("it is not a directory but %s", info.Mode().Type()))
	}
	return snapshot.Sandbox{Dir: filepath.Join(l.root, name)}, nil
}

func missing(id string) *snapshot.Error {
	return snapshot.Errorf(snapshot.MissingReusableSandbox,
		"there is no sandbox %q to use; attach or restore one for the thread first", id).With("providerSandboxId", id)
}
