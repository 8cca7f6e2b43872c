package objstore

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

const (
	batchBytes  = 4 << 20 // asked for at once
	batchChunks = 32
	idleLimit   = 15 * time.Second // for one chunk; there is no limit for a whole object
	maxStalls   = 5                // idle limits in a row
	glance      = time.Second      // how often a waiting reader looks at the connection
)

func infoDigest(d snapshot.Digest) string {
	return "SHA-256=" + base64.URLEncoding.EncodeToString(d[:])
}

// info reads an object's info from the leader; nil if there is no such object.
// seq is 0 only if there was none ever: a deleted object has a sequence.
func (s *Store) info(ctx context.Context, bucket, name string) (info *jetstream.ObjectInfo, seq uint64, err error) {
	msg, err := s.last(ctx, bucket, infoSubject(bucket, name))
	if err != nil || msg == nil {
		return nil, 0, err
	}
	info = &jetstream.ObjectInfo{}
	if json.Unmarshal(msg.Data, info) != nil || info.Deleted || info.NUID == "" || info.Size > math.MaxInt64 {
		return nil, msg.Seq, nil
	}
	info.Name = name // whatever it says itself
	return info, msg.Seq, nil
}

// openObject finds an object and streams its bytes; MissingBlob if there is
// none. Wrong bytes are the error of the last Read.
func (s *Store) openObject(ctx context.Context, bucket, name string) (*objectReader, error) {
	info, _, err := s.info(ctx, bucket, name)
	if err != nil {
		return nil, fmt.Errorf("open object %s: %w", name, err)
	}
	if info == nil {
		return nil, missing(bucket, name)
	}
	return s.readObject(ctx, bucket, info), nil
}

func (s *Store) readObject(ctx context.Context, bucket string, info *jetstream.ObjectInfo) *objectReader {
	return &objectReader{
		s: s, ctx: ctx, bucket: bucket, info: info,
		subject: chunkSubject(bucket, info.NUID), from: 1, left: info.Size, sum: sha256.New(),
	}
}

// readBack reads an object to its end and keeps nothing.
func (s *Store) readBack(ctx context.Context, bucket string, info *jetstream.ObjectInfo) error {
	r := s.readObject(ctx, bucket, info)
	defer r.Close()
	_, err := io.Copy(io.Discard, r)
	return err
}

// all reads what is left into memory, and checks it.
func (r *objectReader) all() ([]byte, error) {
	data := make([]byte, r.left)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, err
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF { // the digest is checked here
		return nil, err
	}
	return data, nil
}

// objectReader streams the chunks of an object in batches of direct gets, and
// asks the leader when a batch has less than the info promises.
type objectReader struct {
	s       *Store
	ctx     context.Context
	bucket  string
	info    *jetstream.ObjectInfo
	subject string

	from  uint64    // sequence to go on at
	left  uint64    // bytes that are still to come
	sum   hash.Hash // nil: the caller checks the bytes
	chunk []byte    // not yet handed out
	err   error

	sub     *nats.Subscription // of the batch under way
	inbox   chan *nats.Msg     // what came of it
	pending int                // its chunks that are still to come
	before  uint64             // sequence of its newest chunk, 0 before the first
	link    uint64             // reconnects when it was asked for
}

func (r *objectReader) Read(p []byte) (int, error) {
	for len(r.chunk) == 0 && r.err == nil {
		r.chunk, r.err = r.advance()
	}
	if len(r.chunk) > 0 {
		n := copy(p, r.chunk)
		r.chunk = r.chunk[n:]
		return n, nil
	}
	return 0, r.err
}

// Close ends the batch under way.
func (r *objectReader) Close() error {
	r.drop()
	if r.err == nil {
		r.err = errors.New("read of a closed object")
	}
	r.chunk = nil
	return nil
}

func (r *objectReader) advance() ([]byte, error) {
	if r.left == 0 {
		r.drop()
		if want := r.info.Digest; r.sum != nil && want != "" && want != infoDigest(snapshot.Digest(r.sum.Sum(nil))) {
			return nil, r.damaged("its bytes have another digest")
		}
		return nil, io.EOF
	}
	data, err := r.fetch()
	if err != nil {
		r.drop()
		return nil, err
	}
	if uint64(len(data)) > r.left {
		return nil, r.damaged("it has more bytes than its info says")
	}
	r.left -= uint64(len(data))
	if r.sum != nil {
		r.sum.Write(data)
	}
	return data, nil
}

