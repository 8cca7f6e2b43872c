package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
)

// profilesURL is where the log says that profiles are served.
func profilesURL(t *testing.T, log *lines) string {
	t.Helper()
	for line := range strings.Lines(log.String()) {
		var fields struct{ Message, URL string }
		if json.Unmarshal([]byte(line), &fields) == nil && fields.Message == "profiles are served" {
			return fields.URL
		}
	}
	t.Fatalf("no line \"profiles are served\" in:\n%s", log)
	return ""
}

func TestServe_Profiles(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	initStore(t, s, dir)
	flags := worker()
	flags.Pprof = "127.0.0.1:0"
	log := &lines{}
	setup, err := agent.NewSetup(common(dir), flags, log)
	if err != nil {
		t.Fatal(err)
	}
	link, err := agent.Dial(common(dir), bus.ConnectOptions{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return setup.Serve(ctx, link) })
	log.ready(t, 1)
	url := profilesURL(t, log)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]int{"goroutine?debug=1": http.StatusOK, "heap": http.StatusOK, "cmdline": http.StatusNotFound} {
		reply, err := client.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, reply.Body)
		if err := errors.Join(err, reply.Body.Close()); err != nil || reply.StatusCode != want {
			t.Errorf("GET %s: status %d, error %v; want %d", path, reply.StatusCode, err, want)
		}
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := client.Get(url); err == nil {
		t.Error("profiles are still served after the end")
	}
}

func TestServe_ProfilesAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	s := startServer(t, dir)
	initStore(t, s, dir)
	flags := worker()
	flags.Pprof = taken.Addr().String()
	setup, err := agent.NewSetup(common(dir), flags, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	err = setup.Serve(t.Context(), s.Link)
	if _, ok := errors.AsType[*agent.UsageError](err); !ok || !strings.Contains(err.Error(), "--pprof") || !strings.Contains(err.Error(), "give HOST:PORT") {
		t.Errorf("Serve with an address in use: %v, want a usage error that names the flag", err)
	}
}
