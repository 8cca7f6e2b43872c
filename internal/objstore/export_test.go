package objstore

import (
	"context"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"sandkeep/internal/snapshot"
)

const (
	ChunkSize  = chunkSize
	MaxContent = maxContent
	MaxPack    = maxPack
	PieceBytes = pieceBytes
)

type Send = func(context.Context, *nats.Msg) (*nats.Msg, error)

// Intercept puts fault between the store and the server.
func (s *Store) Intercept(fault func(ctx context.Context, msg *nats.Msg, send Send) (*nats.Msg, error)) {
	send := s.request
	s.request = func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) { return fault(ctx, msg, send) }
}

// LimitEntry makes files too large that a real store has room to describe.
func (s *Store) LimitEntry(bytes int) { s.maxEntry = bytes }

// ForgetCache makes the next reads ask the server again.
func (s *Store) ForgetCache() { s.cache = newPackCache(s.cache.room, s.loadPack) }

// Held is what is taken of the budget, what the cache has, and the buffers that
// nobody uses.
func (s *Store) Held() (taken, cached int64, idle int) {
	s.cache.mu.Lock()
	cached = s.cache.used
	s.cache.mu.Unlock()
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	return s.memory.taken, cached, len(s.memory.idle)
}

// SavesWait reports whether a save waits for what saves may hold.
func (s *Store) SavesWait() bool {
	if s.memory.held.TryAcquire(1) {
		s.memory.held.Release(1)
		return false
	}
	return true
}

// CountLoads counts the packs that are fetched from now on.
func (s *Store) CountLoads() func() int {
	var mu sync.Mutex
	n := 0
	s.cache = newPackCache(s.cache.room, func(ctx context.Context, d snapshot.Digest) ([]byte, error) {
		mu.Lock()
		n++
		mu.Unlock()
		return s.loadPack(ctx, d)
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// ReadPage reads the bytes of a piece.
func (s *Store) ReadPage(ctx context.Context, p snapshot.Piece) ([]byte, error) {
	return s.content(ctx, p)
}

func ChunkSubject(bucket, nuid string) string { return chunkSubject(bucket, nuid) }
func InfoSubject(bucket, name string) string  { return infoSubject(bucket, name) }

var (
	EncodeEntries = encodeEntries
	DecodeEntries = decodeEntries
	EncodeRefs    = encodeRefs
	DecodeRefs    = decodeRefs
	EncodeItems   = encodeItems
)

// DecodeItemPages puts items together from pages.
func DecodeItemPages(pages ...[]byte) (items [][]byte, err error) {
	var r itemReader
	for _, page := range pages {
		more, err := r.add(page)
		if err != nil {
			return nil, err
		}
		items = append(items, more...)
	}
	return items, nil
}

// Unpack decompresses a pack with the limits of a Store.
func Unpack(stored []byte) ([]byte, error) {
	dec, err := newDecoder()
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	return unpack(dec, stored)
}

// Squeeze compresses a pack's bytes as a save does.
func (s *Store) Squeeze(ctx context.Context, data []byte) ([]byte, error) {
	return s.squeeze(ctx, append(make([]byte, packRoom, packRoom+len(data)), data...))
}

// Zip compresses any amount of bytes.
func Zip(data []byte) []byte {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	defer enc.Close()
	return enc.EncodeAll(data, nil)
}

// Plain writes a manifest without a parent.
func (s *Store) Plain(ctx context.Context, entries []snapshot.Entry) (snapshot.List, error) {
	w, err := s.newListWriter(ctx, snapshot.List{}, nil)
	if err != nil {
		return snapshot.List{}, err
	}
	rows := inlineOr[snapshot.Entry]{cutter: cutter[snapshot.Entry]{kind: entryRows, out: pages(w, entryRows)}}
	for _, e := range entries {
		if err := rows.add(e); err != nil {
			return snapshot.List{}, err
		}
	}
	return rows.finish(w, int64(len(entries)))
}

// Leaves are the pages of a manifest.
func (s *Store) Leaves(ctx context.Context, list snapshot.List) (refs []snapshot.PageRef, err error) {
	err = s.leaves(ctx, list, pathRange{}, func(ref snapshot.PageRef, leaf bool) (bool, error) {
		if leaf {
			refs = append(refs, ref)
		}
		return true, nil
	})
	return refs, err
}
