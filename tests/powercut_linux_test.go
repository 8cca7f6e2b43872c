package tests

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"sandkeep/tests/powercut"
)

// machine is nats-embedded with its store and its state on a disk whose power
// fails. What clients were told before that is known to the users.
type machine struct {
	*server
	disk    *powercut.Disk
	dir     string
	unmount func() error
	rand    *rand.Rand
	users   []user
	cuts    int
}

func newMachine(t *testing.T, model powercut.Model, seed uint64, flags ...string) *machine {
	t.Helper()
	m := &machine{disk: powercut.New(model, seed), dir: t.TempDir(), rand: rand.New(rand.NewPCG(seed, 1))}
	m.server = &server{client: client{t: t, prefix: "sandbox"}, node: newNode(t, "n1"),
		storeDir: filepath.Join(m.dir, "store"), stateDir: filepath.Join(m.dir, "state"),
		flags: append([]string{"--auth", "none", "--lease", shortLease}, flags...)}
	m.mount()
	saves := &saver{machine: m, thread: "saved"}
	m.users = []user{saves, &talker{machine: m}, &appender{machine: m, thread: "appended"}, &forker{machine: m, of: saves}}
	return m
}

func (m *machine) mount() {
	m.t.Helper()
	unmount, err := m.disk.Mount(m.dir)
	if err != nil {
		m.t.Skipf("LEFT OUT: power cuts are not tested where no file system can be mounted: %v", err)
	}
	once := sync.OnceValue(unmount)
	m.t.Cleanup(func() { _ = once() })
	m.unmount = once
}

// boot starts the program; the power may fail before it is ready.
func (m *machine) boot() (ready bool) {
	m.t.Helper()
	args := append(m.node.flags(m.stateDir), "--store-dir", m.storeDir, "--allow-temp-store", "--listen", "127.0.0.1:0")
	m.proc = start(m.t, embeddedProgram, append(args, m.flags...)...)
	m.t.Cleanup(m.disk.Free) // the end of the test kills the program
	var line map[string]any
	eventually(m.t, "the program to be ready", func() bool {
		line = logLine(m.proc.stderr.String(), "ready")
		return line != nil || m.disk.IsOff() || m.proc.ended()
	})
	if m.disk.IsOff() {
		return false
	}
	if line == nil {
		m.t.Fatalf("cut %d: the program does not start:\n%s", m.cuts, lastLines(m.proc.stderr.String(), 30))
	}
	m.url, _ = line["url"].(string)
	nc, err := nats.Connect(m.url, nats.MaxReconnects(0))
	if err != nil {
		m.t.Fatalf("connect: %v", err)
	}
	m.t.Cleanup(nc.Close)
	m.nc = nc
	return true
}

// start boots until it succeeds; some times the power fails meanwhile.
func (m *machine) start() {
	m.t.Helper()
	for m.rand.IntN(3) == 0 {
		m.disk.OffAt(1 + m.rand.Int64N(80))
		if m.boot() {
			m.disk.Off()
		}
		m.cut(m.rand.IntN(3) > 0)
	}
	m.boot()
}

// cut kills the program, takes away what is not durable and mounts the rest.
func (m *machine) cut(torn bool) {
	m.t.Helper()
	m.proc.signal(syscall.SIGKILL)
	m.disk.Free()
	<-m.proc.done
	if err := m.unmount(); err != nil {
		m.t.Fatalf("unmount: %v", err)
	}
	m.disk.Cut(torn)
	m.mount()
	m.cuts++
}

// use lets all users work until the power fails.
func (m *machine) use() {
	m.t.Helper()
	var group errgroup.Group
	off := m.disk.WhenOff()
	for _, u := range m.users {
		group.Go(func() error {
			for !m.disk.IsOff() && !m.t.Failed() {
				u.step()
			}
			return nil // failures are the test's
		})
	}
	select {
	case <-off:
	case <-time.After(patience):
		m.t.Errorf("the users have done nothing for %v", patience)
	}
	m.proc.signal(syscall.SIGKILL)
	m.disk.Free()
	_ = group.Wait()
}

