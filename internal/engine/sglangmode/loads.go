package sglangmode

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// LoadsPath is where a server tells how busy it is.
const LoadsPath = "/v1/loads?include=core"

// Loads is what it tells there, of each of its ranks.
type Loads struct {
	Timestamp jsontext.Value `json:"timestamp"`
	Ranks     []struct {
		Running int     `json:"num_running_reqs"`
		Waiting int     `json:"num_waiting_reqs"`
		Usage   float64 `json:"token_usage"`
	} `json:"loads"`
}

// ParseLoads reads a server's word on its load.
func ParseLoads(data []byte) (l Loads, err error) {
	err = json.Unmarshal(data, &l, jsontext.AllowDuplicateNames(true))
	return l, err
}

// Sum gives the requests of all ranks, and the share of their caches that is in use. ok is
// false where there is no rank.
func (l *Loads) Sum() (running, waiting int, usage float64, ok bool) {
	for _, r := range l.Ranks {
		running += r.Running
		waiting += r.Waiting
		usage += r.Usage / float64(len(l.Ranks))
	}
	return running, waiting, usage, len(l.Ranks) > 0
}
