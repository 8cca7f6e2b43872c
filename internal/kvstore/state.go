package kvstore

import (
	"context"
	"encoding/json"

	jsonv2 "github.com/go-json-experiment/json"

	"sandkeep/internal/snapshot"
)

// headID is a checkpoint id that is null in JSON when there is none.
type headID snapshot.CheckpointID

func (h headID) MarshalJSON() ([]byte, error) {
	if h == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(h))
}

// threadState is the value of a thread's key. Gen counts changes of the head,
// Revision saves of the conversation. DeletedAt, by the clock of the worker that
// deleted the thread, is there only with Deleted.
type threadState struct {
	Head      headID        `json:"head"`
	Depth     int64         `json:"depth"`
	Fence     uint64        `json:"fence"`
	Gen       uint64        `json:"gen"`
	Messages  snapshot.List `json:"messages"`
	Revision  int64         `json:"revision"`
	Deleted   bool          `json:"deleted,omitempty"`
	DeletedAt int64         `json:"deletedAt,omitempty"` // epoch milliseconds
}

// thread is a thread state as it was read. An absent one has sequence 0 and an
// empty state.
type thread struct {
	threadState
	id     snapshot.ThreadID
	seq    uint64
	exists bool
}

func (t thread) live() bool { return t.exists && !t.Deleted }

// pointer leads to the slot of a checkpoint.
type pointer struct {
	Thread snapshot.ThreadID `json:"thread"`
	Depth  int64             `json:"depth"`
}

// storeInfo is the value of the key "store".
type storeInfo struct {
	Format  int    `json:"format"`
	StoreID string `json:"storeId"`
}

func (s *Store) readThread(ctx context.Context, id snapshot.ThreadID) (thread, error) {
	e, err := s.kv.get(ctx, threadKey(id))
	if err != nil {
		return thread{}, err
	}
	return decodeThread(id, e)
}

func decodeThread(id snapshot.ThreadID, e entry) (th thread, err error) {
	th = thread{id: id, seq: e.seq, exists: e.live}
	if e.live {
		err = decode(e, &th.threadState)
	}
	return th, err
}

// putThread is the compare-and-set of a thread. It returns the new sequence.
func (s *Store) putThread(ctx context.Context, th thread, next threadState) (uint64, error) {
	data, err := json.Marshal(next)
	if err != nil {
		return 0, err
	}
	return s.kv.put(ctx, write{key: threadKey(th.id), value: data, expect: th.seq})
}

// touch writes the same content again. It fails every commit in flight that
// was prepared before it.
func (s *Store) touch(ctx context.Context, th thread) (uint64, error) {
	return s.putThread(ctx, th, th.threadState)
}

// slot is a record as it was read, nil if the slot is empty.
type slot struct {
	rec *snapshot.Record
	seq uint64
}

func (s *Store) readSlot(ctx context.Context, id snapshot.ThreadID, depth int64) (slot, error) {
	e, err := s.kv.get(ctx, slotKey(id, depth))
	if err != nil || !e.live {
		return slot{seq: e.seq}, err
	}
	sl := slot{rec: new(snapshot.Record), seq: e.seq}
	return sl, decode(e, sl.rec)
}

// decode reads a value of format 1, which is closed: an unknown member means
// another version or damage.
func decode(e entry, into any) error {
	err := jsonv2.Unmarshal(e.value, into, jsonv2.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	return snapshot.Errorf(snapshot.FormatUnsupported, "the stored value of %s is damaged or of a newer version; run the newest version of the agent", shorten(e.key)).Because(err)
}

// decodeSome reads some members of a value that this format may hold.
func decodeSome(e entry, into any) error {
	if err := json.Unmarshal(e.value, into); err != nil {
		return badKey(e.key, err)
	}
	return nil
}
