//go:build interop

package sglang

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// meetings returns where a scheduler's requests would have met their other halves.
func meetings(t *testing.T, p *harness.Process) map[string]int {
	met := map[string]int{}
	for _, line := range strings.Split(p.Output(), "\n") {
		var l struct{ Met []any }
		if strings.HasPrefix(line, `{"met"`) {
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			b, _ := json.Marshal(l.Met)
			met[string(b)]++
		}
	}
	return met
}

// TestHalves: pairs of SGLang's own HTTP servers and TokenizerManagers, and of weir in
// their place, before schedulers that play a prefill and a decode engine. The servers say
// their roles, the prefill server's registry is SGLang's own; every half has what a
// scheduler wants of it, both meet in one place, and every text is right.
func TestHalves(t *testing.T) {
	const streams = 32
	for _, kind := range []string{"sglang", "sglang-ipc"} {
		t.Run(kind, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			_, registry, _ := net.SplitHostPort(harness.FreeAddress(t))
			args, meet := []string{"serve"}, t.TempDir()
			var schedulers []*harness.Process
			s := newSetup(t)
			for _, role := range []string{"prefill", "decode"} {
				half := newSetup(t)
				half.serverArgs = []string{"--role", role, "--registry", registry}
				played := []string{"--role", role, "--registry", registry, "--step", "0.002", "--meet", meet}
				if kind == "sglang-ipc" {
					args = append(args, "--engine", "sglang-ipc="+half.dir+",model=weir-sim")
					schedulers = append(schedulers, half.scheduler(append([]string{"--weir", half.dir}, played...)...))
					continue
				}
				url, _, scheduler := half.server("incremental", played...)
				args = append(args, "--engine", "sglang="+url+",model=weir-sim")
				schedulers = append(schedulers, scheduler)
			}
			if kind == "sglang" {
				harness.Eventually(t, "SGLang's registry", func() bool {
					resp, err := http.Get("http://127.0.0.1:" + registry + "/health")
					return err == nil && harness.Read(resp).Status == http.StatusOK
				})
			}
			g := harness.StartUnready(t, args...)
			harness.Eventually(t, "both engines", func() bool {
				return strings.Contains(string(harness.Get(t, g.Admin+"/readyz").Body), "2 of 2")
			}, g.Process)
			total := s.many(g, streams)
			// A decode half may have ended before its prefill half has found out that its KV
			// was fetched, which is then aborted.
			prefill := schedulers[0].Counts(func(n map[string]int) bool { return n["finished"]+n["aborted"] == streams })
			decode := schedulers[1].Counts(func(n map[string]int) bool { return n["finished"] == streams })
			if prefill["ids"] != prefill["finished"] || prefill["finished"] == 0 || decode["ids"] != total || decode["aborted"] != 0 {
				t.Errorf("the schedulers count %v and %v, and the client %d ids", prefill, decode, total)
			}
			met, other := meetings(t, schedulers[0]), meetings(t, schedulers[1])
			if len(met) != streams || !maps.Equal(met, other) {
				t.Errorf("prefill halves are at %v, decode halves at %v", met, other)
			}
			for at := range met {
				if !strings.HasPrefix(at, `["127.0.0.1",`+registry+",") {
					t.Errorf("a pair meets at %s", at)
				}
			}
			ctx, cancel := context.WithCancel(harness.Context(t))
			if _, err := g.Complete(ctx, "weir-sim", endless, func(a *harness.Completion) bool { return len(a.Text) > 100 }); err != nil {
				t.Error(err)
			}
			cancel()
			schedulers[1].Counts(func(n map[string]int) bool { return n["aborted"] == 1 })
		})
	}
}
