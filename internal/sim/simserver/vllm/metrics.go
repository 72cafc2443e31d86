package vllm

import (
	"strconv"

	"weir/internal/infer"
	"weir/internal/sim/simserver/tally"
)

// metrics collects vLLM's metrics, as a single server without optional features reports
// them.
func (f *Server) metrics(g *tally.Scrape) {
	model := []string{"model_name", f.run.Options().Model}
	n := f.run.Totals()
	for _, l := range f.run.Ranks() {
		g.Label(append(model[:len(model):len(model)], "engine", strconv.Itoa(l.Rank))...)
		g.Gauge("vllm:num_requests_running", "Requests in the running batch.", float64(l.Running))
		g.Gauge("vllm:num_requests_waiting", "Requests in the waiting queue.", float64(l.Waiting))
		g.Gauge("vllm:num_requests_waiting_by_reason", "Of those, by why they wait.", float64(l.Queued), "reason", "capacity")
		g.Gauge("vllm:num_requests_waiting_by_reason", "Of those, by why they wait.", float64(l.Waiting-l.Queued), "reason", "deferred")
		g.Gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", l.Usage())
		for state, on := range map[string]float64{"awake": 1, "weights_offloaded": 0, "discard_all": 0} {
			g.Gauge("vllm:engine_sleep_state", "The engine is always awake.", on, "sleep_state", state)
		}
		g.Label()
		pages := f.run.Options().KVTokens / max(1, f.run.Options().PageSize)
		g.Gauge("vllm:cache_config_info", "The KV cache, by its labels.", 1, "engine", strconv.Itoa(l.Rank),
			"block_size", strconv.Itoa(f.run.Options().PageSize), "num_gpu_blocks", strconv.Itoa(pages), "kv_cache_size_tokens", strconv.Itoa(f.run.Options().KVTokens),
			"enable_prefix_caching", pythonBool(f.run.Options().KVTokens > 0), "cache_dtype", "auto", "gpu_memory_utilization", "0.92", "num_cpu_blocks", "None")
	}
	g.Label()
	g.Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", float64(f.run.Began())/1e9)
	m := f.run.Measured()
	g.Label(append(model[:len(model):len(model)], "engine", "0")...)
	g.Counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.", n.Prefilled+n.Cached)
	g.Counter("vllm:prompt_tokens_cached_total", "Those of them that were found in the prefix cache.", n.Cached)
	for source, tokens := range map[string]uint64{"local_compute": n.Prefilled, "local_cache_hit": n.Cached, "external_kv_transfer": 0} {
		g.Counter("vllm:prompt_tokens_by_source_total", "Prompt tokens, by where their KV is from.", tokens, "source", source)
	}
	for source, tokens := range map[string]uint64{"device": n.Cached, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0} {
		g.Counter("vllm:prompt_tokens_cached_by_source_total", "Prompt tokens found in a cache, by which.", tokens, "source", source)
	}
	g.Counter("vllm:generation_tokens_total", "Generated tokens.", n.Generated)
	g.Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked for in the prefix cache.", n.Prefilled+n.Cached)
	g.Counter("vllm:prefix_cache_hits_total", "Prompt tokens found in it.", n.Cached)
	for _, name := range []string{"external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits"} {
		g.Counter("vllm:"+name+"_total", tally.AlwaysZero, 0)
	}
	g.Counter("vllm:num_preemptions_total", "Times a request was sent back to the queue.", n.Retracted)
	for _, reason := range []infer.Reason{infer.ReasonStop, infer.ReasonLength, infer.ReasonAbort, "error", "repetition"} {
		g.Counter("vllm:request_success_total", "Requests that ended, by how.", m.ByReason[reason], "finished_reason", string(reason))
	}
	g.Amounts("vllm:request_prompt_tokens", "Prompt tokens of a request.", &m.Prompt)
	g.Amounts("vllm:request_generation_tokens", "Tokens generated for a request.", &m.Generated)
	g.Amounts("vllm:request_max_num_generation_tokens", "Tokens generated for a request, of its longest choice.", &m.Generated)
	g.Amounts("vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed.", &m.Computed)
	g.Amounts("vllm:request_num_preemptions", "How often a request was sent back to the queue.", &m.Retractions)
	g.Amounts("vllm:iteration_tokens_total", "Tokens of a step.", &m.PerStep)
	g.Amounts("vllm:request_params_n", "Choices that a request asks for.", &m.Choices)
	g.Amounts("vllm:request_params_max_tokens", "The max_tokens of a request that has one.", &m.MaxTokens)
	g.Seconds("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", m.Ways[0].FirstToken.Plus(&m.Ways[1].FirstToken))
	g.Seconds("vllm:inter_token_latency_seconds", "From one token of a request to its next.", &m.BetweenTokens)
	g.Seconds("vllm:request_time_per_output_token_seconds", "From a request's first token to its last, by those after the first.", m.Ways[0].PerToken.Plus(&m.Ways[1].PerToken))
	g.Seconds("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", m.Ways[0].Latency.Plus(&m.Ways[1].Latency))
	g.Seconds("vllm:request_queue_time_seconds", "In the waiting queue.", &m.Queued)
	g.Seconds("vllm:request_prefill_time_seconds", "From admission to the first token.", &m.Prefill)
	g.Seconds("vllm:request_decode_time_seconds", "From the first token to the last.", &m.Decode)
	g.Seconds("vllm:request_inference_time_seconds", "From admission to the last token.", &m.Whole)
	if f.flags.Transfer != nil { // by these its connector is known
		for _, name := range []string{"failed_transfers", "failed_notifications", "kv_expired_reqs"} {
			g.Counter("vllm:nixl_num_"+name+"_total", tally.AlwaysZero, 0)
		}
	}
	g.Label(model...)
	for _, reason := range []string{"max_num_queued_reqs", "max_num_queued_tokens"} {
		g.Counter("vllm:admission_rejections_total", tally.AlwaysZero, 0, "reason", reason)
	}
}

// pythonBool is how Python writes it.
func pythonBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}
