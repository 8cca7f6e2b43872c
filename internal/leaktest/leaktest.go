// Package leaktest fails tests that leave goroutines behind.
package leaktest

import (
	"testing"

	"go.uber.org/goleak"
)

// Main is a TestMain that runs the tests and looks for goroutines left over.
func Main(m *testing.M) { goleak.VerifyTestMain(m, Known()...) }

// Known are goroutines of libraries that end by themselves, some seconds after
// their client or server was closed, or, the first, not at all: a short object
// put may end before it has read its channel.
func Known() []goleak.Option {
	const stream = "github.com/nats-io/nats-server/v2/server.(*stream)."
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"),
		goleak.IgnoreAnyFunction(stream + "trySetupSourceConsumer.func3"),
		goleak.IgnoreAnyFunction(stream + "tryDeleteSourcingConsumer.func1"),
	}
}
