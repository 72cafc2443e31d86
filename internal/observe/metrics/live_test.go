package metrics

import (
	"strconv"
	"testing"

	"weir/internal/fleet/queue"
	"weir/internal/infer"
	"weir/internal/model/pool"
)

// Live returns what was counted, over all models and engines.
func TestLive(t *testing.T) {
	m := New()
	if l := m.Live(); l.Received != 0 || l.TTFT.Count != 0 || len(l.TTFT.Counts) != len(l.Bounds) || len(l.Queue) != 0 {
		t.Errorf("at rest: %+v", l)
	}
	p := pool.New(pool.Options{Workers: 1})
	defer p.Close()
	m.Gateway(p, func() int64 { return 3 })
	var refused queue.Stats
	refused.Waiting, refused.Refused[queue.Full] = 4, 2
	m.Queue(func() map[string]QueueStats {
		return map[string]QueueStats{"m": {Stats: refused, OldestSeconds: 1.5}}
	})
	for _, model := range []string{"m", "n"} {
		for range 3 {
			m.Received("/v1/completions")
		}
		r := ended(infer.Finished, "")
		r.Stream, r.Model, r.CompletionTokens, r.FirstFlushed = true, model, 7, r.Arrival+3e6
		m.Ended(r)
		m.Ended(ended(infer.Failed, "engine"))
	}
	m.Retry("e", false)
	m.Wrote(1, 100)
	l := m.Live()
	if l.Received != 6 || l.InFlight != 2 || l.Ended["finished"] != 2 || l.Ended["failed"] != 2 || l.Retries != 1 || l.OutputTokens != 14 || l.OutputBytes != 100 || l.Pending != 3 {
		t.Errorf("%+v", l)
	}
	// Two of 3 ms: none is at most 2.5 ms, both are at most 5 ms.
	for i, bound := range l.Bounds {
		want := uint64(0)
		if bound >= .003 {
			want = 2
		}
		if l.TTFT.Counts[i] != want {
			t.Errorf("%d at most %v s, want %d", l.TTFT.Counts[i], bound, want)
		}
	}
	if l.TTFT.Count != 2 || l.Total.Count != 4 || l.Output.Count != 0 {
		t.Errorf("%+v", l)
	}
	if q := l.Queue["m"]; q.Waiting != 4 || q.OldestSeconds != 1.5 || q.Refused[queue.Full.String()] != 2 {
		t.Errorf("%+v", q)
	}
}

// If there are thousands of tenants, Live has those with the most waiting requests, then those
// that were served most.
func TestLiveOfManyTenants(t *testing.T) {
	m := New()
	m.Tenants(func() (all []queue.Tenant) {
		for i := range 5000 {
			of := queue.Tenant{Band: "b", Name: strconv.Itoa(i), ServedMS: float64(i)}
			if i%1000 == 7 {
				of.WaitingMS = 1000
			}
			all = append(all, of)
		}
		return all
	})
	l := m.Live()
	if len(l.Tenants) != liveTenants || l.Tenants[0].Tenant != "4007" || l.Tenants[4].Tenant != "7" || l.Tenants[5].Tenant != "4999" {
		t.Errorf("%d tenants: %+v", len(l.Tenants), l.Tenants)
	}
}
