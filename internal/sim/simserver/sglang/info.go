package sglang

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/pairs"
	"weir/internal/sim/simserver/web"
	"weir/internal/trace"
)

// serverInfo gives the server's arguments and its schedulers' states. Like SGLang it asks each of
// them, so that one that stands still keeps it from answering.
func (f *Server) serverInfo(w http.ResponseWriter, r *http.Request) {
	if err := f.run.Answers(r.Context()); err != nil {
		web.WriteSGLangError(w, err)
		return
	}
	o, opts := f.run.Options(), f.flags
	info := map[string]any{
		"model_path":                   o.Model,
		"tokenizer_path":               o.Model,
		"served_model_name":            o.Model,
		"context_length":               o.ContextLength,
		"page_size":                    o.PageSize,
		"dp_size":                      o.DPSize,
		"tp_size":                      1,
		"max_running_requests":         nil, // as given; what holds is among the schedulers' states
		"max_queued_requests":          o.MaxQueued,
		"max_total_num_tokens":         o.KVTokens,
		"chunked_prefill_size":         o.ChunkedPrefill,
		"stream_interval":              o.StreamInterval,
		"enable_priority_scheduling":   o.PriorityScheduling,
		"incremental_streaming_output": opts.Incremental,
		"skip_tokenizer_init":          opts.SkipTokenizer,
		"grammar_backend":              opts.Grammar,
		"sampling_defaults":            "model",
		"preferred_sampling_params":    nil,
		"speculative_algorithm":        speculative(o),

		"enable_deterministic_inference":           opts.Deterministic,
		"enable_metrics":                           opts.Metrics,
		"enable_cache_report":                      opts.CacheReport,
		"weight_version":                           opts.WeightVersion,
		"disaggregation_mode":                      disaggregationMode(f.run.Role()),
		"disaggregation_bootstrap_port":            cmp.Or(f.run.Legs().BootstrapPort, pairs.DefaultBootstrapPort),
		"disaggregation_transfer_backend":          "mooncake",
		"disaggregation_decode_enable_radix_cache": f.run.Legs().RadixCache,
		"disable_radix_cache":                      o.KVTokens == 0 || f.run.Role() == infer.RoleDecode && !f.run.Legs().RadixCache,
		"status":                                   "ready",
		"version":                                  opts.Version,
		"startup_time":                             f.startup(),
		"kv_events":                                f.kvEvents(),
		"internal_states":                          f.internalStates(),
	}
	for k, v := range opts.Args {
		info[k] = v
	}
	web.WriteJSON(w, http.StatusOK, info)
}

// startup is how long each phase of the server's start took. Nothing is loaded here; what differs
// from one process to the next is drawn of the time.
func (f *Server) startup() any {
	began := f.run.Began()
	if release, ok := strings.CutPrefix(f.flags.Version, "0.5."); !ok || len(release) < 2 {
		return float64(began) / 1e9
	}
	took := 1 + float64(began%1e9)/1e9
	return map[string]any{"load_weight": 0.0, "kv_cache_allocation": 0.0, "scheduler_e2e": took, "cuda_graph": map[string]any{}, "tokenizer_e2e": took}
}

// kvEvents is where the engine publishes what its KV caches hold, as routers ask for it;
// nil: nowhere.
func (f *Server) kvEvents() map[string]any {
	if f.run.KVEvents() == nil {
		return nil
	}
	first := f.run.KVEvents().Sources()[0]
	host, port, ok := hostPort(first.Endpoint)
	if !ok {
		return nil
	}
	info := map[string]any{
		"publisher": first.Publisher, "endpoint_host": host, "endpoint_port_base": port, "topic": first.Topic,
		"block_size": f.run.Options().PageSize, "dp_size": f.run.Options().DPSize,
	}
	if first.ReplayEndpoint != nil {
		if _, port, ok := hostPort(*first.ReplayEndpoint); ok {
			info["replay_endpoint_port_base"] = port
		}
	}
	return info
}

