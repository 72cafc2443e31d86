package simserver

import (
	"strconv"

	"weir/internal/infer"
)

// alwaysZero is the help text of a metric that a real engine reports as 0 when the feature
// behind it is unused.
const alwaysZero = "Always 0: this is not simulated."

// sglangMetrics collects SGLang's metrics, as far as a single server without optional
// features reports them and this engine has the values.
func (e *Engine) sglangMetrics(g *gather) {
	common := []string{"model_name", e.prepare.Model, "engine_type", sglangType(e.opts.Role)}
	scheduler := append(common, "tp_rank", "0", "pp_rank", "0", "moe_ep_rank", "0")
	for _, l := range e.loadOfRanks() {
		if g.labels = scheduler; e.prepare.DPSize > 1 {
			g.labels = append(scheduler[:len(scheduler):len(scheduler)], "dp_rank", strconv.Itoa(l.rank))
		}
		e.sglangRank(g, &l)
	}
	g.labels = scheduler
	n := e.totals()
	m := &e.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	g.counter("sglang:num_retracted_requests_total", "Times a request was sent back to the queue.", n.Retracted)
	for _, mode := range []struct {
		name   string
		tokens uint64
	}{{"prefill_compute", n.Prefilled}, {"prefill_cache", n.Cached}, {"decode", n.Generated}} {
		g.counter("sglang:realtime_tokens_total", "Tokens so far, of requests that have not ended too.", mode.tokens, "mode", mode.name)
	}
	g.seconds("sglang:queue_time_seconds", "In the waiting queue.", &m.queued)

	g.labels = common
	g.counter("sglang:cached_tokens_total", "Prompt tokens found in the prefix cache.", n.Cached, "cache_source", "device")
	g.counter("sglang:num_aborted_requests_total", "Requests that were aborted.", n.Aborted)
	g.amounts("sglang:prompt_tokens_histogram", "Prompt tokens of a request.", &m.prompt)
	g.amounts("sglang:uncached_prompt_tokens_histogram", "Those of them that were computed.", &m.computed)
	g.amounts("sglang:generation_tokens_histogram", "Tokens generated for a request.", &m.generated)
	g.seconds("sglang:inter_token_latency_seconds", "From one token of a request to its next.", &m.betweenTokens)
	for i, streaming := range []string{"false", "true"} {
		way, label := &m.ways[i], []string{"is_streaming", streaming}
		g.counter("sglang:prompt_tokens_total", "Prompt tokens of requests that ended.", way.prompt, label...)
		g.counter("sglang:generation_tokens_total", "Tokens generated for requests that ended.", way.generated, label...)
		g.counter("sglang:num_requests_total", "Requests that ended.", way.requests, label...)
		g.seconds("sglang:time_to_first_token_seconds", "From a request's arrival to its first token.", &way.firstToken, label...)
		g.seconds("sglang:request_time_per_output_token_seconds", "From a request's first token to its last, by those after the first.", &way.perToken, label...)
		g.seconds("sglang:e2e_request_latency_seconds", "From a request's arrival to its end.", &way.latency, label...)
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
func (e *Engine) sglangRank(g *gather, l *rankState) {
	g.gauge("sglang:num_running_reqs", "Requests in the running batch.", float64(l.running))
	g.gauge("sglang:num_queue_reqs", "Requests in the waiting queue.", float64(l.queued))
	for _, q := range e.legQueues(l)[:4] { // of the last SGLang tells in /v1/loads only
		g.gauge("sglang:num_"+q.name, q.help, float64(q.n))
	}
	g.gauge("sglang:gen_throughput", "Generated tokens per second.", l.throughput)
	g.gauge("sglang:cache_hit_rate", "Share of prompt tokens found in the prefix cache.", l.hitRate)
	g.gauge("sglang:token_usage", "Share of the KV cache in use.", l.usage())
	g.gauge("sglang:full_token_usage", "Share of the KV cache in use, of full attention's layers.", l.usage())
	g.gauge("sglang:num_used_tokens", "Tokens of the KV cache in use.", float64(l.used))
	g.gauge("sglang:kv_used_tokens", "Tokens of the KV cache in use.", float64(l.used))
	g.gauge("sglang:kv_evictable_tokens", "Tokens of the KV cache that no request holds.", float64(l.cached))
	g.gauge("sglang:kv_available_tokens", "Tokens of the KV cache that hold nothing.", float64(max(0, l.total-l.used-l.cached)))
	g.gauge("sglang:num_retracted_reqs", "Requests sent back to the queue and not running again.", float64(l.retracted))
	g.gauge("sglang:max_total_num_tokens", "Size of the KV cache in tokens.", float64(e.prepare.KVTokens))
	g.gauge("sglang:page_size", "Tokens in a page of the KV cache.", float64(e.prepare.PageSize))
	g.gauge("sglang:num_pages", "Pages of the KV cache.", float64(e.prepare.KVTokens/max(1, e.prepare.PageSize)))
	g.gauge("sglang:context_len", "Tokens of a request at most.", float64(e.prepare.ContextLength))
	for _, name := range []string{
		"num_grammar_queue_reqs", "num_paused_reqs", "num_decode_host_receive_queue_reqs", "num_decode_deferred_kv_release_reqs",
		"pending_prealloc_token_usage", "prealloc_full_token_usage", "prealloc_swa_token_usage", "utilization", "fwd_occupancy", "new_token_ratio", "decode_sum_seq_lens", "is_cuda_graph", "num_unique_running_routing_keys",
		"spec_accept_length", "spec_accept_rate", "spec_cap_length", "spec_block_accept_length", "spec_num_steps", "spec_num_draft_tokens",
		"swa_token_usage", "swa_available_tokens", "swa_evictable_tokens", "swa_used_tokens",
		"mamba_usage", "mamba_available_tokens", "mamba_evictable_tokens", "mamba_used_tokens",
	} {
		g.gauge("sglang:"+name, alwaysZero, 0)
	}
}

// vllmMetrics collects vLLM's metrics, as a single server without optional features reports
// them.
func (e *Engine) vllmMetrics(g *gather) {
	model := []string{"model_name", e.prepare.Model}
	n := e.totals()
	for _, l := range e.loadOfRanks() {
		g.labels = append(model[:len(model):len(model)], "engine", strconv.Itoa(l.rank))
		g.gauge("vllm:num_requests_running", "Requests in the running batch.", float64(l.running))
		g.gauge("vllm:num_requests_waiting", "Requests in the waiting queue.", float64(l.waiting))
		g.gauge("vllm:num_requests_waiting_by_reason", "Of those, by why they wait.", float64(l.queued), "reason", "capacity")
		g.gauge("vllm:num_requests_waiting_by_reason", "Of those, by why they wait.", float64(l.waiting-l.queued), "reason", "deferred")
		g.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", l.usage())
		for state, on := range map[string]float64{"awake": 1, "weights_offloaded": 0, "discard_all": 0} {
			g.gauge("vllm:engine_sleep_state", "The engine is always awake.", on, "sleep_state", state)
		}
		g.labels = nil
		pages := e.prepare.KVTokens / max(1, e.prepare.PageSize)
		g.gauge("vllm:cache_config_info", "The KV cache, by its labels.", 1, "engine", strconv.Itoa(l.rank),
			"block_size", strconv.Itoa(e.prepare.PageSize), "num_gpu_blocks", strconv.Itoa(pages), "kv_cache_size_tokens", strconv.Itoa(e.prepare.KVTokens),
			"enable_prefix_caching", pythonBool(e.prepare.KVTokens > 0), "cache_dtype", "auto", "gpu_memory_utilization", "0.92", "num_cpu_blocks", "None")
	}
	g.labels = nil
	g.gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", float64(e.began.Load())/1e9)
	m := &e.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	g.labels = append(model[:len(model):len(model)], "engine", "0")
	g.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.", n.Prefilled+n.Cached)
	g.counter("vllm:prompt_tokens_cached_total", "Those of them that were found in the prefix cache.", n.Cached)
	for source, tokens := range map[string]uint64{"local_compute": n.Prefilled, "local_cache_hit": n.Cached, "external_kv_transfer": 0} {
		g.counter("vllm:prompt_tokens_by_source_total", "Prompt tokens, by where their KV is from.", tokens, "source", source)
	}
	for source, tokens := range map[string]uint64{"device": n.Cached, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0} {
		g.counter("vllm:prompt_tokens_cached_by_source_total", "Prompt tokens found in a cache, by which.", tokens, "source", source)
	}
	g.counter("vllm:generation_tokens_total", "Generated tokens.", n.Generated)
	g.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked for in the prefix cache.", n.Prefilled+n.Cached)
	g.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in it.", n.Cached)
	for _, name := range []string{"external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits"} {
		g.counter("vllm:"+name+"_total", alwaysZero, 0)
	}
	g.counter("vllm:num_preemptions_total", "Times a request was sent back to the queue.", n.Retracted)
	for _, reason := range []infer.Reason{infer.ReasonStop, infer.ReasonLength, infer.ReasonAbort, "error", "repetition"} {
		g.counter("vllm:request_success_total", "Requests that ended, by how.", m.byReason[reason], "finished_reason", string(reason))
	}
	g.amounts("vllm:request_prompt_tokens", "Prompt tokens of a request.", &m.prompt)
	g.amounts("vllm:request_generation_tokens", "Tokens generated for a request.", &m.generated)
	g.amounts("vllm:request_max_num_generation_tokens", "Tokens generated for a request, of its longest choice.", &m.generated)
	g.amounts("vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed.", &m.computed)
	g.amounts("vllm:request_num_preemptions", "How often a request was sent back to the queue.", &m.retractions)
	g.amounts("vllm:iteration_tokens_total", "Tokens of a step.", &m.perStep)
	g.amounts("vllm:request_params_n", "Choices that a request asks for.", &m.choices)
	g.amounts("vllm:request_params_max_tokens", "The max_tokens of a request that has one.", &m.maxTokens)
	g.seconds("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", m.both(func(t *traffic) *histogram { return &t.firstToken }))
	g.seconds("vllm:inter_token_latency_seconds", "From one token of a request to its next.", &m.betweenTokens)
	g.seconds("vllm:request_time_per_output_token_seconds", "From a request's first token to its last, by those after the first.", m.both(func(t *traffic) *histogram { return &t.perToken }))
	g.seconds("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", m.both(func(t *traffic) *histogram { return &t.latency }))
	g.seconds("vllm:request_queue_time_seconds", "In the waiting queue.", &m.queued)
	g.seconds("vllm:request_prefill_time_seconds", "From admission to the first token.", &m.prefill)
	g.seconds("vllm:request_decode_time_seconds", "From the first token to the last.", &m.decode)
	g.seconds("vllm:request_inference_time_seconds", "From admission to the last token.", &m.whole)
	if e.opts.VLLM.Transfer != nil { // by these its connector is known
		for _, name := range []string{"failed_transfers", "failed_notifications", "kv_expired_reqs"} {
			g.counter("vllm:nixl_num_"+name+"_total", alwaysZero, 0)
		}
	}
	g.labels = model
	for _, reason := range []string{"max_num_queued_reqs", "max_num_queued_tokens"} {
		g.counter("vllm:admission_rejections_total", alwaysZero, 0, "reason", reason)
	}
}

// pythonBool is how Python writes it.
func pythonBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}
