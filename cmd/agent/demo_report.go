package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"sandkeep/internal/snapshot"
)

// smallWorkspace has one of everything that a checkpoint keeps or leaves out.
func smallWorkspace(dir string) error {
	files := map[string]string{
		"README.md": "# A small workspace\n", "src/main.go": "package main\n\nfunc main() {}\n", "src/empty.txt": "",
		"data/grüße 🚀.txt": "names are kept as they are\n", "bin/run.sh": "#!/bin/sh\necho hello\n", ".git/HEAD": "ref: refs/heads/main\n",
		"node_modules/left-out/index.js": "module.exports = 1\n", ".env": "LEFT_OUT=1\n",
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(files[name]), 0o644); err != nil {
			return err
		}
		if err := os.Chtimes(at, time.Time{}, time.Date(2024, 2, 29, 12, 30, 0, len(name)*1001, time.UTC)); err != nil {
			return err
		}
	}
	return errors.Join(os.Chmod(filepath.Join(dir, "bin/run.sh"), 0o755), os.Mkdir(filepath.Join(dir, "empty"), 0o750),
		os.Symlink("src/main.go", filepath.Join(dir, "link")), os.Symlink("nowhere", filepath.Join(dir, "dangling")))
}

// changeWorkspace does what an agent may do between two saves: it edits, runs
// chmod on and removes a file each, and adds one.
func changeWorkspace(dir string, listed map[string]entry) error {
	var files []string
	for _, p := range slices.Sorted(maps.Keys(listed)) {
		if listed[p].Kind == "file" {
			files = append(files, p)
		}
	}
	faults := []error{}
	if len(files) > 0 {
		faults = append(faults, appendLine(filepath.Join(dir, files[0])))
	}
	if len(files) > 1 {
		mode := fs.FileMode(listed[files[1]].mode()) ^ 0o100
		faults = append(faults, os.Chmod(filepath.Join(dir, files[1]), mode))
	}
	if len(files) > 2 {
		at := filepath.Join(dir, files[len(files)-1])
		faults = append(faults, writable(filepath.Dir(at)), os.Remove(at))
	}
	return errors.Join(append(faults, writable(dir), os.WriteFile(filepath.Join(dir, added), []byte("new\n"), 0o644))...)
}

const added = "added-by-the-demo.txt"

// writable lets the owner write, and changes nothing where that is so already.
func writable(at string) error {
	info, err := os.Stat(at)
	if err != nil || info.Mode()&0o200 != 0 {
		return err
	}
	return os.Chmod(at, info.Mode().Perm()|0o200)
}

func appendLine(at string) error {
	if err := writable(at); err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("\nchanged by the demo\n")
	return errors.Join(err, f.Close())
}

// diffEntries compares two checkpoints.
func diffEntries(before, after map[string]entry) []change {
	out := []change{}
	for _, p := range slices.Sorted(maps.Keys(before)) {
		a, b := before[p], after[p]
		switch {
		case b.Path == "":
			out = append(out, change{p, "removed"})
		case a.Kind != b.Kind || a.BlobKey != b.BlobKey || a.Target != b.Target:
			out = append(out, change{p, "modified"})
		case a.mode() != b.mode():
			out = append(out, change{p, "mode"})
		}
	}
	for _, p := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[p]; !ok {
			out = append(out, change{p, "added"})
		}
	}
	return out
}

// maxDifferences bounds what is listed; the count of all decides.
const maxDifferences = 50

// compare checks the restored tree entry by entry. What is absent must have
// been left out by a rule or skipped, as the checkpoint reports, and other bytes
// must be those that the checkpoint has with secrets taken out.
func (d *demo) compare(saved, restored tree, c snapshot.Coverage, listed map[string]entry) {
	rules := slices.Collect(maps.Keys(c.Excluded))
	d.report.Equal = true
	for _, p := range saved.paths() {
		got, ok := restored[p]
		if !ok && excludedBy(p, rules) {
			d.report.Excluded++
			continue
		}
		if !ok && skippedBy(p, c) {
			d.report.Skipped++
			continue
		}
		d.report.Compared++
		switch reason := saved[p].difference(got); {
		case !ok:
			d.differs(p, "is missing")
		case reason == "bytes" && c.Redactions > 0 && listed[p].BlobKey == snapshot.FileBlobPrefix+hex.EncodeToString(got.digest[:]):
		case reason != "":
			d.differs(p, reason+" differs")
		}
	}
	for _, p := range restored.paths() {
		if _, ok := saved[p]; !ok {
			d.differs(p, "was not there")
		}
	}
}

// skippedBy tells whether a checkpoint reports that it could not keep a path or
// a directory above it. The rows of a report are limited: where there are more,
// a path that no checkpoint can have is among them.
func skippedBy(p string, c snapshot.Coverage) bool {
	if c.More > 0 && snapshot.ValidatePath(p) != nil {
		return true
	}
	for at := p; at != "."; at = path.Dir(at) {
		quoted := strconv.Quote(at)
		if slices.ContainsFunc(c.Skipped, func(s snapshot.Skipped) bool { return named(s.Path, at) || named(s.Path, quoted[1:len(quoted)-1]) }) {
			return true
		}
	}
	return false
}

// named tells whether a report names a path, which it cuts if it is long.
func named(row, p string) bool {
	head, cut := strings.CutSuffix(row, "…")
	return row == p || cut && strings.HasPrefix(p, head)
}

func (d *demo) differs(p, what string) {
	d.report.Equal = false
	if len(d.report.Differences) < maxDifferences {
		d.report.Differences = append(d.report.Differences, p+": "+what)
	}
}

// print shows the report and turns a difference into an error.
func (d *demo) print(asJSON bool) error {
	verdict := error(nil)
	if !d.report.Equal {
		verdict = errNotEqual
	}
	if asJSON {
		if d.report.Differences == nil {
			d.report.Differences = []string{}
		}
		b, err := marshal(d.report)
		if err == nil {
			_, err = fmt.Fprintf(d.std.Out, "%s\n", b)
		}
		return errors.Join(verdict, err)
	}
	var b strings.Builder
	for _, s := range d.report.Steps {
		fmt.Fprintf(&b, "%-28s %9.1f ms  %s\n", s.Name, s.Ms, s.Note)
	}
	fmt.Fprintf(&b, "\nBetween the two checkpoints:\n")
	for _, c := range d.report.Changes {
		fmt.Fprintf(&b, "  %-9s %s\n", c.Change, shown(c.Path))
	}
	for _, s := range d.report.Differences {
		fmt.Fprintf(&b, "differs: %s\n", shown(s))
	}
	if d.report.Equal {
		fmt.Fprintf(&b, "\nEqual: %s came back as they were saved (path, kind, bytes, mode, link target, mtime); %s were left out by the rules",
			plural(int64(d.report.Compared), "entry", "entries"), humanize.Comma(int64(d.report.Excluded)))
		if d.report.Skipped > 0 {
			fmt.Fprintf(&b, ", %s can't be kept, by their kind or name", humanize.Comma(int64(d.report.Skipped)))
		}
		fmt.Fprintln(&b, ".")
	}
	_, err := fmt.Fprint(d.std.Out, b.String())
	return errors.Join(verdict, err)
}