// hostPort takes an endpoint apart that is one of TCP.
func hostPort(endpoint string) (host string, port int, ok bool) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", 0, false
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, false
	}
	port, err = strconv.Atoi(text)
	return host, port, err == nil
}

// speculative is SGLang's word for how drafts are made; nil: none are.
func speculative(o *sim.Options) any {
	if o.Speculation > 1 {
		return "EAGLE"
	}
	return nil
}

func (f *Server) internalStates() []map[string]any {
	o := f.run.Options()
	var list []map[string]any
	for _, l := range f.run.Ranks() {
		list = append(list, map[string]any{
			"dp_rank":                               l.Rank,
			"last_gen_throughput":                   l.Throughput,
			"effective_max_running_requests_per_dp": o.MaxRunning,
			"num_running_reqs":                      l.Running,
			"num_waiting_reqs":                      l.Waiting,
			"memory_usage":                          map[string]any{"token_capacity": o.KVTokens},
		})
	}
	return list
}

// disaggregationMode is SGLang's word for a role.
func disaggregationMode(r infer.Role) string {
	if r == infer.RoleBoth {
		return "null"
	}
	return r.String()
}

// modelInfo describes the model.
func (f *Server) modelInfo(w http.ResponseWriter, _ *http.Request) {
	o := f.run.Options()
	web.WriteJSON(w, http.StatusOK, map[string]any{
		"model_path":                o.Model,
		"tokenizer_path":            o.Model,
		"is_generation":             true,
		"preferred_sampling_params": nil,
		"weight_version":            f.flags.WeightVersion,
		"has_image_understanding":   f.vocab.MediaCarries()&infer.CarriesImage != 0,
		"has_audio_understanding":   f.vocab.MediaCarries()&infer.CarriesAudio != 0,
		"model_type":                "weir_sim",
		"architectures":             []string{"WeirSimForCausalLM"},
	})
}

// rankLoad is one DP rank's load, as /v1/loads has it.
type rankLoad struct {
	Timestamp              float64 `json:"timestamp"`
	DPRank                 int     `json:"dp_rank"`
	NumRunningReqs         int     `json:"num_running_reqs"`
	NumWaitingReqs         int     `json:"num_waiting_reqs"`
	NumWaitingUncached     int     `json:"num_waiting_uncached_tokens"`
	NumUsedTokens          int     `json:"num_used_tokens"`
	NumTotalTokens         int     `json:"num_total_tokens"`
	NumActiveTokens        int     `json:"num_active_tokens"`
	MaxTotalNumTokens      int     `json:"max_total_num_tokens"`
	MaxRunningRequests     int     `json:"max_running_requests"`
	TokenUsage             float64 `json:"token_usage"`
	GenThroughput          float64 `json:"gen_throughput"`
	CacheHitRate           float64 `json:"cache_hit_rate"`
	Utilization            float64 `json:"utilization"`
	TotalPrefillUncached   uint64  `json:"total_prefill_uncached_tokens"`
	TotalPrefillBusyMicros uint64  `json:"total_prefill_busy_us"`
	DecodeMoments          []int   `json:"decode_moments,omitempty"`
	Memory                 any     `json:"memory,omitempty"`
	Disaggregation         any     `json:"disaggregation,omitempty"`
	Queues                 any     `json:"queues,omitempty"`
	LoRA                   any     `json:"lora,omitempty"`
	Speculative            any     `json:"speculative,omitempty"`
}

// sections of /v1/loads that can be asked for.
var loadSections = []string{"core", "memory", "spec", "lora", "disagg", "queues", "all"}

