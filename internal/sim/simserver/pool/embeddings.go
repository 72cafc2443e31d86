// Package pool answers requests for embeddings and ranks, which nothing is generated for.
package pool

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
)

// embeddingsRequest asks for vectors.
type embeddingsRequest struct {
	Model      string         `json:"model"`
	Input      jsontext.Value `json:"input"`
	Dimensions int            `json:"dimensions"`
	// Format is float, or base64 for the bytes of float32 numbers, the low ones
	// first.
	Format    string `json:"encoding_format"`
	RequestID string `json:"request_id"` // vLLM's

	fields.Unread
}

// Bounds of a vector's length.
const (
	defaultDimensions = 64
	maxDimensions     = 4096
)

type embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"` // []float64, or a string
}

// EmbeddingsAnswer is the answer to a request for vectors.
type EmbeddingsAnswer struct {
	ID      string `json:"id,omitempty"`      // vLLM's
	Created int64  `json:"created,omitempty"` // vLLM's

	Object string      `json:"object"`
	Data   []embedding `json:"data"`
	Model  string      `json:"model"`
	Usage  struct {
		PromptTokens int `json:"prompt_tokens"`
		TotalTokens  int `json:"total_tokens"`
	} `json:"usage"`
}

// Pool serves requests that are answered without generating.
type Pool struct {
	o        *sim.Options
	vocab    *vocab.Vocab
	anyModel bool // whatever model is named
	dated    bool // answers have an id and a date
}

// New makes a pool of an engine with the given options. With anyModel it answers for whatever model
// is named; with dated, answers have an id and a date.
func New(o *sim.Options, v *vocab.Vocab, anyModel, dated bool) *Pool {
	return &Pool{o: o, vocab: v, anyModel: anyModel, dated: dated}
}

// Embeddings answers at once, with vectors of length 1 that are a function of
// the input's ids. It does not go through the engine's queue. lacks are the fields that are not simulated.
func (p *Pool) Embeddings(refuse func(http.ResponseWriter, error), lacks fields.Unsimulated) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := p.embed(w, r, lacks)
		if err != nil {
			refuse(w, err)
			return
		}
		web.WriteJSON(w, http.StatusOK, answer)
	}
}

func (p *Pool) embed(w http.ResponseWriter, r *http.Request, lacks fields.Unsimulated) (*EmbeddingsAnswer, error) {
	req := embeddingsRequest{Dimensions: defaultDimensions}
	if err := web.Read(w, r, &req); err != nil {
		return nil, err
	}
	if err := lacks.Refuse(req.Rest); err != nil {
		return nil, err
	}
	if err := p.named(req.Model); err != nil {
		return nil, err
	}
	if req.Dimensions < 1 || req.Dimensions > maxDimensions {
		return nil, infer.Invalid("dimensions", "dimensions is %d; it must be between 1 and %d", req.Dimensions, maxDimensions)
	}
	if req.Format != "" && req.Format != "float" && req.Format != "base64" {
		return nil, infer.Invalid("encoding_format", "encoding_format is %q; it must be float or base64", req.Format)
	}
	inputs, err := p.vocab.Prompts("input", req.Input)
	if err != nil {
		return nil, err
	}
	answer := &EmbeddingsAnswer{Object: "list", Model: p.o.Model, Data: []embedding{}}
	for i, ids := range inputs {
		var v any = p.vector(ids, req.Dimensions)
		if req.Format == "base64" {
			v = base64Vector(v.([]float64))
		}
		answer.Data = append(answer.Data, embedding{Object: "embedding", Index: i, Embedding: v})
		answer.Usage.PromptTokens += len(ids)
	}
	if p.dated {
		answer.ID, answer.Created = "embd-"+RequestID(r, req.RequestID), time.Now().Unix()
	}
	answer.Usage.TotalTokens = answer.Usage.PromptTokens
	return answer, nil
}

// base64Vector is a vector as the API writes it in base64.
func base64Vector(v []float64) string {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// named refuses a model that the engine does not have.
func (p *Pool) named(model string) error {
	if p.anyModel {
		return nil
	}
	_, err := catalog.LoRA(p.o, model)
	return err
}

// vector draws a vector from the content that would follow ids. Its numbers are exact as
// float32.
func (p *Pool) vector(ids []uint32, n int) []float64 {
	const levels = 1 << 16
	v := make([]float64, n)
	stream := p.o.Words.Start(ids, 0)
	var square float64
	for i := range v {
		v[i] = (float64(stream.Pick(levels)) + 0.5 - levels/2) / levels
		square += v[i] * v[i]
		p.o.Words.Push(&stream, uint32(i))
	}
	for i := range v {
		v[i] = float64(float32(v[i] / math.Sqrt(square)))
	}
	return v
}
