package gateway

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/gateway/record"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
	"weir/models"
)

// tokenized is an answer of /tokenize to one text.
type tokenized struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []uint32 `json:"tokens"`
	Strs        []string `json:"token_strs"`
}

func (c *caller) tokenized(t *testing.T) (out tokenized) {
	t.Helper()
	a := c.answer()
	if err := json.Unmarshal(a.body, &out); err != nil || a.status != 200 || !a.whole {
		t.Fatalf("status %d, whole %v, body %s (%v)", a.status, a.whole, a.body, err)
	}
	if out.Count != len(out.Tokens) {
		t.Errorf("count %d of %d tokens", out.Count, len(out.Tokens))
	}
	return out
}

func idsOf(t *testing.T, text string, o tokenizer.EncodeOptions) []uint32 {
	t.Helper()
	ids, err := simModel().Tokenizer.NewEncoder().Encode(t.Context(), nil, text, o)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// The ids of /tokenize are those that an engine would be sent, and the answer has the fields of
// vLLM's and SGLang's.
func TestTokenizeEndpoint(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		ask := func(fields string) string { return `{"model":"` + models.SimName + `",` + fields + `}` }
		const text = "Hello <|eos|> wörld\\n"
		const plain = "Hello <|eos|> wörld\n"
		for _, path := range []string{"/tokenize", "/v1/tokenize"} {
			got := b.post(path, ask(`"prompt":"`+text+`","return_token_strs":true`)).tokenized(t)
			if want := idsOf(t, plain, tokenizer.EncodeOptions{AddSpecial: true}); !slices.Equal(got.Tokens, want) || got.MaxModelLen != 131072 {
				t.Errorf("%+v, want %v", got, want)
			}
			if len(got.Strs) != len(got.Tokens) || got.Strs[0] != "<|bos|>" || !slices.Contains(got.Strs, "<|eos|>") || !slices.Contains(got.Strs, "Ġw") && !strings.Contains(strings.Join(got.Strs, "|"), "Ġ") {
				t.Errorf("token_strs %q", got.Strs)
			}
		}
		got := b.post("/tokenize", ask(`"prompt":"`+text+`","add_special_tokens":false`)).tokenized(t)
		if want := idsOf(t, plain, tokenizer.EncodeOptions{}); !slices.Equal(got.Tokens, want) || got.Strs != nil {
			t.Errorf("%+v, want %v", got, want)
		}

		// A conversation becomes what the engine gets of it.
		chat := `"messages":[{"role":"user","content":"Hello"}]`
		got = b.post("/tokenize", ask(chat)).tokenized(t)
		c := b.post(chatPath, ask(chat+`,"max_tokens":1`))
		call := e.call(t, 1)
		if !slices.Equal(got.Tokens, call.req.Prompt) {
			t.Errorf("/tokenize gives %v, the engine got %v", got.Tokens, call.req.Prompt)
		}
		call.end("stop")
		c.answer()
		open := b.post("/tokenize", ask(chat+`,"add_generation_prompt":false`)).tokenized(t)
		if len(open.Tokens) >= len(got.Tokens) || !slices.Equal(open.Tokens, got.Tokens[:len(open.Tokens)]) {
			t.Errorf("without generation prompt %v, with it %v", open.Tokens, got.Tokens)
		}

		// SGLang's batch.
		var batch struct {
			Count  []int      `json:"count"`
			Tokens [][]uint32 `json:"tokens"`
		}
		a := b.post("/tokenize", ask(`"prompt":["a","","bc d"],"add_special_tokens":false`)).answer()
		if err := json.Unmarshal(a.body, &batch); err != nil || len(batch.Tokens) != 3 || !slices.Equal(batch.Count, []int{1, 0, len(batch.Tokens[2])}) {
			t.Errorf("%s (%v)", a.body, err)
		}
		record := b.record(b.callers[0])
		if record.Outcome != "finished" || record.Status != 200 || record.Prompt == 0 || len(record.Attempts) != 0 {
			t.Errorf("record %+v", record)
		}
		if got := b.sum("weir_output_tokens_total"); got != 0 {
			t.Errorf("%v output tokens", got)
		}
	})
}

