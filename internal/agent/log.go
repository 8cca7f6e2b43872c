package agent

import (
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// Log are the flags about logs, which go to stderr.
type Log struct {
	LogLevel  string `default:"info" enum:"debug,info,warn,error" help:"Least level that is logged: ${enum} (default: info)."`
	LogFormat string `default:"auto" enum:"auto,json,console" help:"Format of the log: ${enum}; auto is console on a terminal, json elsewhere."`
}

// Logger writes to w. No secret that the redactor knows gets through.
func (l Log) Logger(w io.Writer, r snapshot.Redactor) zerolog.Logger {
	level, err := zerolog.ParseLevel(l.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel
	}
	if l.LogFormat == "console" || l.LogFormat == "auto" && isTerminal(w) {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(bus.RedactLog(w, r)).Level(level).With().Timestamp().Logger()
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