// ask sends a request. It is false if the power failed before the answer: then
// nobody knows. Any other failure is one of the test.
func (m *machine) ask(subject string, body object, into any) bool {
	msg, err := m.nc.Request(m.prefix+"."+subject, encode(m.t, body), patience)
	if m.disk.IsOff() {
		return false
	}
	if err == nil {
		if f := decodeFailure(m.t, msg); f != nil {
			err = fmt.Errorf("%s: %s %v", f.Code, f.Message, f.Details)
		} else if into != nil {
			err = json.Unmarshal(msg.Data, into)
		}
	}
	if err != nil {
		m.t.Errorf("cut %d: %s %.300s: %v", m.cuts, subject, encode(m.t, body), err)
	}
	return err == nil
}

// check wants all that was acknowledged, and that everything goes on.
func (m *machine) check(all bool) {
	m.t.Helper()
	for _, u := range m.users {
		for _, what := range u.lost() {
			m.t.Errorf("cut %d: lost: %s", m.cuts, what)
		}
		u.readable(all)
	}
	if m.t.Failed() {
		m.t.FailNow()
	}
}

// told sums up what was acknowledged.
func (m *machine) told() (n int64) {
	for _, u := range m.users {
		n += u.count()
	}
	return n
}

// survive cuts the power again and again and loses nothing.
func survive(t *testing.T, model powercut.Model, seed uint64, cuts int) {
	m := newMachine(t, model, seed, "--sync", "always")
	for m.start(); m.cuts < cuts; m.start() {
		m.check(false)
		m.disk.OffAt(1 + m.rand.Int64N(1500))
		m.use()
		m.cut(m.rand.IntN(3) > 0)
		t.Logf("cut %d: %d acknowledged, %d changes", m.cuts, m.told(), m.disk.Changes())
	}
	m.check(true)
	for _, u := range m.users {
		before := u.count()
		if u.step(); u.count() != before+1 && !t.Failed() {
			t.Errorf("%T does not go on", u)
		}
	}
	t.Logf("seed %d: %d cuts, %d acknowledged requests, %d changes and syncs of the disk", seed, m.cuts, m.told(), m.disk.Changes())
}

// What was acknowledged survives power cuts at any moment, on a disk that
// gives less than ext4.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	lanes, cuts := 2, 4
	if *long {
		lanes, cuts = 8, 40
	}
	for lane := range lanes {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			survive(t, powercut.Journal, uint64(lane), cuts)
		})
	}
}

// With --sync interval a power cut loses what was acknowledged last, as the
// documents say; so the disk does bite.
func TestPowerCutWithSyncAtIntervals(t *testing.T) {
	t.Parallel()
	m := newMachine(t, powercut.Journal, 1, "--sync", "interval")
	m.boot()
	m.disk.OffAt(1000)
	m.use()
	m.cut(false)
	m.boot()
	var lost []string
	for _, u := range m.users {
		lost = append(lost, u.lost()...)
	}
	t.Logf("lost of %d: %q", m.told(), lost)
	if len(lost) == 0 {
		t.Errorf("nothing of %d acknowledged requests was lost", m.told())
	}
}

// A disk that keeps a name only by fsync of its directory is none of Linux's
// own; there the server's first files are not durable before all was synced
// once. After that, what was acknowledged survives.
func TestPowerCutOfAStricterDisk(t *testing.T) {
	t.Parallel()
	m := newMachine(t, powercut.Names, 1, "--sync", "always")
	m.boot()
	for _, u := range m.users {
		u.step()
	}
	names, _ := m.disk.Volatile()
	t.Logf("names that were not synced: %q", names)
	m.disk.Sync()
	m.disk.OffAt(600)
	m.use()
	m.cut(false)
	m.boot()
	m.check(true)
}
