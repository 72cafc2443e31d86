package sglangmode

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// LoadsPath is where a server tells how busy it is.
func (m *Mode) LoadsPath() string {
	if m.Role() != infer.RoleBoth {
		return "/v1/loads?include=core,disagg"
	}
	return "/v1/loads?include=core"
}

// Loads is what it tells there, of each of its ranks.
type Loads struct {
	Timestamp jsontext.Value `json:"timestamp"`
	Ranks     []struct {
		Running int     `json:"num_running_reqs"`
		Waiting int     `json:"num_waiting_reqs"`
		Usage   float64 `json:"token_usage"`
		// Pairs is of a server that serves halves. Waiting has all of its queues but one:
		// that of prefill halves whose KV is not fetched.
		Pairs struct {
			Kept int `json:"prefill_inflight_queue_reqs"`
		} `json:"disaggregation"`
	} `json:"loads"`
}

// ParseLoads reads a server's word on its load.
func ParseLoads(data []byte) (l Loads, err error) {
	err = json.Unmarshal(data, &l, jsontext.AllowDuplicateNames(true))
	return l, err
}

// Sum gives the requests of all ranks, those among the running ones whose KV is kept for a
// decode engine, and the share of their caches that is in use. ok is false where there is
// no rank.
func (l *Loads) Sum() (running, waiting int, usage float64, ok bool) {
	for _, r := range l.Ranks {
		running += r.Running + r.Pairs.Kept
		waiting += r.Waiting
		usage += r.Usage / float64(len(l.Ranks))
	}
	return running, waiting, usage, len(l.Ranks) > 0
}
