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
	info, err := l.look(name)
	switch {
	case err != nil:
		return snapshot.Sandbox{}, err
	case info == nil:
		return snapshot.Sandbox{}, missing(id)
	case !info.IsDir():
		return snapshot.Sandbox{}, missing(id).Because(fmt.Errorf("it is not a directory but %s", info.Mode().Type()))
	}
	return snapshot.Sandbox{Dir: filepath.Join(l.root, name)}, nil
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
	id := LocalID(l.node, name)
	info, err := l.look(name)
	switch {
	case err != nil:
		return "", err
	case info == nil:
		return "", snapshot.Errorf(snapshot.MissingReusableSandbox,
			"node %q has no directory %q in its sandbox root; name the node that has it, or make it", l.node, name).With("providerSandboxId", id)
	case !info.IsDir():
		return "", snapshot.Errorf(snapshot.MissingReusableSandbox,
			"%q in the sandbox root of node %q is %s, not a directory; name a directory, or the node that has it", name, l.node, kind(info)).
			With("providerSandboxId", id)
	}
	return id, nil
}

func kind(info fs.FileInfo) string {
	switch info.Mode().Type() {
	case 0:
		return "a file"
	case fs.ModeSymlink:
		return "a link"
	}
	return "a special file"
}

// look looks at a valid name in the root, and returns nil if nothing is there.
func (l local) look(name string) (fs.FileInfo, error) {
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return nil, fmt.Errorf("open sandbox root: %w", err)
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for sandbox %q: %w", LocalID(l.node, name), err)
	}
	return info, nil
}

func missing(id string) *snapshot.Error {
	return snapshot.Errorf(snapshot.MissingReusableSandbox,
		"there is no sandbox %q to use; attach or restore one for the thread first", id).With("providerSandboxId", id)
}
