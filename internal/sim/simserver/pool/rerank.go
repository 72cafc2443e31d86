package pool

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
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

// Ranked is a document with its score.
type Ranked struct {
	Index int
	Text  string
	Shown bool // text is to be in the answer
	Score float64
}

// Score returns how well a document fits a query: the cosine of their vectors, as
// embeddings returns them, mapped to the range from 0 to 1.
func (p *Pool) Score(query, document []uint32) float64 {
	var dot float64
	d := p.vector(document, defaultDimensions)
	for i, q := range p.vector(query, defaultDimensions) {
		dot += q * d[i]
	}
	return (1 + dot) / 2
}

// Rerank returns the documents of a request, the best first, the tokens of query and documents,
// and the request's id.
func (p *Pool) Rerank(w http.ResponseWriter, r *http.Request, lacks fields.Unsimulated) (best []Ranked, tokens int, id string, err error) {
	var req rerankRequest
	if err := web.Read(w, r, &req); err != nil {
		return nil, 0, "", err
	}
	if err := lacks.Refuse(req.Rest); err != nil {
		return nil, 0, "", err
	}
	if err := p.named(req.Model); err != nil {
		return nil, 0, "", err
	}
	if req.Query.Kind() != '"' {
		return nil, 0, "", infer.Invalid("query", "query must be a string")
	}
	if len(req.Documents) == 0 {
		return nil, 0, "", infer.Invalid("documents", "documents must be a list with at least one document")
	}
	query, err := p.vocab.One("query", req.Query)
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
		ids, err := p.vocab.One("documents", text)
		if err != nil {
			return nil, 0, "", err
		}
		tokens += len(ids)
		d := Ranked{Index: i, Shown: fields.ValueOr(req.Return, true), Score: p.Score(query, ids)}
		if err := json.Unmarshal(text, &d.Text); err != nil {
			return nil, 0, "", infer.Invalid("documents", "documents[%d] cannot be read: %v", i, err)
		}
		best = append(best, d)
	}
	slices.SortStableFunc(best, func(a, b Ranked) int { return cmp.Compare(b.Score, a.Score) })
	if req.TopN > 0 && req.TopN < len(best) {
		best = best[:req.TopN]
	}
	return best, tokens, RequestID(r, req.RequestID), nil
}

// RequestID is the request's id by its header or its body, for answers that hold it.
func RequestID(r *http.Request, own string) string {
	return cmp.Or(r.Header.Get("X-Request-Id"), own, "0")
}
