//go:build interop

package prometheus

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

var quiet = flag.Duration("quiet", time.Minute, "for how long no alert may fire; in less than half an hour the rules wait a tenth as long")

// rulesFile writes the rules, each of which waits a fraction of its time.
func rulesFile(t *testing.T, divisor time.Duration) string {
	t.Helper()
	text, err := os.ReadFile(integration + "weir.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	text = regexp.MustCompile(`(?m)^( +for: )(\w+)$`).ReplaceAllFunc(text, func(line []byte) []byte {
		name, wait, _ := strings.Cut(string(line), ": ")
		d, err := time.ParseDuration(wait)
		if err != nil {
			t.Fatal(err)
		}
		changed++
		return fmt.Appendf(nil, "%s: %dms", name, (d / divisor).Milliseconds())
	})
	if changed < 12 {
		t.Fatalf("%d rules wait for a time", changed)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	harness.WriteFile(t, file, string(text))
	return file
}

// An idle gateway that is asked for an answer that is not streamed now and then, and a busy one that
// is well, raise no alert. A rule that fires on the engine of a third gateway, which is gone, shows that
// alerts would be seen.
func TestNothingFires(t *testing.T) {
	t.Parallel()
	divisor := time.Duration(1)
	if *quiet < 30*time.Minute {
		divisor = 10
	}
	idle := harness.StartGateway(t, "up")
	sim := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "20ms", "--decode-cost", "20ms")
	busy := harness.StartGateway(t, "serve", "--engine", sim.Spec("sglang")+",name=one")
	gone := harness.StartSim(t)
	sick := harness.StartGateway(t, "serve", "--engine", gone.Spec("plane")+",name=gone")
	gone.Kill()
	var targets []string
	for _, g := range []*harness.Gateway{idle, busy, sick} {
		targets = append(targets, fmt.Sprintf("%q", strings.TrimPrefix(g.Admin, "http://")))
	}
	p := scrapes(t, strings.Join(targets, ","), rulesFile(t, divisor))

	until := time.Now().Add(*quiet)
	var load sync.WaitGroup
	ask := func(g *harness.Gateway, pause time.Duration, body string) {
		load.Go(func() {
			for n := 0; time.Now().Before(until); n++ {
				harness.Post(t, g.URL+"/v1/chat/completions", strings.Replace(body, "NUMBER", fmt.Sprint(n), 1))
				time.Sleep(pause)
			}
		})
	}
	ask(idle, 3*time.Second, `{"model":"weir-sim","max_tokens":200,"ignore_eos":true,"messages":[{"role":"user","content":"question NUMBER"}]}`)
	for range 8 {
		ask(busy, 100*time.Millisecond, `{"model":"weir-sim","stream":true,"max_tokens":100,"ignore_eos":true,"messages":[{"role":"user","content":"question NUMBER"}]}`)
	}
	said := map[string]bool{}
	for time.Now().Before(until) {
		time.Sleep(time.Second)
		for _, a := range p.alerts() {
			said[a] = true
		}
	}
	load.Wait()
	host := func(g *harness.Gateway) string { return strings.TrimPrefix(g.Admin, "http://") }
	seen := false
	for a := range said {
		switch _, at, _ := strings.Cut(a, " at "); at {
		case host(sick):
			seen = true
		case host(idle):
			t.Errorf("the idle gateway: %s", a)
		default:
			t.Errorf("the busy gateway: %s", a)
		}
	}
	if !seen {
		t.Error("an engine that is gone raises no alert")
	}
	for what, g := range map[string]*harness.Gateway{"idle": idle, "busy": busy} {
		t.Logf("%s: %v requests, stalls: %v of others", what, harness.Metric(t, g.Admin, "weir_requests_total"), harness.Metric(t, g.Admin, "weir_stalls_total"))
	}
}

// alerts returns those that fire, with where.
func (p *prometheusServer) alerts() (all []string) {
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
			Value  string
		}
	}
	if err := p.get("/api/v1/alerts", &data); err != nil {
		p.Error(err)
		return nil
	}
	for _, a := range data.Alerts {
		if a.State == "firing" {
			all = append(all, a.Labels["alertname"]+" at "+a.Labels["instance"])
		}
	}
	return all
}
