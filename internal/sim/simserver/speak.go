package simserver

import (
	"crypto/rand"
	"strconv"

	"weir/internal/infer"
	"weir/internal/sim/simserver/web"
)

// speak appends the events of a chat's choice whose text is parsed into parts: one event
// for each part. alone makes the end a separate event.
func (a *answer) speak(b []byte, o *output, alone bool) []byte {
	ended := o.reason != ""
	parts := o.speech.push(string(o.text), ended)
	if ended && o.reason == infer.ReasonStop && o.speech.calls > 0 && o.speech.state == afterCall {
		o.called = true
	}
	inside := ended && !alone
	if len(parts) == 0 && ((a.tokenIDs || a.logprobs >= 0) && len(o.ids) > 0 && a.voice == vllm || inside) {
		// If ids without complete text were asked for, an empty part carries them.
		parts = append(parts, part{})
	}
	for i := range parts {
		o.part = &parts[i]
		b = a.chunk(b, o, inside && i == len(parts)-1)
		// Ids and log probabilities are those of the first part's event.
		o.sent += len(o.ids)
		o.ids = o.ids[:0]
	}
	o.part = nil
	return b
}

// reasoningField returns the dialect's name for reasoning.
func (a *answer) reasoningField() string {
	if a.voice == vllm {
		return "reasoning"
	}
	return "reasoning_content"
}

// appendDelta appends the delta of a part.
func (a *answer) appendDelta(b []byte, p *part) []byte {
	b = append(b, `"delta":{`...)
	if a.voice == sglang && p.kind != partReasoning {
		b = append(b, `"reasoning_content":null,`...)
	}
	switch p.kind {
	case partText:
		if p.text == "" && a.voice == vllm {
			return append(b, '}') // nothing is set
		}
		b = append(b, `"content":"`...)
		b = web.AppendText(b, p.text)
		return append(b, `"}`...)
	case partReasoning:
		b = append(b, '"')
		b = append(b, a.reasoningField()...)
		b = append(b, `":"`...)
		b = web.AppendText(b, p.text)
		return append(b, `"}`...)
	}
	b = append(b, `"tool_calls":[{"index":`...)
	b = strconv.AppendInt(b, int64(p.call), 10)
	if p.kind == partCall {
		b = append(b, `,"id":"`...)
		b = append(b, a.callID()...)
		b = append(b, `","type":"function","function":{"name":`...)
		b = append(b, web.Quote(p.text)...)
		b = append(b, `,"arguments":""}}]}`...)
		return b
	}
	b = append(b, `,"function":{"arguments":"`...)
	b = web.AppendText(b, p.text)
	return append(b, `"}}]}`...)
}

// callID returns a call's id, in the form of the voice.
func (a *answer) callID() string {
	if a.voice == vllm {
		return "chatcmpl-tool-" + rand.Text()
	}
	return "call_" + rand.Text()
}

// appendMessage appends the message of a whole answer whose text is parsed into parts.
func (a *answer) appendMessage(b []byte, o *output) []byte {
	said := o.speech.speak(string(o.text))
	o.called = o.reason == infer.ReasonStop && len(said.calls) > 0
	b = append(b, `"message":{"role":"assistant","content":`...)
	if said.text == "" && (len(said.calls) > 0 || said.reasoning != "") {
		b = append(b, "null"...)
	} else {
		b = append(b, web.Quote(said.text)...)
	}
	if said.reasoning != "" || a.voice != plain {
		b = append(b, `,"`...)
		b = append(b, a.reasoningField()...)
		b = append(b, `":`...)
		if said.reasoning == "" {
			b = append(b, "null"...)
		} else {
			b = append(b, web.Quote(said.reasoning)...)
		}
	}
	if len(said.calls) > 0 {
		b = append(b, `,"tool_calls":[`...)
		for i, c := range said.calls {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"id":"`...)
			b = append(b, a.callID()...)
			b = append(b, `","type":"function","function":{"name":`...)
			b = append(b, web.Quote(c.name)...)
			b = append(b, `,"arguments":`...)
			b = append(b, web.Quote(c.arguments)...)
			b = append(b, "}}"...)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}
