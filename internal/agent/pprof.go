package agent

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// Profiling are the flags about profiles of a running program.
type Profiling struct {
	Pprof string `placeholder:"ADDR" help:"Serve profiles of this program by HTTP at HOST:PORT; whoever reaches it can slow the program down (default: none)."`
}

// serveProfiles answers at http://ADDR/debug/pprof/ until stop is called. It
// returns where it listens.
func (p Profiling) serveProfiles() (at string, stop func(), err error) {
	if p.Pprof == "" {
		return "", func() {}, nil
	}
	l, err := net.Listen("tcp", p.Pprof)
	if err != nil {
		return "", nil, &UsageError{Err: fmt.Errorf("--pprof %q: %w; give HOST:PORT, such as 127.0.0.1:6060", p.Pprof, err)}
	}
	mux := http.NewServeMux() // not the default one, and no command line, which may have a password
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			_ = l.Close() // profiles are for looking: a worker does not end for them
		}
	}()
	return l.Addr().String(), func() {
		_ = server.Close() // a profile under way is not waited for
		<-done
	}, nil
}
