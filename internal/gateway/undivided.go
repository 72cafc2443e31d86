package gateway

import (
	"fmt"

	"weir/internal/dialect"
	"weir/internal/engine"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
)

// undivided sends a request that cannot be divided to engines that serve it whole, and
// refuses it if there is none.
func undivided(n *place.Need, q *prepare.Prepared, path string) error {
	if n.Model.Way == engine.Nowhere || !n.Needs.HasBytes() {
		return nil
	}
	field, why := indivisible(q, n.Model.Way, path)
	if why == "" {
		return nil
	}
	if n.Needs.Bytes |= infer.Undivided; n.Model.Whole || n.Needs.HasIDs() {
		return nil
	}
	return &infer.Error{Code: infer.CodeUnsupported, Param: field,
		Message: fmt.Sprintf("the engines of model %q serve requests in two halves, and this one has none: %s", n.Model.Name, why)}
}

// indivisible returns the reason, and the field, why a relayed request cannot be served in two
// halves that meet in a way; it is empty if it can. A request that generates nothing has no
// halves. Over relays several answers would meet in one place, and only SGLang's engines
// distinguish the prompts of a list. The log probabilities of a prompt are only in the prefill
// engine's answer, which is discarded.
func indivisible(q *prepare.Prepared, way engine.Way, path string) (field, why string) {
	f := q.Footprint.Bytes
	if f == nil {
		f = &q.Footprint
	}
	switch scores := scoresPrompt(q.Head); {
	case f.Computed || !q.Head.Ask().FirstID(path):
		return "", "its path " + path + " is none that generates an answer"
	case f.Answers() != 1:
		return "n", "it asks for several answers (n)"
	case way != engine.ByRoom && several(q.Head):
		return "prompt", "it has several prompts"
	case scores != "":
		return scores, "it asks for log probabilities of the prompt (echo with logprobs, prompt_logprobs), which are the prefill engine's"
	}
	return "", ""
}

// scoresPrompt returns the field by which the answer has log probabilities of the prompt, if
// it has.
func scoresPrompt(h *dialect.Head) string {
	echo, scored := false, false
	for _, f := range h.Fields {
		switch kind := dialect.KindOf(h.Body[f.Start:f.End]); {
		case kind == 'n' || kind == 'f':
		case f.Name == "prompt_logprobs":
			return f.Name
		case f.Name == "echo":
			echo = true
		case f.Name == "logprobs":
			scored = true
		}
	}
	if echo && scored {
		return "echo"
	}
	return ""
}

// several reports whether a completion may have several prompts. A list of ids is one.
func several(h *dialect.Head) bool {
	for _, f := range h.Fields {
		value := h.Body[f.Start:f.End]
		if f.Name == "prompt" && dialect.KindOf(value) == '[' && dialect.KindOf(value[1:]) != '0' {
			return true
		}
	}
	return false
}
