package snapshot

import (
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxSafe is the largest whole number that every JSON reader keeps exactly.
const maxSafe = 1<<53 - 1

// newEntries checks entries that a client captured itself and sorts them.
func (s *Service) newEntries(in []NewEntry) ([]Entry, error) {
	out, total := make([]Entry, len(in)), int64(0)
	for i, n := range in {
		var err error
		if out[i], err = n.entry(); err != nil {
			return nil, err
		}
		if total += out[i].Size; total > maxSafe || out[i].Size > maxSafe {
			return nil, Errorf(InvalidEntry, "the sizes in checkpoint.files add up to more than %d bytes", int64(maxSafe))
		}
		if s.Redactor.Text(n.Path) != n.Path || s.Redactor.Text(out[i].Target) != out[i].Target {
			return nil, Errorf(InvalidEntry, "the name or target of checkpoint.files[%d] holds a secret of a sandbox definition; leave the entry out", i)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return out, checkTree(out)
}

// checkTree wants each path once, and nothing below a file or link.
func checkTree(sorted []Entry) error {
	for i, e := range sorted {
		if i > 0 && sorted[i-1].Path == e.Path {
			return Errorf(InvalidEntry, "path %q is there twice in checkpoint.files; give it once", e.Path)
		}
		if e.Kind == KindDir {
			continue
		}
		under := e.Path + "/" // the next path that sorts like this lies below e, if any does
		below := sort.Search(len(sorted), func(i int) bool { return sorted[i].Path >= under })
		if below < len(sorted) && strings.HasPrefix(sorted[below].Path, under) {
			return Errorf(InvalidEntry, "path %q of checkpoint.files lies below %q, which is not a directory", sorted[below].Path, e.Path)
		}
	}
	return nil
}

func (n NewEntry) entry() (Entry, error) {
	e := Entry{Path: n.Path}
	fault := pathFault(n.Path)
	if fault == "" {
		switch n.Kind {
		case "file":
			fault = n.file(&e)
		case "dir":
			fault = n.dir(&e)
		case "symlink":
			fault = n.symlink(&e)
		default:
			fault = "is of no kind \"file\", \"dir\" or \"symlink\""
		}
	}
	if fault != "" {
		return e, Errorf(InvalidEntry, "entry %q of checkpoint.files %s", n.Path, fault)
	}
	return e, nil
}

func (n NewEntry) file(e *Entry) string {
	e.Kind, e.Mode = KindFile, DefaultFileMode
	if n.BlobKey == nil || n.Size == nil || n.Target != nil {
		return "is a file: it has a blobKey and a size, and no target"
	}
	digits, ok := strings.CutPrefix(*n.BlobKey, FileBlobPrefix)
	d, err := ParseDigest(digits)
	if !ok || err != nil {
		return "has a blobKey that is not " + FileBlobPrefix + " and 64 lower-case hex digits"
	}
	if e.Digest, e.Size = d, *n.Size; e.Size < 0 || (e.Size == 0) != (d == sha256.Sum256(nil)) {
		return "has a size that is negative or not that of its blob"
	}
	if n.Mtime != nil {
		if e.Mtime, ok = parseMtime(*n.Mtime); !ok {
			return "has an mtime that is not a number of milliseconds, with at most 6 decimals, between the years 1678 and 2262"
		}
	}
	return setMode(e, n.Mode)
}

func (n NewEntry) dir(e *Entry) string {
	e.Kind, e.Mode = KindDir, DefaultDirMode
	if n.BlobKey != nil || n.Size != nil || n.Mtime != nil || n.Target != nil {
		return "is a directory: it has no blobKey, size, mtime or target"
	}
	return setMode(e, n.Mode)
}

func (n NewEntry) symlink(e *Entry) string {
	e.Kind = KindSymlink
	if n.Target == nil || n.BlobKey != nil || n.Size != nil || n.Mtime != nil || n.Mode != nil {
		return "is a symlink: it has a target, and no blobKey, size, mtime or mode"
	}
	if t := *n.Target; t == "" || len(t) > MaxPathBytes || !utf8.ValidString(t) || strings.Contains(t, "\x00") {
		return "has a target that is not 1 to 4096 bytes of Unicode without NUL"
	}
	e.Target = *n.Target
	return ""
}

func setMode(e *Entry, mode *int64) string {
	if mode == nil {
		return ""
	}
	if *mode < 0 || *mode > 0o777 {
		return "has a mode that is not 0 to 511 (0777)"
	}
	e.Mode = uint16(*mode)
	return ""
}

// maxNumber bounds the literal of an mtime and its exponent, which exact
// arithmetic must read.
const maxNumber = 40

// parseMtime reads milliseconds with a fraction as nanoseconds, exactly.
func parseMtime(ms json.Number) (int64, bool) {
	if _, exp, ok := strings.Cut(strings.ToLower(string(ms)), "e"); ok {
		if n, err := strconv.Atoi(exp); err != nil || n < -maxNumber || n > maxNumber {
			return 0, false
		}
	}
	if len(ms) > maxNumber {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(string(ms))
	if !ok {
		return 0, false
	}
	ns := r.Mul(r, big.NewRat(1e6, 1))
	return ns.Num().Int64(), ns.IsInt() && ns.Num().IsInt64()
}

// checkArtifacts wants each artifact once, with a well-formed blob key.
func (s *Service) checkArtifacts(artifacts []Artifact) error {
	seen := map[ArtifactID]bool{}
	for _, a := range artifacts {
		if err := s.noSecret(string(a.ID)); err != nil {
			return err
		}
		if _, err := a.Digest(); err != nil {
			return err
		}
		if seen[a.ID] {
			return Errorf(InvalidEntry, "artifact %q is there twice in checkpoint.artifacts; give it once", a.ID)
		}
		if a.Size < 0 || len(a.Name)+len(a.MimeType) > maxLabelBytes {
			return Errorf(InvalidEntry, "artifact %q of checkpoint.artifacts has a negative size, or a name and mimeType of over %d bytes", a.ID, maxLabelBytes)
		}
		seen[a.ID] = true
	}
	return nil
}
