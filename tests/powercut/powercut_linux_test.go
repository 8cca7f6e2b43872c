package powercut

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shown mounts the disk until the function is done.
func shown(t *testing.T, d *Disk, do func(dir string)) {
	t.Helper()
	dir := t.TempDir()
	unmount, err := d.Mount(dir)
	if err != nil {
		t.Skipf("LEFT OUT: no file system can be mounted here: %v", err)
	}
	defer func() {
		if err := unmount(); err != nil {
			t.Errorf("unmount: %v", err)
		}
	}()
	do(dir)
}

// script is a small language for what programs do to files; paths are below
// the directory. "write" does not sync, "put" writes with O_SYNC.
func script(t *testing.T, dir, text string) {
	t.Helper()
	for line := range strings.SplitSeq(text, "; ") {
		word := strings.Fields(line + " . .")
		if err := step(word[0], filepath.Join(dir, word[1]), word[2], dir); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
}

func step(verb, path, arg, dir string) error {
	switch verb {
	case "mkdir":
		return os.Mkdir(path, 0o755)
	case "write":
		return write(path, arg, 0)
	case "put":
		return write(path, arg, os.O_SYNC)
	case "append":
		return write(path, arg, os.O_APPEND)
	case "truncate":
		return os.Truncate(path, int64(len(arg)))
	case "link":
		return os.Link(path, filepath.Join(dir, arg))
	case "rename":
		return os.Rename(path, filepath.Join(dir, arg))
	case "remove":
		return os.Remove(path)
	case "sync":
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	case "datasync":
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(syscall.Fdatasync(int(f.Fd())), f.Close())
	}
	return fmt.Errorf("no such step")
}

func write(path, text string, flag int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// list is every path with its contents, "/" for directories.
func list(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, text := strings.TrimPrefix(path, dir+"/"), []byte("/")
		if !e.IsDir() {
			text, err = os.ReadFile(path)
		}
		out[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhatACutLeaves(t *testing.T) {
	t.Parallel()
	type files = map[string]string
	for _, c := range []struct {
		steps          string
		journal, names files
	}{
		{"write a text", files{}, files{}},
		{"write a text; sync a", files{"a": "text"}, files{}},
		{"write a text; datasync a", files{"a": "text"}, files{}},
		{"put a text", files{"a": "text"}, files{}},
		{"put a text; sync .", files{"a": "text"}, files{"a": "text"}},
		{"write a text; sync .", files{"a": ""}, files{"a": ""}},
		{"put a text; append a more", files{"a": "text"}, files{}},
		{"put a text; append a more; sync a", files{"a": "textmore"}, files{}},
		{"put a old; put b new; rename b a", files{"a": "old", "b": "new"}, files{}},
		{"put a old; put b new; rename b a; sync .", files{"a": "new"}, files{"a": "new"}},
		{"put a old; put b new; rename b a; sync a", files{"a": "new"}, files{}},
		{"put a old; put b new; rename b a; put c x", files{"a": "new", "c": "x"}, files{}},
		{"put a old; write b new; rename b a; put c x", files{"a": "", "c": "x"}, files{}},
		{"write a text; link a b; remove a; sync b", files{"b": "text"}, files{}},
		{"mkdir d; put d/a text", files{"d": "/", "d/a": "text"}, files{}},
		{"mkdir d; put d/a text; sync d", files{"d": "/", "d/a": "text"}, files{}},
		{"mkdir d; put d/a text; sync .", files{"d": "/", "d/a": "text"}, files{"d": "/"}},
		{"mkdir d; put d/a text; sync d; sync .", files{"d": "/", "d/a": "text"}, files{"d": "/", "d/a": "text"}},
		{"mkdir d; mkdir e; put d/a text; sync .; rename d/a e/b; sync e", files{"d": "/", "e": "/", "e/b": "text"}, files{"d": "/", "e": "/", "e/b": "text"}},
		{"put a text; sync .; remove a", files{"a": "text"}, files{"a": "text"}},
		{"put a text; sync .; remove a; sync .", files{}, files{}},
		{"put a text; sync .; remove a; put b x", files{"b": "x"}, files{"a": "text"}},
		{"put a text; sync .; truncate a xx", files{"a": "text"}, files{"a": "text"}},
		{"put a text; sync .; truncate a xx; sync a", files{"a": "te"}, files{"a": "te"}},
		{"put a text; sync .; truncate a xx; append a y; put b x", files{"a": "te", "b": "x"}, files{"a": "text"}},
	} {
		for model, want := range []files{c.journal, c.names} {
			d := New(Model(model), 1)
			shown(t, d, func(dir string) { script(t, dir, c.steps) })
			d.Cut(false)
			shown(t, d, func(dir string) {
				if diff := cmp.Diff(want, list(t, dir)); diff != "" {
					t.Errorf("model %d, %s: %s", model, c.steps, diff)
				}
			})
		}
	}
}

// Bytes that were not synced are old, new or zero, sector by sector; those that
// were synced are there.
func TestTornWrites(t *testing.T) {
	t.Parallel()
	old, later := bytes.Repeat([]byte("o"), 3*sector), bytes.Repeat([]byte("n"), 4*sector)
	seen := map[string]int{}
	for seed := range uint64(64) {
		d := New(Journal, seed)
		shown(t, d, func(dir string) {
			script(t, dir, "put a "+string(old))
			f, err := os.OpenFile(filepath.Join(dir, "a"), os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteAt(later, sector)
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		d.Cut(true)
		shown(t, d, func(dir string) {
			text := list(t, dir)["a"]
			var kinds []byte
			for ; len(text) >= sector; text = text[sector:] {
				if strings.Count(text[:sector], text[:1]) != sector {
					t.Errorf("seed %d: a sector is torn", seed)
				}
				kinds = append(kinds, text[0])
			}
			if text != "" || len(kinds) < 3 || len(kinds) > 5 || kinds[0] != 'o' || bytes.IndexByte(kinds[:3], 0) >= 0 {
				t.Errorf("seed %d left %q and %d bytes", seed, kinds, len(text))
			}
			seen[string(kinds)]++
		})
	}
	if seen["ooo"] == 0 || seen["onnnn"] == 0 || len(seen) < 6 {
		t.Errorf("the cuts left only %v", seen)
	}
}

// What the system does by itself is a beginning of what the program did.
func TestNamesInOrder(t *testing.T) {
	t.Parallel()
	states := []string{"", "a", "a b", "b c", "b c d", "b c d d/e", "c d d/e"}
	seen := map[string]bool{}
	for seed := range uint64(40) {
		d := New(Journal, seed)
		shown(t, d, func(dir string) { script(t, dir, "write a 1; write b 2; rename a c; mkdir d; write d/e 3; remove b") })
		d.Cut(true)
		shown(t, d, func(dir string) {
			left := strings.Join(slices.Sorted(maps.Keys(list(t, dir))), " ")
			if !slices.Contains(states, left) {
				t.Errorf("seed %d left %q", seed, left)
			}
			seen[left] = true
		})
	}
	if len(seen) < len(states)-1 {
		t.Errorf("the cuts left only %v", seen)
	}
}

// After the power is off nothing changes any more, and nobody is answered.
func TestOff(t *testing.T) {
	t.Parallel()
	d := New(Journal, 1)
	shown(t, d, func(dir string) {
		script(t, dir, "put a text")
		d.OffAt(1)
		done := make(chan error)
		go func() { done <- write(filepath.Join(dir, "a"), "later", os.O_SYNC) }()
		<-d.WhenOff()
		select {
		case err := <-done:
			t.Errorf("a write after the power was off was answered: %v", err)
		default:
		}
		d.Free()
		if err := <-done; !errors.Is(err, syscall.EIO) {
			t.Errorf("a write after the power was off: %v", err)
		}
	})
	d.Cut(true)
	shown(t, d, func(dir string) {
		if got := list(t, dir); got["a"] != "text" {
			t.Errorf("left %q", got)
		}
		script(t, dir, "put a again")
	})
}

// While the power is on it is a file system as any other.
func TestLikeAnyFileSystem(t *testing.T) {
	t.Parallel()
	own := t.TempDir()
	d := New(Journal, 1)
	shown(t, d, func(dir string) {
		n := 0
		rapid.Check(t, func(rt *rapid.T) {
			n++
			sub := fmt.Sprint(n)
			script(t, dir, "mkdir "+sub)
			script(t, own, "mkdir "+sub)
			a, b := filepath.Join(dir, sub), filepath.Join(own, sub)
			path := rapid.SampledFrom([]string{"a", "b", "d", "d/a", "d/b", "d/d"})
			verb := rapid.SampledFrom([]string{"mkdir", "write", "put", "append", "truncate", "rename", "link", "remove", "sync"})
			for range rapid.IntRange(1, 12).Draw(rt, "steps") {
				v, p := verb.Draw(rt, "verb"), path.Draw(rt, "path")
				arg := strings.Repeat("x", rapid.IntRange(1, 9000).Draw(rt, "length"))
				if v == "rename" || v == "link" {
					arg = path.Draw(rt, "to")
				}
				if got, want := step(v, filepath.Join(a, p), arg, a), step(v, filepath.Join(b, p), arg, b); (got == nil) != (want == nil) {
					rt.Fatalf("%s %s: %v, elsewhere %v", v, p, got, want)
				}
			}
			if got, want := list(t, a), list(t, b); !maps.Equal(got, want) {
				rt.Fatalf("%s", cmp.Diff(want, got))
			}
		})
	})
}
