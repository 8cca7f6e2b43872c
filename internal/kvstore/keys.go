package kvstore

import (
	"strconv"

	"sandkeep/internal/snapshot"
)

const (
	storeKey        = "store"
	anyInstanceKey  = "instance.*"
	firstSequence   = 1
	absent          = 0 // the sequence expected of a key that was never written
	removalMarkerID = "PURGE"
)

// token is an identifier as one part of a key.
func token[T ~string](id T) string { return snapshot.EscapeToken(string(id)) }

func threadKey(t snapshot.ThreadID) string       { return "thread." + token(t) }
func pointerKey(id snapshot.CheckpointID) string { return "checkpoint." + token(id) }
func writerKey(t snapshot.ThreadID) string       { return "writer." + token(t) }
func lockKey(n snapshot.LockName) string         { return "lock." + token(n) }
func instanceKey(k snapshot.InstanceKey) string  { return "instance." + token(k) }
func anyArtifactKey(t snapshot.ThreadID) string  { return "artifact." + token(t) + ".*" }

func slotKey(t snapshot.ThreadID, d int64) string {
	return "log." + token(t) + "." + strconv.FormatInt(d, 10)
}

func artifactKey(t snapshot.ThreadID, id snapshot.ArtifactID) string {
	return "artifact." + token(t) + "." + token(id)
}
