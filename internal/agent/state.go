package agent

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"

	"sandkeep/internal/snapshot"
)

// stateDir is what a machine remembers between runs.
//
//	token         of the embedded server, mode 0600
//	server        URL of the embedded server while it runs
//	lock          held by the embedded server while it runs, with its process id
//	store-<name>  id of the store that this machine worked with under that name
//	stat-cache/   of the workspaces
type stateDir string

func openStateDir(path string) (stateDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fmt.Errorf("make state directory: %w", err)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find state directory: %w", err)
	}
	return stateDir(abs), nil
}

func (d stateDir) file(name string) string { return filepath.Join(string(d), name) }

// read returns "" for a file that is not there.
func (d stateDir) read(name string) (string, error) {
	b, err := os.ReadFile(d.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read state: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// write replaces a file as a whole: a reader sees the old or the new text.
func (d stateDir) write(name, text string) error {
	f, err := os.CreateTemp(string(d), "."+name+"-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(text + "\n")
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := os.Rename(f.Name(), d.file(name)); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

const (
	tokenFile  = "token"
	serverFile = "server"
	lockFile   = "lock"
)

// lock makes this process the only embedded server of the directory, until the
// lock is given up: another one's files are never written or removed. The lock
// file stays, since a lock on a removed file holds nobody off.
func (d stateDir) lock() (*flock.Flock, error) {
	lock := flock.New(d.file(lockFile), flock.SetPermissions(0o600))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	if !locked {
		holder, _ := d.read(lockFile) // only told to people
		return nil, errors.Join(fmt.Errorf("the state directory %s is in use by process %s, another nats-embedded; stop it or give another --state-dir",
			d, cmp.Or(holder, "unknown")), lock.Close())
	}
	if err := os.WriteFile(d.file(lockFile), fmt.Appendf(nil, "%d\n", os.Getpid()), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("write state: %w", err), lock.Unlock())
	}
	return lock, nil
}

// token returns the embedded server's token, made at the first call.
func (d stateDir) token() (string, error) {
	token, err := d.read(tokenFile)
	if err != nil || token != "" {
		return token, err
	}
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	token = hex.EncodeToString(raw)
	return token, d.write(tokenFile, token)
}

func storeFile(store string) string { return "store-" + store }

// checkStore remembers the id of a store at the first contact and refuses
// another one at the same name later: that store has lost what this machine
// saved, or is somebody else's.
func (d stateDir) checkStore(store, id string) error {
	known, err := d.read(storeFile(store))
	switch {
	case err != nil:
		return err
	case known == "":
		return d.write(storeFile(store), id)
	case known != id:
		return otherStore(store, known, fmt.Sprintf("the id %s", id))
	}
	return nil
}

func otherStore(store, known, found string) *snapshot.Error {
	return snapshot.Errorf(snapshot.StoreUnavailable,
		"store %q had the id %s when this machine last used it, and now has %s: it was lost or is another server's; "+
			"connect to the right server, or give another --store or --state-dir, or delete the file store-%s in the state directory to accept it",
		store, known, found, store).With("store", store)
}
