package openai

import (
	"bytes"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// ParseUsage reads the usage object that text begins with, in the words of chat
// and completions, of embeddings, or of /v1/responses; what follows it is not
// looked at. CachedTokens is -1 where the engine does not say. It fails on
// anything that is not such an object.
func ParseUsage(text []byte) (infer.Usage, bool) {
	type details struct {
		Cached *int `json:"cached_tokens"`
	}
	var u struct {
		Prompt       int      `json:"prompt_tokens"`
		Completion   int      `json:"completion_tokens"`
		Details      *details `json:"prompt_tokens_details"`
		Input        int      `json:"input_tokens"`
		Output       int      `json:"output_tokens"`
		InputDetails *details `json:"input_tokens_details"`
	}
	dec := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true))
	if err := json.UnmarshalDecode(dec, &u); err != nil || min(u.Prompt, u.Completion, u.Input, u.Output) < 0 {
		return infer.Usage{}, false
	}
	cached := -1
	for _, d := range []*details{u.Details, u.InputDetails} {
		if d != nil && d.Cached != nil {
			cached = *d.Cached
		}
	}
	return infer.Usage{PromptTokens: max(u.Prompt, u.Input), CompletionTokens: max(u.Completion, u.Output), CachedTokens: cached}, true
}
