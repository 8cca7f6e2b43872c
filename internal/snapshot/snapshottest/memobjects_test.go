package snapshottest_test

import (
	"testing"

	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

func TestMemoryObjects(t *testing.T) {
	snapshottest.RunObjectsContract(t, func(*testing.T) snapshot.Objects { return snapshottest.NewMemoryObjects() })
}
