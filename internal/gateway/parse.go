package gateway

import (
	"bytes"
	"crypto/rand"

	"weir/internal/api"
	"weir/internal/chat/parse"
	"weir/internal/infer"
	"weir/internal/stream"
	"weir/internal/trace"
)

// reply is an answer that may hold reasoning and tool calls besides its content.
type reply struct {
	options parse.Options
	parser  *parse.Parser // nil once all that follows is content
	events  []parse.Event // of the cell at hand
	called  bool
	count   *reasoningCount // nil: not counted
}

// expect notes how a chat's answer is to be read. It is called while the prompt
// and the body are still there.
func (x *exchange) expect() {
	format, calls := x.folder.Format, x.req.Tools != nil
	if !calls {
		format = format.WithoutTools()
	}
	if format == (parse.Format{}) && !calls {
		return
	}
	o := parse.Options{
		Format: format, Calls: calls, Single: x.req.SingleCall, ForcedTool: x.req.ForcedTool, ForcedAny: x.req.ForcedAny,
		Prompt: bytes.Clone(x.text[max(0, len(x.text)-parse.PromptTail):]),
	}
	if calls && !o.ForcedAny && o.ForcedTool == "" && format.ReadsTools() {
		o.Tools = bytes.Clone(x.req.Tools)
	}
	x.reply = &reply{options: o}
}

// startReply resets the reply for an attempt, and gives the special tokens that
// its parser must see.
func (x *exchange) startReply() (keep []uint32) {
	r := x.reply
	if r == nil {
		return nil
	}
	r.parser, r.called = parse.New(r.options), false
	if x.req.CountReasoning {
		r.count = newReasoningCount(r.options)
	}
	switch o := &r.options; {
	case o.ForcedAny || o.ForcedTool != "":
		return nil
	case o.Calls:
		return x.folder.keepForCalls
	}
	return x.folder.keepForReasoning
}

// parse is stage 11: reasoning and tool calls part from the content. Most text
// has nothing of either and passes as it is. It reports whether the choice has
// ended: also with its first call, where the request wants no more.
func (x *exchange) parse(c *stream.Cell, ended bool) bool {
	x.enter(trace.Parse)
	r := x.reply
	if r == nil || r.parser == nil {
		return ended
	}
	r.events = r.parser.Append(r.events[:0], x.piece, ended)
	if !ended && r.parser.Done() {
		x.mailbox.Close()
		x.generation.Abort()
		return true
	}
	return ended
}

// encodeEvents is encode for a reply.
func (x *exchange) encodeEvents(c *stream.Cell) {
	r := x.reply
	for i := 0; i < len(r.events); {
		e := &r.events[i]
		switch e.Kind {
		case parse.CallBegin:
			r.called = true
			x.encodeCall(c, e)
			i++
		case parse.CallEnd:
			i++
		default:
			i += x.encodeSpan(c, r.events[i:])
		}
	}
	if r.parser.Plain() {
		r.parser = nil
	}
}

func (x *exchange) encodeCall(c *stream.Cell, e *parse.Event) {
	id := e.ID
	if id == "" {
		id = x.callID()
	}
	x.out = x.enc.AppendCall(x.out, int(c.Choice), e.Call, id, e.Name)
}

// encodeSpan encodes the events at the beginning that go on with each other as
// one, and says how many they are.
func (x *exchange) encodeSpan(c *stream.Cell, events []parse.Event) int {
	first := &events[0]
	n := 1
	for n < len(events) && events[n].Kind == first.Kind && events[n].Call == first.Call {
		n++
	}
	delta := api.DeltaContent
	switch first.Kind {
	case parse.Reasoning:
		delta = api.DeltaReasoning
	case parse.Arguments:
		delta = api.DeltaArguments
	}
	x.out = x.enc.OpenDelta(x.out, int(c.Choice), delta, first.Call)
	for i := range events[:n] {
		x.out = x.enc.AppendDelta(x.out, events[i].Text)
	}
	x.out = x.enc.CloseDelta(x.out)
	return n
}

// callID makes an id for a tool call, of the form that the model's template
// takes back.
func (x *exchange) callID() string {
	if !x.folder.Format.ShortIDs() {
		return x.req.CallPrefix + x.g.ids.next()
	}
	const letters = "0123456789abcdefghijklmnopqrstuvwxyz"
	var b [9]byte
	rand.Read(b[:]) // never fails
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return string(b[:])
}

// answerReason is the reason that the client is told.
func (x *exchange) answerReason(reason infer.Reason) infer.Reason {
	if reason == infer.ReasonStop && x.reply != nil && x.reply.called {
		return infer.ReasonToolCalls
	}
	return reason
}
