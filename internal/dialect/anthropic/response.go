package anthropic

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// whole keeps an answer that is not streamed, and appends it at its end.
type whole struct {
	dialect.AnswerOptions
	omit   bool
	blocks []contentBlock
	finish dialect.Finish
}

// contentBlock is a block of the answer: its text, or a call's arguments.
type contentBlock struct {
	kind     kind
	id, name string
	text     []byte
}

// AppendStart implements dialect.Encoder.
func (w *whole) AppendStart(dst []byte, _ int) []byte { return dst }

// block returns the last block if it is of the kind, and else a new one.
func (w *whole) block(k kind) *contentBlock {
	if n := len(w.blocks); n == 0 || w.blocks[n-1].kind != k {
		w.blocks = append(w.blocks, contentBlock{kind: k})
	}
	return &w.blocks[len(w.blocks)-1]
}

// AppendText implements dialect.Encoder.
func (w *whole) AppendText(dst []byte, _ int, content []byte) []byte {
	b := w.block(text)
	b.text = append(b.text, content...)
	return dst
}

// AppendTokens implements dialect.Encoder.
func (w *whole) AppendTokens(dst []byte, choice int, content []byte, _ dialect.Tokens) []byte {
	if len(content) == 0 {
		return dst
	}
	return w.AppendText(dst, choice, content)
}

// AppendCall implements dialect.Encoder.
func (w *whole) AppendCall(dst []byte, _, _ int, id, name string) []byte {
	w.blocks = append(w.blocks, contentBlock{kind: toolUse, id: id, name: name})
	return dst
}

// EndCall implements dialect.Encoder. The stop_reason says whether the call is complete.
func (w *whole) EndCall(dst []byte, _ int, _ bool) []byte { return dst }

// OpenDelta implements dialect.Encoder.
func (w *whole) OpenDelta(dst []byte, _ int, d dialect.Delta, _ int) []byte {
	w.block(kindOf(d))
	return dst
}

// AppendDelta implements dialect.Encoder.
func (w *whole) AppendDelta(dst, part []byte) []byte {
	b := &w.blocks[len(w.blocks)-1]
	if w.omit && b.kind == thinking {
		return dst
	}
	b.text = append(b.text, part...)
	return dst
}

// CloseDelta implements dialect.Encoder.
func (w *whole) CloseDelta(dst []byte) []byte { return dst }

// AppendFinish implements dialect.Encoder.
func (w *whole) AppendFinish(dst []byte, _ int, f dialect.Finish) []byte {
	w.finish = f
	return dst
}

// AppendError implements dialect.Encoder. It is never called: what is not complete
// has not begun.
func (w *whole) AppendError(dst []byte, _ *infer.Error) []byte { return dst }

// AppendEnd implements dialect.Encoder.
func (w *whole) AppendEnd(dst []byte, u infer.Usage) []byte {
	dst = appendMessageHead(dst, &w.AnswerOptions)
	for i := range w.blocks {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = w.blocks[i].append(dst)
	}
	dst = appendStop(append(dst, `],`...), &w.finish)
	dst = appendUsage(append(dst, `,"usage":`...), u)
	return append(dst, '}')
}

func (b *contentBlock) append(dst []byte) []byte {
	switch b.kind {
	case thinking:
		dst = dialect.AppendEscaped(append(dst, `{"type":"thinking","thinking":"`...), b.text)
		return append(dst, `","signature":"`+unsigned+`"}`...)
	case toolUse:
		dst = dialect.AppendString(append(dst, `{"type":"tool_use","id":`...), b.id)
		dst = dialect.AppendString(append(dst, `,"name":`...), b.name)
		return append(appendInput(append(dst, `,"input":`...), b.text), '}')
	}
	dst = dialect.AppendEscaped(append(dst, `{"type":"text","text":"`...), b.text)
	return append(dst, `"}`...)
}

// appendInput appends a call's arguments, which the API wants to be an object. Arguments that are
// not an object, because the answer was cut or the model wrote something else, are put into one,
// under the name that Anthropic's documentation proposes for it.
func appendInput(dst, arguments []byte) []byte {
	arguments = bytes.TrimSpace(arguments)
	if len(arguments) == 0 {
		return append(dst, "{}"...)
	}
	if value := jsontext.Value(arguments); value.Kind() == '{' && value.IsValid(jsontext.AllowDuplicateNames(true)) {
		return append(dst, arguments...)
	}
	dst = dialect.AppendEscaped(append(dst, `{"INVALID_JSON":"`...), arguments)
	return append(dst, `"}`...)
}

var _ dialect.Counter = CountTokens

// AppendCount implements dialect.Counter.
func (Endpoint) AppendCount(dst []byte, tokens int) []byte {
	dst = strconv.AppendInt(append(dst, `{"input_tokens":`...), int64(tokens), 10)
	return append(dst, '}')
}
