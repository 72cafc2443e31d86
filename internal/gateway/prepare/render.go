package prepare

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
	if p.Request.Messages == nil {
		p.text = []byte(p.Request.Prompt)
		if p.Request.Guide != nil {
			p.Request.Guide.Whole = true
		}
	} else {
		err = p.renderChat(yield)
	}
	p.in.Record.Rendered = trace.Now()
	return err
}

func (p *preparing) renderChat(yield func()) error {
	kwargs, err := p.templateKwargs()
	if err != nil {
		return err
	}
	in := &chat.Input{
		Messages:             p.Request.Messages,
		Tools:                p.Request.Tools,
		Kwargs:               kwargs,
		AddGenerationPrompt:  p.Request.AddGenerationPrompt,
		ContinueFinalMessage: p.Request.ContinueFinalMessage,
		FromAPI:              true,
		Media:                p.HasMedia,
		Yield:                yield,
	}
	if p.text, err = p.Folder.RenderChat(p.ctx, in); err != nil {
		return p.ofPrompt(err)
	}
	if in.PassedOver != nil {
		p.passed = p.Request.Fields.Prompt + "[].content"
		p.Request.Ignore(p.passed)
	}
	p.calls = int32(in.Calls)
	p.expect(p.text)
	return nil
}

// ofPrompt makes an error about the rendered messages one about the caller's field, where the
// messages were made of others.
func (p *preparing) ofPrompt(err error) error {
	e := infer.AsError(err)
	if _, own := p.in.Endpoint.(openai.Endpoint); own || !strings.HasPrefix(e.Param, "messages") {
		return err
	}
	named := *e
	if path, field, one := strings.Cut(e.Param, "]."); one {
		named.Message = p.Request.Fields.Prompt + ": a message's " + field + strings.TrimPrefix(e.Message, path+"]."+field)
	}
	named.Param = p.Request.Fields.Prompt
	return &named
}
