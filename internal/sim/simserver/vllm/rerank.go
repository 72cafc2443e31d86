package vllm

import (
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/pool"
	"weir/internal/sim/simserver/web"
)

func (f *Server) rerank(w http.ResponseWriter, r *http.Request) {
	best, tokens, id, err := f.pool().Rerank(w, r, poolingLacks)
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
		results[i].Index, results[i].Score, results[i].Document.Text = d.Index, d.Score, d.Text
	}
	web.WriteJSON(w, http.StatusOK, struct {
		ID      string   `json:"id"`
		Model   string   `json:"model"`
		Usage   usage    `json:"usage"`
		Results []result `json:"results"`
	}{"rerank-" + id, f.run.Options().Model, usage{tokens, tokens}, results})
}

// score answers in the order of text_2, or of text_1 where text_2 is one.
func (f *Server) score(w http.ResponseWriter, r *http.Request) {
	var req scoreRequest
	err := web.Read(w, r, &req)
	if err == nil {
		err = poolingLacks.Refuse(req.Rest)
	}
	if err == nil {
		_, err = catalog.LoRA(f.run.Options(), req.Model)
	}
	var first, second [][]uint32
	if err == nil {
		first, err = f.vocab.Prompts("text_1", req.Text1)
	}
	if err == nil {
		second, err = f.vocab.Prompts("text_2", req.Text2)
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
	p, tokens := f.pool(), 0
	for i, ids := range second {
		query := first[min(i, len(first)-1)]
		tokens += len(query) + len(ids)
		results = append(results, result{i, "score", p.Score(query, ids)})
	}
	web.WriteJSON(w, http.StatusOK, struct {
		ID      string   `json:"id"`
		Object  string   `json:"object"`
		Created int64    `json:"created"`
		Model   string   `json:"model"`
		Data    []result `json:"data"`
		Usage   usage    `json:"usage"`
	}{"score-" + pool.RequestID(r, req.RequestID), "list", time.Now().Unix(), f.run.Options().Model, results, usage{tokens, tokens}})
}

// usage is the usage of an answer without output.
type usage struct {
	PromptTokens int `json:"prompt_tokens"`
	TotalTokens  int `json:"total_tokens"`
}

// scoreRequest is vLLM's for the same in the order in which texts came.
type scoreRequest struct {
	Model string         `json:"model"`
	Text1 jsontext.Value `json:"text_1"`
	Text2 jsontext.Value `json:"text_2"`

	RequestID string `json:"request_id"`
	fields.Unread
}
