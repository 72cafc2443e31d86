package openai

import (
	"bytes"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// ParseUsage reads the usage object that text begins with; what follows it is
// not looked at. CachedTokens is -1 where the engine does not say. It fails on
// anything that is not such an object.
func ParseUsage(text []byte) (infer.Usage, bool) {
	var u struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	dec := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true))
	if err := json.UnmarshalDecode(dec, &u); err != nil || u.Prompt < 0 || u.Completion < 0 {
		return infer.Usage{}, false
	}
	cached := -1
	if u.Details != nil && u.Details.Cached != nil {
		cached = *u.Details.Cached
	}
	return infer.Usage{PromptTokens: u.Prompt, CompletionTokens: u.Completion, CachedTokens: cached}, true
}
