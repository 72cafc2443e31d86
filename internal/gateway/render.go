package gateway

import (
	"weir/internal/chat"
	"weir/internal/openai"
	"weir/internal/trace"
)

// renderInline is the size in bytes up to which a conversation is rendered
// where it is: that takes well under a millisecond. A larger one goes to the
// pool.
const renderInline = 32 << 10

// render is stage 3: the chat template makes one text of the conversation. A
// completion's prompt is that text already, or ids.
func (x *exchange) render() error {
	x.enter(trace.Render)
	var err error
	switch {
	case x.endpoint == openai.Completions:
		x.text = []byte(x.req.Prompt)
	case len(x.req.Messages) <= renderInline:
		err = x.renderChat()
	default:
		err = x.inPool(trace.Render, len(x.req.Messages)/8, func(func()) error { return x.renderChat() })
	}
	x.rec.Rendered = trace.Now()
	return err
}

func (x *exchange) renderChat() error {
	var err error
	x.text, err = x.folder.render(x.ctx, &chat.Input{
		Messages:             x.req.Messages,
		Kwargs:               x.req.ChatTemplateKwargs,
		AddGenerationPrompt:  x.req.AddGenerationPrompt,
		ContinueFinalMessage: x.req.ContinueFinalMessage,
		DecodeArguments:      true,
	})
	return err
}
