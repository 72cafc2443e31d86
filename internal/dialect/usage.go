package dialect

import (
	"math"
	"strconv"

	"weir/internal/infer"
)

// UsageNames are a dialect's names of the counts in a usage. PromptDetails is the
// object whose cached_tokens counts the cached tokens of the prompt.
type UsageNames struct {
	Prompt, Completion, PromptDetails string
}

// UsageOf reads a usage that an engine states, for a judge. raw is valid JSON. A usage is an object
// of non-negative integers whose total_tokens is the sum of the others. A count that is absent is
// 0, CachedTokens then -1. null is no usage.
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

// CountOf reads a count of a usage. null leaves the count as it is. Some engines write an integer
// as 1.0.
func CountOf(name string, raw []byte, count *int) error {
	if KindOf(raw) == 'n' {
		return nil
	}
	n, ok := countOf(raw)
	if !ok {
		return Flawf(FlawUsage, "has a usage whose %s is no count", name)
	}
	*count = n
	return nil
}

func countOf(raw []byte) (n int, ok bool) {
	if n, err := strconv.ParseUint(string(raw), 10, 62); err == nil {
		return int(n), true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	return int(f), err == nil && f >= 0 && f < 1<<53 && f == math.Trunc(f)
}

// cachedOf reads the one detail that is used; engines write it in many ways.
func cachedOf(details []byte, cached *int) error {
	if KindOf(details) != '{' {
		return nil
	}
	return Members(details, func(name, value []byte) error {
		if n, ok := countOf(value); ok && string(name) == "cached_tokens" {
			*cached = n
		}
		return nil
	})
}

// ParseUsage reads the usage object at the beginning of text, in the names of any
// dialect. The rest of text is not read. CachedTokens is -1 if the engine does not state
// it. Anything that is not such an object is an error, and so is an object without a count.
func ParseUsage(text []byte) (infer.Usage, bool) {
	at := SkipSpace(text, 0)
	end, _, ok := CheckJSON(text, at)
	if !ok {
		return infer.Usage{}, false
	}
	if KindOf(text[at:end]) != '{' {
		return infer.Usage{}, false
	}
	// In Anthropic's words the input is what was neither found in the cache nor put there.
	var prompt, completion, input, output int
	details, inputDetails, read, created := -1, -1, -1, -1
	stated := false
	err := Members(text[at:end], func(name, value []byte) error {
		switch string(name) {
		case "prompt_tokens", "completion_tokens", "input_tokens", "output_tokens":
			stated = stated || KindOf(value) != 'n'
		}
		switch string(name) {
		case "prompt_tokens":
			return CountOf("prompt_tokens", value, &prompt)
		case "completion_tokens":
			return CountOf("completion_tokens", value, &completion)
		case "input_tokens":
			return CountOf("input_tokens", value, &input)
		case "output_tokens":
			return CountOf("output_tokens", value, &output)
		case "cache_read_input_tokens":
			return CountOf("cache_read_input_tokens", value, &read)
		case "cache_creation_input_tokens":
			return CountOf("cache_creation_input_tokens", value, &created)
		case "prompt_tokens_details":
			return cachedOf(value, &details)
		case "input_tokens_details":
			return cachedOf(value, &inputDetails)
		}
		return nil
	})
	if err != nil || !stated {
		return infer.Usage{}, false
	}
	cached := details
	for _, n := range [...]int{inputDetails, read} {
		if n >= 0 {
			cached = n
		}
	}
	input += max(read, 0) + max(created, 0)
	return infer.Usage{PromptTokens: max(prompt, input), CompletionTokens: max(completion, output), CachedTokens: cached}, true
}
