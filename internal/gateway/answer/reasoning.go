package answer

import "weir/internal/model/outputparse"

// reasoningCount counts the reasoning tokens of an answer. A span of reasoning begins
// after content or a call, includes the markers before it, and ends with the last token
// that has reasoning text. The count must not depend on how output is merged, so a
// separate parser reads the text token by token until no more reasoning can follow.
type reasoningCount struct {
	parser  *outputparse.Parser // nil once all that follows is content
	events  []outputparse.Event
	pending int // tokens that said nothing yet
	tokens  int
}

// newReasoningCount begins a count, or gives nil where no reasoning can come.
func newReasoningCount(o outputparse.Options) *reasoningCount {
	if o.Format.Reasoning() == "" || o.ForcedAny || o.ForcedTool != "" {
		return nil
	}
	return &reasoningCount{parser: outputparse.New(o)}
}

// add counts one token by its text.
func (r *reasoningCount) add(text []byte) {
	if r.parser == nil {
		return
	}
	r.events = r.parser.Append(r.events[:0], text, false)
	r.pending++
	if n := len(r.events); n > 0 {
		if r.events[n-1].Kind == outputparse.Reasoning {
			r.tokens += r.pending
		}
		r.pending = 0
	}
	if r.parser.Plain() || r.parser.Done() {
		r.parser = nil
	}
}
