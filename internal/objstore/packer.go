package objstore

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/snapshot"
)

// packRef is a pack that contents go into; its name is known once it is closed.
type packRef struct {
	name   snapshot.Digest
	closed bool
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

// packer fills packs and stores them. One closed pack is on its way while the
// next one is filled. It is used by one goroutine.
type packer struct {
	s      *Store
	ctx    context.Context // of the uploads
	group  errgroup.Group  // the pack on its way
	stored atomic.Int64    // uncompressed bytes of packs that were not there before

	open *packRef
	data []byte
	rows []content
	zipd []byte // compressed bytes of the pack on its way
}

func newPacker(ctx context.Context, s *Store) *packer {
	return &packer{s: s, ctx: ctx, open: &packRef{}}
}

// add copies a content into the open pack.
func (p *packer) add(data []byte, d snapshot.Digest) (span, error) {
	if len(p.data)+len(data) > maxPack {
		if err := p.close(); err != nil {
			return span{}, err
		}
	}
	sp := span{digest: d, pack: p.open, offset: uint32(len(p.data)), length: uint32(len(data))}
	if need := len(p.data) + len(data); need > cap(p.data) { // never more than a pack
		p.data = append(make([]byte, 0, min(max(2*cap(p.data), need), maxPack)), p.data...)
	}
	p.data = append(p.data, data...)
	p.rows = append(p.rows, content{d, len(data)})
	if len(p.rows) == maxContents || endsHere(digestHash(d), len(data)+contentWeight, packAim) {
		return sp, p.close()
	}
	return sp, nil
}

// close names the open pack and starts its upload, unless such a pack is there.
func (p *packer) close() error {
	if len(p.rows) == 0 {
		return nil
	}
	name, size := packName(p.rows), int64(len(p.data))
	there, err := p.there(name)
	if err != nil {
		return fmt.Errorf("look for pack %s: %w", name, err)
	}
	if err := p.group.Wait(); err != nil { // the upload before uses zipd
		return err
	}
	if !there {
		p.zipd = p.s.enc.EncodeAll(p.data, p.zipd[:0])
		o := p.s.packObject(name, p.zipd)
		p.group.Go(func() error { return p.upload(o, size) })
	}
	p.open.name, p.open.closed = name, true
	p.open, p.data, p.rows = &packRef{}, p.data[:0], p.rows[:0]
	return nil
}

// there asks for a pack with the name of the open one. If its contents proved
// wrong before, they are compared.
func (p *packer) there(name snapshot.Digest) (bool, error) {
	doubted := p.s.suspects.has(p.s.packs(), objectName(name))
	there, err := p.s.present(p.ctx, object{bucket: p.s.packs(), name: objectName(name)})
	if err != nil || !there || !doubted {
		return there, err
	}
	data, err := p.s.loadPack(p.ctx, name)
	if unreadable(err) {
		return false, nil
	}
	return bytes.Equal(data, p.data), err
}

func (p *packer) upload(o object, size int64) error {
	stored, err := p.s.upload(p.ctx, o)
	if err != nil {
		return fmt.Errorf("store pack %s: %w", o.name, err)
	}
	if stored {
		p.stored.Add(size)
	}
	return nil
}

// wait returns when every closed pack is stored.
func (p *packer) wait() error { return p.group.Wait() }
