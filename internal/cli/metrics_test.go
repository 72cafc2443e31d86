package cli

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/config"
	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/queue"
	"weir/internal/infer"
	"weir/internal/observe/metrics"
	"weir/internal/observe/watch"
	"weir/internal/trace"
)

var rewrite = flag.Bool("rewrite", false, "write docs/metrics.md and docs/reference anew")

// family is a metric as docs/metrics.md has it.
type family struct {
	name, help, kind string
	labels           []string
	wires            []string // that give it, by the names of the engines' kinds; none: weir itself
	series           int      // of adapters' metrics, for each engine
}

// scope returns what a metric is counted by: the rank, the engine, the model, the kind or the
// source of engines, or the process.
func (f *family) scope() string {
	for _, of := range []string{"rank", "engine", "model", "kind", "source"} {
		if slices.Contains(f.labels, of) && !(of == "kind" && f.name != "weir_build_info" && slices.Contains(f.labels, "engine")) {
			return of
		}
	}
	return "process"
}

// classic is how many series the histograms have in the text format: their buckets, the
// sum and the count. An end-to-end test sees that these are all.
var classic = func() map[string]int {
	all := map[string]int{
		"weir_io_stall_seconds":            34 + 3,
		"weir_receive_batch_streams":       13 + 3,
		"weir_receive_merged_deltas":       13 + 3,
		"weir_receive_wait_seconds":        18 + 3,
		"weir_receive_dispatch_seconds":    18 + 3,
		"weir_inter_token_latency_seconds": 20 + 3,
	}
	for _, name := range []string{"stage", "residual", "ttft", "request", "acknowledgement", "output_path_delay", "output_delay", "output_hop", "engine_phase", "pair", "pair_point", "pair_stage", "ttft_prediction_error", "regret", "continuation_gap"} {
		all["weir_"+name+"_seconds"] = 22 + 3
	}
	return all
}()

// values is how many values a label has at most, of one engine, rank or model; a metric's
// own are behind its name and a slash.
var values = map[string]int{
	"engine": 1, "rank": 1, "model": 1, "kind": 1, "band": 1, "tenant": maxTenants,
	"outcome": int(infer.NumOutcomes), "code": codes() + 1, "stage": int(trace.NumStages), "part": len(trace.AckParts), "state": int(health.NumStates), "cause": 1,
	"coefficient": 5, "knowledge": int(kvevents.Known) + 1, "what": 10, "result": int(judge.NumProbeEnds), "weir_probes_total/kind": int(judge.NumProbeKinds), "weir_engine_kv_odd_events/kind": int(kvevents.NumOdd), "page": 5,
	"weir_engine_faults_total/code": codes(), "weir_integrity_failures_total/reason": maxReasons, "weir_relay_odd_streams_total/reason": 2, "weir_queue_refused_total/reason": len(queue.Reasons()), "verified": 8, "why": 5,
	"weir_pair_seconds/part": 2, "point": int(trace.NumPairPoints), "weir_pair_stage_seconds/stage": len(trace.PairStages), "weir_continuations_total/why": 3, "weir_continuations_refused_total/why": 17, "came": 2, "weir_cached_predictions_total/came": 3,
	"weir_ignored_fields_total/api": 1, "weir_ignored_fields_total/field": maxIgnored, "for": 3, "begun": 2, "endpoint": maxEndpoints, "held_by": maxHeldBy, "source": 1, "direction": 3, "weir_peers/state": 2, "weir_limits_decisions_total/by": 2, "trigger": int(watch.NumTriggers), "operation": 7, "phase": int(trace.NumPhases),
}

// How many values labels have that are words of the code; the end-to-end test sees that a
// gateway has no more.
const (
	maxReasons   = 48 // docs/integrity.md lists them
	maxEndpoints = 24
	maxIgnored   = 64   // of all APIs, by their tables
	maxTenants   = 1001 // of all bands together, and the rest of one
	maxHeldBy    = 10   // the operations, gc, unnamed work and nobody of ours
)

func codes() (n int) {
	for infer.Code(n).String() != "unknown" {
		n++
	}
	return n
}

// count is how many series the metric has at most, of one of what it is counted by.
func (f *family) count(t *testing.T) int {
	if f.series > 0 {
		return f.series
	}
	n := 1
	for _, label := range f.labels {
		of, ok := values[f.name+"/"+label]
		if !ok {
			of, ok = values[label]
		}
		if !ok {
			t.Errorf("%s: how many values has the label %s?", f.name, label)
		}
		n *= of
	}
	if f.kind == "histogram" {
		n *= classic[f.name]
	}
	return n
}