// rankLoads returns the load of each rank, or of one.
func (f *Server) rankLoads(r *http.Request) ([]rankLoad, error) {
	q := r.URL.Query()
	only := -1
	if s := q.Get("dp_rank"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n >= f.run.Options().DPSize {
			return nil, infer.Invalid("dp_rank", "dp_rank is %q; this engine has %d, counted from 0", s, f.run.Options().DPSize)
		}
		only = n
	}
	include := q["include"]
	var sections []string
	for _, s := range include {
		sections = append(sections, strings.Split(s, ",")...)
	}
	for _, s := range sections {
		if !slices.Contains(loadSections, s) {
			return nil, infer.Invalid("include", "include has %q; the sections are %s", s, strings.Join(loadSections, ", "))
		}
	}
	wants := func(s string) bool {
		return len(sections) == 0 || slices.Contains(sections, s) || slices.Contains(sections, "all")
	}
	o := f.run.Options()
	now := float64(time.Now().UnixNano()) / 1e9
	list := []rankLoad{}
	for _, l := range f.run.Ranks() {
		if only >= 0 && l.Rank != only {
			continue
		}
		one := rankLoad{
			Timestamp: f.run.ReportedAt(l.Rank, now), DPRank: l.Rank, NumRunningReqs: l.Running, NumWaitingReqs: l.Waiting,
			NumWaitingUncached: l.WaitingTokens, NumUsedTokens: l.Used, NumTotalTokens: l.Used + l.Cached + l.WaitingTokens, NumActiveTokens: l.Used,
			MaxTotalNumTokens: l.Total, MaxRunningRequests: o.MaxRunning, TokenUsage: l.Usage(),
			GenThroughput: l.Throughput, CacheHitRate: l.HitRate, TotalPrefillUncached: l.Prefilled, TotalPrefillBusyMicros: l.PrefillBusy,
			Utilization: float64(l.Running) / float64(o.MaxRunning),
		}
		if wants("memory") {
			one.Memory = map[string]any{"token_capacity": o.KVTokens, "page_size": o.PageSize}
		}
		if wants("disagg") {
			one.Disaggregation = f.legLoad(&l)
		}
		if wants("queues") {
			one.Queues = map[string]any{"waiting": l.Queued - l.Retracted, "grammar": 0, "paused": 0, "retracted": l.Retracted}
		}
		if wants("lora") && len(o.LoRAs) > 0 {
			one.LoRA = map[string]any{"adapters": o.LoRAs}
		}
		if wants("spec") && o.Speculation > 1 {
			one.Speculative = map[string]any{"accept_length": o.Speculation}
		}
		list = append(list, one)
	}
	return list, nil
}

func (f *Server) loads(w http.ResponseWriter, r *http.Request) {
	list, err := f.rankLoads(r)
	if err != nil {
		web.WriteSGLangError(w, err)
		return
	}
	switch format := r.URL.Query().Get("format"); format {
	case "", "json":
	case "prometheus":
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		writeLoadsText(w, list)
		return
	default:
		web.WriteSGLangError(w, infer.Invalid("format", "format is %q; it may be json or prometheus", format))
		return
	}
	web.WriteJSON(w, http.StatusOK, map[string]any{
		"timestamp": time.Now().UTC().Format(time.RFC3339Nano), "version": f.flags.Version,
		"accelerator": "none", "num_accelerators": 0, "loads": list,
	})
}

// writeLoadsText writes the gauges of /v1/loads as Prometheus reads them.
func writeLoadsText(w http.ResponseWriter, list []rankLoad) {
	for _, g := range []struct {
		name  string
		value func(*rankLoad) float64
	}{
		{"num_running_reqs", func(l *rankLoad) float64 { return float64(l.NumRunningReqs) }},
		{"num_waiting_reqs", func(l *rankLoad) float64 { return float64(l.NumWaitingReqs) }},
		{"num_used_tokens", func(l *rankLoad) float64 { return float64(l.NumUsedTokens) }},
		{"max_total_num_tokens", func(l *rankLoad) float64 { return float64(l.MaxTotalNumTokens) }},
		{"max_running_requests", func(l *rankLoad) float64 { return float64(l.MaxRunningRequests) }},
		{"token_usage", func(l *rankLoad) float64 { return l.TokenUsage }},
		{"gen_throughput", func(l *rankLoad) float64 { return l.GenThroughput }},
		{"cache_hit_rate", func(l *rankLoad) float64 { return l.CacheHitRate }},
		{"utilization", func(l *rankLoad) float64 { return l.Utilization }},
	} {
		fmt.Fprintf(w, "# TYPE sglang_%s gauge\n", g.name)
		for i := range list {
			fmt.Fprintf(w, "sglang_%s{dp_rank=\"%d\"} %v\n", g.name, list[i].DPRank, g.value(&list[i]))
		}
	}
}

