package simserver

import (
	"strconv"

	"weir/internal/infer"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/tally"
)

// alwaysZero is the help text of a metric that a real engine reports as 0 when the feature
// behind it is unused.
const alwaysZero = "Always 0: this is not simulated."

// sglangMetrics collects SGLang's metrics, as far as a single server without optional
// features reports them and this engine has the values.
func (e *Engine) sglangMetrics(g *tally.Scrape) {
	common := []string{"model_name", e.prepare.Model, "engine_type", sglangType(e.run.Role())}
	scheduler := append(common, "tp_rank", "0", "pp_rank", "0", "moe_ep_rank", "0")
	for _, l := range e.run.Ranks() {
		if g.Label(scheduler...); e.prepare.DPSize > 1 {
			g.Label(append(scheduler[:len(scheduler):len(scheduler)], "dp_rank", strconv.Itoa(l.Rank))...)
		}
		e.sglangRank(g, &l)
	}
	g.Label(scheduler...)
	n := e.run.Totals()
	m := e.run.Measured()
	g.Counter("sglang:num_retracted_requests_total", "Times a request was sent back to the queue.", n.Retracted)
	for _, mode := range []struct {
		name   string
		tokens uint64
	}{{"prefill_compute", n.Prefilled}, {"prefill_cache", n.Cached}, {"decode", n.Generated}} {
		g.Counter("sglang:realtime_tokens_total", "Tokens so far, of requests that have not ended too.", mode.tokens, "mode", mode.name)
	}
	g.Seconds("sglang:queue_time_seconds", "In the waiting queue.", &m.Queued)

	g.Label(common...)
	g.Counter("sglang:cached_tokens_total", "Prompt tokens found in the prefix cache.", n.Cached, "cache_source", "device")
	g.Counter("sglang:num_aborted_requests_total", "Requests that were aborted.", n.Aborted)
	g.Amounts("sglang:prompt_tokens_histogram", "Prompt tokens of a request.", &m.Prompt)
	g.Amounts("sglang:uncached_prompt_tokens_histogram", "Those of them that were computed.", &m.Computed)
	g.Amounts("sglang:generation_tokens_histogram", "Tokens generated for a request.", &m.Generated)
	g.Seconds("sglang:inter_token_latency_seconds", "From one token of a request to its next.", &m.BetweenTokens)
	for i, streaming := range []string{"false", "true"} {
		way, label := &m.Ways[i], []string{"is_streaming", streaming}
		g.Counter("sglang:prompt_tokens_total", "Prompt tokens of requests that ended.", way.Prompt, label...)
		g.Counter("sglang:generation_tokens_total", "Tokens generated for requests that ended.", way.Generated, label...)
		g.Counter("sglang:num_requests_total", "Requests that ended.", way.Requests, label...)
		g.Seconds("sglang:time_to_first_token_seconds", "From a request's arrival to its first token.", &way.FirstToken, label...)
		g.Seconds("sglang:request_time_per_output_token_seconds", "From a request's first token to its last, by those after the first.", &way.PerToken, label...)
		g.Seconds("sglang:e2e_request_latency_seconds", "From a request's arrival to its end.", &way.Latency, label...)
	}
}

// sglangType is SGLang's name for an engine's part in requests.
func sglangType(role infer.Role) string {
	if role == infer.RoleBoth {
		return "unified"
	}
	return role.String()
}

