package workspace

import (
	"strings"

	"sandkeep/internal/snapshot"
)

// manifestCheck refuses a list of entries that is not the manifest of any tree.
// It holds only the leaves that a later path could lie under.
type manifestCheck struct {
	last   string
	leaves []string // each a text prefix of the next and of last
}

// next checks one entry against those before it. The error carries InvalidEntry.
func (m *manifestCheck) next(e snapshot.Entry) error {
	if err := snapshot.ValidatePath(e.Path); err != nil {
		return invalid(e, "has no valid path").Because(err)
	}
	if e.Path <= m.last {
		return invalid(e, "is not behind the entry before it")
	}
	m.last = e.Path
	for len(m.leaves) > 0 && !strings.HasPrefix(e.Path, m.leaves[len(m.leaves)-1]) {
		m.leaves = m.leaves[:len(m.leaves)-1]
	}
	// Only the longest leaf can be a parent: a shorter one was that of the longest.
	if n := len(m.leaves); n > 0 && e.Path[len(m.leaves[n-1])] == '/' {
		return invalid(e, "lies under a file or symbolic link")
	}
	switch {
	case e.Kind == snapshot.KindDir:
		return nil
	case e.Kind == snapshot.KindFile && e.Size < 0:
		return invalid(e, "has a negative size")
	case e.Kind == snapshot.KindSymlink && (e.Target == "" || strings.Contains(e.Target, "\x00")):
		return invalid(e, "has no valid target")
	case e.Kind != snapshot.KindFile && e.Kind != snapshot.KindSymlink:
		return invalid(e, "is of no known kind")
	}
	m.leaves = append(m.leaves, e.Path)
	return nil
}

func invalid(e snapshot.Entry, fault string) *snapshot.Error {
	return snapshot.Errorf(snapshot.InvalidEntry, "entry %q %s; the checkpoint can't be restored", e.Path, fault)
}
