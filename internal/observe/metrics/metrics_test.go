package metrics

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/trace"
)

// series returns the sum of a metric's counters and gauges, or of its
// histograms' counts.
func series(t testing.TB, m *Metrics, name string) (value float64, count uint64, labels []string) {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, s := range f.GetMetric() {
			value += s.GetCounter().GetValue() + s.GetGauge().GetValue()
			count += s.GetHistogram().GetSampleCount()
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
		}
	}
	return value, count, labels
}

// ended makes a record that has ended so.
func ended(outcome infer.Outcome, code string) *trace.Record {
	r := &trace.Record{Model: "m", Outcome: outcome, Code: code, Arrival: 1000}
	r.Ledger.Start(trace.Read, 1000)
	r.Ledger.Enter(trace.Engine, 3000)
	r.Finished = 9000
	r.Ledger.Enter(trace.Finish, r.Finished)
	return r
}

// At any moment, what was received has ended or is in flight.
func TestIdentity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := New()
		var received, over float64
		t.Repeat(map[string]func(*rapid.T){
			"receive": func(t *rapid.T) {
				m.Received(rapid.SampledFrom([]string{"/v1/completions", "other"}).Draw(t, "endpoint"))
				received++
			},
			"end": func(t *rapid.T) {
				if over == received {
					t.Skip("none is in flight")
				}
				outcome := infer.Outcome(rapid.IntRange(0, int(infer.NumOutcomes)-1).Draw(t, "outcome"))
				m.Ended(ended(outcome, rapid.SampledFrom([]string{"", "engine", "cancelled"}).Draw(t, "code")))
				over++
			},
		})
		for name, want := range map[string]float64{
			"weir_requests_received_total": received,
			"weir_requests_total":          over,
			"weir_requests_in_flight":      received - over,
		} {
			f, err := m.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := 0.0
			for _, family := range f {
				if family.GetName() == name {
					for _, s := range family.GetMetric() {
						got += s.GetCounter().GetValue() + s.GetGauge().GetValue()
					}
				}
			}
			if got != want {
				t.Fatalf("%s is %v, want %v", name, got, want)
			}
		}
	})
}

