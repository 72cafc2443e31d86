package openai

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// tokenization decodes a body for one of the tokenizer's endpoints.
func tokenization(e Endpoint, body string) (any, error) {
	h, err := e.ParseHead([]byte(body))
	if err != nil {
		return nil, err
	}
	if e == Tokenize {
		return DecodeTokenize(h)
	}
	return DecodeDetokenize(h)
}

func TestTokenization(t *testing.T) {
	messages := `[{"role":"user","content":"hi"}]`
	for _, test := range []struct {
		endpoint Endpoint
		body     string
		want     any
	}{
		// vLLM's
		{Tokenize, `{"model":"m","prompt":"hi"}`, &TokenizeRequest{Model: "m", Texts: []string{"hi"}, AddSpecialTokens: true}},
		{Tokenize, `{"model":"m","prompt":"","add_special_tokens":false,"return_token_strs":true}`,
			&TokenizeRequest{Model: "m", Texts: []string{""}, ReturnTokenStrs: true}},
		{Tokenize, `{"model":"m","messages":` + messages + `}`, &TokenizeRequest{Model: "m", Messages: []byte(messages), AddGenerationPrompt: true}},
		{Tokenize, `{"model":"m","prompt":null,"messages":` + messages + `,"add_special_tokens":true,"add_generation_prompt":false,"continue_final_message":true,` +
			`"chat_template":null,"chat_template_kwargs":{"a":1},"tools":[{"type":"function"}],"media_io_kwargs":null,"mm_processor_kwargs":{}}`,
			&TokenizeRequest{Model: "m", Messages: []byte(messages), AddSpecialTokens: true, ContinueFinalMessage: true,
				ChatTemplateKwargs: []byte(`{"a":1}`), Tools: []byte(`[{"type":"function"}]`)}},
		{Detokenize, `{"model":"m","tokens":[1, 2,3]}`, &DetokenizeRequest{Model: "m", Tokens: [][]uint32{{1, 2, 3}}, SkipSpecialTokens: true}},
		// SGLang's
		{Tokenize, `{"model":"m","prompt":["a","b\n"],"add_special_tokens":true}`, &TokenizeRequest{Model: "m", Texts: []string{"a", "b\n"}, Batch: true, AddSpecialTokens: true}},
		{Tokenize, `{"model":"m","prompt":[]}`, &TokenizeRequest{Model: "m", Texts: []string{}, Batch: true, AddSpecialTokens: true}},
		{Detokenize, `{"model":"m","tokens":[],"skip_special_tokens":false}`, &DetokenizeRequest{Model: "m", Tokens: [][]uint32{{}}}},
		{Detokenize, `{"model":"m","tokens":[ [1,2],[],[3]],"user":"u"}`, &DetokenizeRequest{Model: "m", Tokens: [][]uint32{{1, 2}, {}, {3}}, Batch: true, SkipSpecialTokens: true, LeftOut: &dialect.LeftOut{Fields: []string{"user"}}}},
	} {
		got, err := tokenization(test.endpoint, test.body)
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
		} else if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.body, diff)
		}
	}
}

