package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// MinSecretBytes is the shortest secret that a worker takes: shorter values
// would be found everywhere and redacted out of innocent bytes.
const MinSecretBytes = 6

// maxSecretBytes bounds a secret file, so that a wrong path is noticed.
const maxSecretBytes = 64 << 10

const redacted = "[redacted]"

// Secret is a value that no worker may store or say. Every way of formatting it
// gives "[redacted]". It holds a pointer, so that even a struct which hides a
// Secret in an unexported field prints an address.
type Secret struct{ value *string }

func newSecret(s string) Secret { return Secret{value: &s} }

func (s Secret) reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

func (s Secret) String() string               { return redacted }
func (s Secret) GoString() string             { return redacted }
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Format covers the verbs for which fmt would not ask String.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// secretSource is where the configuration says that a value is: exactly one
// member is set.
type secretSource struct {
	Env   *string `json:"env"`
	File  *string `json:"file"`
	Value *string `json:"value"`
}

// resolve finds the value; dir is where a relative file name begins.
func (s secretSource) resolve(dir string) (Secret, error) {
	value, err := s.read(dir)
	if err != nil {
		return Secret{}, err
	}
	if len(value) < MinSecretBytes {
		return Secret{}, fmt.Errorf("the value has %d bytes; at least %d are needed to be told from other text", len(value), MinSecretBytes)
	}
	return newSecret(value), nil
}

func (s secretSource) read(dir string) (string, error) {
	switch {
	case s.Env != nil && s.File == nil && s.Value == nil:
		value, ok := os.LookupEnv(*s.Env)
		if !ok {
			return "", fmt.Errorf("the environment variable %q is not set", *s.Env)
		}
		return value, nil
	case s.File != nil && s.Env == nil && s.Value == nil:
		if filepath.IsAbs(*s.File) {
			return readSecretFile(*s.File)
		}
		return readSecretFile(filepath.Join(dir, *s.File))
	case s.Value != nil && s.Env == nil && s.File == nil:
		return *s.Value, nil
	}
	return "", errors.New(`give exactly one of "env", "file" and "value"`)
}

// readSecretFile drops the newline that editors put at the end of a file.
func readSecretFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("open secret file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return "", fmt.Errorf("read secret file: %w", err)
	}
	if len(b) > maxSecretBytes {
		return "", fmt.Errorf("the file %q has more than %d bytes", path, maxSecretBytes)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), nil
}
