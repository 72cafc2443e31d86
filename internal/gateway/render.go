package gateway

import (
	"strings"

	"weir/internal/dialect/openai"
	"weir/internal/infer"
	"weir/internal/model/chat"
	"weir/internal/trace"
)

// render is stage 3: the chat template makes one text of the conversation. A
// completion's prompt is that text already, or ids.
func (p *preparing) render(yield func()) error {
	var err error
	if p.req.Messages == nil {
		p.text = []byte(p.req.Prompt)
		if p.req.Guide != nil {
			p.req.Guide.Whole = true
		}
	} else {
		err = p.renderChat(yield)
	}
	p.in.record.Rendered = trace.Now()
	return err
}

func (p *preparing) renderChat(yield func()) error {
	kwargs, err := p.templateKwargs()
	if err != nil {
		return err
	}
	in := &chat.Input{
		Messages:             p.req.Messages,
		Tools:                p.req.Tools,
		Kwargs:               kwargs,
		AddGenerationPrompt:  p.req.AddGenerationPrompt,
		ContinueFinalMessage: p.req.ContinueFinalMessage,
		FromAPI:              true,
		Media:                p.hasMedia,
		Yield:                yield,
	}
	if p.text, err = p.folder.RenderChat(p.ctx, in); err != nil {
		return p.ofPrompt(err)
	}
	if in.PassedOver != nil {
		p.passed = p.req.Fields.Prompt + "[].content"
		p.req.Ignore(p.passed)
	}
	p.calls = int32(in.Calls)
	p.expect(p.text)
	return nil
}

// ofPrompt makes an error about the rendered messages one about the caller's field, where the
// messages were made of others.
func (p *preparing) ofPrompt(err error) error {
	e := infer.AsError(err)
	if _, own := p.in.endpoint.(openai.Endpoint); own || !strings.HasPrefix(e.Param, "messages") {
		return err
	}
	named := *e
	if path, field, one := strings.Cut(e.Param, "]."); one {
		named.Message = p.req.Fields.Prompt + ": a message's " + field + strings.TrimPrefix(e.Message, path+"]."+field)
	}
	named.Param = p.req.Fields.Prompt
	return &named
}
