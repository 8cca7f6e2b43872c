package objstore

import (
	"context"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

const (
	// packRoom is in front of a pack's bytes in their buffer, so that the
	// compressor can write over what it has read: one step, and the few bytes
	// that zstd adds to each block of 128 KiB that does not compress.
	packRoom    = 32 << 10
	squeezeStep = 16 << 10
)

// squeeze compresses what lies behind the room of buf, in place: a pack on its
// way takes no second buffer.
func (s *Store) squeeze(ctx context.Context, buf []byte) ([]byte, error) {
	var enc *zstd.Encoder
	select {
	case enc = <-s.encoders:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { s.encoders <- enc }()
	if enc == nil {
		var err error
		enc, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(packWindow), zstd.WithEncoderCRC(false)) // contents have digests
		if err != nil {
			return nil, fmt.Errorf("make compressor: %w", err)
		}
	}
	out := &behind{buf: buf}
	enc.ResetContentSize(out, int64(len(buf)-packRoom))
	defer enc.Reset(nil) // it must not hold the buffer
	for out.read = packRoom; out.read < len(buf); {
		step := buf[out.read:min(out.read+squeezeStep, len(buf))]
		if _, err := enc.Write(step); err != nil {
			return nil, fmt.Errorf("compress: %w", err)
		}
		out.read += len(step)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return buf[:out.written], nil
}

// behind writes to the front of a buffer that is read from read on.
type behind struct {
	buf           []byte
	read, written int
}

func (w *behind) Write(p []byte) (int, error) {
	if w.written+len(p) > w.read {
		return 0, io.ErrShortBuffer // would overwrite what is still to be read
	}
	w.written += copy(w.buf[w.written:], p)
	return len(p), nil
}
