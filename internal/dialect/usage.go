package dialect

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// UsageNames are a dialect's names of the counts in a usage. The tokens of the prompt
// that were cached are cached_tokens in PromptDetails.
type UsageNames struct {
	Prompt, Completion, PromptDetails string
}

// UsageOf reads a usage as an engine states it, which is known to be JSON, for a judge. What must hold: it is
// an object, its counts are non-negative integers, and its total_tokens is their sum.
// What it does not state is 0, CachedTokens -1; null is no usage.
func UsageOf(raw []byte, names *UsageNames) (u infer.Usage, stated bool, err error) {
	switch KindOf(raw) {
	case 'n':
		return u, false, nil
	case '{':
	default:
		return u, false, Flawf(FlawUsage, "has %s for usage", Found(raw))
	}
	const absent = -1
	total := absent
	u = infer.Usage{PromptTokens: absent, CompletionTokens: absent, CachedTokens: -1}
	err = Members(raw, func(name, value []byte) error {
		switch string(name) {
		case names.Prompt:
			return CountOf(names.Prompt, value, &u.PromptTokens)
		case names.Completion:
			return CountOf(names.Completion, value, &u.CompletionTokens)
		case "total_tokens":
			return CountOf("total_tokens", value, &total)
		case names.PromptDetails:
			return cachedOf(value, &u.CachedTokens)
		}
		return nil
	})
	if err != nil {
		return u, false, err
	}
	if min(u.PromptTokens, u.CompletionTokens, total) > absent && u.PromptTokens+u.CompletionTokens != total {
		return u, false, Flawf(FlawUsage, "has a usage of %d and %d tokens, %d in all", u.PromptTokens, u.CompletionTokens, total)
	}
	u.PromptTokens, u.CompletionTokens = max(u.PromptTokens, 0), max(u.CompletionTokens, 0)
	return u, true, nil
}

// CountOf reads a count of a usage, and leaves it as it is where the engine says null.
func CountOf(name string, raw []byte, count *int) error {
	if KindOf(raw) == 'n' {
		return nil
	}
	n, err := strconv.ParseUint(string(raw), 10, 62)
	if err != nil {
		return Flawf(FlawUsage, "has a usage whose %s is no count", name)
	}
	*count = int(n)
	return nil
}

// cachedOf reads the one detail that is used; engines write it in many ways.
func cachedOf(details []byte, cached *int) error {
	if KindOf(details) != '{' {
		return nil
	}
	return Members(details, func(name, value []byte) error {
		if n, err := strconv.ParseUint(string(value), 10, 62); err == nil && string(name) == "cached_tokens" {
			*cached = int(n)
		}
		return nil
	})
}

// ParseUsage reads the usage object that text begins with, in the words of any dialect;
// what follows it is not looked at. CachedTokens is -1 where the engine does not say. It
// fails on anything that is not such an object.
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
		// In Anthropic's words the input is what was neither found in the cache nor put
		// there.
		Read    *int `json:"cache_read_input_tokens"`
		Created *int `json:"cache_creation_input_tokens"`
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
	for _, n := range []*int{u.Read, u.Created} {
		switch {
		case n == nil:
		case *n < 0:
			return infer.Usage{}, false
		default:
			u.Input += *n
		}
	}
	if u.Read != nil {
		cached = *u.Read
	}
	return infer.Usage{PromptTokens: max(u.Prompt, u.Input), CompletionTokens: max(u.Completion, u.Output), CachedTokens: cached}, true
}
