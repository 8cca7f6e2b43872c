package bus

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const mib = 1 << 20

// disk is a server whose guard is told how much is free.
type disk struct {
	t     *testing.T
	s     *Server
	guard *diskGuard
	free  int64
}

func newDisk(t *testing.T, config string) *disk {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "server.conf")
	if err := os.WriteFile(conf, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := StartServer(ServerOptions{StoreDir: t.TempDir(), AllowTempStore: true, Sync: SyncInterval, Listen: "127.0.0.1:0", ConfigFile: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	s.disk.close() // the real disk has no say
	d := &disk{t: t, s: s, free: 1 << 40}
	d.guard = newDiskGuard(s.server, 100*mib, func() int64 { return d.free })
	return d
}

// limit looks at the disk and tells what an account may store then.
func (d *disk) limit(account string, free int64) int64 {
	d.t.Helper()
	d.free = free
	d.guard.look()
	a, err := d.s.server.LookupAccount(account)
	if err != nil {
		d.t.Fatal(err)
	}
	return a.JetStreamUsage().Limits.MaxStore
}

func (d *disk) stored(account string) int64 {
	d.t.Helper()
	a, err := d.s.server.LookupAccount(account)
	if err != nil {
		d.t.Fatal(err)
	}
	return int64(a.JetStreamUsage().Store)
}

// stream makes a stream with a message of that size.
func (d *disk) stream(size int, login ...nats.Option) jetstream.JetStream {
	d.t.Helper()
	nc, err := nats.Connect("", append(login, nats.InProcessServer(d.s.server))...)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.CreateStream(d.t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	}
	if err == nil {
		_, err = js.Publish(d.t.Context(), "s", make([]byte, size))
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return js
}

func TestDiskGuard(t *testing.T) {
	d := newDisk(t, "")
	js := d.stream(300_000)
	stored := d.stored("$G")
	for _, step := range []struct {
		what       string
		free, want int64
	}{
		{"much is free", 1 << 40, -1},
		{"just enough", 100 * mib, -1},
		{"less than the reserve: a quarter of it may be written", 100*mib - 1, stored + (98*mib-1)/4},
		{"still less", 10 * mib, stored + 2*mib},
		{"some was freed, not enough", 50 * mib, stored + 12*mib},
		{"nearly nothing", 2 * mib, 0},
		{"nothing", 0, 0},
		{"a little again", 6 * mib, stored + mib},
		{"room again", 100 * mib, -1},
	} {
		if got := d.limit("$G", step.free); got != step.want {
			t.Errorf("%s (%d bytes): the limit is %d, want %d", step.what, step.free, got, step.want)
		}
	}
	publish := func(size int) error {
		_, err := js.Publish(t.Context(), "s", make([]byte, size))
		return err
	}
	if d.limit("$G", 2*mib+400_000); publish(200_000) == nil || publish(10_000) != nil {
		t.Error("on a tight disk a large write is taken, or a small one refused")
	}
	if d.limit("$G", 0); publish(1) == nil {
		t.Error("on a full disk a write is taken")
	}
	if d.limit("$G", 1<<40); publish(200_000) != nil {
		t.Error("with room again a write is refused")
	}
}

// Accounts that have a limit of their own get it back, and never more than it.
func TestDiskGuard_LimitsOfAccounts(t *testing.T) {
	d := newDisk(t, `accounts {
		A {jetstream: {max_store: 5MB}, users: [{user: a, password: a}]}
		B {jetstream: enabled, users: [{user: b, password: b}]}
	}`)
	d.stream(1000, nats.UserInfo("a", "a"))
	d.stream(1000, nats.UserInfo("b", "b"))
	own := d.limit("A", 1<<40)
	if own < 5_000_000 || d.limit("B", 1<<40) != -1 {
		t.Fatalf("the limits are %d and %d before", own, d.limit("B", 1<<40))
	}
	if a, b := d.limit("A", 90*mib), d.limit("B", 90*mib); a != own || b != d.stored("B")+22*mib {
		t.Errorf("tight limits are %d and %d", a, b)
	}
	if a, b := d.limit("A", 4*mib), d.limit("B", 4*mib); a != d.stored("A")+mib/2 || b != d.stored("B")+mib/2 {
		t.Errorf("tighter limits are %d and %d", a, b)
	}
	if a, b := d.limit("A", 1<<40), d.limit("B", 1<<40); a != own || b != -1 {
		t.Errorf("afterwards the limits are %d and %d", a, b)
	}
}
