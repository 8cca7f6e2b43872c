package tests

import (
	"encoding/json"
	"testing"
)

// The service is one that the usual tools know.
func TestServiceOfTheMicroFramework(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	build(t, s.sandbox(t, "work")).file("file", []byte("x"), 0o644)
	s.attach("t", "work")
	for range 3 {
		s.save("t", "r")
	}
	refused(s.client, "snapshot.save", object{"threadId": "nobody", "runId": "r"}, fullCode("MISSING_REUSABLE_SANDBOX"))
	var ping struct{ Name, ID, Version string }
	if s.discover("PING", &ping); ping.Name != "sandbox" || ping.ID == "" || ping.Version != "0.0.0-dev" {
		t.Errorf("%+v", ping)
	}
	var info struct {
		Endpoints []struct {
			Name, Subject string
			Group         string `json:"queue_group"`
		}
	}
	s.discover("INFO", &info)
	if last := info.Endpoints[len(info.Endpoints)-1]; last.Name != "snapshot-save" {
		t.Errorf("the last endpoint is %+v", last)
	}
	for _, e := range info.Endpoints {
		if e.Group != "sandbox" {
			t.Errorf("endpoint %s is in the queue group %q", e.Name, e.Group)
		}
	}
	var stats struct {
		Endpoints []struct {
			Name string
			Data struct{ Codes map[string]int }
		}
	}
	s.discover("STATS", &stats)
	for _, e := range stats.Endpoints {
		if e.Name == "snapshot-save" && (e.Data.Codes["ok"] != 3 || e.Data.Codes[fullCode("MISSING_REUSABLE_SANDBOX")] != 1) {
			t.Errorf("the stats count %v", e.Data.Codes)
		}
	}
}

// discover asks what every micro service answers.
func (c client) discover(verb string, into any) {
	c.t.Helper()
	msg, err := c.nc.Request("$SRV."+verb+".sandbox", nil, patience)
	if err == nil {
		err = json.Unmarshal(msg.Data, into)
	}
	if err != nil {
		c.t.Fatalf("%s: %v", verb, err)
	}
}
