package enginetest

import "strings"

// SGLangPages are what a server of SGLang's with two data-parallel ranks says of itself, and
// SGLangLater what the next process might say.
var (
	SGLangPages = map[string]string{
		"/v1/models":  `{"data":[{"id":"m","owned_by":"sglang","max_model_len":4096},{"id":"l","owned_by":"sglang","parent":"m"}]}`,
		"/model_info": `{"model_path":"/m","has_image_understanding":true,"has_audio_understanding":false}`,
		"/server_info": `{"version":"0.5.23","model_path":"/m","skip_tokenizer_init":false,"incremental_streaming_output":true,"max_running_requests":64,"max_total_num_tokens":5000,"chunked_prefill_size":512,
			"dp_size":2,"context_length":4096,"enable_priority_scheduling":true,"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"page_size":16,"grammar_backend":"xgrammar","startup_time":{"scheduler_e2e":12.25},
			"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":16,"replay_endpoint_port_base":5657}}`,
		"/v1/loads": `{"timestamp":1700000000,"version":"0.5.23","loads":[{"dp_rank":0,"timestamp":1700000000,"num_running_reqs":3,"num_waiting_reqs":1,"token_usage":0.5},{"dp_rank":1,"timestamp":1699999990,"num_running_reqs":2,"num_waiting_reqs":0,"token_usage":0.25}]}`,
	}
	SGLangLater = map[string]string{
		"/v1/models":  `{"data":[{"id":"m","owned_by":"sglang","max_model_len":8192}]}`,
		"/model_info": `{"model_path":"/m","has_image_understanding":false,"has_audio_understanding":true}`,
		"/server_info": `{"version":"0.5.23","model_path":"/m","skip_tokenizer_init":false,"incremental_streaming_output":true,"max_running_requests":32,"max_total_num_tokens":7000,"chunked_prefill_size":256,
			"dp_size":3,"context_length":8192,"enable_priority_scheduling":false,"disaggregation_mode":"null","disaggregation_bootstrap_port":8998,"page_size":16,"grammar_backend":"none","startup_time":{"scheduler_e2e":12.5},"kv_events":null}`,
		"/v1/loads": `{"timestamp":1700000001,"version":"0.5.23","loads":[{"dp_rank":0,"num_running_reqs":0},{"dp_rank":1,"num_running_reqs":0},{"dp_rank":2,"num_running_reqs":9}]}`,
	}
	// VLLMPages and VLLMLater are those of a server of vLLM's.
	VLLMPages = map[string]string{
		"/v1/models":        `{"data":[{"id":"m","owned_by":"vllm","max_model_len":4096},{"id":"l","owned_by":"vllm","parent":"m"}]}`,
		"/version":          `{"version":"0.32.0"}`,
		"/v1/completions":   "400",
		"/kv_event_sources": `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","topic":"kv"},"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","topic":"kv"}}`,
		"/metrics": "process_start_time_seconds 1.7e+09\n" +
			`vllm:num_requests_running{engine="0"} 3` + "\n" + `vllm:num_requests_waiting{engine="0"} 1` + "\n" + `vllm:kv_cache_usage_perc{engine="0"} 0.5` + "\n" +
			`vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1` + "\n" +
			`vllm:num_requests_running{engine="1"} 2` + "\n" + `vllm:num_requests_waiting{engine="1"} 0` + "\n" + `vllm:kv_cache_usage_perc{engine="1"} 0.25` + "\n" +
			`vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="100"} 1` + "\n",
	}
	VLLMLater = map[string]string{
		"/v1/models":        `{"data":[{"id":"m","owned_by":"vllm","max_model_len":8192}]}`,
		"/version":          `{"version":"0.33.0"}`,
		"/kv_event_sources": `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:6557"},"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:6558"}}`,
		"/metrics": "process_start_time_seconds 1.7000001e+09\n" +
			`vllm:num_requests_running{engine="0"} 1` + "\n" + `vllm:kv_cache_usage_perc{engine="0"} 0.1` + "\n" + `vllm:cache_config_info{engine="0",block_size="32",num_gpu_blocks="100"} 1` + "\n" +
			`vllm:num_requests_running{engine="1"} 0` + "\n" + `vllm:kv_cache_usage_perc{engine="1"} 0.2` + "\n" + `vllm:cache_config_info{engine="1",block_size="32",num_gpu_blocks="100"} 1` + "\n",
	}
)

// SGLangRestarted and VLLMRestarted are the page by which the processes of a server are told apart, as
// the one that comes next says it.
var (
	SGLangRestarted = [2]string{"/server_info", strings.Replace(SGLangPages["/server_info"], "12.25", "12.5", 1)}
	VLLMRestarted   = [2]string{"/metrics", strings.Replace(VLLMPages["/metrics"], "1.7e+09", "1.7000001e+09", 1)}
)
