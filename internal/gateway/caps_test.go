package gateway

import (
	"fmt"
	"strings"
	"testing"

	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/models"
)

// A number above a model's cap is refused in every dialect, for engines of both kinds, however the
// number is written.
func TestCapsRefuse(t *testing.T) {
	limit := prepare.Cap{MaxTokens: 100, N: 2}
	e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
	inBubble(t, Options{Prepare: prepare.Options{Caps: map[string]prepare.Cap{models.SimName: limit, "relayed": limit}}}, []any{e, r}, func(t *testing.T, b *bench) {
		const messages = `"messages":[{"role":"user","content":"a"}]`
		for _, c := range []struct{ path, fields, param string }{
			{chatPath, messages + `,"max_tokens":101`, "max_tokens"},
			{chatPath, messages + `,"max_completion_tokens":101,"max_tokens":101`, "_tokens"},
			{chatPath, messages + `,"n":3,"max_tokens":1`, "n"},
			{completionsPath, `"prompt":"a","max_tokens":1e3`, "max_tokens"},
			{completionsPath, `"prompt":"a","n":3`, "n"},
			{"/v1/messages", messages + `,"max_tokens":101`, "max_tokens"},
			{"/v1/responses", `"input":"a","max_output_tokens":101`, "max_output_tokens"},
		} {
			for _, model := range []string{models.SimName, "relayed"} {
				a := b.post(c.path, fmt.Sprintf(`{"model":%q,%s}`, model, c.fields)).answer()
				if a.status != 400 || !strings.Contains(string(a.body), c.param) || !strings.Contains(string(a.body), "for model "+model+" it may be at most") {
					t.Errorf("%s %s %s: %d %s", c.path, model, c.fields, a.status, a.body)
				}
			}
		}
		for _, fields := range []string{`"max_tokens":"101"`, `"max_tokens":true`, `"max_tokens":1,"max_tokens":101`, `"max_tokens":null,"max_completion_tokens":1e400`, `"best_of":3`} {
			if a := b.post(chatPath, `{"model":"relayed",`+messages+`,`+fields+`}`).answer(); a.status != 400 {
				t.Errorf("%s: %d %s", fields, a.status, a.body)
			}
		}
		for _, fields := range []string{`"sampling_params":{"max_new_tokens":101}`, `"sampling_params":{"n":3}`} {
			if a := b.post("/generate", `{"model":"`+models.SimName+`","text":"a",`+fields+`}`).answer(); a.status != 400 || !strings.Contains(string(a.body), "sampling_params.") {
				t.Errorf("%s: %d %s", fields, a.status, a.body)
			}
		}
		if len(e.handed()) != 0 || len(r.handed()) != 0 {
			t.Errorf("engines were handed %d and %d requests", len(e.handed()), len(r.handed()))
		}
	})
}

// A request without a bound gets the cap, and one with a bound is as it came.
func TestCapIsTheBound(t *testing.T) {
	limit := prepare.Cap{MaxTokens: 100}
	e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
	inBubble(t, Options{Prepare: prepare.Options{Caps: map[string]prepare.Cap{models.SimName: limit, "relayed": limit}}}, []any{e, r}, func(t *testing.T, b *bench) {
		const messages = `"messages":[{"role":"user","content":"a"}]`
		for i, c := range []struct {
			path, fields string
			want         int
		}{
			{chatPath, messages, 100}, {chatPath, messages + `,"max_tokens":7`, 7}, {chatPath, messages + `,"max_tokens":null`, 100},
			{completionsPath, `"prompt":"a"`, 16}, {"/v1/responses", `"input":"a"`, 100},
			{"/generate", `"text":"a","sampling_params":{"max_new_tokens":null}`, 100},
		} {
			client := b.post(c.path, `{"model":"`+models.SimName+`",`+c.fields+`}`)
			call := e.call(t, i+1)
			if call.req.MaxTokens != c.want {
				t.Errorf("%s %s: %d tokens, want %d", c.path, c.fields, call.req.MaxTokens, c.want)
			}
			call.end(infer.ReasonStop)
			client.answer()
		}
		for i, c := range []struct{ path, body, want string }{
			{chatPath, `{ "model":"relayed" , "messages":[]}`, `{"max_tokens":100, "model":"relayed" , "messages":[]}`},
			{chatPath, `{"model":"relayed","messages":[],"max_tokens": null ,"max_completion_tokens":null}`, `{"model":"relayed","messages":[],"max_tokens": 100 ,"max_completion_tokens":100}`},
			{chatPath, `{"model":"relayed","messages":[],"max_completion_tokens": 1e2}`, ""},
			{"/v1/responses", `{"model":"relayed","input":"a"}`, `{"max_output_tokens":100,"model":"relayed","input":"a"}`},
			{"/v1/messages", `{"model":"relayed","messages":[]}`, ""},
			{completionsPath, `{"model":"relayed","prompt":"a"}`, ""},
			{"/v1/embeddings", `{"model":"relayed","input":"a"}`, ""},
		} {
			if c.want == "" {
				c.want = c.body
			}
			client := b.post(c.path, c.body)
			f := r.forward(t, i+1)
			if string(f.req.Body) != c.want {
				t.Errorf("%s: relayed %s, want %s", c.body, f.req.Body, c.want)
			}
			f.end()
			client.answer()
		}
	})
}

// Where the context leaves less than the cap, that is the bound.
func TestCapAndContext(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Prepare: prepare.Options{Caps: map[string]prepare.Cap{models.SimName: {MaxTokens: 100}}}}, []any{e}, func(t *testing.T, b *bench) {
		limit := simModel().ContextLength
		c := b.post("/generate", fmt.Sprintf(`{"model":%q,"input_ids":[%s],"sampling_params":{"max_new_tokens":null}}`, models.SimName, list(limit-5, "7")))
		call := e.call(t, 1)
		if call.req.MaxTokens != 5 {
			t.Errorf("%d tokens, and the context leaves 5", call.req.MaxTokens)
		}
		call.end(infer.ReasonStop)
		c.answer()
	})
}
