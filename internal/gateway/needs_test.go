package gateway

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"weir/internal/engine"
	"weir/internal/infer"
)

const schemaField = `,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}}`

// lacking is an engine that would carry everything but what it lacks.
func lacking(name string, lacks ...infer.Lack) *tokenEngine {
	return &tokenEngine{name: name, facts: &engine.Facts{Carries: infer.CarriesAll.Without(lacks), Lacks: lacks}}
}

// If engines differ in what they carry, a request goes to those that carry what it needs, and any
// other request to all of them in turn.
func TestRequestsGoWhereTheyAreCarried(t *testing.T) {
	plain := lacking("plain", infer.Lack{What: infer.CarriesGuides | infer.CarriesMinTokens, Why: "runs with --skip-tokenizer-init"})
	whole := lacking("whole")
	inBubble(t, Options{}, []any{plain, whole}, func(t *testing.T, b *bench) {
		plain.calls, whole.calls = nil, nil
		for _, fields := range []string{schemaField, `,"min_tokens":2,"max_tokens":5`, schemaField, `,"regex":"a+"`} {
			before := len(whole.handed())
			c := b.post(chatPath, askStream(fields))
			whole.call(t, before+1).end(infer.ReasonStop, words()[0])
			c.wantWhole(text(words()[0]), "stop")
		}
		if n := len(plain.handed()); n != 0 {
			t.Fatalf("the engine that cannot was handed %d requests", n)
		}
		for range 4 {
			b.post(chatPath, askChat(``))
		}
		if p, w := len(plain.handed()), len(whole.handed()); p != 2 || w != 6 {
			t.Errorf("of 4 requests that need nothing, %d and %d", p, w-4)
		}
		for _, e := range []*tokenEngine{plain, whole} {
			for _, call := range e.handed() {
				call.end(infer.ReasonStop)
			}
		}
	})
}

// A retry goes to an engine that carries the request, or nowhere.
func TestRetryGoesWhereItIsCarried(t *testing.T) {
	plain := lacking("plain", infer.Lack{What: infer.CarriesGuides, Why: "has no grammar"})
	whole := lacking("whole")
	whole.accept = refuse(infer.CodeOverloaded, true)
	inBubble(t, Options{}, []any{plain, whole}, func(t *testing.T, b *bench) {
		b.post(chatPath, askChat(schemaField)).refusal(429)
		if n := len(plain.handed()); n != 0 {
			t.Errorf("the engine that cannot was handed %d requests", n)
		}
	})
}

// A field that no engine carries is refused by its name in the caller's dialect, with the reason of
// each engine.
func TestRefusalsSayWhy(t *testing.T) {
	const why = "runs with --skip-tokenizer-init"
	e := lacking("a", infer.Lack{What: infer.CarriesGuides | infer.CarriesMinTokens, Why: why}, infer.Lack{What: infer.CarriesSeed, Why: "draws without seeds"})
	const messages = `"model":"weir-sim","messages":[{"role":"user","content":"hi"}]`
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		e.calls = nil
		for _, c := range []struct{ path, body, param, why string }{
			{chatPath, askChat(schemaField), "response_format", why},
			{chatPath, askChat(`,"regex":"a+"`), "regex", why},
			{chatPath, askChat(`,"ebnf":"root ::= \"a\""`), "ebnf", why},
			{chatPath, askChat(`,"response_format":{"type":"structural_tag","structures":[],"triggers":[]}`), "response_format", why},
			{chatPath, askChat(`,"structured_outputs":{"choice":["a"]}`), "structured_outputs.choice", why},
			{chatPath, askChat(`,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`), "tool_choice", why},
			{chatPath, askChat(`,"min_tokens":2,"max_tokens":9`), "min_tokens", why},
			{chatPath, askChat(`,"seed":7`), "seed", "draws without seeds"},
			{"/generate", `{"model":"weir-sim","text":"hi","sampling_params":{"min_new_tokens":2}}`, "sampling_params.min_new_tokens", why},
			{"/generate", `{"model":"weir-sim","text":"hi","sampling_params":{"sampling_seed":2}}`, "sampling_params.sampling_seed", "draws without seeds"},
			{"/generate", `{"model":"weir-sim","text":"hi","sampling_params":{"json_schema":"{}"}}`, "sampling_params.json_schema", why},
			{"/v1/messages", `{` + messages + `,"max_tokens":9,"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}}`, "output_config.format", why},
			{"/v1/responses", `{"model":"weir-sim","input":"hi","text":{"format":{"type":"json_schema","name":"x","schema":{"type":"object"}}}}`, "text.format", why},
		} {
			got := b.post(c.path, c.body)
			if a := got.answer(); a.status != 400 || !strings.Contains(string(a.body), c.param) || !strings.Contains(string(a.body), c.why) {
				t.Errorf("%s %s: %d %s", c.path, c.body, a.status, a.body)
			}
		}
		if n := len(e.handed()); n != 0 {
			t.Errorf("the engine was handed %d requests", n)
		}
		// Nothing is drawn: a seed asks for nothing.
		c := b.post(chatPath, askStream(`,"seed":7,"temperature":0`))
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
	})
}

