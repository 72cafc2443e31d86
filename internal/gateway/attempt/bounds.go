package attempt

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/prepare"
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
