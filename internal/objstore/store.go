package objstore

import (
	"context"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

// Options of a Store.
type Options struct {
	Store       string // prefix of the bucket names
	MemoryBytes int64  // budget for contents, shared by all saves and reads; 64 MiB by default
	CacheBytes  int64  // of it, at most, for unpacked packs; half of it by default: two packs at least, those of neighbouring files
}

// Store reads and writes the objects of one store. It is safe for concurrent
// use and needs no closing; the connection stays its maker's.
type Store struct {
	api
	store    string
	memory   *budget
	cache    *packCache
	suspects objectSet          // proved unreadable: the next put looks at their bytes before it believes their info
	sparse   sparseNotes        // packs of which too little is used: the next save stores that anew
	encoders chan *zstd.Encoder // those that are idle, nil before the first use
	maxEntry int                // bytes of a page with one entry, which is a content
	dec      *zstd.Decoder
}

var _ snapshot.Objects = (*Store)(nil)

// Open binds to the buckets that Init made. It never makes one: a missing
// bucket is StoreUnavailable.
func Open(ctx context.Context, js jetstream.JetStream, opts Options) (*Store, error) {
	if !storeName.MatchString(opts.Store) {
		return nil, snapshot.Errorf(snapshot.BadRequest, "store name %q is not 1 to 200 of A-Z a-z 0-9 _ -", opts.Store)
	}
	s := &Store{api: newAPI(js), store: opts.Store, maxEntry: maxContent}
	if limit := s.nc.MaxPayload(); limit > 0 && limit < chunkSize+headerRoom {
		return nil, snapshot.Errorf(snapshot.StoreUnavailable,
			"the server's max_payload is %d bytes, at least %d are needed; raise it to 1 MiB", limit, chunkSize+headerRoom)
	}
	for _, b := range buckets {
		if err := s.call(ctx, "STREAM.INFO", s.store+b.suffix, struct{}{}, &struct{}{}); err != nil {
			return nil, fmt.Errorf("open bucket %s: %w", s.store+b.suffix, err)
		}
	}
	if opts.MemoryBytes == 0 {
		opts.MemoryBytes = defaultMemory
	}
	if opts.CacheBytes == 0 {
		opts.CacheBytes = opts.MemoryBytes / 2
	}
	s.memory = newBudget(opts.MemoryBytes)
	s.cache = newPackCache(func() int64 { return min(opts.CacheBytes, s.memory.spare()) }, s.loadPack)
	return s, s.openCodecs()
}

func (s *Store) packs() string     { return s.store + "-packs" }
func (s *Store) artifacts() string { return s.store + "-artifacts" }
func (s *Store) files() string     { return s.store + "-files" }
func (s *Store) uploads() string   { return s.store + "-uploads" }
func (s *Store) replies() string   { return s.store + "-replies" }

// objectSet is objects that this process has noted.
type objectSet struct {
	mu    sync.Mutex
	names map[string]bool // "<bucket>/<name>"
}

const maxNoted = 10_000

// add forgets all others when there are too many.
func (s *objectSet) add(bucket, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil || len(s.names) >= maxNoted {
		s.names = map[string]bool{}
	}
	s.names[bucket+"/"+name] = true
}

func (s *objectSet) drop(bucket, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, bucket+"/"+name)
}

func (s *objectSet) has(bucket, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[bucket+"/"+name]
}