// A field that a relayed engine is known to lose is refused by its name in the caller's dialect,
// with the reason; nothing of the request is sent. All else passes byte for byte.
func TestRelaysRefuseWhatIsLost(t *testing.T) {
	const why = "runs with --grammar-backend none"
	r := &relayEngine{name: "r", lacks: []infer.Lack{
		{What: infer.CarriesGuides, Why: why}, {What: infer.CarriesSeed, Why: "draws without seeds"},
		{What: infer.SpelledGuided | infer.SpelledTextFormat | infer.SpelledOutputFormat, Why: "has no such field"},
	}}
	inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
		const messages = `"messages":[{"role":"user","content":"hi"}]`
		for _, c := range []struct{ path, fields, param, why string }{
			{chatPath, messages + schemaField, "response_format", why},
			{chatPath, messages + `,"guided_json":{}`, "guided_json", "has no such field"},
			{chatPath, messages + `,"\u0067uided_json":{}`, "guided_json", "has no such field"},
			{chatPath, messages + `,"seed":7`, "seed", "draws without seeds"},
			{chatPath, messages + `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`, "tool_choice", why},
			{completionsPath, `"prompt":"a","regex":"a+"`, "regex", why},
			{completionsPath, `"prompt":"a","regex":null,"regex":"a+"`, "regex", why},
			{"/v1/responses", `"input":"a","text":{"format":{"type":"json_schema","name":"x","schema":{}}}`, "text.format", why},
			{"/v1/messages", messages + `,"max_tokens":9,"output_config":{"format":{"type":"json_schema","schema":{}}}`, "output_config.format", why},
		} {
			a := b.post(c.path, `{"model":"relayed",`+c.fields+`}`).answer()
			if a.status != 400 || !strings.Contains(string(a.body), c.param) || !strings.Contains(string(a.body), c.why) {
				t.Errorf("%s %s: %d %s", c.path, c.fields, a.status, a.body)
			}
		}
		if n := len(r.handed()); n != 0 {
			t.Fatalf("%d requests were relayed", n)
		}
		for i, c := range []struct{ path, fields string }{
			{chatPath, messages + `, "seed": 7 ,"temperature":0.0`},
			{chatPath, messages + `,"response_format":{"type":"text"},"tools":[],"tool_choice":"auto","unheard_of":1,"min_p":0.1,"structured_outputs":{"json":{}}`},
			{"/v1/embeddings", `"input":"a","seed":7,"guided_json":{}`},
		} {
			body := `{"model":"relayed",` + c.fields + `}`
			d := b.post(c.path, body)
			f := r.forward(t, i+1)
			if string(f.req.Body) != body {
				t.Errorf("relayed %s", f.req.Body)
			}
			f.end()
			d.answer()
		}
	})
}

// If relayed engines differ in what they lose, a request goes to those that do not lose what it
// asks for, and any other request to all of them.
func TestRelaysDiffer(t *testing.T) {
	plain, whole := &relayEngine{name: "plain", lacks: []infer.Lack{{What: infer.SpelledGuided, Why: "has no such field"}}}, &relayEngine{name: "whole"}
	inBubble(t, Options{}, []any{plain, whole}, func(t *testing.T, b *bench) {
		ask := func(fields string) {
			t.Helper()
			before := []int{len(plain.handed()), len(whole.handed())}
			c := b.post(chatPath, `{"model":"relayed","stream":true,"messages":[]`+fields+`}`)
			synctest.Wait()
			for i, e := range []*relayEngine{plain, whole} {
				if n := len(e.handed()); n > before[i] {
					f := e.forward(t, n)
					f.send(relayToken + relayEnd)
					f.end()
				}
			}
			c.answer()
		}
		for range 6 {
			ask(`,"guided_choice":["a"]`)
		}
		if p, w := len(plain.handed()), len(whole.handed()); p != 0 || w != 6 {
			t.Errorf("%d requests went to the engine that loses the field, %d to the other", p, w)
		}
		for range 6 {
			ask(``)
		}
		if p, w := len(plain.handed()), len(whole.handed()); p == 0 || p+w != 12 {
			t.Errorf("of requests that ask for nothing, %d and %d", p, w-6)
		}
	})
}

// A request that no single engine can serve is refused, even if the engines together carry all of
// it. It is not refused while another engine is awaited.
func TestNoEngineCarriesAll(t *testing.T) {
	a := lacking("a", infer.Lack{What: infer.CarriesGuides, Why: "has no grammar"})
	z := lacking("z", infer.Lack{What: infer.CarriesMinP, Why: "has no min_p"})
	inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
		e := b.post(chatPath, askChat(schemaField+`,"min_p":0.1`)).refusal(400)
		wantParts(t, e.Message, "min_p", "json_schema", "weir-sim")
	})
}

// min_tokens as large as max_tokens is carried by an engine that has no min_tokens: a
// bias holds back what would end the answer.
func TestHeldBack(t *testing.T) {
	plain := lacking("a", infer.Lack{What: infer.CarriesMinTokens, Why: "runs with --skip-tokenizer-init"})
	for _, e := range []*tokenEngine{plain, lacking("b")} {
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, askStream(`,"min_tokens":2,"max_tokens":2,"stop_token_ids":[9,4],"logit_bias":{"3":1,"9":5,"12":2}`))
			call := e.call(t, len(e.handed()))
			got := fmt.Sprint(call.req.MinTokens, call.req.Sampling.LogitBias)
			want := "2 [{3 1} {9 5} {12 2}]"
			if e == plain {
				eos := simModel().EOS
				want = fmt.Sprintf("0 [{3 1} {4 -1e+09} {9 -1e+09} {12 2} {%d -1e+09} {%d -1e+09}]", eos[0], eos[1])
			}
			if got != want {
				t.Errorf("%s: %s, want %s", e.name, got, want)
			}
			call.end(infer.ReasonLength, words()[0], words()[1])
			c.wantWhole(text(words()[0], words()[1]), "length")
		})
	}
}
