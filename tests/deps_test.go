package tests

import (
	"os/exec"
	"strings"
	"testing"
)

// layers says which packages of this module each package may use, and which
// foreign ones it must not. Imports run one way:
// cmd -> agent -> bus -> snapshot <- kvstore, objstore, workspace, sandbox.
var layers = map[string]struct {
	uses   []string
	banned []string
	why    string
}{
	"snapshot":  {nil, []string{"github.com/nats-io/", "github.com/rs/zerolog", "github.com/alecthomas/kong"}, "the domain knows no transport, store, logger or command line"},
	"kvstore":   {[]string{"snapshot"}, []string{"github.com/rs/zerolog", "github.com/nats-io/nats-server"}, "a store returns errors, it does not log"},
	"objstore":  {[]string{"snapshot"}, []string{"github.com/rs/zerolog", "github.com/nats-io/nats-server"}, "a store returns errors, it does not log"},
	"workspace": {[]string{"snapshot"}, []string{"github.com/nats-io/", "github.com/rs/zerolog"}, "trees know no transport and no logger"},
	"sandbox":   {[]string{"snapshot"}, []string{"github.com/nats-io/", "github.com/rs/zerolog"}, "definitions and providers know no transport and no logger"},
	"bus":       {[]string{"snapshot"}, nil, "the service sees the domain, not the stores"},
}

func TestImportsRunOneWay(t *testing.T) {
	for name, layer := range layers {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command("go", "list", "-deps", "sandkeep/internal/"+name).Output()
			if err != nil {
				t.Fatalf("go list -deps sandkeep/internal/%s: %v", name, err)
			}
			for dep := range strings.FieldsSeq(string(out)) {
				if own, ok := strings.CutPrefix(dep, "sandkeep/"); ok && !allowed(own, name, layer.uses) {
					t.Errorf("%s imports %s: %s", name, dep, layer.why)
				}
				for _, b := range layer.banned {
					if strings.HasPrefix(dep, b) {
						t.Errorf("%s imports %s: %s", name, dep, layer.why)
					}
				}
			}
		})
	}
}

func allowed(dep, name string, uses []string) bool {
	for _, u := range append(uses, name) {
		if dep == "internal/"+u {
			return true
		}
	}
	return false
}
