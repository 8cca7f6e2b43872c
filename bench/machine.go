package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// machine says what the figures were taken on and with.
func machine(ctx context.Context, dir string, peers []peer) string {
	load, _, _ := strings.Cut(firstLine("/proc/loadavg", ""), " ")
	about := []string{fmt.Sprintf("%d cores (%s)", runtime.NumCPU(), firstLine("/proc/cpuinfo", "model name"))}
	if mem := firstLine("/proc/meminfo", "MemTotal"); mem != "" {
		var kb uint64
		_, _ = fmt.Sscan(mem, &kb)
		about = append(about, humanize.IBytes(kb<<10))
	}
	about = append(about, strings.TrimPrefix(said(ctx, "df", "--output=fstype", dir), "Type\n"), "Linux "+firstLine("/proc/sys/kernel/osrelease", ""), time.Now().Format(time.DateOnly), "load "+load)
	var tools []string
	for _, p := range peers {
		if s, ok := p.(shellPeer); ok {
			tools = append(tools, strings.TrimSpace(s.title+" "+number.FindString(said(ctx, "sh", "-c", s.version))))
		}
	}
	return strings.Join(about, ", ") + ". " + strings.Join(tools, ", ") + ".\n" +
		"Seconds of the whole command: median (minimum–maximum) of the rounds. ×: so many times Sandkeep's; of restic and borg, which sync\n" +
		"what they write, Sandkeep (fsync)'s.\n"
}

var number = regexp.MustCompile(`\d+(\.\d+)+`)

func said(ctx context.Context, name string, args ...string) string {
	out, _ := exec.CommandContext(ctx, name, args...).Output()
	return strings.TrimSpace(string(out))
}

// firstLine is what follows key and a colon in a file of /proc, or its first
// line without a key.
func firstLine(path, key string) string {
	data, _ := os.ReadFile(filepath.Clean(path))
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(line, ":")
		switch {
		case key == "":
			return strings.TrimSpace(line)
		case ok && strings.TrimSpace(name) == key:
			return strings.TrimSpace(value)
		}
	}
	return ""
}
