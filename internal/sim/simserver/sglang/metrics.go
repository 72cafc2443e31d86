package sglang

import (
	"strconv"

	"weir/internal/infer"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/tally"
)

// metrics collects SGLang's metrics, as far as a single server without optional
// features reports them and this engine has the values.
func (f *Server) metrics(g *tally.Scrape) {
	common := []string{"model_name", f.run.Options().Model, "engine_type", engineType(f.run.Role())}
	scheduler := append(common, "tp_rank", "0", "pp_rank", "0", "moe_ep_rank", "0")
	for _, l := range f.run.Ranks() {
		if g.Label(scheduler...); f.run.Options().DPSize > 1 {
			g.Label(append(scheduler[:len(scheduler):len(scheduler)], "dp_rank", strconv.Itoa(l.Rank))...)
		}
		f.rankMetrics(g, &l)
	}
	g.Label(scheduler...)
	n := f.run.Totals()
	m := f.run.Measured()
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

// engineType is SGLang's name for an engine's part in requests.
func engineType(role infer.Role) string {
	if role == infer.RoleBoth {
		return "unified"
	}
	return role.String()
}

// rankMetrics reports one rank's state.
func (f *Server) rankMetrics(g *tally.Scrape, l *engine.Rank) {
	g.Gauge("sglang:num_running_reqs", "Requests in the running batch.", float64(l.Running))
	g.Gauge("sglang:num_queue_reqs", "Requests in the waiting queue.", float64(l.Queued))
	for _, q := range f.legQueues(l)[:4] { // of the last SGLang tells in /v1/loads only
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
	g.Gauge("sglang:max_total_num_tokens", "Size of the KV cache in tokens.", float64(f.run.Options().KVTokens))
	g.Gauge("sglang:page_size", "Tokens in a page of the KV cache.", float64(f.run.Options().PageSize))
	g.Gauge("sglang:num_pages", "Pages of the KV cache.", float64(f.run.Options().KVTokens/max(1, f.run.Options().PageSize)))
	g.Gauge("sglang:context_len", "Tokens of a request at most.", float64(f.run.Options().ContextLength))
	for _, name := range []string{
		"num_grammar_queue_reqs", "num_paused_reqs", "num_decode_host_receive_queue_reqs", "num_decode_deferred_kv_release_reqs",
		"pending_prealloc_token_usage", "prealloc_full_token_usage", "prealloc_swa_token_usage", "utilization", "fwd_occupancy", "new_token_ratio", "decode_sum_seq_lens", "is_cuda_graph", "num_unique_running_routing_keys",
		"spec_accept_length", "spec_accept_rate", "spec_cap_length", "spec_block_accept_length", "spec_num_steps", "spec_num_draft_tokens",
		"swa_token_usage", "swa_available_tokens", "swa_evictable_tokens", "swa_used_tokens",
		"mamba_usage", "mamba_available_tokens", "mamba_evictable_tokens", "mamba_used_tokens",
	} {
		g.Gauge("sglang:"+name, tally.AlwaysZero, 0)
	}
}