// sglangRank reports one rank's state.
func (e *Engine) sglangRank(g *tally.Scrape, l *engine.Rank) {
	g.Gauge("sglang:num_running_reqs", "Requests in the running batch.", float64(l.Running))
	g.Gauge("sglang:num_queue_reqs", "Requests in the waiting queue.", float64(l.Queued))
	for _, q := range e.legQueues(l)[:4] { // of the last SGLang tells in /v1/loads only
		g.Gauge("sglang:num_"+q.name, q.help, float64(q.n))
	}
	g.Gauge("sglang:gen_throughput", "Generated tokens per second.", l.Throughput)
	g.Gauge("sglang:cache_hit_rate", "Share of prompt tokens found in the prefix cache.", l.HitRate)
	g.Gauge("sglang:token_usage", "Share of the KV cache in use.", l.Usage())
	g.Gauge("sglang:full_token_usage", "Share of the KV cache in use, of full attention's layers.", l.Usage())
	g.Gauge("sglang:num_used_tokens", "Tokens of the KV cache in use.", float64(l.Used))
	g.Gauge("sglang:kv_used_tokens", "Tokens of the KV cache in use.", float64(l.Used))
	g.Gauge("sglang:kv_evictable_tokens", "Tokens of the KV cache that no request holds.", float64(l.Cached))
	g.Gauge("sglang:kv_available_tokens", "Tokens of the KV cache that hold nothing.", float64(max(0, l.Total-l.Used-l.Cached)))
	g.Gauge("sglang:num_retracted_reqs", "Requests sent back to the queue and not running again.", float64(l.Retracted))
	g.Gauge("sglang:max_total_num_tokens", "Size of the KV cache in tokens.", float64(e.prepare.KVTokens))
	g.Gauge("sglang:page_size", "Tokens in a page of the KV cache.", float64(e.prepare.PageSize))
	g.Gauge("sglang:num_pages", "Pages of the KV cache.", float64(e.prepare.KVTokens/max(1, e.prepare.PageSize)))
	g.Gauge("sglang:context_len", "Tokens of a request at most.", float64(e.prepare.ContextLength))
	for _, name := range []string{
		"num_grammar_queue_reqs", "num_paused_reqs", "num_decode_host_receive_queue_reqs", "num_decode_deferred_kv_release_reqs",
		"pending_prealloc_token_usage", "prealloc_full_token_usage", "prealloc_swa_token_usage", "utilization", "fwd_occupancy", "new_token_ratio", "decode_sum_seq_lens", "is_cuda_graph", "num_unique_running_routing_keys",
		"spec_accept_length", "spec_accept_rate", "spec_cap_length", "spec_block_accept_length", "spec_num_steps", "spec_num_draft_tokens",
		"swa_token_usage", "swa_available_tokens", "swa_evictable_tokens", "swa_used_tokens",
		"mamba_usage", "mamba_available_tokens", "mamba_evictable_tokens", "mamba_used_tokens",
	} {
		g.Gauge("sglang:"+name, alwaysZero, 0)
	}
}

// vllmMetrics collects vLLM's metrics, as a single server without optional features reports
// them.
func (e *Engine) vllmMetrics(g *tally.Scrape) {
	model := []string{"model_name", e.prepare.Model}
	n := e.run.Totals()
	for _, l := range e.run.Ranks() {
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
		pages := e.prepare.KVTokens / max(1, e.prepare.PageSize)
		g.Gauge("vllm:cache_config_info", "The KV cache, by its labels.", 1, "engine", strconv.Itoa(l.Rank),
			"block_size", strconv.Itoa(e.prepare.PageSize), "num_gpu_blocks", strconv.Itoa(pages), "kv_cache_size_tokens", strconv.Itoa(e.prepare.KVTokens),
			"enable_prefix_caching", pythonBool(e.prepare.KVTokens > 0), "cache_dtype", "auto", "gpu_memory_utilization", "0.92", "num_cpu_blocks", "None")
	}
	g.Label()
	g.Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", float64(e.run.Began())/1e9)
	m := e.run.Measured()
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
		g.Counter("vllm:"+name+"_total", alwaysZero, 0)
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
	if e.opts.VLLM.Transfer != nil { // by these its connector is known
		for _, name := range []string{"failed_transfers", "failed_notifications", "kv_expired_reqs"} {
			g.Counter("vllm:nixl_num_"+name+"_total", alwaysZero, 0)
		}
	}
	g.Label(model...)
	for _, reason := range []string{"max_num_queued_reqs", "max_num_queued_tokens"} {
		g.Counter("vllm:admission_rejections_total", alwaysZero, 0, "reason", reason)
	}
}

// pythonBool is how Python writes it.
func pythonBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}
