package workspace

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"sandkeep/internal/snapshot"
)

// maxShownPath bounds a path in a report, so that the report fits into a record.
const maxShownPath = 1024

// report collects what a capture leaves out.
type report struct {
	cov      snapshot.Coverage
	redactor *Redactor
	faults   map[snapshot.Code]*faultList // what --strict fails by
}

type faultList struct {
	paths []string
	count int64
}

func newReport(r *Redactor) *report {
	return &report{redactor: r, faults: map[snapshot.Code]*faultList{},
		cov: snapshot.Coverage{Excluded: map[string]int64{}, Skipped: []snapshot.Skipped{}, Unstable: []string{}}}
}

func (r *report) exclude(rule string) { r.cov.Excluded[r.redactor.Text(rule)]++ }

// skip notes an entry that is not kept; code is what a strict save fails with.
func (r *report) skip(path, reason string, code snapshot.Code) {
	shown := r.fault(path, code)
	if len(r.cov.Skipped) < snapshot.MaxCoverageRows {
		r.cov.Skipped = append(r.cov.Skipped, snapshot.Skipped{Path: shown, Reason: reason})
	} else {
		r.cov.More++
	}
}

// unstable notes an entry that changed under every read.
func (r *report) unstable(path string) {
	shown := r.fault(path, snapshot.WorkspaceChanged)
	if len(r.cov.Unstable) < snapshot.MaxCoverageRows {
		r.cov.Unstable = append(r.cov.Unstable, shown)
	} else {
		r.cov.More++
	}
}

func (r *report) fault(path string, code snapshot.Code) string {
	shown := r.show(path)
	list := r.faults[code]
	if list == nil {
		list = &faultList{}
		r.faults[code] = list
	}
	if list.count++; len(list.paths) < snapshot.MaxCoverageRows {
		list.paths = append(list.paths, shown)
	}
	return shown
}

// show gives a path without secrets, escaped if it is not a valid one.
func (r *report) show(path string) string {
	shown := r.redactor.Text(path)
	if snapshot.ValidatePath(path) != nil {
		quoted := strconv.Quote(shown)
		shown = quoted[1 : len(quoted)-1]
	}
	if len(shown) > maxShownPath {
		cut := maxShownPath
		for !utf8.RuneStart(shown[cut]) {
			cut--
		}
		shown = shown[:cut] + "…"
	}
	return shown
}

// strictCodes are in the order in which a strict save names its fault.
var strictCodes = []struct {
	code snapshot.Code
	what string
}{
	{snapshot.UnsupportedEntry, "can't be kept"},
	{snapshot.UnreadableEntry, "can't be read"},
	{snapshot.WorkspaceChanged, "kept changing while they were read"},
}

// strict is the error of a save that must keep everything, with all paths.
func (r *report) strict() error {
	var first *snapshot.Error
	var paths []string
	var count int64
	for _, kind := range strictCodes {
		list := r.faults[kind.code]
		if list == nil {
			continue
		}
		if first == nil {
			first = snapshot.Errorf(kind.code, "%d entries of the workspace %s (%s); remove or exclude them, or save without strict",
				list.count, kind.what, quoteSome(list.paths, list.count))
		}
		paths, count = append(paths, list.paths...), count+list.count
	}
	if first == nil {
		return nil
	}
	return first.With("paths", paths[:min(len(paths), snapshot.MaxCoverageRows)]).With("count", count)
}

// quoteSome fits a list into one line of a message; the details have them all.
func quoteSome(paths []string, count int64) string {
	const shown = 5
	quoted := make([]string, 0, shown)
	for _, p := range paths[:min(len(paths), shown)] {
		quoted = append(quoted, strconv.QuoteToASCII(p))
	}
	out := strings.Join(quoted, ", ")
	if count > shown {
		out += fmt.Sprintf(" and %d more", count-shown)
	}
	return out
}
