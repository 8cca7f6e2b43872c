// Package clustertest lets tests run on a cluster of three servers, processes
// of their own on the loopback address, if the flag -replicas asks for it.
package clustertest

import (
	crand "crypto/rand"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Replicas is on how many servers a test keeps its store: 1, or 3 of a cluster.
var Replicas = 1

func init() {
	flag.Func("replicas", "servers that keep the store of a test: 1, or a cluster of 3 processes (default 1)", func(value string) error {
		if value != "1" && value != "3" {
			return errors.New("it may be 1 or 3")
		}
		Replicas = int(value[0] - '0')
		return nil
	})
}

// On says whether tests have to run on a cluster.
func On() bool { return Replicas == 3 }

// Configs writes the configurations of the servers s0, s1 and s2 of a cluster.
func Configs(t testing.TB) []string {
	t.Helper()
	dir := t.TempDir()
	paths, err := writeConfigs(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// writeConfigs gives each server a name, its routes, and more that all have.
func writeConfigs(dir, more string) (paths []string, err error) {
	var routes [3]string
	for i := range routes {
		if routes[i], err = freeAddress(); err != nil {
			return nil, err
		}
	}
	name := crand.Text() // so that no two clusters ever join
	for i, route := range routes {
		config := fmt.Sprintf("server_name: s%d\ncluster { name: %q, listen: %q, routes: [nats://%s] }\n%s", i, name, route, strings.Join(routes[:], ", nats://"), more)
		path := filepath.Join(dir, fmt.Sprintf("s%d.conf", i))
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// FreeAddress is one that nothing listens on, and that the system does not give
// to outgoing connections.
func FreeAddress(t testing.TB) string {
	t.Helper()
	at, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return at
}

var given sync.Map // addresses that this process has given away, perhaps not yet used

func freeAddress() (at string, err error) {
	for range 100 {
		at = fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000)) // below the ports of outgoing connections
		if _, taken := given.LoadOrStore(at, true); taken {
			continue
		}
		l, failed := net.Listen("tcp", at)
		if failed == nil {
			return at, l.Close()
		}
		err = failed
	}
	return "", fmt.Errorf("find a free port: %w", err)
}