// /detokenize gives vLLM's field with special tokens and SGLang's as asked for.
func TestDetokenizeEndpoint(t *testing.T) {
	inBubble(t, Options{}, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
		const text = "Hi<|eos|> there \U0001F9FF"
		ids, err := json.Marshal(idsOf(t, text, tokenizer.EncodeOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct{ path, fields, want string }{
			{"/detokenize", `"tokens":` + string(ids), `{"prompt":"Hi<|eos|> there 🧿","text":"Hi there 🧿"}`},
			{"/v1/detokenize", `"tokens":` + string(ids) + `,"skip_special_tokens":false`, `{"prompt":"Hi<|eos|> there 🧿","text":"Hi<|eos|> there 🧿"}`},
			{"/detokenize", `"tokens":[` + string(ids) + `,[]]`, `{"prompt":["Hi<|eos|> there 🧿",""],"text":["Hi there 🧿",""]}`},
			{"/detokenize", `"tokens":[]`, `{"prompt":"","text":""}`},
		} {
			a := b.post(test.path, `{"model":"`+models.SimName+`",`+test.fields+`}`).answer()
			if a.status != 200 || string(a.body) != test.want {
				t.Errorf("status %d, %s; want %s", a.status, a.body, test.want)
			}
		}
		// Longer than is decoded at once.
		long := strings.Repeat("some words and ", 5000)
		ids, _ = json.Marshal(idsOf(t, long, tokenizer.EncodeOptions{}))
		var back struct{ Prompt string }
		a := b.post("/detokenize", `{"model":"`+models.SimName+`","tokens":`+string(ids)+`}`).answer()
		if err := json.Unmarshal(a.body, &back); err != nil || back.Prompt != long {
			t.Errorf("%d bytes came back of %d (%v)", len(back.Prompt), len(long), err)
		}
	})
}

func TestTokenizationRefuses(t *testing.T) {
	e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
	opts := Options{}
	opts.Prepare.Limits.Requests = 1
	inBubble(t, opts, []any{e, r}, func(t *testing.T, b *bench) {
		for _, test := range []struct {
			method, path, body string
			status             int
			param              string
			want               []string
		}{
			{"GET", "/tokenize", "", 405, "", []string{"POST"}},
			{"POST", "/tokenize", `{"prompt":"a"}`, 400, "model", []string{"model is required"}},
			{"POST", "/tokenize", `{"model":"gpt-9","prompt":"a"}`, 404, "model", []string{"gpt-9", models.SimName}},
			{"POST", "/detokenize", `{"model":"gpt-9","tokens":[]}`, 404, "model", []string{"gpt-9"}},
			{"POST", "/tokenize", `{"model":"weir-sim","prompt":5}`, 400, "prompt", []string{"a string"}},
			{"POST", "/tokenize", `{"model":"weir-sim","messages":[{"role":"assistant","tool_calls":[{}]}]}`, 400, "messages", []string{"template"}},
			{"POST", "/detokenize", `{"model":"weir-sim","tokens":[1,32768]}`, 400, "tokens[1]", []string{"32768", "0 to 32767"}},
			{"POST", "/detokenize", `{"model":"weir-sim","tokens":[[],[5,70000]]}`, 400, "tokens[1][1]", []string{"70000"}},
			{"POST", "/detokenize", `{"model":"weir-sim","tokens":["a"]}`, 400, "tokens[0]", []string{"token id"}},
		} {
			c := b.dial(0)
			c.send(test.method, test.path, test.body)
			if test.method != "POST" {
				b.sent[c.id]++
			}
			err := c.refusal(test.status)
			if got := ""; err.Param != nil || test.param != "" {
				if err.Param != nil {
					got = *err.Param
				}
				if got != test.param {
					t.Errorf("%s: param %q, want %q", test.body, got, test.param)
				}
			}
			wantParts(t, err.Message, test.want...)
		}
		// A relayed model without folder is its engine's to answer.
		c := b.post("/tokenize", `{"model":"relayed","prompt":"a"}`)
		f := r.forward(t, 1)
		if f.req.Path != "/tokenize" {
			t.Errorf("relayed to %q", f.req.Path)
		}
		// And it counts as a request, like any other.
		b.post("/tokenize", `{"model":"weir-sim","prompt":"a"}`).refusal(429)
		f.send(`data: {}` + "\n\n")
		f.end()
		if a := c.answer(); a.status != 200 || !a.whole {
			t.Errorf("relayed: status %d, whole %v", a.status, a.whole)
		}
		if len(e.handed()) != 0 {
			t.Error("a token engine was called")
		}
	})
}

// A text is encoded in the pool whatever its size: it waits there, its client
// may leave, and its record says where the time went.
func TestTokenizationWaits(t *testing.T) {
	opts := Options{Record: record.Options{StageDelay: map[trace.Stage]time.Duration{trace.Encode: time.Second}}}
	inBubble(t, opts, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
		b.occupy(time.Second, 1)
		c := b.post("/tokenize", `{"model":"weir-sim","prompt":"a"}`)
		gone := b.post("/detokenize", `{"model":"weir-sim","tokens":[1]}`)
		gone.hangUp()
		time.Sleep(3 * time.Second)
		c.tokenized(t)
		got := b.wantRecord(c, "finished", "")
		if got.Stages["pool_wait"] != int64(time.Second) || got.Stages["encode"] != int64(time.Second) || got.total() != 2*time.Second {
			t.Errorf("stages %v", got.Stages)
		}
		if got := b.wantRecord(gone, "cancelled", "cancelled"); got.total() != 0 {
			t.Errorf("took %v after the hang-up", got.total())
		}
	})
}
