//go:build linux

package scenario

import (
	"bytes"
	"errors"
	"math"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir/internal/lab"
	"weir/internal/lab/control"
	"weir/internal/observe/watch"
)

// starvedRows are those of a run in which all is as it must be.
func starvedRows() []Starved {
	return []Starved{
		{Gateway: lab.Plane, Large: "none", P99: 1, Stall: 1, Ready: engines},
		{Gateway: lab.Plane, Large: "105/s", P99: 2, Stall: 1, Prompts: 105, CPU: 0.5, Ready: engines},
		{Gateway: lab.Plane, Large: "920 at once", P99: 2, Stall: 1, Prompts: 200, CPU: 1, Ready: engines},
		{Gateway: loopControl, Large: "none", P99: 1, Stall: 1, Ready: engines},
		{Gateway: loopControl, Large: "105/s", P99: 1, Stall: 1, Prompts: 105, Ready: engines},
		{Gateway: loopControl, Large: "920 at once", P99: 900, Stall: 900, Prompts: 14, Ready: 0},
	}
}

func TestJudgeStarvation(t *testing.T) {
	for _, c := range []struct {
		name           string
		change         func(rows []Starved)
		failed, missed string // part of the one such verdict; empty: none
	}{
		{"as it must be", func([]Starved) {}, "", ""},
		{"weir loses", func(rows []Starved) { rows[1].Lost = 3 }, "with large prompts 105/s: 3 lost", ""},
		{"weir idles", func(rows []Starved) { rows[1].Prompts = 0 }, "answers large prompts 105/s", ""},
		{"not measured", func(rows []Starved) {
			rows[4] = Starved{Gateway: loopControl, NotMeasured: "no port"}
		}, "one loop was not measured: no port", ""},
		{"the control keeps up", func(rows []Starved) { rows[5].Prompts = 101 }, "it did not (with 920 at once: 101 prompts/s beside weir's 200, 0 of 4", ""},
		{"the control keeps its engines", func(rows []Starved) { rows[5].Ready = engines }, "it did not (with 920 at once: 14 prompts/s beside weir's 200, 4 of 4", ""},
		{"the control collapses earlier", func(rows []Starved) { rows[4], rows[5].Ready = rows[5], engines; rows[4].Large = "105/s" }, "", ""},
		{"weir takes an engine out", func(rows []Starved) { rows[1].Ready = 3 }, "weir takes no live engine out with large prompts 105/s: 3 of 4", ""},
		{"late", func(rows []Starved) { rows[2].P99 = 2.5 }, "", "output_path_delay p99 is at most twice"},
		{"stalls", func(rows []Starved) { rows[1].Stall = 2.5 }, "", "I/O stalls at most 2 ms"},
		{"times out", func(rows []Starved) { rows[1].Timeouts = 1 }, "", "no acknowledgement times out"},
		{"ends by error", func(rows []Starved) { rows[1].Errors, rows[1].FirstError = 4, "status: 503" }, "", "4, such as status: 503"},
		{"costs", func(rows []Starved) { rows[1].CPU = 0.95 }, "", "at most 0.9 CPUs"},
	} {
		rows := starvedRows()
		c.change(rows)
		failed, missed := outcomes(&Report{Verdicts: judgeStarvation(rows)})
		wantOne(t, c.name, "failed", failed, c.failed)
		wantOne(t, c.name, "missed", missed, c.missed)
	}
	if failed, _ := outcomes(&Report{Verdicts: judgeStarvation(nil)}); len(failed) != 1 {
		t.Errorf("nothing at all passed: %q", failed)
	}
}