func TestTokenizationErrors(t *testing.T) {
	const invalid, unsupported = infer.CodeInvalid, infer.CodeUnsupported
	messages := `"messages":[{"role":"user","content":"hi"}]`
	for _, test := range []struct {
		endpoint Endpoint
		fields   string
		code     infer.Code
		param    string
		message  string
	}{
		{Tokenize, ``, invalid, "prompt", "prompt or messages is required: send a string, an array of strings, or a conversation"},
		{Tokenize, `"prompt":null`, invalid, "prompt", "prompt or messages is required: send a string, an array of strings, or a conversation"},
		{Tokenize, `"prompt":"a",` + messages, invalid, "messages", "prompt and messages are two prompts; give one of them"},
		{Tokenize, `"prompt":7`, invalid, "prompt", "prompt must be a string or an array of strings, found a number"},
		{Tokenize, `"prompt":["a",[1]]`, invalid, "prompt[1]", "prompt[1] must be a string, found an array"},
		{Tokenize, `"prompt":[5]`, invalid, "prompt[0]", "prompt[0] must be a string, found a number"},
		{Tokenize, `"prompt":"\ud800"`, invalid, "prompt", "prompt holds half a surrogate pair; both halves are needed"},
		{Tokenize, `"prompt":"a","prompt":"b"`, invalid, "prompt", "prompt is given twice; give it once"},
		{Tokenize, `"prompt":"a","add_special_tokens":1`, invalid, "add_special_tokens", "add_special_tokens must be true or false, found a number"},
		{Tokenize, `"prompt":"a","return_token_strs":"yes"`, invalid, "return_token_strs", "return_token_strs must be true or false, found a string"},
		{Tokenize, `"prompt":"a","tools":[]`, invalid, "tools", "tools belongs to messages, and prompt is given; leave it out"},
		{Tokenize, `"prompt":"a","add_generation_prompt":true`, invalid, "add_generation_prompt", "add_generation_prompt belongs to messages, and prompt is given; leave it out"},
		{Tokenize, `"messages":[]`, invalid, "messages", "messages is empty; send at least one message"},
		{Tokenize, `"messages":[{"role":"king","content":""}]`, invalid, "messages[0].role", `messages[0].role must be system, user, assistant, tool, developer or function, found "king"`},
		{Tokenize, `"messages":[{"role":"user","content":[{"type":"image_url"}]}]`, unsupported, "messages[0].content[0].type",
			`messages[0].content[0].type "image_url" is not supported by /tokenize; only parts of type "text" are, as the tokens of others are known to engines alone`},
		{Tokenize, messages + `,"tools":{}`, invalid, "tools", "tools must be an array of objects, found an object"},
		{Tokenize, messages + `,"tools":["f"]`, invalid, "tools[0]", "tools[0] must be an object, found a string"},
		{Tokenize, messages + `,"tools":[{"a":1,"a":2}]`, invalid, "tools[0].a", "tools[0].a is given twice; give it once"},
		{Tokenize, messages + `,"chat_template":"{{ x }}"`, unsupported, "chat_template", "chat_template is not supported by /tokenize; leave it out"},
		{Tokenize, messages + `,"mm_processor_kwargs":{"a":1}`, unsupported, "mm_processor_kwargs", "mm_processor_kwargs is not supported by /tokenize; leave it out or send {}"},
		{Tokenize, messages + `,"continue_final_message":true,"add_generation_prompt":true`, invalid, "continue_final_message", "continue_final_message and add_generation_prompt cannot both be true"},
		{Tokenize, `"prompt":"a","max_tokens":5`, unsupported, "max_tokens", "max_tokens is a field of /v1/chat/completions, not of /tokenize; leave it out"},
		{Tokenize, `"promt":"a"`, unsupported, "promt", `there is no field "promt" that /tokenize can carry; did you mean prompt?`},
		{Tokenize, `"tokens":[1]`, unsupported, "tokens", "tokens is a field of /detokenize, not of /tokenize; leave it out"},
		{Detokenize, ``, invalid, "tokens", "tokens is required: send an array of token ids, or an array of such arrays"},
		{Detokenize, `"tokens":"a"`, invalid, "tokens", "tokens must be an array of token ids, or an array of such arrays, found a string"},
		{Detokenize, `"tokens":[1,"2"]`, invalid, "tokens[1]", "tokens[1] must be a token id, found a string"},
		{Detokenize, `"tokens":[1,[2]]`, invalid, "tokens[1]", "tokens[1] must be a token id, found an array"},
		{Detokenize, `"tokens":[[1],2]`, invalid, "tokens[1]", "tokens[1] must be an array of token ids, like the first, found a number"},
		{Detokenize, `"tokens":[[1],[-2]]`, invalid, "tokens[1][0]", "tokens[1][0] must be a token id (an integer from 0 to 4294967295), found -2"},
		{Detokenize, `"tokens":[1],"skip_special_tokens":0`, invalid, "skip_special_tokens", "skip_special_tokens must be true or false, found a number"},
		{Detokenize, `"tokens":[1],"prompt":"a"`, unsupported, "prompt", "prompt is a field of /v1/completions, not of /detokenize; leave it out"},
	} {
		fields := test.fields
		if fields != "" {
			fields = "," + fields
		}
		_, err := tokenization(test.endpoint, `{"model":"m"`+fields+`}`)
		t.Run(test.endpoint.String()+fields, func(t *testing.T) { wantError(t, err, test.code, test.param, test.message) })
	}
}

