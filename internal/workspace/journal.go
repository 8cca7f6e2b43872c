package workspace

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandkeep/internal/snapshot"
)

// The journal of an exact restore is a line about the directory, one for each
// move, and a MAC with the worker's salt, since processes and checkpoints may put
// files into what lies beside a directory. While it is in the stage, the directory
// may be half changed: whoever finds it there without its process undoes the
// moves. Its removal is the commit.

type journalHead struct {
	Name   string           `json:"name"` // of the directory, beside the stage
	Inode  uint64           `json:"inode"`
	Born   int64            `json:"born,omitempty"`   // 0: unknown. Inodes come again
	Mtimes map[string]int64 `json:"mtimes,omitempty"` // of new files whose times in the checkpoint are not older than the stage
}

// errForeign is about a journal that no worker with this salt wrote so.
var errForeign = errors.New("the journal is damaged or not this worker's")

func (x *exact) writeJournal(moves []move) error {
	if err := x.t.syncSalt(); err != nil { // or a power cut could leave the journal without it
		return fmt.Errorf("sync its key: %w", err)
	}
	if err := x.t.fault("journal", ""); err != nil {
		return err
	}
	const part = journalName + ".part"
	stage := x.stage.top()
	h, err := stage.create(part, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(h), part)
	defer f.Close()
	mac, buf := x.t.journalMAC(), bufio.NewWriter(f)
	out := json.NewEncoder(io.MultiWriter(buf, mac))
	err = out.Encode(journalHead{x.dest.base(), x.inode, x.top.born(), x.mtimes})
	for i := range moves {
		err = errors.Join(err, out.Encode(moves[i]))
	}
	_, _ = buf.Write(mac.Sum(nil)) // an error shows at the flush
	if err = errors.Join(err, buf.Flush()); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = stage.take(part, stage, journalName)
	}
	if err != nil {
		return err
	}
	if err = x.t.fault("journaled", ""); err == nil {
		err = x.stage.lock.Sync()
	}
	if err != nil { // nothing was moved, so nobody must undo it
		err = errors.Join(err, endJournal(stage, x.t.fault))
	}
	return err
}

// endJournal is the commit, when what is new is on the disk: else a power cut
// could empty it.
func (x *exact) endJournal() error {
	err := x.stage.top().syncAll()
	if err == nil {
		err = x.t.fault("commit", "")
	}
	if err == nil {
		err = endJournal(x.stage.top(), x.t.fault)
	}
	return err
}

// endJournal says that there is nothing to undo any more. The removal comes to
// the disk before anything goes that it was needed for. If the disk fails at
// that, it is removed all the same: nothing could be taken back without it.
func endJournal(stage handle, fault func(op, path string) error) error {
	err := uninterrupted(func() error { return unix.Unlinkat(int(stage), journalName, 0) })
	if unlessAbsent(err) != nil {
		return err
	}
	if fault("ended", "") == nil {
		_ = uninterrupted(func() error { return unix.Fsync(int(stage)) })
	}
	return nil
}

func (t *Trees) journalMAC() hash.Hash {
	mac := hmac.New(sha256.New, t.salt)
	_, _ = io.WriteString(mac, "sandkeep journal\n") // never fails
	return mac
}

// readJournal parses only what has the right MAC, before and when it is parsed:
// a forged one costs no memory, and none is changed meanwhile.
func (t *Trees) readJournal(stage handle) (head journalHead, moves []move, err error) {
	h, err := stage.open(journalName, 0)
	if err != nil {
		return head, nil, err
	}
	f := os.NewFile(uintptr(h), journalName)
	defer f.Close()
	a, err := h.stat()
	if err != nil || !a.is(unix.S_IFREG) || a.size < sha256.Size {
		return head, nil, errors.Join(errForeign, err)
	}
	text, want := io.NewSectionReader(f, 0, a.size-sha256.Size), make([]byte, sha256.Size)
	_, err = f.ReadAt(want, text.Size())
	mac, again := t.journalMAC(), t.journalMAC()
	if err == nil {
		_, err = io.Copy(mac, text)
	}
	if err != nil {
		return head, nil, fmt.Errorf("read journal: %w", err)
	}
	if !hmac.Equal(mac.Sum(nil), want) {
		return head, nil, errForeign
	}
	_, _ = text.Seek(0, io.SeekStart) // never fails
	head, moves, err = parseJournal(io.TeeReader(text, again))
	if err == nil && !hmac.Equal(again.Sum(nil), want) {
		err = errForeign
	}
	return head, moves, err
}

func parseJournal(text io.Reader) (head journalHead, moves []move, err error) {
	in := json.NewDecoder(text)
	if err := in.Decode(&head); err != nil || !head.isSound() {
		return head, nil, errors.Join(errForeign, err)
	}
	for {
		var m move
		switch err := in.Decode(&m); {
		case err == io.EOF:
			return head, moves, nil
		case err != nil || !m.isSound():
			return head, nil, errors.Join(errForeign, err)
		}
		moves = append(moves, m)
	}
}

func (j *journalHead) isSound() bool {
	return snapshot.ValidatePath(j.Name) == nil && !strings.Contains(j.Name, "/")
}

func (v *move) isSound() bool {
	if v.Path != "" && snapshot.ValidatePath(v.Path) != nil {
		return false
	}
	switch v.Do {
	case moveOut:
		_, err := strconv.ParseUint(v.Slot, 10, 64)
		return err == nil
	case moveLook:
		return v.Was != nil && v.Now != nil && (v.Was.Mtime == nil) == (v.Now.Mtime == nil)
	}
	return v.Do == moveIn
}
