package simserver

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/flags"
)

// labelsOf are the names of the labels that a metric has.
func labelsOf(family *dto.MetricFamily) (names []string) {
	for _, m := range family.Metric {
		for _, l := range m.Label {
			if !slices.Contains(names, l.GetName()) {
				names = append(names, l.GetName())
			}
		}
	}
	slices.Sort(names)
	return names
}

// notTold are metrics that the engines' servers have from their start and these have not,
// each with its reason. Histograms and counters of prometheus_client that have labels are
// on no page before they count something.
var notTold = []struct{ names, why string }{
	{"sglang:weight_load_duration_seconds sglang:weight_memory_usage_gb sglang:kv_cache_memory_usage_gb sglang:graph_memory_usage_gb sglang:startup_available_gpu_memory_gb", "there are no weights and no GPU"},
	{"sglang:startup_time_seconds sglang:startup_cuda_graph_time_seconds", "it starts at once"},
	{"sglang:max_total_num_tokens_swa", "only of models with sliding windows"},
	{"sglang:max_running_requests_under_SLO", "only where it is set"},
	{"sglang:num_retracted_input_tokens_total sglang:num_retracted_output_tokens_total", "retracted tokens are not counted apart"},
	{"sglang:num_decode_host_receive_reqs_total sglang:decode_deferred_kv_release_seconds sglang:decode_deferred_kv_release_total", "no KV comes by way of a host"},
	{"sglang:kv_transfer_speed_gb_s sglang:kv_transfer_latency_ms sglang:kv_transfer_bootstrap_ms sglang:kv_transfer_alloc_ms sglang:kv_transfer_total_mb sglang:num_bootstrap_failed_reqs_total sglang:num_transfer_failed_reqs_total sglang:num_prefill_retries_total", "only of pairs; transfers are told by the timeline"},
	{"sglang:cuda_graph_passes_total sglang:forward_execution_seconds_total sglang:scheduler_idle_seconds_total sglang:scheduler_process_cpu_seconds_total sglang:scheduler_stage_seconds_total sglang:prefill_effective_tokens_total", "the work of a scheduler and of a GPU that are not there"},
	{"sglang:estimated_flops_per_gpu_total sglang:estimated_read_bytes_per_gpu_total sglang:estimated_write_bytes_per_gpu_total", "only with --enable-mfu-metrics"},
	{"sglang:routing_key_running_req_count sglang:routing_key_all_req_count", "only of requests with routing keys"},
	{"sglang:per_stage_req_latency_seconds", "the stages are SGLang's own"},
	{"sglang:grammar_compilation_time_seconds sglang:num_grammar_cache_hit_total sglang:num_grammar_aborted_total sglang:num_grammar_timeout_total sglang:num_grammar_total sglang:grammar_schema_count sglang:grammar_ebnf_size sglang:grammar_tree_traversal_time_avg sglang:grammar_tree_traversal_time_max sglang:num_so_requests_total", "schemas are compiled by nobody's grammar"},
	{"sglang:dp_cooperation_realtime_tokens_total sglang:dp_cooperation_forward_execution_seconds_total sglang:dp_attention_tokens_total sglang:dp_attention_steps_total sglang:dp_attention_pairs_total sglang:dp_attention_token_imbalance_ratio sglang:dp_attention_sync_wait_seconds", "only with data-parallel attention"},
	{"sglang:prefill_delayer_wait_forward_passes sglang:prefill_delayer_wait_seconds sglang:prefill_delayer_outcomes_total", "only with --enable-prefill-delayer"},
	{"sglang:spec_verify_calls_total", "only of speculative decoding"},
	{"sglang:get_loads_duration_seconds", "nobody waits for loads"},
}

// The pages have the names, types and labels that the engines' sources register, as
// interop/metrics/names.py reads them. What is left out is in notTold, and nothing else is
// on the pages.
func TestMetricsAreThoseOfTheEngines(t *testing.T) {
	common := map[string][]string{
		"PrometheusStatLogger":      {"engine", "model_name"},
		"SchedulerMetricsCollector": {"engine_type", "model_name", "moe_ep_rank", "pp_rank", "tp_rank"},
		"TokenizerMetricsCollector": {"engine_type", "model_name"},
	}
	left := map[string]bool{}
	for _, n := range notTold {
		for name := range strings.FieldsSeq(n.names) {
			left[name] = true
		}
	}
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{SGLang: flags.SGLang{Metrics: true}})
		for _, url := range []string{b.sglang, b.vllm} {
			for _, stream := range []string{"true", "false"} {
				b.post(context.Background(), url+chat, `{`+hello+`,"max_tokens":5,"ignore_eos":true,"stream":`+stream+`}`)
			}
		}
		b.settle("rest", func(s engine.State) bool { return s.Finished == 4 })
		for url, file := range map[string]string{b.vllm: "metrics-vllm-" + flags.VLLMVersion, b.sglang: "metrics-sglang-0.5.23"} {
			_, text := b.get(url + "/metrics")
			parser := expfmt.NewTextParser(model.UTF8Validation)
			page, err := parser.TextToMetricFamilies(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			list, err := os.ReadFile("testdata/" + file + ".tsv")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(list)) {
				f := strings.Split(strings.TrimSpace(line), "\t")
				class, name, kind, labels, when := f[0], f[1], f[2], f[3], f[4]
				got := page[name]
				delete(page, name)
				if when != "-" || left[name] {
					if got != nil {
						t.Errorf("%s is told, and said not to be (%s)", name, when)
					}
					delete(left, name)
					continue
				}
				if got == nil {
					t.Errorf("%s is not told", name)
					continue
				}
				var want []string
				for label := range strings.SplitSeq(labels, ",") {
					if label == "*" {
						want = append(want, common[class]...)
					} else if label != "-" {
						want = append(want, label)
					}
				}
				slices.Sort(want)
				if is := strings.ToLower(got.GetType().String()); is != kind || !slices.Equal(labelsOf(got), want) {
					t.Errorf("%s is a %s with %q, and the engine's a %s with %q", name, is, labelsOf(got), kind, want)
				}
			}
			delete(page, "vllm:cache_config_info")     // whose labels are all of a configuration
			delete(page, "process_start_time_seconds") // which prometheus_client adds, and vLLM does not name
			for name := range page {
				t.Errorf("%s is told, and the engine has no such metric", name)
			}
		}
	})
	for name := range left {
		t.Errorf("%s is in notTold, and in no engine's list", name)
	}
}
