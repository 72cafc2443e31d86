package gateway

import (
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
	p.rec.Rendered = trace.Now()
	return err
}

func (p *preparing) renderChat(yield func()) error {
	kwargs, err := p.templateKwargs()
	if err != nil {
		return err
	}
	p.text, err = p.folder.RenderChat(p.ctx, &chat.Input{
		Messages:             p.req.Messages,
		Tools:                p.req.Tools,
		Kwargs:               kwargs,
		AddGenerationPrompt:  p.req.AddGenerationPrompt,
		ContinueFinalMessage: p.req.ContinueFinalMessage,
		FromAPI:              true,
		Media:                p.hasMedia,
		Yield:                yield,
	})
	if err == nil {
		p.expect(p.text)
	}
	return err
}
