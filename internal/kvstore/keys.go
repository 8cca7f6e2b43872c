package kvstore

import (
	"strconv"
	"strings"

	"sandkeep/internal/snapshot"
)

const (
	storeKey        = "store"
	anyKey          = ">"
	anyInstanceKey  = "instance.*"
	anyThreadKey    = "thread.*"
	anySlotKey      = "log.*.*"
	anyPointerKey   = "checkpoint.*"
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

// threadOf is the thread that a key is about: its second part.
func threadOf(key string) (snapshot.ThreadID, error) {
	_, rest, _ := strings.Cut(key, ".")
	name, _, _ := strings.Cut(rest, ".")
	id, err := snapshot.UnescapeToken(name)
	return snapshot.ThreadID(id), err
}

func slotKey(t snapshot.ThreadID, d int64) string {
	return "log." + token(t) + "." + strconv.FormatInt(d, 10)
}

func artifactKey(t snapshot.ThreadID, id snapshot.ArtifactID) string {
	return "artifact." + token(t) + "." + token(id)
}
