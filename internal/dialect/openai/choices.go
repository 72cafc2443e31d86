package openai

import (
	"fmt"

	"weir/internal/dialect"
	"weir/internal/infer"
)

const (
	// maxAsked bounds the choices of a request, over all of its prompts.
	maxAsked = 128
	// maxTop bounds the alternatives of a token.
	maxTop = 20
)

func takeN(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("n", raw, 1, maxAsked)
	d.N = int(n)
	return err
}

func takeBestOf(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("best_of", raw, 1, maxAsked)
	d.bestOf = int(n)
	return err
}

func takeLogprobs(d *decoding, raw []byte) (err error) {
	d.wantLogprobs, err = dialect.BoolOf("logprobs", raw)
	return err
}

func takeTopLogprobs(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("top_logprobs", raw, 0, maxTop)
	d.top = int(n)
	return err
}

func takeTextLogprobs(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("logprobs", raw, 0, maxTop)
	d.wantLogprobs, d.top = true, int(n)
	return err
}

// finishChoices checks what is said of choices and of the tokens' alternatives.
func (d *decoding) finishChoices() error {
	n := max(1, d.N)
	switch prompts := 1 + len(d.MorePrompts); {
	case n*prompts > maxAsked:
		return infer.Invalid("n", "n is %d for each of %d prompts, %d choices; a request may have at most %d", n, prompts, n*prompts, maxAsked)
	case d.bestOf != 0 && d.bestOf != n:
		return &infer.Error{Code: infer.CodeUnsupported, Param: "best_of",
			Message: fmt.Sprintf("best_of is %d and n is %d; engine kind %q gives all that it makes: leave best_of out", d.bestOf, n, d.Kind)}
	case d.top > 0 && !d.wantLogprobs:
		return infer.Invalid("top_logprobs", "top_logprobs needs logprobs to be true")
	}
	if d.wantLogprobs {
		d.Logprobs = &d.top
	}
	return nil
}
