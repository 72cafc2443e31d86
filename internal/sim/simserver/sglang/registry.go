package sglang

import (
	"fmt"
	"io"
	"net"
	"net/http"

	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/web"
)

// Registry is SGLang's registry of bootstrap addresses, by which a decode
// engine, or a gateway, learns how a prefill engine is made up.
func Registry(run *engine.Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "OK")
	})
	mux.HandleFunc("GET /route", func(w http.ResponseWriter, r *http.Request) { route(w, r, run.Options()) })
	mux.HandleFunc("GET "+engine.LinkPath, run.ServeLink)
	return mux
}

// route gives the content of the registry of an engine with the given options.
func route(w http.ResponseWriter, r *http.Request, o *sim.Options) {
	q := r.URL.Query()
	var numbers [4]int
	for i, name := range []string{"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"} {
		if _, err := fmt.Sscan(q.Get(name), &numbers[i]); err != nil {
			http.Error(w, "Missing inputs for bootstrap server.", http.StatusBadRequest)
			return
		}
	}
	if numbers == [4]int{-1, -1, -1, -1} {
		web.WriteJSON(w, http.StatusOK, map[string]any{
			"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": o.DPSize, "pp_size": 1,
			"page_size": o.PageSize, "kv_cache_dtype": "auto", "follow_bootstrap_room": true,
			"enable_dsa_cache_layer_split": false, "decode_allocation_policy": "early", "enable_kv_cache_sharding": false,
			"prefill_http_port": nil, "target_tp_rank": nil, "target_tp_ranks": nil, "target_cp_ranks": nil, "target_pp_ranks": nil,
			"required_dst_info_num": nil, "required_prefill_response_num": nil,
		})
		return
	}
	if numbers[0] < 0 || numbers[0] >= o.DPSize || numbers[1] != 0 || numbers[2] != 0 || numbers[3] != 0 {
		http.Error(w, fmt.Sprintf("Bootstrap info not found for dp_rank=%d cp_rank=%d tp_rank=%d pp_rank=%d", numbers[0], numbers[1], numbers[2], numbers[3]), http.StatusNotFound)
		return
	}
	host, port, _ := net.SplitHostPort(r.Host)
	var n int
	_, _ = fmt.Sscan(port, &n)
	web.WriteJSON(w, http.StatusOK, map[string]any{"rank_ip": host, "rank_port": n})
}
