package openai

import (
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// whole keeps an answer that is not streamed, and appends it at its end.
type whole struct {
	streamOptions
	choices []choice
	open    *[]byte // what AppendDelta goes to
	scorer  *Scorer // nil: without log probabilities
}

// choice is one choice of a whole answer. Only a chat's has more than text.
type choice struct {
	text, reasoning []byte
	calls           []toolCall
	ids             []uint32
	entries         []byte  // log probabilities of a chat's tokens
	columns         columns // and of a completion's
	finish          dialect.Finish
}

// toolCall is a call of a tool. Arguments are JSON, unless the model's were not.
type toolCall struct {
	id, name  string
	arguments []byte
}

// AppendStart implements dialect.Encoder.
func (w *whole) AppendStart(dst []byte, choice int) []byte {
	w.at(choice)
	return dst
}

func (w *whole) at(i int) *choice {
	for len(w.choices) <= i {
		w.choices = append(w.choices, choice{})
	}
	return &w.choices[i]
}

// AppendText implements dialect.Encoder.
func (w *whole) AppendText(dst []byte, choice int, text []byte) []byte {
	c := w.at(choice)
	c.text = append(c.text, text...)
	return dst
}

// AppendTokens implements dialect.Encoder.
func (w *whole) AppendTokens(dst []byte, choice int, text []byte, t dialect.Tokens) []byte {
	c := w.at(choice)
	c.text = append(c.text, text...)
	if w.tokenIDs {
		c.ids = append(c.ids, t.IDs...)
	}
	switch {
	case w.scorer == nil || len(t.IDs) == 0:
	case w.endpoint == Completions:
		c.columns.add(w.scorer, t.IDs, &t.Logprobs)
	default:
		if len(c.entries) > 0 {
			c.entries = append(c.entries, ',')
		}
		c.entries = w.scorer.AppendEntries(c.entries, t.IDs, &t.Logprobs)
	}
	return dst
}

// AppendCall implements dialect.Encoder.
func (w *whole) AppendCall(dst []byte, choice, _ int, id, name string) []byte {
	c := w.at(choice)
	c.calls = append(c.calls, toolCall{id: id, name: name})
	return dst
}

// EndCall implements dialect.Encoder. The finish_reason says whether the call is complete.
func (w *whole) EndCall(dst []byte, _ int, _ bool) []byte { return dst }

// OpenDelta implements dialect.Encoder.
func (w *whole) OpenDelta(dst []byte, choice int, d dialect.Delta, call int) []byte {
	c := w.at(choice)
	switch d {
	case dialect.DeltaReasoning:
		w.open = &c.reasoning
	case dialect.DeltaArguments:
		w.open = &c.calls[call].arguments
	default:
		w.open = &c.text
	}
	return dst
}

// AppendDelta implements dialect.Encoder.
func (w *whole) AppendDelta(dst, text []byte) []byte {
	*w.open = append(*w.open, text...)
	return dst
}

// CloseDelta implements dialect.Encoder.
func (w *whole) CloseDelta(dst []byte) []byte { return dst }

// AppendFinish implements dialect.Encoder.
func (w *whole) AppendFinish(dst []byte, choice int, f dialect.Finish) []byte {
	w.at(choice).finish = f
	return dst
}

// AppendError implements dialect.Encoder. It is never called: what is not complete
// has not begun.
func (w *whole) AppendError(dst []byte, _ *infer.Error) []byte { return dst }

// AppendEnd implements dialect.Encoder.
func (w *whole) AppendEnd(dst []byte, u infer.Usage) []byte {
	object := "chat.completion"
	if w.endpoint == Completions {
		object = "text_completion"
	}
	dst = append(appendObjectHead(dst, &w.streamOptions, object), `,"choices":[`...)
	for i := range w.choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = w.appendChoice(dst, i)
	}
	dst = append(dst, `],`...)
	if w.tokenIDs && w.endpoint != Completions {
		dst = append(appendIDs(append(dst, `"prompt_token_ids":`...), w.PromptIDs), ',')
	}
	dst = appendUsage(dst, u)
	return append(dst, '}')
}

func (w *whole) appendChoice(dst []byte, i int) []byte {
	c := &w.choices[i]
	dst = strconv.AppendInt(append(dst, `{"index":`...), int64(i), 10)
	if w.endpoint == Completions {
		dst = append(dialect.AppendEscaped(append(dst, `,"text":"`...), c.text), '"')
	} else {
		dst = c.appendMessage(append(dst, `,"message":`...), w.reasoning())
	}
	dst = append(dst, `,"logprobs":`...)
	switch {
	case w.scorer == nil:
		dst = append(dst, "null"...)
	case w.endpoint == Completions:
		dst = c.columns.append(dst)
	default:
		dst = append(append(append(dst, chatScores...), c.entries...), chatScoresEnd...)
	}
	dst = append(dst, `,"finish_reason":"`...)
	dst = append(dst, c.finish.Reason...)
	dst = append(dst, '"')
	if w.tokenIDs {
		dst = appendIDs(append(dst, `,"token_ids":`...), c.ids)
		if w.endpoint == Completions {
			dst = appendIDs(append(dst, `,"prompt_token_ids":`...), w.prompt(i))
		}
	}
	return append(dst, '}')
}

// appendMessage appends the assistant's message. One that is nothing but calls
// has null for content, as the API has it.
func (c *choice) appendMessage(dst []byte, reasoning []string) []byte {
	dst = append(dst, `{"role":"assistant","content":`...)
	if len(c.text) == 0 && len(c.calls) > 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dialect.AppendEscaped(append(dst, '"'), c.text), '"')
	}
	if len(c.reasoning) > 0 {
		for _, name := range reasoning {
			dst = append(append(append(dst, `,"`...), name...), `":"`...)
			dst = append(dialect.AppendEscaped(dst, c.reasoning), '"')
		}
	}
	for i, call := range c.calls {
		if i == 0 {
			dst = append(dst, `,"tool_calls":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = append(dialect.AppendString(append(dst, `{"id":`...), call.id), `,"type":"function","function":{"name":`...)
		dst = append(dialect.AppendString(dst, call.name), `,"arguments":"`...)
		dst = append(dialect.AppendEscaped(dst, call.arguments), `"}}`...)
	}
	if len(c.calls) > 0 {
		dst = append(dst, ']')
	}
	return append(dst, `,"refusal":null}`...)
}

// ModelInfo is a model as the API lists it.
type ModelInfo struct {
	ID string
	// Created is in seconds since 1970.
	Created int64
	OwnedBy string
	// MaxModelLen is the context length in tokens, omitted if 0. Engines list it,
	// OpenAI does not.
	MaxModelLen int
	// Parent is the base model of a LoRA adapter, omitted if empty. Engines list it
	// too.
	Parent string
}

// AppendModel appends one model.
func AppendModel(dst []byte, m ModelInfo) []byte {
	dst = append(dst, `{"id":`...)
	dst = dialect.AppendString(dst, m.ID)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = append(dst, `,"owned_by":`...)
	dst = dialect.AppendString(dst, m.OwnedBy)
	if m.MaxModelLen > 0 {
		dst = append(dst, `,"max_model_len":`...)
		dst = strconv.AppendInt(dst, int64(m.MaxModelLen), 10)
	}
	if m.Parent != "" {
		dst = append(dst, `,"parent":`...)
		dst = dialect.AppendString(dst, m.Parent)
	}
	return append(dst, '}')
}

// AppendModels appends the list of models.
func AppendModels(dst []byte, models []ModelInfo) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendModel(dst, m)
	}
	return append(dst, `]}`...)
}
