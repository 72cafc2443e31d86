package relay

import (
	"maps"
	"reflect"
	"testing"
	"time"

	"weir/internal/engine"
)

// An engine's load is what it tells where engines of its kind do, of all of its ranks;
// others tell nothing.
func TestLoad(t *testing.T) {
	const vllm, sglang = `{"data":[{"id":"m","owned_by":"vllm"}]}`, `{"data":[{"id":"m","owned_by":"sglang"}]}`
	const metrics = "# TYPE vllm:num_requests_running gauge\n" +
		`vllm:num_requests_running{engine="0",model_name="a } b"} 3.0` + "\n" + `vllm:num_requests_running{engine="1",model_name="m"} 4 1700000000` + "\n" +
		`vllm:num_requests_waiting{engine="0",model_name="m"} 2.0` + "\nvllm:num_requests_waiting_by_reason{reason=\"x\"} 9\n" +
		`vllm:kv_cache_usage_perc{engine="0"} 0.25` + "\n" + `vllm:kv_cache_usage_perc{engine="1"} 0.75` + "\nvllm:broken{ 1\nvllm:num_requests_running\n"
	for _, c := range []struct {
		name string
		docs map[string]string
		want engine.Load
		ok   bool
	}{
		{"vLLM", map[string]string{"/v1/models": vllm, "/metrics": metrics}, engine.Load{Running: 7, Waiting: 2, KVUsage: 0.5, Ranks: []engine.RankLoad{{Rank: 0, Running: 3, Waiting: 2, KVUsage: 0.25}, {Rank: 1, Running: 4, KVUsage: 0.75}}}, true},
		{"vLLM without its cache", map[string]string{"/v1/models": vllm, "/metrics": `vllm:num_requests_running{} 1`}, engine.Load{Running: 1, KVUsage: -1}, true},
		{"vLLM with no number", map[string]string{"/v1/models": vllm, "/metrics": `vllm:num_requests_running{} NaN`}, engine.Load{}, false},
		{"vLLM that does not tell", map[string]string{"/v1/models": vllm}, engine.Load{}, false},
		{"SGLang", map[string]string{"/v1/models": sglang, "/v1/loads": `{"loads":[{"num_running_reqs":1,"num_waiting_reqs":2,"token_usage":0.5},{"dp_rank":1,"num_running_reqs":3,"token_usage":0}]}`},
			engine.Load{Running: 4, Waiting: 2, KVUsage: 0.25, Ranks: []engine.RankLoad{{Rank: 0, Running: 1, Waiting: 2, KVUsage: 0.5}, {Rank: 1, Running: 3}}}, true},
		{"SGLang's prefill half", map[string]string{"/v1/models": sglang, "/server_info": `{"skip_tokenizer_init":false,"disaggregation_mode":"prefill"}`,
			"/v1/loads": `{"loads":[{"num_running_reqs":1,"num_waiting_reqs":2,"token_usage":0.5,"disaggregation":{"mode":"prefill","prefill_inflight_queue_reqs":5,"prefill_bootstrap_queue_reqs":2}}]}`},
			engine.Load{Running: 6, Waiting: 2, KVUsage: 0.5}, true},
		{"another", map[string]string{"/v1/models": `{"data":[{"id":"m"}]}`, "/metrics": metrics}, engine.Load{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := pages(t, c.docs).engine(Options{ProbeInterval: time.Hour})
			if s := next(t, run(t, e)); !s.Ready {
				t.Fatal(s.Err)
			}
			if got, ok := e.Load(); ok != c.ok || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %t; want %+v, %t", got, ok, c.want, c.ok)
			}
		})
	}
}

// An engine whose facts stay the same is reported once, however often it is read: a report costs
// the fleet as much as there are engines.
func TestSameFacts(t *testing.T) {
	for owner, more := range map[string]map[string]string{
		"vllm":   {"/version": `{"version":"0.32.0"}`, "/metrics": `vllm:num_requests_running{engine="0"} 1`},
		"sglang": {"/server_info": `{"version":"0.5.18","skip_tokenizer_init":false}`, "/v1/loads": `{"loads":[{"num_running_reqs":1}]}`},
	} {
		t.Run(owner, func(t *testing.T) {
			docs := maps.Clone(more)
			docs["/v1/models"] = `{"data":[{"id":"m","owned_by":"` + owner + `","max_model_len":8192}]}`
			e := pages(t, docs).engine(Options{})
			was, err := e.probe(t.Context())
			if err != nil || !was.Salts.Carried {
				t.Fatalf("%+v, %v", was, err)
			}
			if now, err := e.probe(t.Context()); err != nil || !reflect.DeepEqual(was, now) {
				t.Errorf("another reading: %v: %+v, before %+v", err, now, was)
			}
		})
	}
}
