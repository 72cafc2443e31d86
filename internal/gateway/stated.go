package gateway

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
)

// The context of a model bounds what an engine may state of a request. Where nothing states it,
// assumedContext is taken for it, and one that is stated is believed up to mostContext.
const (
	assumedContext = 1 << 20
	mostContext    = 1 << 24
)

// contextOf returns the most tokens of a prompt and its answer together. stated is 0 if it is not known.
func contextOf(stated, body int) int {
	if stated > 0 {
		return min(stated, mostContext)
	}
	return max(assumedContext, min(body, mostContext)) // a token has a byte of the body at least, where it is text
}

// relayBounds returns the most tokens that an engine with a context may state for a relayed
// request: those of its prompts, and of as many answers as it asks for.
func relayBounds(e dialect.Endpoint, h *dialect.Head, context int) answer.Bounds {
	each := contextOf(context, len(h.Body))
	longest, width, prompts := 0, max(h.N, 1), 1
	for _, at := range h.Fields {
		name, value := strings.ToLower(at.Name), h.Body[at.Start:at.End]
		switch {
		case prepare.IsCapped(name):
			n, err := strconv.Atoi(string(value))
			switch {
			case err != nil:
			case strings.HasPrefix(name, "max_"):
				longest = max(longest, n)
			default:
				width = max(width, n)
			}
		case e == openai.Other && value[0] == '[', (name == "prompt" || name == "input") && isList(value):
			n := 0
			_ = dialect.Items(value, func(int, []byte) error { n++; return nil })
			prompts = max(prompts, n)
		}
	}
	b := answer.Bounds{Prompt: times(each, prompts)}
	if longest > 0 {
		each = min(each, longest)
	}
	b.Completion = times(times(each, width), prompts)
	return b
}

// bounds returns the same for a request of a token engine, which counts prompts with media alone
// and sends the answers' tokens.
func (x *exchange) bounds() answer.Bounds {
	each, prompts := contextOf(max(x.prepared.Folder.ContextLength, x.target.Facts.ContextLength), len(x.prepared.Body)), len(x.prepared.More)+1
	return answer.Bounds{Prompt: times(each, prompts), Completion: times(min(each, x.prepared.Longest()), x.prepared.Count())}
}

// isList reports whether a prompt is a list of prompts: of strings, or of lists of ids.
func isList(prompt []byte) bool {
	if prompt[0] != '[' {
		return false
	}
	first := bytes.TrimLeft(prompt[1:], " \t\r\n")
	return len(first) > 0 && (first[0] == '"' || first[0] == '[')
}

// times multiplies numbers of tokens, of which a record has at most math.MaxInt32.
func times(a, b int) int {
	if a > math.MaxInt32/max(b, 1) {
		return math.MaxInt32
	}
	return a * b
}

// estimate counts a relayed answer whose engine has not stated its final counts, by its events, or
// by its size if it is whole.
func (x *exchange) estimate(r *answer.Relayed, stated bool) {
	u := &x.rec.Used
	var n int
	switch events, size := r.Came(); {
	case r.Refused() && !stated:
		return // an error in place of an answer
	case stated && (x.rec.Outcome == infer.Finished || events <= int(u.Completion)):
		return
	case events > 0:
		n = events
	case !x.prepared.Footprint.Computed:
		n = x.need.Model.Ratio.Tokens(size)
	}
	b := r.Bounds()
	u.Completion, u.Estimated = tokens(min(n, b.Completion)), true
	if u.Prompt == 0 {
		u.Prompt = tokens(min(x.prepared.Footprint.Length(), b.Prompt))
	}
}
