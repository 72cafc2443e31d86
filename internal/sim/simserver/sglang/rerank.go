package sglang

import (
	"net/http"

	"weir/internal/sim/simserver/web"
)

// rerank answers as SGLang does: a bare list.
func (f *Server) rerank(w http.ResponseWriter, r *http.Request) {
	best, _, _, err := f.pool().Rerank(w, r, rerankLacks)
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
		if results[i] = (result{Score: d.Score, Index: d.Index}); d.Shown {
			results[i].Document = &d.Text
		}
	}
	web.WriteJSON(w, http.StatusOK, results)
}
