package simserver

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/web"
	"weir/internal/workload/content"
)

// toyEngine returns an engine that only reads requests.
func toyEngine(t testing.TB) *Engine {
	t.Helper()
	tok := newToyTokenizer()
	words, err := content.New(toyVocab, func(id uint32) ([]byte, bool) { return tok.Text(id), true })
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(Options{Tokenizer: tok, Sim: sim.Options{Words: words, VocabSize: toyVocab}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// FuzzDecode reads any body as a completion: it is refused with an error for
// the caller or gives prompts, never anything else.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"prompt":[[1,2],"a"],"stop":["x","y"],"n":2,"max_tokens":3,"unknown":{"a":null}}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":"hi"}],"stop":"x","max_completion_tokens":null}`))
	f.Add([]byte(`{"prompt":null,"stop":null}`))
	e := toyEngine(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		forCaller := func(err error) {
			if err != nil && infer.AsError(err).Code != infer.CodeInvalid {
				t.Fatalf("%q: %v is not the caller's", body, err)
			}
		}
		var req completionRequest
		if err := web.Decode(body, &req); err != nil {
			forCaller(err)
			return
		}
		n, err := req.limit()
		forCaller(err)
		if err == nil && n < 0 {
			t.Fatalf("%q: limit %d", body, n)
		}
		stops, err := req.stops()
		forCaller(err)
		for _, s := range stops {
			if s == "" {
				t.Fatalf("%q: an empty stop string", body)
			}
		}
		_, err = e.vocab.Prompts("prompt", req.Prompt)
		forCaller(err)
		_, err = e.vocab.Chat(t.Context(), "", req.Messages, req.Offered(), req.TemplateKwargs)
		forCaller(err)
	})
}

// FuzzGenerate reads any body as a request to /generate: it is refused with an
// error for the caller or gives items whose lists fit together.
func FuzzGenerate(f *testing.F) {
	f.Add([]byte(`{"text":["a","b"],"rid":["x","y"],"sampling_params":[{"n":1},{"max_new_tokens":0}],"return_logprob":[true,false]}`))
	f.Add([]byte(`{"input_ids":[[1,2],[3]],"rid":"x","sampling_params":{"n":3,"stop":["a"],"logit_bias":{"1":2}},"lora_path":[null,null]}`))
	f.Add([]byte(`{"input_ids":[1,2],"sampling_params":{"json_schema":"{}","temperature":0},"token_ids_logprob":[[1,2]],"top_logprobs_num":2}`))
	f.Add([]byte(`{"text":"a","sampling_params":null,"stream":true,"logprob_start_len":0}`))
	e := toyEngine(f)
	s := newSGLang(e.run, e.vocab, &flags.SGLang{})
	f.Fuzz(func(t *testing.T, body []byte) {
		var req generateRequest
		err := web.Decode(body, &req)
		var items []item
		if err == nil {
			items, _, err = s.items(t.Context(), "", &req)
		}
		if err != nil {
			if code := infer.AsError(err).Code; code != infer.CodeInvalid && code != infer.CodeContext {
				t.Fatalf("%q: %v is not the caller's", body, err)
			}
			return
		}
		if len(items) == 0 || len(items) > maxChoices {
			t.Fatalf("%q: %d items", body, len(items))
		}
		for i := range items {
			if it := &items[i]; it.limit < 0 || it.params.MaxTokens < 1 || it.top < 0 || it.start < -1 {
				t.Fatalf("%q: item %+v", body, it)
			}
		}
	})
}

// FuzzEmbeddings reads any body as a request for embeddings, for ranks and for scores: it
// is refused with an error for the caller, or answered in JSON that has a vector or a
// score for each input.
func FuzzEmbeddings(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","input":["a"," aaa bbb"],"dimensions":3,"encoding_format":"base64"}`, `{"input":[[1,2],[3]],"dimensions":1}`, `{"input":[7,8]}`, `{"input":""}`, `{"input":[]}`,
		`{"query":"a","documents":["b",{"text":"c"},{"text":null}],"top_n":1}`, `{"query":"a","documents":["\ud800"]}`, `{"query":"","documents":[""],"top_n":-1}`,
		`{"text_1":"a","text_2":["b","c"]}`, `{"text_1":["a","b"],"text_2":["c","d"]}`, `{"text_1":[],"text_2":["c"]}`, `{"text_1":[[1]],"text_2":[1,2]}`,
	} {
		f.Add([]byte(body))
	}
	e := toyEngine(f)
	v, s := newVLLM(e.run, e.vocab, &flags.VLLM{}), newSGLang(e.run, e.vocab, &flags.SGLang{})
	servers := map[string]http.HandlerFunc{
		"embeddings": v.pool().Embeddings(web.WriteVLLMError, vllmEmbeddings), "vllm's rerank": v.rerank, "score": v.score, "sglang's rerank": s.rerank,
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if bytes.Contains(body, []byte("dimensions")) && len(body) > 1<<10 {
			return // many long vectors
		}
		for name, serve := range servers {
			w := httptest.NewRecorder()
			serve(w, httptest.NewRequest("POST", "/", bytes.NewReader(body)))
			if w.Code != 200 && (w.Code < 400 || w.Code >= 500) {
				t.Fatalf("%s of %q: status %d: %s", name, body, w.Code, w.Body)
			}
			if !jsontext.Value(w.Body.Bytes()).IsValid() {
				t.Fatalf("%s of %q: %s", name, body, w.Body)
			}
		}
	})
}
