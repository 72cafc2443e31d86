package prepare

import (
	"weir/internal/dialect"
	"weir/internal/infer"
)

// Bounds of the memory that a request takes beyond its body. A dialect bounds each
// field by itself. Fields that multiply others, such as n, are bounded here, so that
// every request takes at most a small multiple of its body.
const (
	// maxValues bounds the number of JSON values in a conversation, in tools and in
	// chat_template_kwargs. The chat template receives each value as an object of some
	// 100 bytes.
	maxValues = 1 << 18
	// maxMedia bounds the parts besides text.
	maxMedia = 1024
	// maxHandOver bounds in bytes what the choices of a request are handed to an engine
	// with, all together: no wire carries several, so each has the prompt, the media and
	// what its output must match.
	maxHandOver = 64 << 20
	// handOverAtOnce bounds in bytes what is under way of it at any moment.
	handOverAtOnce = 8 << 20
	// maxAlternatives bounds the log probabilities that an answer of several choices
	// may keep until it ends, some 70 bytes each.
	maxAlternatives = 1 << 21
	// maxPromptScores bounds the log probabilities of one prompt, alternatives included: an
	// engine sends them in one event, with some 40 bytes for each.
	maxPromptScores = 1 << 18
)

// checkSizes refuses what would grow to many times its size.
func (p *preparing) checkSizes() error {
	for _, f := range []struct {
		name string
		json []byte
	}{
		{p.Request.Fields.Prompt, p.Request.Messages}, {"tools", p.Request.Tools}, {"chat_template_kwargs", p.Request.ChatTemplateKwargs},
	} {
		if err := checkValues(f.name, f.json); err != nil {
			return err
		}
	}
	if n := len(p.Request.Media); n > maxMedia {
		return infer.Invalid(p.Request.Fields.Prompt, "the request holds %d parts of image, audio and video; it may hold %d", n, maxMedia)
	}
	return nil
}

// checkValues refuses a field of more JSON values than there may be.
func checkValues(field string, json []byte) error {
	if len(json) <= maxValues { // each has a byte at least
		return nil
	}
	if n := dialect.CountValues(json); n > maxValues {
		return infer.Invalid(field, "%s holds about %d JSON values; it may hold %d: send fewer, larger ones", field, n, maxValues)
	}
	return nil
}

// handOver is what a choice of a prompt of so many ids is handed to an engine with, in
// bytes.
func (q *Prepared) handOver(ids int) int {
	n := 4 * ids
	for i := range q.Request.Media {
		n += len(q.Request.Media[i].Data)
	}
	if q.Request.Guide != nil {
		n += q.Request.Guide.Size()
	}
	return n
}

// AtOnce is how many choices are handed over at the same time.
func (q *Prepared) AtOnce() int {
	return max(1, handOverAtOnce/max(1, q.handOver(q.longestPrompt())))
}

// checkPromptScores refuses log probabilities of prompts that do not reach to where they
// begin, or are too many.
func (p *preparing) checkPromptScores() error {
	if p.Request.LogprobsFrom == nil {
		return nil
	}
	names, from, width, all := p.Request.Fields, *p.Request.LogprobsFrom, 1+*p.Request.Logprobs, 0
	for i := range len(p.More) + 1 {
		ids := p.IDs
		if i > 0 {
			ids = p.More[i-1].IDs
		}
		n := (len(ids) - from) * width
		switch all += n * p.width(); {
		case from >= len(ids):
			return infer.Invalid(names.LogprobsFrom, "%s is %d, and %s has %d tokens, so that it may be at most %d", names.LogprobsFrom, from, p.promptField(i), len(ids), len(ids)-1)
		case n > maxPromptScores || all > maxAlternatives:
			return infer.Invalid(names.LogprobsFrom, "%s is %d, which asks for %d log probabilities of %s, and of all prompts for %d or more; an answer may have %d of each prompt and %d in all: raise it, or lower %s or %s",
				names.LogprobsFrom, from, n, p.promptField(i), all, maxPromptScores, maxAlternatives, names.Logprobs, names.Choices)
		}
	}
	return nil
}

// checkProducts refuses what is too much only because there are several choices.
func (p *preparing) checkProducts() error {
	choices := p.Count()
	if choices == 1 {
		return nil
	}
	names, width := p.Request.Fields, p.width()
	size := p.handOver(len(p.IDs))
	for i := range p.More {
		size += p.handOver(len(p.More[i].IDs))
	}
	if size*width > maxHandOver {
		return infer.Invalid(names.Choices, "each of the %d choices is handed to the engine with its prompt, media and schema: %d bytes in all, and they may have %d; lower %s, or send several requests",
			choices, size*width, maxHandOver, names.Choices)
	}
	if p.Request.Logprobs == nil || p.Request.Stream && !p.Request.Repeats {
		return nil
	}
	if kept := choices * p.Longest() * (1 + *p.Request.Logprobs); kept > maxAlternatives {
		return infer.Invalid(names.Logprobs, "%s is %d, for up to %d tokens in each of %d choices: that makes %d log probabilities in one answer, which may have %d: ask for fewer of them, for fewer choices, for a lower %s, or for a stream of new output only",
			names.Logprobs, *p.Request.Logprobs, p.Longest(), choices, kept, maxAlternatives, names.MaxTokens)
	}
	return nil
}