// getLoad is the older form of /v1/loads.
func (f *Server) getLoad(w http.ResponseWriter, _ *http.Request) {
	type load struct {
		DPRank           int     `json:"dp_rank"`
		NumReqs          int     `json:"num_reqs"`
		NumWaitingReqs   int     `json:"num_waiting_reqs"`
		NumTokens        int     `json:"num_tokens"`
		NumPendingTokens int     `json:"num_pending_tokens"`
		Tick             float64 `json:"ts_tic"`
	}
	list := []load{}
	for _, l := range f.run.Ranks() {
		list = append(list, load{l.Rank, l.Running + l.Waiting, l.Waiting, l.Used + l.WaitingTokens, l.WaitingTokens, float64(trace.Now()) / 1e9})
	}
	web.WriteJSON(w, http.StatusOK, list)
}

// flushCache empties the prefix cache. An engine with requests refuses.
func (f *Server) flushCache(w http.ResponseWriter, r *http.Request) {
	ok, err := f.run.FlushCache(r.Context())
	switch {
	case err != nil:
		web.WriteSGLangError(w, err)
		return
	case !ok:
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintln(w, "The cache was not flushed: requests are running or waiting.")
		return
	}
	fmt.Fprintln(w, "The cache was flushed.")
}

// tokenize gives the ids of a text, a list of texts, or a chat.
func (f *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Prompt   jsontext.Value `json:"prompt"`
		Messages jsontext.Value `json:"messages"`
		fields.Mode
		fields.Unread
	}
	err := web.ReadJSON(w, r, &req)
	if err == nil {
		err = tokensLacks.Refuse(req.Rest)
	}
	if err == nil && fields.Given(req.Prompt) == fields.Given(req.Messages) {
		err = infer.Invalid("prompt", "give either prompt or messages")
	}
	var prompts [][]uint32
	switch {
	case err != nil:
	case fields.Given(req.Messages):
		prompts = make([][]uint32, 1)
		prompts[0], err = f.vocab.Chat(r.Context(), "", req.Messages, req.Offered(), req.TemplateKwargs)
	default:
		prompts, err = f.vocab.Prompts("prompt", req.Prompt)
	}
	if err != nil {
		web.WriteSGLangError(w, err)
		return
	}
	var counts []int
	for _, ids := range prompts {
		counts = append(counts, len(ids))
	}
	answer := map[string]any{"tokens": prompts, "count": counts, "max_model_len": f.run.Options().ContextLength}
	if req.Prompt.Kind() != '[' {
		answer["tokens"], answer["count"] = prompts[0], counts[0]
	}
	web.WriteJSON(w, http.StatusOK, answer)
}

// detokenize gives the text of ids, or of lists of ids.
func (f *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Tokens jsontext.Value `json:"tokens"`
		fields.Unread
	}
	err := web.ReadJSON(w, r, &req)
	if err == nil {
		err = decodedLacks.Refuse(req.Rest)
	}
	var one []uint32
	var many [][]uint32
	single := false
	switch {
	case err != nil:
	case json.Unmarshal(req.Tokens, &one) == nil:
		many, single = [][]uint32{one}, true
	case json.Unmarshal(req.Tokens, &many) != nil:
		err = infer.Invalid("tokens", "tokens must be a list of token ids, or a list of such lists")
	}
	texts := make([]string, len(many))
	for i := range many {
		if err == nil {
			texts[i], err = f.vocab.Detokenize("tokens", many[i])
		}
	}
	switch {
	case err != nil:
		web.WriteSGLangError(w, err)
	case single:
		web.WriteJSON(w, http.StatusOK, map[string]any{"text": texts[0]})
	default:
		web.WriteJSON(w, http.StatusOK, map[string]any{"text": texts})
	}
}
