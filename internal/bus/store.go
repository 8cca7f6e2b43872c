package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// lockName is the file in the store directory that its server holds locked:
// two servers on one directory would both start and both take writes.
const lockName = "sandkeep.lock"

type storeLock struct{ file *flock.Flock }

// holder is what the lock file says.
type holder struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

func lockStore(dir string) (*storeLock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make store directory: %w", err)
	}
	path := filepath.Join(dir, lockName)
	file := flock.New(path, flock.SetPermissions(0o600))
	locked, err := file.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock store directory: %w", err)
	}
	if !locked {
		return nil, errors.Join(heldBy(dir, path), file.Close())
	}
	host, _ := os.Hostname() // only told to people
	text, err := json.Marshal(holder{os.Getpid(), host, time.Now().UTC().Truncate(time.Second)})
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write lock file: %w", err), file.Unlock())
	}
	return &storeLock{file}, nil
}

func heldBy(dir, path string) error {
	var h holder
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		return fmt.Errorf("the store directory %s is in use by another server; stop it or give another --store-dir", dir)
	}
	return fmt.Errorf("the store directory %s is in use by process %d on host %s since %s; stop it or give another --store-dir",
		dir, h.PID, h.Host, h.Since.Format(time.RFC3339))
}

func (l *storeLock) release() error { return l.file.Unlock() }

// checkStoreDir refuses directories whose contents a restart may take away.
func checkStoreDir(dir string, allowTemp bool) error {
	if allowTemp {
		return nil
	}
	real, err := existing(dir)
	if err != nil {
		return fmt.Errorf("find store directory: %w", err)
	}
	const advice = "checkpoints would be lost; give another --store-dir, or --allow-temp-store"
	if memory, err := inMemory(real); err != nil {
		return fmt.Errorf("look at the file system of the store directory: %w", err)
	} else if memory {
		return fmt.Errorf("the store directory %s is on a file system in memory: %s", dir, advice)
	}
	for _, temp := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if temp, err := filepath.EvalSymlinks(temp); err == nil && (real == temp || strings.HasPrefix(real, temp+string(filepath.Separator))) {
			return fmt.Errorf("the store directory %s is in the temp folder: %s", dir, advice)
		}
	}
	return nil
}

// existing is the nearest directory above dir, or dir, that exists, without links.
func existing(dir string) (string, error) {
	for {
		real, err := filepath.EvalSymlinks(dir)
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return real, err
		}
		dir = filepath.Dir(dir)
	}
}
