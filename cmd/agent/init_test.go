package main

import (
	"strings"
	"testing"
)

// What init changes of a store that is there it says, and nothing of one that
// stays as it is.
func TestInit_Changes(t *testing.T) {
	m := newMachine(t)
	m.server()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"--max-bytes", "500000000"}, ", limit of each bucket 500 MB (was none)"},
		{[]string{"--max-bytes", "500000000"}, ""},
		{[]string{"--max-bytes", "1000000000", "--replicas", "1"}, ", limit of each bucket 1.0 GB (was 500 MB)"},
		{nil, ""},
		{[]string{"--store", "other", "--max-bytes", "500000000"}, ""},
	} {
		out := m.want(0, "", append([]string{"init"}, tc.args...)...)
		line, id, _ := strings.Cut(strings.TrimSpace(out), ", id ")
		if _, change, _ := strings.Cut(id, ","); !strings.HasSuffix(line, " is ready") || change != strings.TrimPrefix(tc.want, ",") {
			t.Errorf("init %q prints %q, want %q", tc.args, out, tc.want)
		}
	}
}
