package simserver

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/web"
)

// rerankRequest asks how well documents fit a query. Documents are strings, or objects with a
// text.
type rerankRequest struct {
	Model     string           `json:"model"`
	Query     jsontext.Value   `json:"query"`
	Documents []jsontext.Value `json:"documents"`
	TopN      int              `json:"top_n"`
	Return    *bool            `json:"return_documents"` // SGLang's
	RequestID string           `json:"request_id"`       // vLLM's

	fields.Unread
}

// scoreRequest is vLLM's for the same in the order in which texts came.
type scoreRequest struct {
	Model string         `json:"model"`
	Text1 jsontext.Value `json:"text_1"`
	Text2 jsontext.Value `json:"text_2"`

	RequestID string `json:"request_id"`
	fields.Unread
}

// ranked is a document with its score.
type ranked struct {
	index int
	text  string
	shown bool // text is to be in the answer
	score float64
}

// score returns how well a document fits a query: the cosine of their vectors, as
// embeddings returns them, mapped to the range from 0 to 1.
func (e *Engine) score(query, document []uint32) float64 {
	var dot float64
	d := e.vector(document, defaultDimensions)
	for i, q := range e.vector(query, defaultDimensions) {
		dot += q * d[i]
	}
	return (1 + dot) / 2
}

// rerank returns the documents of a request, the best first, the tokens of query and documents,
// and the request's id.
func (e *Engine) rerank(w http.ResponseWriter, r *http.Request, v voice, lacks fields.Unsimulated) (best []ranked, tokens int, id string, err error) {
	body, err := web.ReadBody(w, r)
	if err != nil {
		return nil, 0, "", err
	}
	var req rerankRequest
	if err := web.Decode(body, &req); err != nil {
		return nil, 0, "", err
	}
	if err := lacks.Refuse(req.Rest); err != nil {
		return nil, 0, "", err
	}
	if _, err := catalog.LoRA(e.prepare, req.Model); err != nil && v != sglang {
		return nil, 0, "", err
	}
	if req.Query.Kind() != '"' {
		return nil, 0, "", infer.Invalid("query", "query must be a string")
	}
	if len(req.Documents) == 0 {
		return nil, 0, "", infer.Invalid("documents", "documents must be a list with at least one document")
	}
	query, err := e.vocab.One("query", req.Query)
	if err != nil {
		return nil, 0, "", err
	}
	tokens = len(query)
	for i, raw := range req.Documents {
		text := raw
		if raw.Kind() == '{' {
			var d struct{ Text jsontext.Value }
			if err := web.Decode(raw, &d); err != nil {
				return nil, 0, "", err
			}
			text = d.Text
		}
		if text.Kind() != '"' {
			return nil, 0, "", infer.Invalid("documents", "documents[%d] must be a string, or an object with a text", i)
		}
		ids, err := e.vocab.One("documents", text)
		if err != nil {
			return nil, 0, "", err
		}
		tokens += len(ids)
		d := ranked{index: i, shown: fields.ValueOr(req.Return, true), score: e.score(query, ids)}
		if err := json.Unmarshal(text, &d.text); err != nil {
			return nil, 0, "", infer.Invalid("documents", "documents[%d] cannot be read: %v", i, err)
		}
		best = append(best, d)
	}
	slices.SortStableFunc(best, func(a, b ranked) int { return cmp.Compare(b.score, a.score) })
	if req.TopN > 0 && req.TopN < len(best) {
		best = best[:req.TopN]
	}
	return best, tokens, givenID(r, req.RequestID), nil
}

// givenID is the request's id by its header or its body, for answers that hold it.
func givenID(r *http.Request, own string) string {
	return cmp.Or(r.Header.Get("X-Request-Id"), own, "0")
}

// vllmUsage is the usage of an answer without output.
type vllmUsage struct {
	PromptTokens int `json:"prompt_tokens"`
	TotalTokens  int `json:"total_tokens"`
}

func (f *vllmServer) rerank(w http.ResponseWriter, r *http.Request) {
	best, tokens, id, err := f.e.rerank(w, r, vllm, vllmPooling)
	if err != nil {
		web.WriteVLLMError(w, err)
		return
	}
	type result struct {
		Index    int `json:"index"`
		Document struct {
			Text string `json:"text"`
		} `json:"document"`
		Score float64 `json:"relevance_score"`
	}
	results := make([]result, len(best))
	for i, d := range best {
		results[i].Index, results[i].Score, results[i].Document.Text = d.index, d.score, d.text
	}
	web.WriteJSON(w, http.StatusOK, struct {
		ID      string    `json:"id"`
		Model   string    `json:"model"`
		Usage   vllmUsage `json:"usage"`
		Results []result  `json:"results"`
	}{"rerank-" + id, f.e.prepare.Model, vllmUsage{tokens, tokens}, results})
}

// score answers in the order of text_2, or of text_1 where text_2 is one.
func (f *vllmServer) score(w http.ResponseWriter, r *http.Request) {
	body, err := web.ReadBody(w, r)
	var req scoreRequest
	if err == nil {
		err = web.Decode(body, &req)
	}
	if err == nil {
		err = vllmPooling.Refuse(req.Rest)
	}
	if err == nil {
		_, err = catalog.LoRA(f.e.prepare, req.Model)
	}
	var first, second [][]uint32
	if err == nil {
		first, err = f.e.vocab.Prompts("text_1", req.Text1)
	}
	if err == nil {
		second, err = f.e.vocab.Prompts("text_2", req.Text2)
	}
	if err == nil && len(first) > 1 && len(first) != len(second) {
		err = infer.Invalid("text_2", "text_1 has %d texts and text_2 %d; text_1 must be one, or as many", len(first), len(second))
	}
	if err != nil {
		web.WriteVLLMError(w, err)
		return
	}
	type result struct {
		Index  int     `json:"index"`
		Object string  `json:"object"`
		Score  float64 `json:"score"`
	}
	var results []result
	tokens := 0
	for i, ids := range second {
		query := first[min(i, len(first)-1)]
		tokens += len(query) + len(ids)
		results = append(results, result{i, "score", f.e.score(query, ids)})
	}
	web.WriteJSON(w, http.StatusOK, struct {
		ID      string    `json:"id"`
		Object  string    `json:"object"`
		Created int64     `json:"created"`
		Model   string    `json:"model"`
		Data    []result  `json:"data"`
		Usage   vllmUsage `json:"usage"`
	}{"score-" + givenID(r, req.RequestID), "list", time.Now().Unix(), f.e.prepare.Model, results, vllmUsage{tokens, tokens}})
}

// rerank answers as SGLang does: a bare list.
func (f *sglangServer) rerank(w http.ResponseWriter, r *http.Request) {
	best, _, _, err := f.e.rerank(w, r, sglang, sglangRerank)
	if err != nil {
		web.WriteSGLangError(w, err)
		return
	}
	type result struct {
		Score    float64 `json:"score"`
		Document *string `json:"document"`
		Index    int     `json:"index"`
	}
	results := make([]result, len(best))
	for i, d := range best {
		if results[i] = (result{Score: d.score, Index: d.index}); d.shown {
			results[i].Document = &d.text
		}
	}
	web.WriteJSON(w, http.StatusOK, results)
}
