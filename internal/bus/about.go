package bus

import (
	"reflect"
	"strings"

	"sandkeep/internal/snapshot"
)

// about calls note with the threads and checkpoints that a request and its reply
// name, under their names on the wire without "Id". What lists hold is left out.
func about(request, reply any, note func(key, id string)) {
	seen := map[string]bool{}
	add := func(key, id string) {
		if id != "" && !seen[key] {
			seen[key] = true
			note(key, id)
		}
	}
	ids, _ := request.(map[string]string) // what is left of a request that was let go
	for key, id := range ids {
		add(key, id)
	}
	idsIn(reflect.ValueOf(request), "", add)
	if r, ok := reply.(checkpointReply); ok {
		reply = r.checkpoint
	}
	cp, ok := reply.(*snapshot.Checkpoint)
	switch {
	case !ok:
		idsIn(reflect.ValueOf(reply), "", add)
	case cp == nil:
	case seen["destinationThread"]: // a fork, perhaps with an id that was made for it
		add("destinationCheckpoint", string(cp.ID))
	default:
		add("thread", string(cp.ThreadID))
		add("checkpoint", string(cp.ID))
	}
}

// idsIn finds the ids in a value of that name.
func idsIn(v reflect.Value, name string, add func(key, id string)) {
	for v.Kind() == reflect.Pointer {
		v = v.Elem() // of nil: no value
	}
	switch {
	case !v.IsValid():
	case v.Type() == reflect.TypeFor[snapshot.CheckpointID]() && name == "id":
		add("checkpoint", v.String())
	case v.Type() == reflect.TypeFor[snapshot.ThreadID]() || v.Type() == reflect.TypeFor[snapshot.CheckpointID]():
		add(strings.TrimSuffix(name, "Id"), v.String())
	case v.Kind() == reflect.Struct:
		for field, inner := range v.Fields() {
			if tag, _, _ := strings.Cut(field.Tag.Get("json"), ","); field.IsExported() && tag != "-" {
				idsIn(inner, tag, add)
			}
		}
	}
}