// A record's parts are counted where they belong, and only what happened.
func TestRecord(t *testing.T) {
	m := New()
	bare := ended(infer.Rejected, "invalid")
	bare.PromptTokens = 7 // counted, but never dispatched
	m.Received("other")
	m.Ended(bare)
	for _, name := range []string{"weir_ttft_seconds", "weir_output_path_delay_seconds", "weir_output_delay_seconds", "weir_output_hop_seconds", "weir_engine_phase_seconds"} {
		if _, n, _ := series(t, m, name); n != 0 {
			t.Errorf("%s observed %d times for a request without output", name, n)
		}
	}
	for _, name := range []string{"weir_prompt_tokens_total", "weir_output_tokens_total"} {
		if v, _, _ := series(t, m, name); v != 0 {
			t.Errorf("%s is %v for a request that was not dispatched", name, v)
		}
	}
	if _, n, _ := series(t, m, "weir_stage_seconds"); n != 2 {
		t.Errorf("%d stages observed, want the two that took time", n)
	}

	r := ended(infer.Finished, "")
	r.Stream, r.PromptTokens, r.CompletionTokens, r.FirstReceived, r.FirstFlushed = true, 7, 5, 5500, 6000
	r.Pace = &trace.Pace{Sent: 5900, Last: 9000}
	r.Attempts = []trace.Attempt{{Legs: []trace.Leg{{Engine: "a", Handed: 100, ToServer: 200, Acked: 400, Known: 500, Stamps: infer.Stamps{ServerCreated: 300, QueueStart: 300, QueueEnd: 400, FirstToken: 4900, FirstOutput: 5000}}}}}
	m.Received("other")
	m.Ended(r)
	m.Wrote(1, 100)
	m.Wrote(1, 28)
	m.Retry("a", true)
	m.EngineFault("a", infer.CodeIntegrity)
	for name, want := range map[string]float64{
		"weir_prompt_tokens_total": 7, "weir_output_tokens_total": 5, "weir_output_writes_total": 2,
		"weir_output_bytes_total": 128, "weir_retries_total": 1, "weir_engine_faults_total": 1,
	} {
		if v, _, _ := series(t, m, name); v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	for name, want := range map[string]uint64{
		"weir_ttft_seconds": 1, "weir_acknowledgement_seconds": 5, "weir_output_path_delay_seconds": 1, "weir_output_delay_seconds": 1, "weir_output_hop_seconds": 1, "weir_engine_phase_seconds": 3, "weir_request_seconds": 2, "weir_residual_seconds": 2, "weir_stage_seconds": 4,
	} {
		if _, n, _ := series(t, m, name); n != want {
			t.Errorf("%s observed %d times, want %d", name, n, want)
		}
	}
	if _, _, labels := series(t, m, "weir_engine_faults_total"); strings.Join(labels, " ") != "code=integrity engine=a" {
		t.Errorf("fault's labels %v", labels)
	}
}

// A scrape is well-formed and describes the fleet.
func TestScrape(t *testing.T) {
	m := New()
	engines := []*route.Engine{{Name: "a", Kind: "weir", Ready: true}, {Name: "b", Kind: "openai"}}
	m.Fleet(func() *route.Snapshot { return &route.Snapshot{Engines: engines} })
	m.Received("/v1/completions")
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("status %d, %v", w.Code, err)
	}
	for _, line := range []string{
		`weir_engine_ready{engine="a",kind="weir"} 1`,
		`weir_engine_ready{engine="b",kind="openai"} 0`,
		`weir_requests_received_total{endpoint="/v1/completions"} 1`,
		`weir_requests_in_flight 1`,
	} {
		if !strings.Contains(string(body), line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	problems, err := promlint.New(strings.NewReader(string(body))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "weir_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// The figures of adapters are scraped under the names that they give, whichever adapters there are
// at the time.
func TestAdaptersMetrics(t *testing.T) {
	m := New()
	count := func(n float64) func() []engine.Metric {
		return func() []engine.Metric {
			return []engine.Metric{
				engine.NewCounter("weir_wire_messages_total", "Messages.", n),
				engine.NewGauge("weir_wire_requests", "Requests.", 2*n),
				engine.NewCounter("weir_wire_sessions_lost_total", "Sessions, by why.", 3*n).With("why", "silent"),
				engine.NewCounter("weir_wire_sessions_lost_total", "Sessions, by why.", 4*n).With("why", "closed"),
			}
		}
	}
	a, b := &route.Engine{Name: "a", Kind: "wire", Metrics: count(1)}, &route.Engine{Name: "b", Kind: "wire", Metrics: count(10)}
	snapshot := &route.Snapshot{}
	m.Fleet(func() *route.Snapshot { return snapshot })
	for _, test := range []struct {
		engines []*route.Engine
		want    string
	}{
		{[]*route.Engine{{Name: "c", Kind: "openai"}}, ""},
		{[]*route.Engine{a, {Name: "c", Kind: "openai"}, b}, `# HELP weir_wire_messages_total Messages.
# TYPE weir_wire_messages_total counter
weir_wire_messages_total{engine="a"} 1
weir_wire_messages_total{engine="b"} 10
# HELP weir_wire_requests Requests.
# TYPE weir_wire_requests gauge
weir_wire_requests{engine="a"} 2
weir_wire_requests{engine="b"} 20
# HELP weir_wire_sessions_lost_total Sessions, by why.
# TYPE weir_wire_sessions_lost_total counter
weir_wire_sessions_lost_total{engine="a",why="closed"} 4
weir_wire_sessions_lost_total{engine="a",why="silent"} 3
weir_wire_sessions_lost_total{engine="b",why="closed"} 40
weir_wire_sessions_lost_total{engine="b",why="silent"} 30
`},
	} {
		snapshot = &route.Snapshot{Engines: test.engines}
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		got := ""
		for line := range strings.Lines(w.Body.String()) {
			if strings.Contains(line, "weir_wire_") {
				got += line
			}
		}
		if w.Code != 200 || got != test.want {
			t.Errorf("status %d, %s; want %s", w.Code, got, test.want)
		}
	}
}
