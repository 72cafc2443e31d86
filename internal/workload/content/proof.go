package content

import (
	"fmt"
	"strings"
)

// Proof compares an answer with what an engine can have generated, from its text alone,
// part by part in the order of the answer: reasoning, then calls, a document, or words. It
// detects a part that lost, repeated or exchanged anything, words and structure alike,
// unless another answer to the same schema or tools has exactly that text. A part may be
// the last one and cut.
//
// It needs an answer from its beginning. If the beginning is not known, as with an answer
// in words that continues another one, use a Verifier.
type Proof struct {
	w    *Words
	pens []pen // one for each variant that the parts so far can be of
}

// Proof begins a proof.
func (w *Words) Proof() *Proof {
	p := &Proof{w: w, pens: make([]pen, variants)}
	for v := range p.pens {
		p.pens[v] = pen{reading: true}
		p.pens[v].start(w, uint64(v))
	}
	return p
}

// Reasoning checks the reasoning for an effort. White space around it is ignored. whole
// reports that it was not cut.
func (p *Proof) Reasoning(e Effort, text string, whole bool) error {
	text = strings.TrimRight(strings.TrimLeft(text, "\n"), "\n")
	if whole {
		text += "\n" // so that its last word is known to have ended
	}
	return p.part("reasoning", text, whole, func(x *pen) {
		x.reason(e)
		x.literal("\n")
	})
}

// Document holds a document against the schema it was asked for by.
func (p *Proof) Document(s *Schema, text string, whole bool) error {
	return p.part("document", text, whole, func(x *pen) { x.document(s) })
}

// Call holds a call against the tools that were offered.
func (p *Proof) Call(tools []Tool, name, arguments string, whole bool) error {
	return p.part("call of "+name, arguments, whole, func(x *pen) {
		t := &tools[x.draw(len(tools))]
		if t.Name != name {
			x.err = fmt.Errorf("%w: a call of %q", errDiffers, name)
			return
		}
		x.arguments(t)
	})
}

// Words returns a verifier of an answer in words that follows the parts so far.
func (p *Proof) Words() *Verifier {
	v := p.w.Verifier()
	if len(p.pens) > 0 {
		v.last = p.pens[0].last
	}
	return v
}

// part keeps the variants that a part can belong to. If there are none, it returns the
// error of the variant that came furthest.
func (p *Proof) part(what, text string, whole bool, read func(*pen)) error {
	kept := p.pens[:0]
	var nearest error
	least := len(text) + 1
	for _, x := range p.pens {
		x.rest, x.over, x.spent = text, false, 0
		read(&x)
		switch {
		case x.err == nil && x.over && whole:
			x.err = fmt.Errorf("%w: it ends too early", errDiffers)
		case x.err == nil && x.rest != "":
			x.err = fmt.Errorf("%w: %.40q follows its end", errDiffers, x.rest)
		case x.err == nil:
			kept = append(kept, x)
			continue
		}
		if len(x.rest) < least {
			least, nearest = len(x.rest), x.err
		}
	}
	if p.pens = kept; len(kept) == 0 {
		if nearest == nil {
			nearest = errDiffers
		}
		return fmt.Errorf("%s, at byte %d: %w", what, len(text)-min(least, len(text)), nearest)
	}
	return nil
}
