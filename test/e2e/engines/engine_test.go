package engines

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// An engine speaks several wires at once, each at its own address, about the
// same requests.
func TestEngineWires(t *testing.T) {
	harness.Beside(t, harness.Light)
	p := harness.Start(t, append([]string{"engine", "--wire", "sglang=127.0.0.1:0", "--wire", "vllm=127.0.0.1:0", "--wire", "openai=127.0.0.1:0", "--wire", "weir=127.0.0.1:0",
		"--served-model-name", "mine", "--incremental-streaming-output", "--enable-metrics", "--weight-version", "v7", "--context-length", "1000",
		"--max-total-tokens", "4096", "--page-size", "1", "--dp-size", "2", "--stream-interval", "2", "--enable-priority-scheduling", "--priority-scheduling-preemption-threshold", "0", "--schedule-conservativeness", "0.5", "--chunked-prefill-size", "64",
		"--lora-paths", "fine=/somewhere,other"}, harness.FastSim...)...)
	sglang, vllm, openai := p.Line("sglang"), p.Line("vllm"), p.Line("openai")
	p.Line("weir")

	var texts []string
	for _, url := range []string{vllm, openai, sglang} {
		a := harness.Post(t, url+"/v1/completions", `{"model":"mine","prompt":"Once upon","max_tokens":12,"ignore_eos":true}`)
		var c struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal(a.Body, &c); err != nil || a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		texts = append(texts, c.Choices[0].Text)
	}
	a := harness.Post(t, sglang+"/generate", `{"text":"Once upon","sampling_params":{"max_new_tokens":12,"ignore_eos":true}}`)
	var g struct {
		Text string
		Meta struct {
			Weights string `json:"weight_version"`
			Cached  int    `json:"cached_tokens"`
		} `json:"meta_info"`
	}
	if err := json.Unmarshal(a.Body, &g); err != nil || g.Meta.Weights != "v7" {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if texts = append(texts, g.Text); len(slices.Compact(texts)) != 1 {
		t.Errorf("the wires say different things: %q", texts)
	}

	// Two tokens at a time, but for the first, and each once.
	stream := harness.Post(t, sglang+"/generate", `{"text":"Once upon","stream":true,"priority":5,"lora_path":"fine","routed_dp_rank":1,"sampling_params":{"max_new_tokens":11,"ignore_eos":true}}`)
	ids := 0
	for event := range strings.SplitSeq(strings.TrimSpace(string(stream.Body)), "\n\n") {
		if event == "data: [DONE]" {
			continue
		}
		var e struct {
			IDs  []int `json:"output_ids"`
			Meta struct {
				Completion int `json:"completion_tokens"`
				Rank       int `json:"dp_rank"`
			} `json:"meta_info"`
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &e); err != nil {
			t.Fatalf("%v: %s", err, event)
		}
		ids += len(e.IDs)
		if e.Meta.Completion != ids || e.Meta.Rank != 1 || (ids > 1 && len(e.IDs)%2 != 0) {
			t.Errorf("%d ids so far: %s", ids, event)
		}
	}
	if ids != 11 || !bytes.HasSuffix(stream.Body, []byte("data: [DONE]\n\n")) {
		t.Errorf("%d ids: %s", ids, stream.Body)
	}
	for url, part := range map[string]string{
		sglang + "/server_info":    `"incremental_streaming_output":true`,
		sglang + "/v1/loads":       `"max_total_num_tokens":4096`,
		sglang + "/metrics":        `sglang:num_requests_total{engine_type="unified",is_streaming="false",model_name="mine"} 4`,
		vllm + "/metrics":          `vllm:request_success_total{engine="0",finished_reason="length",model_name="mine"} 5`,
		vllm + "/v1/models":        `"id":"other"`,
		sglang + "/admin/state":    `"finished":5`,
		openai + "/v1/models/mine": `"max_model_len":1000`,
	} {
		if a := harness.Get(t, url); a.Status != 200 || !strings.Contains(string(a.Body), part) {
			t.Errorf("%s: %d, no %s in %s", url, a.Status, part, a.Body)
		}
	}
	began := time.Now()
	if a := harness.Get(t, sglang+"/health"); a.Status != 200 || time.Since(began) < time.Second {
		t.Errorf("health: %d after %v", a.Status, time.Since(began))
	}
	p.Interrupt()
}

// What an engine cannot do it refuses by name, on each wire; it ignores nothing that its server acts on.
func TestEngineRefusesFields(t *testing.T) {
	s := harness.StartSim(t)
	for _, field := range []string{"echo", "suffix", "logit_bias"} {
		value := map[string]string{"suffix": `"s"`, "logit_bias": `{"5":-100}`}[field]
		if value == "" {
			value = "true"
		}
		for _, url := range []string{s.VLLM, s.SGLang, s.OpenAI} {
			a := harness.Post(t, url+"/v1/completions", `{"prompt":"Once upon","max_tokens":2,"`+field+`":`+value+`}`)
			if a.Status != 400 || !strings.Contains(string(a.Body), "has no "+field) {
				t.Errorf("%s, %s: status %d: %s", url, field, a.Status, a.Body)
			}
		}
	}
}