// In a timeline only the small streams that began in the span count, and the acknowledgements that
// did not come in it.
func TestStarvedTimeline(t *testing.T) {
	timeline := []byte(`{"request_id":"a","arrival_time":99,"prompt_tokens":10,"output_path_delay":9000000}
{"request_id":"b","arrival_time":100,"prompt_tokens":10,"output_path_delay":1000000}
{"request_id":"c","arrival_time":150,"prompt_tokens":40000,"output_path_delay":8000000}
{"request_id":"d","arrival_time":160,"prompt_tokens":40000,"code":"deadline","attempts":[{"legs":[{"to_server_time":161}]}]}
{"request_id":"d2","arrival_time":161,"prompt_tokens":40000,"code":"deadline","attempts":[{"legs":[{"to_server_time":161,"acked_time":162}]}]}
{"request_id":"d3","arrival_time":162,"prompt_tokens":40000,"code":"deadline","attempts":[]}
{"arrival_time":163,"prompt_tokens":40000,"code":"ack_timeout"}
{"request_id":"e","arrival_time":170,"prompt_tokens":10}
{"request_id":"f","arrival_time":199,"prompt_tokens":10,"output_path_delay":3000000}
{"request_id":"g","arrival_time":200,"prompt_tokens":10,"output_path_delay":9000000}
`)
	var row Starved
	if err := row.read(timeline, [2]int64{100, 200}); err != nil {
		t.Fatal(err)
	}
	if row.Small != 2 || row.P50 != 1 || row.Max != 3 || row.Timeouts != 2 {
		t.Errorf("%+v", row)
	}
	var none Starved
	if err := none.read(timeline, [2]int64{300, 400}); err != nil || none.Small != 0 || none.P99 != 0 {
		t.Errorf("a span without small streams: %+v, %v", none, err)
	}
	if err := row.read([]byte("{"), [2]int64{0, 1}); err == nil {
		t.Error("a broken timeline was taken")
	}
}

func TestPercentile(t *testing.T) {
	values := make([]float64, 101)
	for i := range values {
		values[i] = float64(i)
	}
	if percentile(values, 0.99) != 99 || percentile(values, 1) != 100 || percentile(values, 0.5) != 50 || percentile(nil, 0.5) != 0 {
		t.Errorf("%v %v %v", percentile(values, 0.99), percentile(values, 1), percentile(values, 0.5))
	}
}

// The figure is of what was counted between two readings.
func TestStalls(t *testing.T) {
	registry := prometheus.NewRegistry()
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: watch.StallMetric, Buckets: []float64{.001, .002, .1}})
	registry.MustRegister(h)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()
	read := func() buckets {
		t.Helper()
		b, err := stalls(t.Context(), server.URL)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for range 1000 {
		h.Observe(.05)
	}
	earlier := read()
	if _, err := read().since(earlier).quantile(.99); err == nil {
		t.Error("nothing was counted and there is a figure")
	}
	for range 98 {
		h.Observe(.0005)
	}
	h.Observe(.0015)
	h.Observe(7)
	for share, want := range map[float64]float64{.5: 1, .98: 1, .99: 2, 1: math.Inf(1)} {
		if got, err := read().since(earlier).quantile(share); err != nil || got != want {
			t.Errorf("quantile %v: %v ms, %v, want %v", share, got, err, want)
		}
	}
	if _, err := stalls(t.Context(), server.URL+"\x00"); err == nil {
		t.Error("no URL and no error")
	}
	empty := httptest.NewServer(promhttp.HandlerFor(prometheus.NewRegistry(), promhttp.HandlerOpts{}))
	defer empty.Close()
	if _, err := stalls(t.Context(), empty.URL); err == nil {
		t.Error("no histogram and no error")
	}
	if _, err := readyEngines(t.Context(), empty.URL); err == nil {
		t.Error("no engines and no error")
	}
	ready := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: control.EngineReady}, []string{"engine"})
	registry.MustRegister(ready)
	for engine, value := range map[string]float64{"a": 1, "b": 0, "c": 1} {
		ready.WithLabelValues(engine).Set(value)
	}
	if n, err := readyEngines(t.Context(), server.URL); n != 2 || err != nil {
		t.Errorf("%d engines ready, %v; want 2", n, err)
	}
	state := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: engineState}, []string{"engine", "state"})
	registry.MustRegister(state)
	state.WithLabelValues("a", "suspect").Set(1)
	state.WithLabelValues("a", "down").Set(0)
	state.WithLabelValues("c", "down").Set(1)
	if n, err := readyEngines(t.Context(), server.URL); n != 1 || err != nil {
		t.Errorf("%d engines asked, %v; want 1, the other one is down", n, err)
	}
}

func TestStarvedText(t *testing.T) {
	report := &Report{Scenario: "starvation", Starved: starvedRows()}
	report.Starved[3].NotMeasured = "no port"
	var text, object bytes.Buffer
	if err := errors.Join(report.Text(&text), report.JSON(&object)); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"weir plane  920 at once      200.0     1.00    0.00    2.00     0.0       1.00    0.00         0        4         0     0\n"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("%q is not in\n%s", part, text.String())
		}
	}
	if n := strings.Count(text.String(), loopControl); n != 2 {
		t.Errorf("%d rows of the control, want those 2 that were measured:\n%s", n, text.String())
	}
	if !strings.Contains(object.String(), `"small_output_path_delay_p99_ms": 900`) {
		t.Errorf("%s", object.String())
	}
}
