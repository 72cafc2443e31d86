package prepare

import (
	"bytes"
	"cmp"
	"math"
	"strconv"
	"strings"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// capOf returns the cap of the model that was found, which its LoRA adapters have too, and of the
// caller's key.
func (p *preparing) capOf() (c Cap) {
	if l := p.to.Model.Loaded; l != nil {
		c = Cap{MaxTokens: l.MaxTokens, N: l.MaxN}
	} else {
		c = p.preparer.opts.Caps[cmp.Or(p.to.Model.Base, p.to.Model.Name)]
	}
	if a := p.in.Caller.Account; a != nil {
		if most := int(a.Limits().OutputTokens); most > 0 && (c.MaxTokens == 0 || most < c.MaxTokens) {
			c.MaxTokens, c.byKey = most, true
		}
	}
	return c
}

// checkPrompt refuses a prompt that is longer than the caller's key may send. A prompt that is
// relayed has an estimated length.
func (p *preparing) checkPrompt(field string, tokens int) error {
	if a := p.in.Caller.Account; a != nil {
		if most := int(a.Limits().PromptTokens); most > 0 && tokens > most {
			return tooLong(field, "the prompt has %d tokens; the key %s may send at most %d", tokens, p.in.Caller.Key, most)
		}
	}
	return nil
}

// checkCap refuses a decoded request that asks for more than its model's cap. fit gives
// a request without a bound the cap itself.
func (p *preparing) checkCap() error {
	limit, names := p.capOf(), p.Request.Fields
	if n := p.width(); limit.N > 0 && n > limit.N {
		return p.overCap(names.Choices, strconv.Itoa(n), limit.N)
	}
	if limit.MaxTokens > 0 && p.Request.MaxTokens > limit.MaxTokens {
		return p.overCap(names.MaxTokens, strconv.Itoa(p.Request.MaxTokens), limit.MaxTokens)
	}
	return nil
}

func (p *preparing) overCap(field, value string, limit int) error {
	if c := p.capOf(); c.byKey && limit == c.MaxTokens {
		return infer.Invalid(field, "%s is %s; for the key %s it may be at most %d", field, dialect.Clip(value, 32), p.in.Caller.Key, limit)
	}
	return infer.Invalid(field, "%s is %s; for model %s it may be at most %d", field, dialect.Clip(value, 32), p.to.Model.Name, limit)
}

// capped are the fields that caps bound in the bodies of relayed requests, whatever
// their dialect.
var capped = map[string]func(Cap) int{
	"max_tokens": Cap.tokens, "max_completion_tokens": Cap.tokens, "max_output_tokens": Cap.tokens,
	"n": Cap.choices, "best_of": Cap.choices,
}

// IsCapped reports whether caps bound a field, whose name is in lower case.
func IsCapped(field string) bool { return capped[field] != nil }

func (c Cap) tokens() int  { return c.MaxTokens }
func (c Cap) choices() int { return c.N }

// unbounded maps the paths of relays at which an answer without a limit continues to
// the end of the context to the field that limits it. Completions have a default of 16,
// and messages always have a limit.
var unbounded = map[string]string{
	"/v1/chat/completions": "max_tokens", "/v1/chat/completions/batch": "max_tokens", "/v1/responses": "max_output_tokens",
}

// capRelayed refuses a relayed request that asks for more than its model's cap. One
// without a bound is the only one whose body is changed: its bound is put in, as the
// engine's own would be the whole context.
func (p *preparing) capRelayed() error {
	limit := p.capOf()
	if limit == (Cap{}) {
		return nil
	}
	bounded := false
	var nulls []dialect.Span // bounds that say nothing
	for _, at := range p.Head.Fields {
		name := strings.ToLower(at.Name)
		of := capped[name]
		if of == nil || of(limit) == 0 {
			continue
		}
		raw := p.Head.Body[at.Start:at.End]
		if dialect.KindOf(raw) == 'n' {
			if strings.HasPrefix(name, "max_") {
				nulls = append(nulls, at)
			}
			continue
		}
		// Engines take the text of a number for it, so nothing but a number will do.
		v, err := dialect.FloatOf(at.Name, raw, 0, math.MaxFloat64, false)
		if err != nil {
			return err
		}
		if v > float64(of(limit)) {
			return p.overCap(at.Name, string(raw), of(limit))
		}
		bounded = bounded || strings.HasPrefix(name, "max_")
	}
	if field := unbounded[p.in.Path]; field != "" && !bounded && limit.MaxTokens > 0 {
		return p.bound(field, nulls, limit.MaxTokens)
	}
	return nil
}

// bound puts a bound into the body: for those that say nothing, or else as its first
// field. All other bytes stay.
func (p *preparing) bound(field string, nulls []dialect.Span, most int) (err error) {
	var out []byte
	from, old := 0, p.Head.Body
	for _, at := range nulls {
		out = strconv.AppendInt(append(out, old[from:at.Start]...), int64(most), 10)
		from = at.End
	}
	if len(nulls) == 0 {
		from = bytes.IndexByte(old, '{') + 1
		out = append(append(out, old[:from]...), `"`+field+`":`...)
		out = append(strconv.AppendInt(out, int64(most), 10), ',')
	}
	p.Body = append(out, old[from:]...)
	p.Head, err = p.in.Endpoint.ParseHead(p.Body)
	return err
}
