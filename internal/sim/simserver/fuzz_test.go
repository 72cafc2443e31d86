package simserver

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/sim"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/sglang"
	"weir/internal/sim/simserver/vllm"
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
	v, s := vllm.New(e.run, e.vocab, &flags.VLLM{}).Handler(), sglang.New(e.run, e.vocab, &flags.SGLang{}).Handler()
	servers := map[string]http.Handler{"/v1/embeddings": v, "/rerank": v, "/score": v, "/v1/rerank": s}
	f.Fuzz(func(t *testing.T, body []byte) {
		if bytes.Contains(body, []byte("dimensions")) && len(body) > 1<<10 {
			return // many long vectors
		}
		for path, serve := range servers {
			w := httptest.NewRecorder()
			serve.ServeHTTP(w, httptest.NewRequest("POST", path, bytes.NewReader(body)))
			if w.Code != 200 && (w.Code < 400 || w.Code >= 500) {
				t.Fatalf("%s of %q: status %d: %s", path, body, w.Code, w.Body)
			}
			if !jsontext.Value(w.Body.Bytes()).IsValid() {
				t.Fatalf("%s of %q: %s", path, body, w.Body)
			}
		}
	})
}
