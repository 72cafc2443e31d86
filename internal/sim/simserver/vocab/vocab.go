// Package vocab is the vocabulary of a simulated engine: it turns text, chats and media into ids, and
// ids into text. What follows a prompt, and the log probabilities of ids, are functions of ids as well.
package vocab

import (
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/fields"
	"weir/internal/workload/content"
)

// Tokenizer turns text into ids and back. It is called from many goroutines.
type Tokenizer interface {
	// Encode returns the ids of a text, with special tokens recognised. addSpecial adds
	// those that the model puts around a text that no template has rendered.
	Encode(text string, addSpecial bool) ([]uint32, error)
	// Text returns the bytes of an id.
	Text(id uint32) []byte
	// Render returns the text of a chat's prompt. messages and tools are JSON arrays,
	// kwargs is an object of variables for the template. tools and kwargs may be empty.
	Render(messages, tools, kwargs []byte) (string, error)
}

// Vocab is the vocabulary of an engine: it turns text, chats and media into ids, and ids into
// text. It is used from many goroutines.
type Vocab struct {
	o            *sim.Options
	tokenizer    Tokenizer
	placeholders map[infer.MediaKind]uint32
	speaker      *content.Speaker

	seenMu sync.Mutex
	seen   []Seen
}

// New returns the vocabulary of an engine with the given options. placeholders are the ids that
// stand for an image or audio in a prompt; what has none is not taken. If speaker is nil, all output
// is words, whatever is asked for.
func New(o *sim.Options, t Tokenizer, placeholders map[infer.MediaKind]uint32, speaker *content.Speaker) *Vocab {
	return &Vocab{o: o, tokenizer: t, placeholders: placeholders, speaker: speaker}
}

// Speaks reports whether output can be more than words.
func (v *Vocab) Speaks() bool { return v.speaker != nil }

// Encode returns the ids of a text.
func (v *Vocab) Encode(text string, addSpecial bool) ([]uint32, error) {
	return v.tokenizer.Encode(text, addSpecial)
}

// Script sets a request's script unless the output is only words. Every server calls it
// before it prepares a request. ask holds what the request's own fields ask for, in
// addition to its prompt. scripted reports whether the output is not plain text.
func (v *Vocab) Script(p *sim.Params, ask content.Ask) (scripted bool, err error) {
	s := v.speaker
	if s == nil {
		return false, nil
	}
	limit := p.MaxTokens
	if limit == 0 {
		limit = v.o.ContextLength - len(p.Prompt)
	}
	if limit <= 0 || len(p.Prompt) == 0 {
		return false, nil // Prepare refuses it
	}
	said, err := s.Script(&content.Request{Prompt: p.Prompt, Seed: p.Seed, MaxTokens: limit, Ask: ask})
	if err != nil {
		return false, fields.AskInvalid(err)
	}
	if said == nil {
		return false, nil
	}
	p.Script = said.IDs
	if said.Closed {
		// A document ends where it ends, as under a grammar.
		p.IgnoreEOS, p.MinTokens = false, 0
	}
	return true, nil
}

// TokenText returns the text of any id, an end id's too.
func (v *Vocab) TokenText(id uint32) []byte {
	if text, ok := v.o.Words.Text(id); ok {
		return []byte(text)
	}
	if v.tokenizer == nil {
		return nil
	}
	return v.tokenizer.Text(id)
}

// AppendTokenText appends the text of an id as a JSON string.
func (v *Vocab) AppendTokenText(b []byte, id uint32) []byte {
	b, _ = jsontext.AppendQuote(b, v.TokenText(id))
	return b
}

// PromptText returns the text of prompts, for faults with a marker.
func (v *Vocab) PromptText(prompts ...[]uint32) []byte {
	if v.tokenizer == nil {
		return nil
	}
	var b []byte
	for _, prompt := range prompts {
		for _, id := range prompt {
			b = append(b, v.tokenizer.Text(id)...)
		}
	}
	return b
}

// Text returns the text of an id. End ids have none.
func (v *Vocab) Text(id uint32) string {
	text, isWord := v.o.Words.Text(id)
	if isWord || v.tokenizer == nil || v.Ends(id) {
		return text
	}
	return string(v.tokenizer.Text(id))
}

// Ends reports whether an id is one of the model's end ids.
func (v *Vocab) Ends(id uint32) bool { return slices.Contains(v.o.EOS, id) }

// Detokenize returns the text of ids; invalid UTF-8 becomes U+FFFD.
func (v *Vocab) Detokenize(param string, ids []uint32) (string, error) {
	for i, id := range ids {
		if n := v.o.VocabSize; n > 0 && int64(id) >= int64(n) {
			return "", infer.Invalid(param, "%s[%d] is %d; the vocabulary has %d ids", param, i, id, n)
		}
	}
	return strings.ToValidUTF8(string(v.PromptText(ids)), "\ufffd"), nil
}
