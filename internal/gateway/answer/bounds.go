package answer

import "weir/internal/infer"

// Bounds are the most tokens that an engine can truly state for a request. A count is a number that
// a peer chooses: it is paid from a caller's budget, and what is learned of lengths follows it.
// The zero value has no bounds.
type Bounds struct{ Prompt, Completion int }

// clip returns the counts within the bounds. Clipped is set if they were not.
func (b Bounds) clip(u infer.Usage) infer.Usage {
	if b.Prompt > 0 && u.PromptTokens > b.Prompt {
		u.PromptTokens, u.Clipped = b.Prompt, true
	}
	if b.Completion > 0 && u.CompletionTokens > b.Completion {
		u.CompletionTokens, u.Clipped = b.Completion, true
	}
	if b != (Bounds{}) && u.CachedTokens > u.PromptTokens {
		u.CachedTokens, u.Clipped = u.PromptTokens, true
	}
	return u
}
