package sglangserver

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
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
	Version   string         `json:"version"`
	Ranks     []struct {
		Rank    int     `json:"dp_rank"`
		At      float64 `json:"timestamp"` // in seconds; a rank that stands still reports nothing new
		Running int     `json:"num_running_reqs"`
		Waiting int     `json:"num_waiting_reqs"`
		Usage   float64 `json:"token_usage"`
		// The rank's limits.
		KVTokens   int `json:"max_total_num_tokens"`
		MaxRunning int `json:"max_running_requests"`
		// Pairs is of a server that serves halves. Waiting has all of its queues but one:
		// that of prefill halves whose KV is not fetched.
		Pairs struct {
			Kept int `json:"prefill_inflight_queue_reqs"`
		} `json:"disaggregation"`
	} `json:"loads"`
}

// TakesRank reports whether a request may name one of the ranks, of which there are several: they are
// numbered from 0, and the server is of a release that reads a request's rank.
func (l *Loads) TakesRank() bool {
	v, ok := parseVersion(l.Version)
	if !ok || slices.Compare(v, []int{0, 5, 10}) < 0 || len(l.Ranks) < 2 {
		return false
	}
	for i := range l.Ranks {
		if l.Ranks[i].Rank != i {
			return false
		}
	}
	return true
}

func parseLoads(data []byte) (l Loads, err error) {
	err = json.Unmarshal(data, &l, jsontext.AllowDuplicateNames(true))
	return l, err
}

// Load returns the requests of all ranks, those among the running ones whose KV is kept for
// a decode engine, and the share of their caches that is in use; and the same of each. ok
// is false where there is no rank.
func (l *Loads) Load() (sum engine.Load, ok bool) {
	var ranks []engine.RankLoad
	latest := 0.0
	for _, r := range l.Ranks {
		latest = max(latest, r.At)
	}
	for _, r := range l.Ranks {
		ranks = append(ranks, engine.RankLoad{Rank: r.Rank, Running: r.Running + r.Pairs.Kept, Waiting: r.Waiting, KVUsage: r.Usage, Behind: engine.Behind(r.At, latest)})
	}
	return engine.SumLoads(ranks), len(ranks) > 0
}
