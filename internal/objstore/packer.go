package objstore

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

// packsAtOnce are compressed and stored at a time while the next is filled.
const packsAtOnce = 2

// packRef is a pack that contents go into; its name is known once it is closed.
type packRef struct {
	name   snapshot.Digest
	closed bool
	used   packUse // of the new manifest, as far as it is written
}

// span is a Piece whose pack may still be open.
type span struct {
	digest         snapshot.Digest
	pack           *packRef
	offset, length uint32
}

func (s span) piece() snapshot.Piece {
	return snapshot.Piece{Digest: s.digest, Pack: s.pack.name, Offset: int64(s.offset), Length: int64(s.length)}
}

// packer fills packs; closed ones are compressed and stored beside it. It is
// used by one goroutine.
type packer struct {
	s      *Store
	ctx    context.Context // of the uploads; over when one of them failed
	group  *errgroup.Group // the packs on their way
	stored atomic.Int64    // uncompressed bytes of packs that were not there before
	memory *share
	limit  int // of a pack

	open  *packRef
	namer packNamer
	rows  int
	buf   []byte // packRoom, then the contents
	turn  *share // that the buffer is counted in; nil if it is small, or in memory
	large bool   // it had a buffer for a whole pack
}

// newPacker fills packs of at most limit bytes, atOnce of which are on their way
// at a time. Buffers for packs of pages are in memory, those of others take turns.
func newPacker(ctx context.Context, s *Store, memory *share, limit, atOnce int) *packer {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	return &packer{s: s, ctx: ctx, group: group, memory: memory, limit: limit}
}

func (p *packer) size() int { return max(len(p.buf)-packRoom, 0) }

// add copies a content into the open pack.
func (p *packer) add(data []byte, d snapshot.Digest) (span, error) {
	if p.rows > 0 && p.size()+len(data) > p.limit {
		if err := p.close(); err != nil {
			return span{}, err
		}
	}
	if err := p.grow(len(data)); err != nil {
		return span{}, err
	}
	if p.rows == 0 {
		p.open = &packRef{}
		p.namer.reset()
	}
	sp := span{digest: d, pack: p.open, offset: uint32(p.size()), length: uint32(len(data))}
	p.buf = append(p.buf, data...)
	p.namer.add(d, len(data))
	p.rows++
	if p.rows == maxContents || endsHere(digestHash(d), len(data)+contentWeight, packAim) {
		return sp, p.close()
	}
	return sp, nil
}

// grow makes room for n more bytes. Small packs, which most saves only have,
// are not counted.
func (p *packer) grow(n int) error {
	need := max(len(p.buf), packRoom) + n
	if need <= cap(p.buf) {
		return nil
	}
	bigger, err := p.bigger(need - packRoom)
	if err != nil {
		return p.failure(err)
	}
	if p.buf == nil {
		p.buf = bigger[:packRoom]
	} else {
		p.buf = append(bigger[:0], p.buf...)
	}
	return nil
}

// bigger returns a buffer for size bytes and, unless they are all that a pack
// can have, for more of them.
func (p *packer) bigger(size int) ([]byte, error) {
	if size <= smallBuffer && !p.large {
		return make([]byte, packRoom+min(max(4*size, 64<<10), smallBuffer)), nil
	}
	if err := p.memory.take(p.ctx); err != nil {
		return nil, err
	}
	if p.limit < maxPack {
		return make([]byte, packRoom+max(min(2*size, p.limit), size)), nil
	}
	turn := p.s.newTurn()
	if err := turn.take(p.ctx); err != nil {
		return nil, err
	}
	p.turn, p.large = turn, true
	return turn.buf[:], nil
}

// close names the open pack and has it stored, unless such a pack is there. It
// waits while others are on their way.
func (p *packer) close() error {
	if p.rows == 0 {
		return nil
	}
	if err := p.ctx.Err(); err != nil {
		return p.failure(err)
	}
	name, buf, turn := p.namer.name(), p.buf, p.turn
	if turn != nil {
		turn.leave()
	}
	p.group.Go(func() error {
		if turn != nil {
			defer turn.giveBack()
		}
		return p.store(name, buf)
	})
	p.open.name, p.open.closed = name, true
	p.open, p.buf, p.turn, p.rows = nil, nil, nil, 0
	return nil
}

// failure prefers the error of an upload to that of the context that it ended.
func (p *packer) failure(err error) error {
	if first := p.group.Wait(); first != nil {
		return first
	}
	return err
}

func (p *packer) store(name snapshot.Digest, buf []byte) error {
	size := int64(len(buf) - packRoom)
	there, err := p.there(name, buf[packRoom:])
	if err != nil {
		return fmt.Errorf("look for pack %s: %w", name, err)
	}
	if there {
		return nil
	}
	zipped, err := p.s.squeeze(p.ctx, buf)
	if err != nil {
		return err
	}
	stored, err := p.s.upload(p.ctx, p.s.packObject(name, zipped))
	if err != nil {
		return fmt.Errorf("store pack %s: %w", name, err)
	}
	if stored {
		p.stored.Add(size)
	}
	return nil
}

// there asks for a pack of that name. If its contents proved wrong before, they
// are compared.
func (p *packer) there(name snapshot.Digest, data []byte) (bool, error) {
	doubted := p.s.suspects.has(p.s.packs(), objectName(name))
	there, err := p.s.present(p.ctx, object{bucket: p.s.packs(), name: objectName(name)})
	if err != nil || !there || !doubted {
		return there, err
	}
	was, err := p.s.loadPack(p.ctx, name)
	if unreadable(err) {
		return false, nil
	}
	return bytes.Equal(was, data), err
}

// wait returns when every closed pack is stored. Nothing can be added then.
func (p *packer) wait() error {
	err := p.group.Wait()
	if p.turn != nil { // of a pack that was not closed
		p.turn.giveBack()
	}
	p.buf, p.turn = nil, nil
	return err
}
