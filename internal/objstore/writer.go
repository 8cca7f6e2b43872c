package objstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

const (
	chunkSize   = 512 << 10 // part of the format: an upload is continued at a multiple of it
	headerRoom  = 4 << 10   // for the headers of a chunk, below the server's max_payload
	maxRounds   = 12        // tries without any progress before an upload gives up
	cleanupTime = 5 * time.Second
)

// object is something to store. Its bytes must be the same at each open.
type object struct {
	bucket, name string
	nuid         string // token of the chunk subject
	digest       snapshot.Digest
	size         int64
	exact        bool // an info with another digest or size is not this object
	doubted      bool // the bytes of one that is there are read before it is believed
	open         func() (io.ReadCloser, error)
}

func (o object) chunks() int          { return int((o.size + chunkSize - 1) / chunkSize) }
func (o object) chunkSubject() string { return chunkSubject(o.bucket, o.nuid) }

// upload is the writing of one object. last, count and adopted are what is
// known of its chunk subject: the sequence of its last message, the number of
// messages, and whether some of them were found instead of acknowledged.
type upload struct {
	*Store
	object
	last    uint64
	count   int
	adopted bool
	named   bool   // its info was sent, perhaps without a reply
	judged  uint64 // sequence of the info that the last look found not to be good
}

// put stores an object unless it is there. When it returns without an error,
// the object is whole; stored tells whether this call made it so.
func (s *Store) put(ctx context.Context, o object) (stored bool, err error) {
	there, err := s.present(ctx, o)
	if err != nil || there {
		return false, err
	}
	return s.upload(ctx, o)
}

// upload stores an object that was not there a moment ago.
func (s *Store) upload(ctx context.Context, o object) (stored bool, err error) {
	u := &upload{Store: s, object: o}
	for round, most := 0, 0; ; round++ {
		err := u.attempt(ctx)
		switch {
		case err == nil:
			s.suspects.drop(o.bucket, o.name)
			return true, nil
		case errors.Is(err, errMoved), errors.Is(err, errUnknown):
		default:
			u.discard(ctx, err)
			return false, err
		}
		there, lookErr := u.look(ctx, errors.Is(err, errMoved))
		if lookErr != nil || there {
			return there && u.named, lookErr
		}
		if u.count > most {
			round, most = 0, u.count
		}
		if round >= maxRounds || ctx.Err() != nil {
			return false, settled(ctx, err)
		}
		pause(ctx, min(firstWait<<round, lastWait))
	}
}

// present asks the leader whether the object is whole.
func (s *Store) present(ctx context.Context, o object) (bool, error) {
	info, _, err := s.info(ctx, o.bucket, o.name)
	if err != nil || info == nil {
		return false, err
	}
	return s.isWhole(ctx, o, info)
}

// isWhole reports whether the info is that of the object, and the object whole.
func (s *Store) isWhole(ctx context.Context, o object, info *jetstream.ObjectInfo) (bool, error) {
	if o.exact && (info.Size != uint64(o.size) || info.Digest != infoDigest(o.digest)) {
		return false, nil
	}
	return s.whole(ctx, o.bucket, info, o.doubted)
}

// whole asks the leader for the number of the object's chunks. If it is doubted,
// or proved unreadable before, its bytes are read as well.
func (s *Store) whole(ctx context.Context, bucket string, info *jetstream.ObjectInfo, doubted bool) (bool, error) {
	n, err := s.count(ctx, bucket, chunkSubject(bucket, info.NUID))
	if err != nil || n < int(info.Chunks) {
		return false, err
	}
	if !doubted && !s.suspects.has(bucket, info.Name) {
		return true, nil
	}
	err = s.readBack(ctx, bucket, info)
	if unreadable(err) {
		return false, nil
	}
	if err == nil {
		s.suspects.drop(bucket, info.Name)
	}
	return err == nil, err
}

// look finds out where the upload stands, from the leader. While another
// writer of the same content makes progress it waits, since that is ours too.
func (u *upload) look(ctx context.Context, others bool) (there bool, err error) {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		info, judged, err := u.info(ctx, u.bucket, u.name)
		if err != nil {
			return false, err
		}
		if info != nil {
			if there, err := u.isWhole(ctx, u.object, info); err != nil || there {
				return there, err
			}
		}
		u.judged = judged
		msg, err := u.api.last(ctx, u.bucket, u.chunkSubject())
		if err != nil {
			return false, err
		}
		// The count is read after the last message: if that is still the last
		// one when the next chunk is accepted, the count was right as well.
		n, err := u.api.count(ctx, u.bucket, u.chunkSubject())
		if err != nil {
			return false, err
		}
		var seq uint64
		if msg != nil {
			seq = msg.Seq
		}
		moving := others && (seq != u.last || n != u.count)
		u.last, u.count, u.adopted = seq, n, n > 0
		if !moving {
			return false, nil
		}
		pause(ctx, wait)
	}
}

