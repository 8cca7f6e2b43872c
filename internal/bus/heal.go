package bus

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/minio/highwayhash"
)

// The server describes a stream in two files, which it replaces one after the
// other; a stream whose files do not match it leaves out, with all that the
// stream holds, and making the stream again does not mend them.
const (
	description = "meta.inf"
	checksum    = "meta.sum"
)

// healStreams writes the checksums of those streams that a crash has kept the
// server from writing, and returns the names of the streams.
func healStreams(store string) (healed []string, err error) {
	dirs, err := filepath.Glob(filepath.Join(quoteGlob(store), "jetstream", "*", "streams", "*"))
	if err != nil {
		return nil, fmt.Errorf("look for streams: %w", err)
	}
	for _, dir := range dirs {
		interrupted, err := wasInterrupted(dir)
		if err == nil && interrupted {
			err = writeChecksum(dir)
			healed = append(healed, filepath.Base(dir))
		}
		if err != nil {
			return healed, fmt.Errorf("look at stream %s: %w", filepath.Base(dir), err)
		}
	}
	return healed, nil
}

// quoteGlob makes a pattern that matches a path only.
func quoteGlob(path string) string {
	var out []rune
	for _, r := range path {
		switch r {
		case '*', '?', '[', '\\':
			out = append(out, '\\')
		}
		out = append(out, r)
	}
	return string(out)
}

// wasInterrupted: the description is written first, so it is never the younger
// one of the two otherwise. One that went bad on the disk keeps its time.
func wasInterrupted(dir string) (bool, error) {
	text, err := os.Stat(filepath.Join(dir, description))
	if errors.Is(err, fs.ErrNotExist) || err == nil && text.Size() == 0 {
		return false, nil // the server makes both anew
	}
	if err != nil {
		return false, err
	}
	sum, err := os.Stat(filepath.Join(dir, checksum))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return err == nil && text.ModTime().After(sum.ModTime()), err
}

// writeChecksum writes it as the server does.
func writeChecksum(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, description))
	if err != nil {
		return err
	}
	key := sha256.Sum256([]byte(filepath.Base(dir)))
	h, err := highwayhash.New64(key[:])
	if err != nil {
		return err
	}
	_, _ = h.Write(text) // never fails
	return replaceFile(filepath.Join(dir, checksum), []byte(hex.EncodeToString(h.Sum(nil))))
}

// replaceFile replaces a file so that a crash leaves the old or the new one.
func replaceFile(name string, data []byte) error {
	tmp, err := os.OpenFile(name+".tmp", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
