package snapshottest_test

import (
	"testing"
	"time"

	"sandkeep/internal/leaktest"
	"sandkeep/internal/snapshot/snapshottest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestMemory(t *testing.T) {
	open := func(t *testing.T) snapshottest.Stores { return snapshottest.NewMemory(2*time.Second, nil) }
	t.Run("checkpoints", func(t *testing.T) { snapshottest.CheckpointsContract(t, open) })
	t.Run("leases", func(t *testing.T) { snapshottest.LeasesContract(t, open) })
	t.Run("instances", func(t *testing.T) { snapshottest.InstancesContract(t, open) })
	t.Run("artifacts", func(t *testing.T) { snapshottest.ArtifactsContract(t, open) })
}