// unit is what a metric's name says that it is in.
func (f *family) unit() string {
	name := strings.TrimSuffix(f.name, "_total")
	for _, unit := range []string{"seconds", "bytes", "tokens", "blocks", "requests", "ratio", "streams", "deltas"} {
		if strings.HasSuffix(name, "_"+unit) {
			return unit
		}
	}
	return ""
}

// gatewayOf is a gateway as a command line makes it, which serves nobody.
func gatewayOf(t *testing.T, args ...string) *process {
	t.Helper()
	var all commands
	parser, err := kong.New(&all, kong.Name("weir"), kong.Writers(io.Discard, io.Discard), kong.Vars{"version": ""})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, args...)); err != nil {
		t.Fatal(err)
	}
	c := &all.Serve
	opts, err := c.options()
	if err != nil {
		t.Fatal(err)
	}
	want, _, err := (&wishes{flags: c.Engine}).desired()
	if err != nil {
		t.Fatal(err)
	}
	var engines []config.Engine
	for i := range want.Engines {
		engines = append(engines, want.Engines[i].Engine)
	}
	p, err := newProcess(&c.gatewayFlags, opts, engines, servedModels{}, &streams{out: io.Discard, err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.api.listener.Close()
		p.admin.listener.Close()
		p.gateway.Close()
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// families are the metrics of a gateway that has all that there can be.
func families(t *testing.T) []*family {
	t.Helper()
	dir := t.TempDir()
	specs := map[string]string{"weir": "weir=127.0.0.1:1", "sglang": "sglang=http://127.0.0.1:1", "vllm": "vllm=http://127.0.0.1:1", "openai": "openai=http://127.0.0.1:1",
		"sglang-ipc": "sglang-ipc=" + filepath.Join(dir, "s") + ",model=m", "vllm-core": "vllm-core=tcp://127.0.0.1:1,model=m"}
	args := []string{"--otlp", "http://127.0.0.1:1", "--profiles-dir", filepath.Join(dir, "p")}
	for kind, spec := range specs {
		args = append(args, "--engine", spec+",name="+kind)
	}
	p := gatewayOf(t, args...)
	// Engines with one front end have no gateway beside this one, so another one has peers.
	callers := filepath.Join(dir, "keys.yaml")
	if err := os.WriteFile(callers, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	among := gatewayOf(t, "--engine", specs["weir"], "--peers", "127.0.0.1:1", "--peer-listen", "127.0.0.1:0", "--keys", callers, "--limits", "redis://127.0.0.1:1")
	among.metrics.Discovery(new(discoveries).figures) // as startDiscoveries does
	by := map[string]*family{}
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		for _, of := range []*process{p, among} {
			of.metrics.Registry().(*prometheus.Registry).Describe(descs)
		}
	}()
	for d := range descs {
		f := described(t, d)
		if !strings.HasPrefix(f.name, "weir_") || by[f.name] != nil {
			continue
		}
		switch {
		case classic[f.name] > 0:
			f.kind = "histogram"
		case strings.HasSuffix(f.name, "_total"):
			f.kind = "counter"
		default:
			f.kind = "gauge"
		}
		by[f.name] = f
	}
	for _, e := range p.fleet.Snapshot().Engines {
		if e.Metrics == nil {
			continue
		}
		for _, m := range e.Metrics() {
			f := by[m.Name]
			if f == nil {
				f = &family{name: m.Name, help: m.Help, kind: "gauge", labels: []string{"engine"}, wires: []string{e.Kind}}
				if m.Counter {
					f.kind = "counter"
				}
				if m.Label != "" {
					f.labels = append(f.labels, m.Label)
				}
				by[m.Name] = f
			}
			f.series++
		}
	}
	return slices.SortedFunc(maps.Values(by), func(a, b *family) int { return cmp.Compare(a.name, b.name) })
}

// described reads a description as client_golang prints it, which is all that it tells.
func described(t *testing.T, d *prometheus.Desc) *family {
	t.Helper()
	text := d.String()
	quoted := func(key string) string {
		at := strings.Index(text, key)
		if at < 0 {
			t.Fatalf("%s: no %s", text, key)
		}
		prefix, err := strconv.QuotedPrefix(text[at+len(key):])
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		value, err := strconv.Unquote(prefix)
		if err != nil {
			t.Fatal(err)
		}
		text = text[at+len(key)+len(prefix):]
		return value
	}
	f := &family{name: quoted("fqName: "), help: quoted("help: ")}
	_, labels, ok := strings.Cut(text, "variableLabels: {")
	if !ok {
		t.Fatalf("%s: no labels", text)
	}
	if labels, _, _ = strings.Cut(labels, "}"); labels != "" {
		f.labels = strings.Split(labels, ",")
	}
	return f
}

// queries are examples of what to ask Prometheus, by the metric's name.
var queries = map[string]string{
	"weir_requests_total":                      `sum by (outcome, code) (rate(weir_requests_total[5m]))`,
	"weir_requests_in_flight":                  `sum(weir_requests_in_flight)`,
	"weir_ttft_seconds":                        `histogram_quantile(0.99, sum by (le, model) (rate(weir_ttft_seconds_bucket[5m])))`,
	"weir_inter_token_latency_seconds":         `histogram_quantile(0.99, sum by (le, model) (rate(weir_inter_token_latency_seconds_bucket[5m])))`,
	"weir_stage_seconds":                       `topk(3, sum by (stage) (rate(weir_stage_seconds_sum[5m])) / scalar(sum(rate(weir_requests_total[5m]))))`,
	"weir_output_delay_seconds":                `histogram_quantile(0.99, sum by (le) (rate(weir_output_delay_seconds_bucket[5m])))`,
	"weir_output_hop_seconds":                  `histogram_quantile(0.99, sum by (le, engine) (rate(weir_output_hop_seconds_bucket[5m])))`,
	"weir_engine_phase_seconds":                `sum by (model, phase) (rate(weir_engine_phase_seconds_sum[5m])) / sum by (model, phase) (rate(weir_engine_phase_seconds_count[5m]))`,
	"weir_receive_batch_streams":               `sum by (kind) (rate(weir_receive_batch_streams_sum[5m])) / sum by (kind) (rate(weir_receive_batch_streams_count[5m]))`,
	"weir_receive_wait_seconds":                `sum by (kind) (rate(weir_receive_dispatch_seconds_sum[5m])) / (sum by (kind) (rate(weir_receive_dispatch_seconds_sum[5m])) + sum by (kind) (rate(weir_receive_wait_seconds_sum[5m])))`,
	"weir_receive_merged_deltas":               `sum by (kind) (rate(weir_receive_merged_deltas_sum[5m])) / sum by (kind) (rate(weir_receive_merged_deltas_count[5m]))`,
	"weir_engine_ready":                        `weir_engine_ready == 0`,
	"weir_engine_state":                        `weir_engine_state == 1`,
	"weir_engine_requests_total":               `max(rate(weir_engine_requests_total[5m])) / avg(rate(weir_engine_requests_total[5m]))`,
	"weir_engine_reported_cached_tokens_total": `sum by (engine) (rate(weir_engine_reported_cached_tokens_total[5m])) / sum by (engine) (rate(weir_engine_reporting_prompt_tokens_total[5m]))`,
	"weir_affinity_taken_tokens_total":         `sum(rate(weir_affinity_taken_tokens_total[5m])) / sum(rate(weir_affinity_available_tokens_total[5m]))`,
	"weir_queue_requests":                      `sum by (model) (weir_queue_requests)`,
	"weir_integrity_failures_total":            `sum by (engine, reason) (increase(weir_integrity_failures_total[1h])) > 0`,
	"weir_io_stall_seconds":                    `histogram_quantile(0.99, sum by (le) (rate(weir_io_stall_seconds_bucket[5m])))`,
	"weir_busy_seconds_total":                  `sum by (operation) (rate(weir_busy_seconds_total[1m]))`,
	"weir_prefix_reused_tokens_total":          `rate(weir_prefix_reused_tokens_total[5m]) / rate(weir_prefix_tokens_total[5m])`,
}

// document writes docs/metrics.md.
func document(t *testing.T, all []*family) string {
	var b strings.Builder
	b.WriteString(`<!-- Generated by "make docs" from what a gateway registers; do not edit. -->

# Metrics

` + "`GET /metrics`" + ` of the admin listener, for Prometheus. [integrations/prometheus](../integrations/prometheus) has a configuration, alert rules and a dashboard for Grafana that asks for these metrics.

There are also Go's own metrics (` + "`go_*`" + `) and those of the process (` + "`process_*`" + `). Times are in seconds, and counters begin with the process.

## Histograms

Each histogram has classic buckets and is also a native histogram. A scraper that asks for the text format gets the classic buckets, and one that asks for protobuf gets both. Prometheus asks for protobuf if native histograms are enabled: from 3.8 on by ` + "`scrape_native_histograms: true`" + ` in the scrape's configuration, earlier by ` + "`--enable-feature=native-histograms`" + `. It then keeps only the native ones, unless ` + "`always_scrape_classic_histograms`" + ` (before Prometheus 3 ` + "`scrape_classic_histograms`" + `) is set. Native buckets are at most a tenth of a value apart. Queries of native histograms have no ` + "`_bucket`" + ` and no ` + "`le`" + `: ` + "`histogram_quantile(0.99, sum by (model) (rate(weir_ttft_seconds[5m])))`" + `.

## How many series there are

`)
	perEngine, perScope := map[string]int{}, map[string]int{}
	kinds := []string{"weir", "sglang", "sglang-ipc", "vllm", "vllm-core", "openai"}
	for _, f := range all {
		n := f.count(t)
		perScope[f.scope()] += n
		if f.scope() != "engine" {
			continue
		}
		for _, kind := range kinds {
			if f.wires == nil && relayed(f.name, kind) || slices.Contains(f.wires, kind) {
				perEngine[kind] += n
			}
		}
	}
	b.WriteString("These are upper bounds, in the text format. Labels are bounded: unknown paths count as `other`, and a model that no engine serves has no series.")
	fmt.Fprintf(&b, " The first %d models that engines report have series of their own; all others share `other`.\n\n", metrics.MaxModels)
	b.WriteString("| of each | series |\n|---|---|\n")
	for _, kind := range kinds {
		fmt.Fprintf(&b, "| engine of kind `%s` | %d |\n", kind, perEngine[kind])
	}
	fmt.Fprintf(&b, "| data-parallel rank that an engine names | %d |\n| model | %d |\n| kind of engines | %d |\n| source of engines | %d |\n| gateway | %d |\n", perScope["rank"], perScope["model"], perScope["kind"], perScope["source"], perScope["process"])
	b.WriteString("\n## All metrics\n\n\"Series\" is the largest number of series of the metric, for one gateway, model, engine and so on, as the heading states.\n\n")
	for _, section := range []struct{ scope, title string }{
		{"process", "The gateway"}, {"model", "Each model"}, {"engine", "Each engine"}, {"rank", "Each data-parallel rank that an engine names"}, {"kind", "Each kind of engines"}, {"source", "Each source of engines"}} {
		fmt.Fprintf(&b, "### %s\n\n| metric | type | unit | labels | series | meaning |\n|---|---|---|---|---|---|\n", section.title)
		for _, f := range all {
			if f.scope() != section.scope {
				continue
			}
			labels := "–"
			if len(f.labels) > 0 {
				labels = "`" + strings.Join(f.labels, "`, `") + "`"
			}
			help := f.help
			if f.wires != nil {
				help += " For engines of kind `" + strings.Join(f.wires, "`, `") + "`."
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %d | %s |\n", f.name, f.kind, cmp.Or(f.unit(), "–"), labels, f.count(t), strings.ReplaceAll(help, "|", `\|`))
		}
		b.WriteString("\n")
	}
	b.WriteString("## Questions to ask\n\n| metric | query |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(queries)) {
		fmt.Fprintf(&b, "| `%s` | `%s` |\n", name, queries[name])
	}
	return b.String()
}

// relayed reports whether engines of a kind have a metric that no adapter gives.
func relayed(name, kind string) bool {
	switch name {
	case "weir_relay_streams_total":
		return kind == "openai"
	case "weir_acknowledgement_seconds":
		return kind != "openai"
	case "weir_engine_running_requests", "weir_engine_waiting_requests", "weir_engine_kv_usage_ratio":
		return kind != "sglang-ipc"
	}
	return true
}

// docs/metrics.md is what a gateway registers.
func TestMetricsDocument(t *testing.T) {
	all := families(t)
	got := document(t, all)
	for name := range queries {
		if !slices.ContainsFunc(all, func(f *family) bool { return f.name == name }) {
			t.Errorf("there is a query of %s, and no such metric", name)
		}
	}
	const path = "../../docs/metrics.md"
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Fatalf("docs/metrics.md is not what the code says (%v); run \"make docs\"", err)
	}
}
