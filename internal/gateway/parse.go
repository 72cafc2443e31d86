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

// reply says that answers may hold reasoning and tool calls besides their content.
type reply struct {
	options parse.Options
	events  []parse.Event // of the cell at hand
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

// newParser gives the parser of a choice; nil when there is nothing to part.
func (x *exchange) newParser() *parse.Parser {
	if x.reply == nil {
		return nil
	}
	return parse.New(x.reply.options)
}

// keep gives the special tokens that a parser must see.
func (x *exchange) keep() []uint32 {
	if x.reply == nil {
		return nil
	}
	switch o := &x.reply.options; {
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
func (x *exchange) parse(ch *choice, c *stream.Cell, ended bool) bool {
	x.enter(trace.Parse)
	switch {
	case ch.scores != nil:
		ch.scores.read(ch.parser, x.piece, c, x.used, ended)
	case ch.parser != nil:
		x.reply.events = ch.parser.Append(x.reply.events[:0], x.piece, ended)
	}
	if ch.parser == nil {
		return ended
	}
	if !ended && ch.parser.Done() {
		x.stop(ch)
		ch.generation.Abort()
		return true
	}
	return ended
}

// encodeEvents is encode where text is taken apart.
func (x *exchange) encodeEvents(ch *choice) {
	var events []parse.Event
	if ch.scores != nil {
		events = ch.scores.events
	} else {
		events = x.reply.events
	}
	for i := 0; i < len(events); {
		e := &events[i]
		switch e.Kind {
		case parse.CallBegin:
			ch.called = true
			x.encodeCall(ch, e)
			i++
		case parse.CallEnd:
			i++
		default:
			i += x.encodeSpan(ch, events, i)
		}
	}
	if ch.parser != nil && ch.parser.Plain() {
		ch.parser = nil
	}
}

func (x *exchange) encodeCall(ch *choice, e *parse.Event) {
	id := e.ID
	if id == "" {
		id = x.callID()
	}
	x.out = x.enc.AppendCall(x.out, int(ch.index), e.Call, id, e.Name)
}

// encodeSpan encodes the events from one on that go on with each other as one, and
// says how many they are.
func (x *exchange) encodeSpan(ch *choice, events []parse.Event, from int) int {
	first := &events[from]
	to := from + 1
	for to < len(events) && events[to].Kind == first.Kind && events[to].Call == first.Call {
		to++
	}
	delta := api.DeltaContent
	switch first.Kind {
	case parse.Reasoning:
		delta = api.DeltaReasoning
	case parse.Arguments:
		delta = api.DeltaArguments
	}
	x.out = x.enc.OpenDelta(x.out, int(ch.index), delta, first.Call)
	for i := range events[from:to] {
		x.out = x.enc.AppendDelta(x.out, events[from+i].Text)
	}
	if ch.scores != nil && delta == api.DeltaContent {
		x.out = x.enc.AppendTokens(x.out, int(ch.index), nil, ch.scores.tokens(from, to))
	}
	x.out = x.enc.CloseDelta(x.out)
	return to - from
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
func (ch *choice) answerReason(reason infer.Reason) infer.Reason {
	if reason == infer.ReasonStop && ch.called {
		return infer.ReasonToolCalls
	}
	return reason
}