// attempt writes what is missing, from what is known. errMoved and errUnknown
// ask for another look.
func (u *upload) attempt(ctx context.Context) error {
	if u.count > u.chunks() {
		if err := u.clear(ctx, true); err != nil {
			return err
		}
	}
	if u.count < u.chunks() || !u.adopted {
		if err := u.sendChunks(ctx); err != nil {
			return err
		}
	}
	if u.adopted {
		err := u.readBack(ctx, u.bucket, u.newInfo())
		if unreadable(err) {
			if err := u.clear(ctx, true); err != nil {
				return err
			}
			return errUnknown
		}
		if err != nil {
			return err
		}
	}
	return u.sendInfo(ctx)
}

func (u *upload) sendChunks(ctx context.Context) error {
	src, err := u.open()
	if err != nil {
		return fmt.Errorf("open source of %s: %w", u.name, err)
	}
	defer src.Close()
	sum := sha256.New()
	if _, err := io.CopyN(sum, src, int64(u.count)*chunkSize); err != nil {
		return u.sourceError(err)
	}
	for u.count < u.chunks() {
		// A buffer of its own for each message: nothing can send it again changed.
		buf := make([]byte, min(chunkSize, u.size-int64(u.count)*chunkSize))
		if _, err := io.ReadFull(src, buf); err != nil {
			return u.sourceError(err)
		}
		sum.Write(buf)
		if err := u.sendChunk(ctx, buf); err != nil {
			return err
		}
	}
	if n, _ := io.ReadFull(src, make([]byte, 1)); n > 0 || snapshot.Digest(sum.Sum(nil)) != u.digest {
		return u.sourceError(io.ErrUnexpectedEOF)
	}
	return nil
}

func (u *upload) sourceError(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read source of %s: %w", u.name, err)
	}
	return snapshot.Errorf(snapshot.InvalidBlob,
		"the bytes given for %q are not the %d bytes of that digest; send them again", u.name, u.size).Because(errSource)
}

func (u *upload) sendChunk(ctx context.Context, data []byte) error {
	msg := nats.NewMsg(u.chunkSubject())
	msg.Data = data
	seq, err := u.publish(ctx, u.bucket, msg, guard{msg.Subject, u.last})
	if err != nil {
		return err
	}
	u.last, u.count = seq, u.count+1
	return nil
}

func (u *upload) newInfo() *jetstream.ObjectInfo {
	return &jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: u.name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize}},
		Bucket:     u.bucket,
		NUID:       u.nuid,
		Size:       uint64(u.size),
		Chunks:     uint32(u.chunks()),
		Digest:     infoDigest(u.digest),
	}
}

// sendInfo makes the object visible, provided that its chunks are as they were.
func (u *upload) sendInfo(ctx context.Context) error {
	data, err := json.Marshal(u.newInfo())
	if err != nil {
		return fmt.Errorf("encode info of %s: %w", u.name, err)
	}
	msg := nats.NewMsg(infoSubject(u.bucket, u.name))
	msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	msg.Data = data
	u.named = true
	_, err = u.publish(ctx, u.bucket, msg, guard{u.chunkSubject(), u.last})
	return err
}

// clear frees the chunk subject if it still ends as this upload knows it: an
// empty message closes it to every other writer, then the info decides. broken
// says that the info which was judged may go on naming these chunks; a later
// one is that of a writer who was told that they are whole.
func (u *upload) clear(ctx context.Context, broken bool) error {
	closed := upload{Store: u.Store, object: u.object, last: u.last}
	if err := closed.sendChunk(ctx, nil); err != nil {
		return err
	}
	info, seq, err := u.info(ctx, u.bucket, u.name)
	if err != nil {
		return err
	}
	if info != nil && info.NUID == u.nuid && !(broken && seq == u.judged) {
		return errors.Join(errMoved, u.remove(ctx, u.bucket, closed.last))
	}
	if err := u.purge(ctx, u.bucket, u.chunkSubject(), closed.last+1); err != nil {
		return err
	}
	u.last, u.count, u.adopted = 0, 0, false
	return nil
}

// discard frees the chunks of an upload that can't succeed. An interrupted one
// is left as it is: the next upload of these bytes goes on from there.
func (u *upload) discard(ctx context.Context, cause error) {
	if u.last == 0 || ctx.Err() != nil || errors.Is(cause, snapshot.StoreUnavailable) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	_ = u.clear(ctx, false) // what stays is found under its subject by the next upload
}

// readerOf makes in-memory bytes a source.
func readerOf(data []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}