func (r *objectReader) damaged(reason string) error {
	r.drop()
	r.s.suspects.add(r.bucket, r.info.Name)
	return invalid(fmt.Sprintf("object %q in bucket %q", r.info.Name, r.bucket), "%s", reason)
}

// fetch returns the next chunk. Each round may take an idle limit.
func (r *objectReader) fetch() ([]byte, error) {
	var err error
	for range maxStalls {
		var msg *nats.Msg
		if msg, err = r.receive(); err == nil {
			switch msg.Header.Get("Status") {
			case "":
				if r.follows(msg) {
					return r.accept(msg)
				}
				err = errors.New("a chunk on its way was lost")
			case "204", "404": // the replica that answered has no more
				r.drop()
				return r.askLeader()
			default:
				err = fmt.Errorf("status %s %s", msg.Header.Get("Status"), msg.Header.Get("Description"))
			}
		}
		if r.ctx.Err() != nil {
			return nil, r.ctx.Err()
		}
		r.drop()
		pause(r.ctx, lastWait)
	}
	return nil, settled(r.ctx, fmt.Errorf("%w: %w", errUnknown, err))
}

// follows reports whether a chunk comes right after the one before in its batch.
func (r *objectReader) follows(msg *nats.Msg) bool {
	said := msg.Header.Get(jetstream.LastSequenceHeader)
	return said == "" || said == strconv.FormatUint(r.before, 10)
}

func (r *objectReader) accept(msg *nats.Msg) ([]byte, error) {
	seq, err := strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil || seq < r.from {
		return nil, r.damaged("a chunk came without its place")
	}
	r.from, r.before = seq+1, seq
	if r.pending--; r.pending == 0 {
		r.drop()
	}
	return msg.Data, nil
}

func (r *objectReader) receive() (*nats.Msg, error) {
	if r.sub == nil {
		if err := r.ask(); err != nil {
			return nil, err
		}
	}
	look := time.NewTicker(glance)
	defer look.Stop()
	for waited := time.Duration(0); ; waited += glance {
		select {
		case msg := <-r.inbox:
			return msg, nil
		case <-r.ctx.Done():
			return nil, r.ctx.Err()
		case <-look.C:
			if waited >= idleLimit || r.s.nc.IsClosed() || r.s.nc.Stats().Reconnects != r.link { // what was on its way is lost
				return nil, context.DeadlineExceeded
			}
		}
	}
}

func (r *objectReader) ask() error {
	size := uint64(chunkSize)
	if o := r.info.Opts; o != nil && o.ChunkSize > 0 {
		size = uint64(o.ChunkSize)
	}
	r.pending = int(min(max((r.left+size-1)/size, 1), batchChunks, max(batchBytes/size, 1)))
	body, err := json.Marshal(map[string]any{
		"next_by_subj": r.subject, "seq": r.from, "batch": r.pending, "max_bytes": batchBytes,
	})
	if err != nil {
		return err
	}
	r.link, r.before = r.s.nc.Stats().Reconnects, 0
	inbox := r.s.nc.NewInbox()
	r.inbox = make(chan *nats.Msg, batchChunks+1) // all of it, and its end: a full channel loses messages
	if r.sub, err = r.s.nc.ChanSubscribe(inbox, r.inbox); err != nil {
		return err
	}
	return r.s.nc.PublishRequest(r.s.prefix+"DIRECT.GET."+streamName(r.bucket), inbox, body)
}

func (r *objectReader) drop() {
	if r.sub != nil {
		_ = r.sub.Unsubscribe() // fails only when the connection is gone
		r.sub = nil
	}
}

func (r *objectReader) askLeader() ([]byte, error) {
	msg, err := r.s.next(r.ctx, r.bucket, r.subject, r.from)
	if err != nil {
		return nil, err
	}
	if msg == nil {
		r.s.suspects.add(r.bucket, r.info.Name)
		return nil, missing(r.bucket, r.info.Name)
	}
	r.from = msg.Seq + 1
	return msg.Data, nil
}
