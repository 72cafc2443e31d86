package completion

import (
	"crypto/rand"
	"strconv"

	"weir/internal/infer"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/speech"
	"weir/internal/sim/simserver/web"
)

// speak appends the events of a chat's choice whose text is parsed into parts: one event
// for each part. alone makes the end a separate event.
func (a *Answer) speak(b []byte, o *exchange.Output, alone bool) []byte {
	ended := o.Reason != ""
	parts := a.Parts(o)
	inside := ended && !alone
	if len(parts) == 0 && ((a.tokenIDs || a.Logprobs >= 0) && len(o.IDs) > 0 && a.voice == vllm || inside) {
		// If ids without complete text were asked for, an empty part carries them.
		parts = append(parts, speech.Part{})
	}
	for i := range parts {
		a.said[o.Slot].part = &parts[i]
		b = a.chunk(b, o, inside && i == len(parts)-1)
		// Ids and log probabilities are those of the first part's event.
		o.Sent += len(o.IDs)
		o.IDs = o.IDs[:0]
	}
	a.said[o.Slot].part = nil
	return b
}

// reasoningField returns the dialect's name for reasoning.
func (a *Answer) reasoningField() string {
	if a.voice == vllm {
		return "reasoning"
	}
	return "reasoning_content"
}

// appendDelta appends the delta of a part.
func (a *Answer) appendDelta(b []byte, p *speech.Part) []byte {
	b = append(b, `"delta":{`...)
	if a.voice == sglang && p.Kind != speech.Reasoning {
		b = append(b, `"reasoning_content":null,`...)
	}
	switch p.Kind {
	case speech.Text:
		if p.Text == "" && a.voice == vllm {
			return append(b, '}') // nothing is set
		}
		b = append(b, `"content":"`...)
		b = web.AppendText(b, p.Text)
		return append(b, `"}`...)
	case speech.Reasoning:
		b = append(b, '"')
		b = append(b, a.reasoningField()...)
		b = append(b, `":"`...)
		b = web.AppendText(b, p.Text)
		return append(b, `"}`...)
	}
	b = append(b, `"tool_calls":[{"index":`...)
	b = strconv.AppendInt(b, int64(p.Call), 10)
	if p.Kind == speech.CallBegins {
		b = append(b, `,"id":"`...)
		b = append(b, a.CallID()...)
		b = append(b, `","type":"function","function":{"name":`...)
		b = append(b, web.Quote(p.Text)...)
		b = append(b, `,"arguments":""}}]}`...)
		return b
	}
	b = append(b, `,"function":{"arguments":"`...)
	b = web.AppendText(b, p.Text)
	return append(b, `"}}]}`...)
}

// CallID returns a call's id, in the form of the voice.
func (a *Answer) CallID() string {
	if a.voice == vllm {
		return "chatcmpl-tool-" + rand.Text()
	}
	return "call_" + rand.Text()
}

// appendMessage appends the message of a whole answer whose text is parsed into parts.
func (a *Answer) appendMessage(b []byte, o *exchange.Output) []byte {
	said := a.Spoken(o)
	b = append(b, `"message":{"role":"assistant","content":`...)
	if said.Text == "" && (len(said.Calls) > 0 || said.Reasoning != "") {
		b = append(b, "null"...)
	} else {
		b = append(b, web.Quote(said.Text)...)
	}
	if said.Reasoning != "" || a.voice != plain {
		b = append(b, `,"`...)
		b = append(b, a.reasoningField()...)
		b = append(b, `":`...)
		if said.Reasoning == "" {
			b = append(b, "null"...)
		} else {
			b = append(b, web.Quote(said.Reasoning)...)
		}
	}
	if len(said.Calls) > 0 {
		b = append(b, `,"tool_calls":[`...)
		for i, c := range said.Calls {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"id":"`...)
			b = append(b, a.CallID()...)
			b = append(b, `","type":"function","function":{"name":`...)
			b = append(b, web.Quote(c.Name)...)
			b = append(b, `,"arguments":`...)
			b = append(b, web.Quote(c.Arguments)...)
			b = append(b, "}}"...)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// Parts parses an output's pending text. The output's reason reports its end.
func (a *Answer) Parts(o *exchange.Output) (parts []speech.Part) {
	said, ended := &a.said[o.Slot], o.Reason != ""
	if said.speech == nil {
		if len(o.Text) > 0 {
			parts = []speech.Part{{Text: string(o.Text)}}
		}
		return parts
	}
	parts = said.speech.Push(string(o.Text), ended)
	if o.Reason == infer.ReasonStop && said.speech.EndsInCall() {
		said.called = true
	}
	return parts
}

// Spoken takes a whole output apart.
func (a *Answer) Spoken(o *exchange.Output) speech.Whole {
	said := &a.said[o.Slot]
	if said.speech == nil {
		return speech.Whole{Text: string(o.Text)}
	}
	out := said.speech.Take(string(o.Text))
	said.called = o.Reason == infer.ReasonStop && len(out.Calls) > 0
	return out
}
