package gateway

import (
	"weir/internal/chat"
	"weir/internal/trace"
)

// render is stage 3: the chat template makes one text of the conversation. A
// completion's prompt is that text already, or ids.
func (x *exchange) render(yield func()) error {
	var err error
	if x.req.Messages == nil {
		x.text = []byte(x.req.Prompt)
	} else {
		err = x.renderChat(yield)
	}
	x.rec.Rendered = trace.Now()
	return err
}

func (x *exchange) renderChat(yield func()) error {
	kwargs, err := x.templateKwargs()
	if err != nil {
		return err
	}
	x.text, err = x.folder.render(x.ctx, &chat.Input{
		Messages:             x.req.Messages,
		Tools:                x.req.Tools,
		Kwargs:               kwargs,
		AddGenerationPrompt:  x.req.AddGenerationPrompt,
		ContinueFinalMessage: x.req.ContinueFinalMessage,
		FromAPI:              true,
		Media:                x.hasMedia,
		Yield:                yield,
	})
	if err == nil {
		x.expect()
	}
	return err
}
