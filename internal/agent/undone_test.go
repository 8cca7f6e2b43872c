package agent

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandkeep/internal/workspace"
)

// What nobody has asked for is told, without where the root is.
func TestSetup_Undone(t *testing.T) {
	var log strings.Builder
	s := &Setup{Log: zerolog.New(&log), flags: Worker{SandboxRoot: "/w/boxes", RestoreRoot: "/w/restored"}}
	s.undone(workspace.Undone{Dir: "/w/restored/a/b", Entries: 3, Kept: []string{"b.kept-X"}})
	want := `{"level":"warn","path":"a/b","entries":3,"kept":["b.kept-X"],"message":"a restore that broke off was undone"}` + "\n"
	if log.String() != want {
		t.Errorf("the log is %s, want %s", log.String(), want)
	}
}