// For any ids and texts, the answers are JSON that contains them.
func TestTokenizationAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batch := rapid.Bool().Draw(t, "batch")
		n := 1
		if batch {
			n = rapid.IntRange(0, 3).Draw(t, "texts")
		}
		r := &TokenizeRequest{Batch: batch, ReturnTokenStrs: rapid.Bool().Draw(t, "strs")}
		var results []TokenizeResult
		var with, wanted [][]byte
		counts, ids, allStrs, prompts, texts := []int{}, [][]uint32{}, [][]string{}, []string{}, []string{}
		for range n {
			one := append([]uint32{}, rapid.SliceOf(rapid.Uint32()).Draw(t, "ids")...)
			result := TokenizeResult{IDs: one, Strs: []string{}}
			if r.ReturnTokenStrs {
				for range one {
					result.Strs = append(result.Strs, rapid.String().Draw(t, "str"))
				}
			}
			results = append(results, result)
			counts, ids, allStrs = append(counts, len(one)), append(ids, one), append(allStrs, result.Strs)
			a, b := rapid.String().Draw(t, "prompt"), rapid.String().Draw(t, "text")
			with, wanted = append(with, []byte(a)), append(wanted, []byte(b))
			prompts, texts = append(prompts, a), append(texts, b)
		}
		limit := rapid.IntRange(-1, 1<<30).Draw(t, "limit")
		same := func(got []byte, want map[string]any) {
			for key, value := range want {
				if !batch {
					switch v := value.(type) {
					case []int:
						want[key] = v[0]
					case [][]uint32:
						want[key] = v[0]
					case [][]string:
						want[key] = v[0]
					case []string:
						want[key] = v[0]
					}
				}
			}
			expect, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			var a, b any
			if err := json.Unmarshal(got, &a); err != nil {
				t.Fatalf("%v in %s", err, got)
			}
			if err := json.Unmarshal(expect, &b); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(b, a); diff != "" {
				t.Fatalf("%s: %s", got, diff)
			}
		}
		want := map[string]any{"count": counts, "tokens": ids, "max_model_len": limit}
		if r.ReturnTokenStrs {
			want["token_strs"] = allStrs
		}
		got := AppendTokenized(nil, r, results, limit, func() {})
		if !r.ReturnTokenStrs {
			if !bytes.Contains(got, []byte(`"token_strs":null`)) {
				t.Fatalf("%s has no token_strs", got)
			}
			got = bytes.Replace(got, []byte(`,"token_strs":null`), nil, 1)
		}
		same(got, want)
		same(AppendDetokenized(nil, &DetokenizeRequest{Batch: batch}, with, wanted), map[string]any{"prompt": prompts, "text": texts})
	})
}

// FuzzTokenization decodes anything: a request or a coded error, never a panic.
func FuzzTokenization(f *testing.F) {
	for _, s := range []string{`{"model":"m","prompt":"a"}`, `{"model":"m","prompt":["a"]}`, `{"model":"m","tokens":[[1],[2]]}`, `{"model":"m","tokens":[ 1 ]}`,
		`{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{}]}`, `{"model":"m","tokens":[[}`, `{"model":"m","tokens":[ ]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, e := range []Endpoint{Tokenize, Detokenize} {
			got, err := tokenization(e, body)
			if err != nil {
				if c := infer.AsError(err).Code; c != infer.CodeInvalid && c != infer.CodeUnsupported {
					t.Fatalf("%v", err)
				}
				continue
			}
			switch r := got.(type) {
			case *TokenizeRequest:
				if (r.Texts == nil) == (r.Messages == nil) || !r.Batch && r.Messages == nil && len(r.Texts) != 1 {
					t.Fatalf("%+v", r)
				}
			case *DetokenizeRequest:
				if r.Tokens == nil || !r.Batch && len(r.Tokens) != 1 {
					t.Fatalf("%+v", r)
				}
			}
		}
	})
}
