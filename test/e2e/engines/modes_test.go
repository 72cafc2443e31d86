package engines

import (
	"fmt"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// guides ask for an output that matches something, each in its API's words, with the
// field that a refusal names.
var guides = []struct{ path, body, field string }{
	{"/v1/chat/completions", `"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}}`, "response_format"},
	{"/v1/chat/completions", `"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`, "tool_choice"},
	{"/v1/chat/completions", `"messages":[{"role":"user","content":"x"}],"response_format":{"type":"structural_tag","structures":[],"triggers":[]}`, "response_format"},
	{"/v1/completions", `"prompt":"x","regex":"a+"`, "regex"},
	{"/v1/completions", `"prompt":"x","ebnf":"root ::= \"a\""`, "ebnf"},
	{"/v1/completions", `"prompt":"x","guided_choice":["a","b"]`, "guided_choice"},
	{"/generate", `"text":"x","sampling_params":{"json_schema":"{}"}`, "sampling_params.json_schema"},
	{"/v1/messages", `"max_tokens":9,"messages":[{"role":"user","content":"x"}],"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}`, "output_config.format"},
	{"/v1/responses", `"input":"x","text":{"format":{"type":"json_schema","name":"x","schema":{"type":"object"}}}`, "text.format"},
}

// wantRefused sends a request and wants a 400 with words in it.
func wantRefused(t *testing.T, g *harness.Gateway, path, body string, words ...string) {
	t.Helper()
	a := harness.Post(t, g.URL+path, `{"model":"weir-sim",`+body+`}`)
	for _, word := range words {
		if a.Status != 400 || !strings.Contains(string(a.Body), word) {
			t.Errorf("%s %s: %d %s, want 400 and %q", path, body, a.Status, a.Body, word)
			return
		}
	}
}

// A request for something that an SGLang server cannot do, because of how it was started, is
// refused by name, with the flag, in the caller's API. Nothing of it reaches the engine, and
// other requests are served. The loss of such a field without an error was the founding
// incident.
func TestSGLangWithoutGrammar(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, c := range []struct {
		flags []string
		says  string
		blind bool // without a tokenizer
	}{
		{[]string{"--skip-tokenizer-init"}, "--skip-tokenizer-init", true},
		{[]string{"--grammar-backend", "none"}, "--grammar-backend none", false},
		{[]string{"--grammar-backend", "none", "--sglang-version", "0.5.3"}, "--grammar-backend none", false},
		{[]string{"--skip-tokenizer-init", "--sglang-version", "0.4.10"}, "--skip-tokenizer-init", true},
	} {
		t.Run(strings.Join(c.flags, " "), func(t *testing.T) {
			s := harness.StartSim(t, append(c.flags, harness.FastSim...)...)
			for _, spec := range []string{"sglang=" + s.SGLang, s.SGLang} { // the latter finds the kind out
				g := harness.StartGateway(t, "serve", "--engine", spec)
				before := harness.EngineState(t, s.Admin).Received
				for _, guide := range guides {
					wantRefused(t, g, guide.path, guide.body, guide.field, c.says)
				}
				if c.blind {
					wantRefused(t, g, "/v1/completions", `"prompt":"x","min_tokens":3,"max_tokens":9`, "min_tokens", c.says)
					wantRefused(t, g, "/generate", `"text":"x","sampling_params":{"min_new_tokens":3}`, "sampling_params.min_new_tokens", c.says)
				}
				if n := harness.EngineState(t, s.Admin).Received - before; n != 0 {
					t.Errorf("%d requests reached the engine", n)
				}
				a := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"x","max_tokens":5,"min_tokens":5,"stop":["zzzz"]}`)
				if a.Status != 200 || !strings.Contains(string(a.Body), `"completion_tokens":5`) {
					t.Errorf("what weir does itself: %d %s", a.Status, a.Body)
				}
			}
			// A release that does not survive it is why nothing of it may pass.
			if strings.Contains(strings.Join(c.flags, " "), "0.5.3") {
				_, err := harness.Client.Post(s.SGLang+"/generate", "application/json", strings.NewReader(`{"input_ids":[97],"sampling_params":{"json_schema":"{}"}}`))
				if err == nil {
					t.Error("the engine answered")
				}
				s.Exits(1)
			}
		})
	}
}

// Engines collect the ids of an answer that is not streamed.
func TestWholeAnswersAreCollected(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	for kind, url := range map[string]string{"sglang": s.SGLang, "vllm": s.VLLM} {
		t.Run(kind, func(t *testing.T) {
			g := harness.StartGateway(t, "serve", "--engine", kind+"="+url)
			batches := func() float64 {
				return harness.Metric(t, g.Admin, "weir_receive_batch_streams_count", `kind="`+kind)
			}
			before := batches()
			a := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"x","max_tokens":81,"ignore_eos":true}`)
			if a.Status != 200 || !strings.Contains(string(a.Body), `"completion_tokens":81`) {
				t.Fatalf("%d %.300s", a.Status, a.Body)
			}
			if n, most := batches()-before, 81.0/8+4; n == 0 || n > most {
				t.Errorf("%v batches for 81 ids, want at most %v", n, most)
			}
		})
	}
}

// If the engines of one model differ in what they can do, a request goes to those that can
// serve it.
func TestSGLangEnginesDiffer(t *testing.T) {
	harness.Beside(t, harness.Light)
	bare := harness.StartSim(t, append([]string{"--skip-tokenizer-init"}, harness.FastSim...)...)
	whole := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", "sglang="+bare.SGLang, "--engine", "sglang="+whole.SGLang)
	harness.Eventually(t, "both engines", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
	const schema = `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`
	for i := range 6 {
		a := harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(`{"model":"weir-sim","max_tokens":400,"messages":[{"role":"user","content":"say %d"}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":%s}}}`, i, schema))
		if a.Status != 200 || !strings.Contains(string(a.Body), `{\"a\":`) {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	if n := harness.EngineState(t, bare.Admin).Received; n != 0 {
		t.Errorf("%d requests with a schema went to the engine without a grammar", n)
	}
	for range 6 {
		if a := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"x","max_tokens":3}`); a.Status != 200 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	if n := harness.EngineState(t, bare.Admin).Received; n != 3 {
		t.Errorf("%d of 6 requests that need nothing went there", n)
	}
	wantRefused(t, g, "/v1/completions", `"prompt":"x","regex":"a+","prompt_logprobs":1`, "prompt_logprobs")
}

// Other fields that SGLang silently ignores are refused, or done here.
func TestSGLangPassesOver(t *testing.T) {
	harness.Beside(t, harness.Light)
	p := harness.Start(t, append([]string{"engine", "--wire", "sglang=127.0.0.1:0", "--sglang-version", "0.5.9", "--speculation", "2"}, harness.FastSim...)...)
	g := harness.StartGateway(t, "serve", "--engine", "sglang="+p.Line("sglang"))
	for field, says := range map[string]string{
		`"seed":7`: "--enable-deterministic-inference", `"min_p":0.1`: "--speculative-algorithm EAGLE", `"repetition_penalty":1.2`: "0.5.10",
	} {
		name, _, _ := strings.Cut(strings.Trim(field, `"`), `"`)
		wantRefused(t, g, "/v1/completions", `"prompt":"x",`+field, name, says)
	}
	ask := func(fields string) string {
		a := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"x","max_tokens":8,"return_token_ids":true`+fields+`}`)
		if a.Status != 200 {
			t.Errorf("%s: %d %s", fields, a.Status, a.Body)
		}
		return string(a.Body)
	}
	ask(`,"seed":7,"temperature":0`) // nothing is drawn
	_, ids, ok := strings.Cut(ask(`,"ignore_eos":true`), `"token_ids":[`)
	third := strings.Split(strings.Split(ids, "]")[0], ",")
	if !ok || len(third) != 8 {
		t.Fatalf("ids %q", third)
	}
	if a := ask(`,"ignore_eos":true,"stop_token_ids":[` + third[2] + `]`); !strings.Contains(a, `"completion_tokens":3`) || !strings.Contains(a, `"finish_reason":"stop"`) {
		t.Errorf("a stop id beside ignore_eos: %s", a)
	}
}

// A relayed SGLang server gets no field that it would silently ignore, because of how it was
// started or because its API has no such field. The field is refused by name, with the flag.
// All other fields reach it.
func TestSGLangRelayed(t *testing.T) {
	harness.Beside(t, harness.Light)
	p := harness.Start(t, append([]string{"engine", "--wire", "sglang=127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--grammar-backend", "none", "--speculation", "2"}, harness.FastSim...)...)
	url, admin := p.Line("sglang"), p.Line("admin")
	for _, spec := range []string{"openai=" + url, url + ",model=other"} { // the latter finds out that it is to relay
		g := harness.StartGateway(t, "serve", "--engine", spec)
		model := "weir-sim"
		if strings.Contains(spec, "other") {
			model = "other"
		}
		post := func(path, fields string) harness.Answer {
			t.Helper()
			return harness.Post(t, g.URL+path, `{"model":"`+model+`",`+fields+`}`)
		}
		const chat, text = `"messages":[{"role":"user","content":"x"}],"max_tokens":3`, `"prompt":"x","max_tokens":3`
		before := harness.EngineState(t, admin).Received
		for _, c := range []struct{ path, fields, field, says string }{
			{"/v1/chat/completions", chat + `,"response_format":{"type":"json_object"}`, "response_format", "--grammar-backend none"},
			{"/v1/chat/completions", chat + `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`, "tool_choice", "--grammar-backend none"},
			{"/v1/completions", text + `,"regex":"a+"`, "regex", "--grammar-backend none"},
			{"/v1/messages", chat + `,"output_config":{"format":{"type":"json_schema","schema":{}}}`, "output_config.format", "--grammar-backend none"},
			{"/v1/chat/completions", chat + `,"guided_json":{"type":"object"}`, "guided_json", "it reads response_format"},
			{"/v1/completions", text + `,"structured_outputs":{"choice":["a"]}`, "structured_outputs", "it reads response_format"},
			{"/v1/completions", text + `,"seed":7`, "seed", "--enable-deterministic-inference"},
			{"/v1/chat/completions", chat + `,"min_p":0.1`, "min_p", "--speculative-algorithm EAGLE"},
			{"/v1/completions", text + `,"allowed_token_ids":[97]`, "allowed_token_ids", "has no such field"},
		} {
			if a := post(c.path, c.fields); a.Status != 400 || !strings.Contains(string(a.Body), c.field+" is not supported") || !strings.Contains(string(a.Body), c.says) {
				t.Errorf("%s, %s %s: %d %s", spec, c.path, c.fields, a.Status, a.Body)
			}
		}
		if n := harness.EngineState(t, admin).Received - before; n != 0 {
			t.Errorf("%s: %d requests reached the engine", spec, n)
		}
		for path, fields := range map[string]string{
			"/v1/chat/completions": chat + `,"response_format":{"type":"text"},"seed":7,"temperature":0,"min_p":0,"user":"u","unheard_of":true`,
			"/v1/completions":      text + `,"frequency_penalty":0.5,"presence_penalty":0.5,"min_tokens":1`,
		} {
			if a := post(path, fields); a.Status != 200 {
				t.Errorf("%s, %s %s: %d %s", spec, path, fields, a.Status, a.Body)
			}
		}
	}
}

// The simulated engines lose in silence what real ones lose, which is what the relay
// guards against: asked by themselves they answer 200 and hold to nothing.
func TestRelayedEnginesLoseSilently(t *testing.T) {
	harness.Beside(t, harness.Light)
	p := harness.Start(t, append([]string{"engine", "--wire", "sglang=127.0.0.1:0", "--wire", "vllm=127.0.0.1:0"}, harness.FastSim...)...)
	const schema = `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`
	for wire, fields := range map[string]string{
		"sglang": `"guided_json":` + schema + `,"structured_outputs":{"json":` + schema + `},"json_schema":` + fmt.Sprintf("%q", schema),
		"vllm":   `"guided_json":` + schema + `,"regex":"a+"`,
	} {
		body := `{"model":"weir-sim","max_tokens":8,"messages":[{"role":"user","content":"x"}],` + fields + `}`
		url := p.Line(wire)
		if a := harness.Post(t, url+"/v1/chat/completions", body); a.Status != 200 || strings.Contains(string(a.Body), `{\"a\"`) {
			t.Errorf("%s by itself: %d %s", wire, a.Status, a.Body)
		}
		g := harness.StartGateway(t, "serve", "--engine", "openai="+url)
		if a := harness.Post(t, g.URL+"/v1/chat/completions", body); a.Status != 400 || !strings.Contains(string(a.Body), "guided_json is not supported") {
			t.Errorf("%s, relayed: %d %s", wire, a.Status, a.Body)
		}
		if a := harness.Get(t, g.Admin+"/engines"); !strings.Contains(string(a.Body), `"running"`) {
			t.Errorf("%s does not tell its load: %s", wire, a.Body)
		}
	}
}
