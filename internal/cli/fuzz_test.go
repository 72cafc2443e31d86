package cli

import (
	"testing"
	"testing/fstest"
)

// FuzzServeArgs: vllm serve's arguments, whatever they are, name a model or are refused.
func FuzzServeArgs(f *testing.F) {
	for _, s := range []string{`{"model_tag":"/models/llama","served_model_name":["a","b"],"lora_modules":[{"name":"x","path":"/y"}],"scheduling_policy":"priority"}`,
		`{"model_tag":"m","served_model_name":"a","api_key":null}`, `{"ssl_keyfile":"k"}`, `[]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := parseServeArgs(s); err == nil && a.Model == "" {
			t.Fatalf("%q: %+v", s, a)
		}
	})
}

// FuzzSamplingDefaults: what a generation_config.json says is within bounds, or an error.
func FuzzSamplingDefaults(f *testing.F) {
	for _, s := range []string{`{"temperature":0.6,"top_p":0.9,"top_k":20,"repetition_penalty":1.05,"eos_token_id":[1,2]}`, `{"temperature":null}`, `{"top_k":1e99}`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := samplingDefaults(fstest.MapFS{"generation_config.json": {Data: data}})
		if err == nil && d.Check() != nil {
			t.Fatalf("%q: %+v", data, d)
		}
	})
}
