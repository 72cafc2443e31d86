//go:build interop

package prometheus

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/internal/lab/forward"
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

// watched is a gateway whose alerts are watched, and what is asked of it until a time.
type watched struct {
	*harness.Gateway
	load func(until time.Time)
	may  []string // alerts that may fire there
}

const asked = `{"model":"weir-sim","max_tokens":%d,"ignore_eos":true,"stream":%t,"messages":[{"role":"user","content":"question %d"}]}`

// asks asks for an answer at a time, again and again.
func asks(t *testing.T, g *harness.Gateway, pause time.Duration, streamed bool, tokens int) func(until time.Time) {
	return func(until time.Time) {
		for n := 0; time.Now().Before(until); n++ {
			harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(asked, tokens, streamed, n))
			time.Sleep(pause)
		}
	}
}

// together runs loads beside each other.
func together(loads ...func(time.Time)) func(time.Time) {
	return func(until time.Time) {
		var all sync.WaitGroup
		for _, load := range loads {
			all.Go(func() { load(until) })
		}
		all.Wait()
	}
}

// TestNothingFires has no alert fire at an idle gateway that is asked for an answer that is not
// streamed now and then, nor at a busy one that is well, nor where others are late: a network that
// holds what the engine sent, an engine that stands still, clients that do not read. A gateway whose
// engine is gone shows that alerts would be seen.
func TestNothingFires(t *testing.T) {
	t.Parallel()
	divisor := time.Duration(1)
	if *quiet < 30*time.Minute {
		divisor = 10
	}
	sim := func() *harness.Sim {
		return harness.StartSim(t, "--cost", "constant", "--prefill-cost", "20ms", "--decode-cost", "20ms", "--enable-metrics")
	}
	before := func(engine string) *harness.Gateway {
		return harness.StartGateway(t, "serve", "--engine", "sglang="+engine+",name=one")
	}
	idle, busy := harness.StartGateway(t, "up"), before(sim().SGLang)
	network, err := forward.To(strings.TrimPrefix(sim().SGLang, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	held := before("http://" + network.Addr)
	stopped := sim()
	frozen, unread := before(stopped.SGLang), before(sim().SGLang)
	gone := sim()
	sick := before(gone.SGLang)
	gone.Kill()
	streams := func(g *harness.Gateway) func(time.Time) {
		one := asks(t, g, 100*time.Millisecond, true, 100)
		return together(one, one, one, one, asks(t, g, 100*time.Millisecond, false, 100))
	}
	all := map[string]watched{
		"idle": {idle, asks(t, idle, 3*time.Second, false, 200), nil},
		"busy": {busy, streams(busy), nil},
		"held": {held, together(streams(held), every(6*time.Second, func() {
			network.Hold(forward.ToClient)
			time.Sleep(2 * time.Second)
			network.Heal()
		})), nil},
		"frozen": {frozen, together(streams(frozen), every(6*time.Second, func() {
			_ = stopped.Cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(2 * time.Second)
			_ = stopped.Cmd.Process.Signal(syscall.SIGCONT)
		})), []string{"WeirEngineUnwell"}},
		"unread": {unread, together(asks(t, unread, 100*time.Millisecond, true, 100), every(time.Second, func() { readLate(t, unread) })), nil},
		"sick":   {sick, func(time.Time) {}, nil},
	}
	var targets []string
	for _, g := range all {
		targets = append(targets, fmt.Sprintf("%q", instance(g.Gateway)))
	}
	p := scrapes(t, strings.Join(targets, ","), rulesFile(t, divisor))
	until := time.Now().Add(*quiet)
	var load sync.WaitGroup
	for _, g := range all {
		load.Go(func() { g.load(until) })
	}
	said := map[string]map[string]bool{} // alerts by where
	for time.Now().Before(until) {
		time.Sleep(time.Second)
		for _, a := range p.alerts() {
			if said[a.at] == nil {
				said[a.at] = map[string]bool{}
			}
			said[a.at][a.name] = true
		}
	}
	load.Wait()
	for name, g := range all {
		fired := said[instance(g.Gateway)]
		t.Logf("%s: %v requests, alerts %v", name, harness.Metric(t, g.Admin, "weir_requests_total"), fired)
		if name == "sick" {
			if !fired["WeirNoEngine"] {
				t.Error("an engine that is gone raises no alert")
			}
			continue
		}
		for alert := range fired {
			if !slices.Contains(g.may, alert) {
				t.Errorf("%s: %s fires", name, alert)
			}
		}
	}
}

// every does something again and again.
func every(pause time.Duration, do func()) func(time.Time) {
	return func(until time.Time) {
		for time.Now().Before(until) {
			do()
			time.Sleep(pause)
		}
	}
}

// readLate asks for a stream with log probabilities and reads it after five seconds.
func readLate(t *testing.T, g *harness.Gateway) {
	body := strings.Replace(fmt.Sprintf(asked, 400, true, 0), `"stream"`, `"logprobs":true,"top_logprobs":5,"stream"`, 1)
	resp, err := http.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	time.Sleep(5 * time.Second)
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
}

// alert is one that fires, and where.
type alert struct{ name, at string }

// alerts returns those that fire.
func (p *prometheusServer) alerts() (all []alert) {
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	if err := p.get("/api/v1/alerts", &data); err != nil {
		p.Error(err)
		return nil
	}
	for _, a := range data.Alerts {
		if a.State == "firing" {
			all = append(all, alert{a.Labels["alertname"], a.Labels["instance"]})
		}
	}
	return all
}
