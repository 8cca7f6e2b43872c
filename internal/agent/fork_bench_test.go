package agent_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// BenchmarkFork forks trees of different sizes and, by turns, makes one raw
// conditional write into a bucket like the one of the state. Neither the size of
// the tree nor the sync mode may show in of-bar, which is the median fork by
// three median writes and 1 ms, and shall not be above 1.
func BenchmarkFork(b *testing.B) {
	for _, sync := range []string{"interval", "always"} {
		for _, files := range []int{2000, 26_000} {
			name := fmt.Sprint("files=", files)
			if *treeDir != "" {
				name = "tree=" + filepath.Base(*treeDir)
			}
			b.Run("sync="+sync+"/"+name, func(b *testing.B) { benchmarkFork(b, sync, files) })
			if *treeDir != "" {
				break
			}
		}
	}
}

func benchmarkFork(b *testing.B, sync string, files int) {
	r := newSyncedRig(b, sync)
	var thread string
	if *treeDir != "" {
		thread, _ = r.engineTree()
	} else {
		thread = r.tree(files, 500, 1)
	}
	r.save(thread)
	raw := r.rawBucket()
	value := bytes.Repeat([]byte("x"), 200)
	revision := uint64(0)
	var forks, writes []time.Duration
	var sent uint64
	for b.Loop() {
		began, before := time.Now(), r.nc.Stats().OutMsgs
		r.request("fork", map[string]any{"threadId": thread, "destinationThreadId": r.next("fork")})
		forks, sent = append(forks, time.Since(began)), sent+r.nc.Stats().OutMsgs-before
		for range 5 { // the server may still be copying the fork's event while the first is made
			began, err := time.Now(), error(nil)
			revision, err = raw.Update(b.Context(), "key", value, revision)
			r.must(err)
			writes = append(writes, time.Since(began))
		}
	}
	fork, cas := median(forks), median(writes)
	b.ReportMetric(ms(fork), "ms")
	b.ReportMetric(ms(cas), "cas-ms")
	b.ReportMetric(ms(fork)/ms(cas), "times-cas")
	b.ReportMetric(ms(fork)/(3*ms(cas)+1), "of-bar")
	b.ReportMetric(float64(sent)/float64(len(forks))-2, "store-requests") // without the request and its reply
}

// rawBucket is a new bucket that is configured as the one of the state.
func (r *rig) rawBucket() jetstream.KeyValue {
	r.b.Helper()
	js, err := jetstream.New(r.nc)
	r.must(err)
	state, err := js.Stream(r.b.Context(), "KV_sandbox-state")
	r.must(err)
	config := state.CachedInfo().Config
	config.Name, config.Subjects = "KV_raw", []string{"$KV.raw.>"}
	_, err = js.CreateStream(r.b.Context(), config)
	r.must(err)
	kv, err := js.KeyValue(r.b.Context(), "raw")
	r.must(err)
	return kv
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func median(values []time.Duration) time.Duration {
	slices.Sort(values)
	return values[len(values)/2]
}
