package bus

import (
	"maps"
	"sync"
	"time"

	"sandkeep/internal/snapshot"
)

// EndpointData is the `data` of an endpoint's stats: what became of the
// requests, which micro itself can't know. Codes counts replies, "ok" the good
// ones.
type EndpointData struct {
	Codes    map[string]int64 `json:"codes"`
	InFlight int64            `json:"inFlight"`
	TotalMs  float64          `json:"totalMs"`
	MaxMs    float64          `json:"maxMs"`
}

// counters counts for one endpoint.
type counters struct {
	mu   sync.Mutex // guards data
	data EndpointData
}

func (c *counters) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data.InFlight++
}

// end counts a reply; code "" is a good one.
func (c *counters) end(code snapshot.Code, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if code == "" {
		code = "ok"
	}
	if c.data.Codes == nil {
		c.data.Codes = map[string]int64{}
	}
	ms := float64(took) / float64(time.Millisecond)
	c.data.InFlight--
	c.data.Codes[string(code)]++
	c.data.TotalMs += ms
	c.data.MaxMs = max(c.data.MaxMs, ms)
}

func (c *counters) snapshot() EndpointData {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.data
	if out.Codes = maps.Clone(out.Codes); out.Codes == nil {
		out.Codes = map[string]int64{}
	}
	return out
}
