package kvstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"sandkeep/internal/snapshot"
)

// The reserve is a key that holds nothing but room. A full store gives it up to
// what frees room, a deletion, which may itself have to write first: its
// tombstone, or a state that a replicated server has no room to replace.
const (
	reserveKey = "reserve"
	minReserve = 512 // less is of no use
	perMessage = 64  // what a server adds to a message at most
	maxReserve = 64 << 10
	maxTakes   = 16 // looks at the reserve of one write: others may take the room each time
)

// reserveSize is the reserve of a bucket with a limit, or with none of its own.
func reserveSize(maxBytes int64) int {
	if maxBytes <= 0 {
		return maxReserve
	}
	return int(min(maxBytes/32, maxReserve))
}

// putFreeing is put for what frees room: on a full store it takes a part of the
// place of the reserve.
func (s *Store) putFreeing(ctx context.Context, w write) (uint64, error) {
	seq, err := s.kv.put(ctx, w)
	room, gone := 0, 0
	for try := 0; errors.Is(err, snapshot.StoreFull) && gone < 2 && try < maxTakes; try++ { // who took the reserve may be about to make it again
		held, failed := s.kv.get(ctx, reserveKey)
		if failed != nil {
			break
		}
		if gone++; held.live {
			room, gone = max(room, len(held.value)), 0
			failed = s.kv.purge(ctx, reserveKey, held.seq)
		}
		if seq, err = s.kv.put(ctx, w); failed != nil {
			break
		}
	}
	if room > 0 {
		if !errors.Is(err, snapshot.StoreFull) {
			room -= s.kv.message(w).Size() + perMessage
		}
		late, done := s.cleanup(ctx)
		defer done()
		s.kv.fillReserve(late, room)
	}
	return seq, err
}

// putThreadFreeing is putThread for what frees room.
func (s *Store) putThreadFreeing(ctx context.Context, th thread, next threadState) (uint64, error) {
	data, err := json.Marshal(next)
	if err != nil {
		return 0, err
	}
	return s.putFreeing(ctx, write{key: threadKey(th.id), value: data, expect: th.seq})
}

// fillReserve makes the reserve as large as that, or as large as there is room
// for. What it can't do is left to the next sweep.
func (b *bucket) fillReserve(ctx context.Context, size int) {
	held, err := b.get(ctx, reserveKey)
	if err != nil {
		return
	}
	for ; size >= minReserve && size > len(held.value); size /= 2 {
		_, err := b.put(ctx, write{key: reserveKey, value: bytes.Repeat([]byte{' '}, size), expect: held.seq})
		if !errors.Is(err, snapshot.StoreFull) {
			return
		}
	}
}
