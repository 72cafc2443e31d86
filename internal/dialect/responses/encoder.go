package responses

import (
	"strconv"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/infer"
)

// encoderOptions are what a request says of its answer. They hold nothing of the
// body.
type encoderOptions struct {
	stream  bool
	summary bool   // reasoning comes where a summary would
	echo    []byte // the members of the answer's object that the request decides
	// logprobs states that log probabilities come with the text, and with how many
	// alternatives to each token; nil: none do.
	logprobs *int
	// known has what the caller knows tools by that the model knows as something else.
	known map[string]known
}

// encoder appends one answer. It implements dialect.Encoder.
//
// The API ends each text, item and answer by saying it again, whole. So the
// encoder keeps all that was said, once, as the inside of JSON strings, and the
// items as spans of it.
type encoder struct {
	encoderOptions
	answer   dialect.AnswerOptions
	sequence int // of the next event
	said     []byte
	items    []item
	open     bool       // the last item is still under way
	text     customText // of a custom tool's call under way
	reason   infer.Reason

	scorer openai.Scorer
	scores []byte // entries of all items, a comma before each of an item but its first
	told   int    // how much of them came before the delta at hand
}

// kind is a kind of item.
type kind uint8

const (
	message kind = iota
	reasoning
	call
	custom // a call of a custom tool
)

// item is an item of the output: said[from:to] is its text or its arguments, and
// scores[scored:] up to the next item's are its entries.
type item struct {
	kind         kind
	from, to     int
	scored       int
	callID, name string
	namespace    string // of the function that is called
	status       string // empty: the item is under way
}

func newEncoder(a dialect.AnswerOptions, o encoderOptions) *encoder {
	a.PromptIDs = nil
	e := &encoder{encoderOptions: o, answer: a}
	if o.logprobs != nil {
		e.scorer = openai.Scorer{Top: *o.logprobs, Vocabulary: a.Vocabulary}
	}
	return e
}

// AppendStart implements dialect.Encoder.
func (e *encoder) AppendStart(dst []byte, _ int) []byte {
	if !e.stream {
		return dst
	}
	for _, name := range []string{"response.created", "response.in_progress"} {
		dst = e.appendEvent(dst, name)
		dst = append(dst, `,"response":`...)
		dst = e.appendResponse(dst, "in_progress", nil, nil)
		dst = endEvent(dst)
	}
	return dst
}

// AppendText implements dialect.Encoder.
func (e *encoder) AppendText(dst []byte, choice int, text []byte) []byte {
	dst = e.OpenDelta(dst, choice, dialect.DeltaContent, 0)
	return e.CloseDelta(e.AppendDelta(dst, text))
}

// AppendTokens implements dialect.Encoder: within a delta of text, the tokens that it was
// made of.
func (e *encoder) AppendTokens(dst []byte, _ int, _ []byte, t dialect.Tokens) []byte {
	if len(t.IDs) == 0 {
		return dst
	}
	if len(e.scores) > e.items[len(e.items)-1].scored {
		e.scores = append(e.scores, ',')
	}
	e.scores = e.scorer.AppendEntries(e.scores, t.IDs, &t.Logprobs)
	return dst
}

// AppendCall implements dialect.Encoder.
func (e *encoder) AppendCall(dst []byte, _, _ int, id, name string) []byte {
	dst = e.closeItem(dst, "completed")
	it := item{kind: call, callID: id, name: name}
	if k, ok := e.known[name]; ok {
		it.namespace, it.name = k.namespace, k.name
		if k.custom {
			it.kind, e.text = custom, customText{}
		}
	}
	return e.openItem(dst, it)
}

// EndCall implements dialect.Encoder: a call whose arguments are no JSON is an incomplete item.
// The text of a custom tool need not be JSON, and ends with the next item or the answer.
func (e *encoder) EndCall(dst []byte, _ int, valid bool) []byte {
	status := "completed"
	switch bare := e.items[len(e.items)-1].kind == custom && e.text.at == customBare; {
	case !valid && bare:
		return dst
	case !valid:
		status = "incomplete"
	}
	return e.closeItem(dst, status)
}

// OpenDelta implements dialect.Encoder.
func (e *encoder) OpenDelta(dst []byte, _ int, d dialect.Delta, _ int) []byte {
	want := [...]kind{dialect.DeltaContent: message, dialect.DeltaReasoning: reasoning, dialect.DeltaArguments: call}[d]
	if want == call && e.open && e.items[len(e.items)-1].kind == custom {
		want = custom
	}
	if !e.open || e.items[len(e.items)-1].kind != want {
		dst = e.closeItem(dst, "completed")
		dst = e.openItem(dst, item{kind: want})
	}
	if !e.stream {
		return dst
	}
	switch {
	case want == message:
		dst = e.appendEvent(dst, "response.output_text.delta")
	case want == call:
		dst = e.appendEvent(dst, "response.function_call_arguments.delta")
	case want == custom:
		dst = e.appendEvent(dst, "response.custom_tool_call_input.delta")
	case e.summary:
		dst = e.appendEvent(dst, "response.reasoning_summary_text.delta")
	default:
		dst = e.appendEvent(dst, "response.reasoning_text.delta")
	}
	dst = e.appendPlace(dst)
	return append(dst, `,"delta":"`...)
}

// AppendDelta implements dialect.Encoder.
func (e *encoder) AppendDelta(dst, text []byte) []byte {
	from, it := len(e.said), &e.items[len(e.items)-1]
	if it.kind == custom {
		e.said = e.text.append(e.said, text)
	} else {
		e.said = dialect.AppendEscaped(e.said, text)
	}
	it.to = len(e.said)
	if !e.stream {
		return dst
	}
	return append(dst, e.said[from:]...)
}

// CloseDelta implements dialect.Encoder.
func (e *encoder) CloseDelta(dst []byte) []byte {
	if !e.stream {
		return dst
	}
	dst = append(dst, '"')
	if it := &e.items[len(e.items)-1]; it.kind == message {
		fresh := e.scores[e.told:]
		if e.told > it.scored && len(fresh) > 0 {
			fresh = fresh[len(","):]
		}
		dst = appendLogprobs(dst, fresh)
		e.told = len(e.scores)
	}
	return endEvent(dst)
}

// AppendFinish implements dialect.Encoder. A cut answer's last item is cut too, unless it is a
// call that was complete.
func (e *encoder) AppendFinish(dst []byte, _ int, f dialect.Finish) []byte {
	e.reason = f.Reason
	if f.Reason == infer.ReasonLength {
		return e.closeItem(dst, "incomplete")
	}
	return e.closeItem(dst, "completed")
}

// AppendEnd implements dialect.Encoder.
func (e *encoder) AppendEnd(dst []byte, u infer.Usage) []byte {
	status := "completed"
	if e.reason == infer.ReasonLength {
		status = "incomplete"
	}
	if !e.stream {
		return e.appendResponse(dst, status, &u, nil)
	}
	dst = e.appendEvent(dst, "response."+status)
	dst = append(dst, `,"response":`...)
	dst = e.appendResponse(dst, status, &u, nil)
	return endEvent(dst)
}

// AppendError implements dialect.Encoder: an error event, for clients that look for
// one, and the failed answer, which ends the stream.
func (e *encoder) AppendError(dst []byte, failure *infer.Error) []byte {
	dst = appendErrorEvent(e.appendEvent(dst, "error"), failure)
	dst = e.appendEvent(dst, "response.failed")
	dst = append(dst, `,"response":`...)
	dst = e.appendResponse(dst, "failed", nil, failure)
	return endEvent(dst)
}

// appendErrorMembers appends what an error event says.
func appendErrorMembers(dst []byte, e *infer.Error) []byte {
	dst = append(dst, `,"code":`...)
	dst = dialect.AppendStringOrNull(dst, openai.ClassOf(e).Code)
	dst = append(dst, `,"message":`...)
	dst = dialect.AppendString(dst, e.Message)
	dst = append(dst, `,"param":`...)
	return dialect.AppendStringOrNull(dst, e.Param)
}

// appendEvent begins an event.
func (e *encoder) appendEvent(dst []byte, name string) []byte {
	dst = append(append(dst, "event: "...), name...)
	dst = append(append(append(dst, "\ndata: {\"type\":\""...), name...), `","sequence_number":`...)
	dst = strconv.AppendInt(dst, int64(e.sequence), 10)
	e.sequence++
	return dst
}

func endEvent(dst []byte) []byte { return append(dst, "}\n\n"...) }

// openItem begins an item, and the one part that holds its text.
func (e *encoder) openItem(dst []byte, it item) []byte {
	it.from, it.to, it.scored = len(e.said), len(e.said), len(e.scores)
	e.told = it.scored
	e.items = append(e.items, it)
	e.open = true
	if !e.stream {
		return dst
	}
	dst = e.appendEvent(dst, "response.output_item.added")
	dst = e.appendIndex(dst)
	dst = append(dst, `,"item":`...)
	dst = e.appendItem(dst, len(e.items)-1, "in_progress", true)
	dst = endEvent(dst)
	switch {
	case it.kind == call || it.kind == custom:
		return dst
	case it.kind == reasoning && e.summary:
		dst = e.appendEvent(dst, "response.reasoning_summary_part.added")
	default:
		dst = e.appendEvent(dst, "response.content_part.added")
	}
	dst = e.appendPlace(dst)
	dst = append(dst, `,"part":`...)
	dst = e.appendPart(dst, len(e.items)-1)
	return endEvent(dst)
}

// closeItem ends the item under way, if there is one.
func (e *encoder) closeItem(dst []byte, status string) []byte {
	if !e.open {
		return dst
	}
	e.open = false
	last := len(e.items) - 1
	it := &e.items[last]
	it.status = status
	if it.kind == custom {
		dst = e.appendRest(dst, it)
	}
	if !e.stream {
		return dst
	}
	switch {
	case it.kind == custom:
		dst = e.appendEvent(dst, "response.custom_tool_call_input.done")
		dst = e.appendPlace(dst)
		dst = append(append(dst, `,"input":"`...), e.said[it.from:it.to]...)
		dst = endEvent(append(dst, '"'))
	case it.kind == call:
		dst = e.appendEvent(dst, "response.function_call_arguments.done")
		dst = e.appendPlace(dst)
		dst = append(append(append(dst, `,"arguments":"`...), e.said[it.from:it.to]...), `","name":`...)
		dst = endEvent(dialect.AppendString(dst, it.name))
	case it.kind == message:
		dst = e.appendDone(dst, it, "response.output_text.done", "response.content_part.done")
	case e.summary:
		dst = e.appendDone(dst, it, "response.reasoning_summary_text.done", "response.reasoning_summary_part.done")
	default:
		dst = e.appendDone(dst, it, "response.reasoning_text.done", "response.content_part.done")
	}
	dst = e.appendEvent(dst, "response.output_item.done")
	dst = e.appendIndex(dst)
	dst = append(dst, `,"item":`...)
	dst = e.appendItem(dst, last, status, false)
	return endEvent(dst)
}

// appendRest ends the text of a custom tool's call with what was held back of it.
func (e *encoder) appendRest(dst []byte, it *item) []byte {
	e.said = e.text.end(e.said)
	rest := e.said[it.to:]
	it.to = len(e.said)
	if !e.stream || len(rest) == 0 {
		return dst
	}
	dst = e.appendEvent(dst, "response.custom_tool_call_input.delta")
	dst = e.appendPlace(dst)
	dst = append(append(append(dst, `,"delta":"`...), rest...), '"')
	return endEvent(dst)
}

// appendDone appends the ends of a text and of the part that holds it.
func (e *encoder) appendDone(dst []byte, it *item, text, part string) []byte {
	dst = e.appendEvent(dst, text)
	dst = e.appendPlace(dst)
	dst = append(append(append(dst, `,"text":"`...), e.said[it.from:it.to]...), '"')
	if it.kind == message {
		dst = appendLogprobs(dst, e.scores[it.scored:])
	}
	dst = endEvent(dst)
	dst = e.appendEvent(dst, part)
	dst = e.appendPlace(dst)
	dst = append(dst, `,"part":`...)
	return endEvent(e.appendPart(dst, len(e.items)-1))
}

func appendLogprobs(dst, entries []byte) []byte {
	dst = append(append(dst, `,"logprobs":[`...), entries...)
	return append(dst, ']')
}

// appendIndex appends the index of the item under way.
func (e *encoder) appendIndex(dst []byte) []byte {
	dst = append(dst, `,"output_index":`...)
	return strconv.AppendInt(dst, int64(len(e.items)-1), 10)
}

// appendPlace appends the members that say which text an event is about.
func (e *encoder) appendPlace(dst []byte) []byte {
	last := len(e.items) - 1
	dst = append(dst, `,"item_id":"`...)
	dst = append(e.appendItemID(dst, last), '"')
	dst = e.appendIndex(dst)
	switch k := e.items[last].kind; {
	case k == call || k == custom:
		return dst
	case k == reasoning && e.summary:
		return append(dst, `,"summary_index":0`...)
	}
	return append(dst, `,"content_index":0`...)
}

// appendItemID appends an item's id, which is the answer's with the item's index.
func (e *encoder) appendItemID(dst []byte, i int) []byte {
	dst = append(dst, [...]string{message: "msg_", reasoning: "rs_", call: "fc_", custom: "ctc_"}[e.items[i].kind]...)
	dst = append(append(dst, e.answer.ID...), '_')
	return strconv.AppendInt(dst, int64(i), 10)
}

// appendPart appends the part that holds an item's text.
func (e *encoder) appendPart(dst []byte, i int) []byte {
	it := &e.items[i]
	switch {
	case it.kind == message:
		dst = append(dst, `{"type":"output_text","text":"`...)
	case e.summary:
		dst = append(dst, `{"type":"summary_text","text":"`...)
	default:
		dst = append(dst, `{"type":"reasoning_text","text":"`...)
	}
	dst = append(append(dst, e.said[it.from:it.to]...), '"')
	if it.kind == message {
		to := len(e.scores)
		if i+1 < len(e.items) {
			to = e.items[i+1].scored
		}
		dst = appendLogprobs(append(dst, `,"annotations":[]`...), e.scores[it.scored:to])
	}
	return append(dst, '}')
}

// appendItem appends an item; empty leaves out the part that is still to come.
func (e *encoder) appendItem(dst []byte, i int, status string, empty bool) []byte {
	it := &e.items[i]
	dst = append(dst, `{"id":"`...)
	dst = e.appendItemID(dst, i)
	dst = append(append(append(dst, `","type":"`...), [...]string{message: "message", reasoning: "reasoning", call: "function_call", custom: "custom_tool_call"}[it.kind]...), `","status":"`...)
	dst = append(append(dst, status...), '"')
	part := func(name string, has bool) {
		dst = append(append(append(dst, `,"`...), name...), `":[`...)
		if has && !empty {
			dst = e.appendPart(dst, i)
		}
		dst = append(dst, ']')
	}
	switch it.kind {
	case message:
		dst = append(dst, `,"role":"assistant"`...)
		part("content", true)
	case reasoning:
		part("summary", e.summary)
		part("content", !e.summary)
		dst = append(dst, `,"encrypted_content":null`...)
	case call, custom:
		member := `,"arguments":"`
		if it.kind == custom {
			member = `,"input":"`
		}
		dst = append(append(append(dst, member...), e.said[it.from:it.to]...), `","call_id":`...)
		dst = append(dialect.AppendString(dst, it.callID), `,"name":`...)
		dst = dialect.AppendString(dst, it.name)
		if it.namespace != "" {
			dst = dialect.AppendString(append(dst, `,"namespace":`...), it.namespace)
		}
	}
	return append(dst, '}')
}

// appendResponse appends the answer's object: all of its output, unless it has
// just begun.
func (e *encoder) appendResponse(dst []byte, status string, u *infer.Usage, failure *infer.Error) []byte {
	dst = append(dst, `{"id":`...)
	dst = dialect.AppendString(dst, "resp_"+e.answer.ID)
	dst = append(dst, `,"object":"response","created_at":`...)
	dst = strconv.AppendInt(dst, e.answer.Created, 10)
	dst = append(dst, `,"completed_at":`...)
	switch {
	case status != "completed":
		dst = append(dst, "null"...)
	case e.answer.Now == nil:
		dst = strconv.AppendInt(dst, e.answer.Created, 10)
	default:
		dst = strconv.AppendInt(dst, e.answer.Now(), 10)
	}
	dst = append(append(append(dst, `,"status":"`...), status...), `","error":`...)
	if failure == nil {
		dst = append(dst, "null"...)
	} else {
		dst = append(append(append(dst, `{"code":"`...), failureCode(failure)...), `","message":`...)
		dst = append(dialect.AppendString(dst, failure.Message), '}')
	}
	dst = append(dst, `,"incomplete_details":`...)
	if status == "incomplete" {
		dst = append(dst, `{"reason":"max_output_tokens"}`...)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"model":`...)
	dst = dialect.AppendString(dst, e.answer.Model)
	dst = append(dst, e.echo...)
	dst = append(dst, `,"output":[`...)
	for i := range e.items {
		if i > 0 {
			dst = append(dst, ',')
		}
		itemStatus := e.items[i].status
		if itemStatus == "" {
			itemStatus = "incomplete"
		}
		dst = e.appendItem(dst, i, itemStatus, false)
	}
	dst = append(dst, `],"usage":`...)
	if u == nil {
		dst = append(dst, "null"...)
	} else {
		dst = appendUsage(dst, u)
	}
	return append(dst, '}')
}

// failureCode is the code of a failed answer, of the few that the API has.
func failureCode(e *infer.Error) string {
	if e.Code == infer.CodeOverloaded {
		return "rate_limit_exceeded"
	}
	return "server_error"
}

// appendUsage appends the usage. Clients count on all of its members, so what an
// engine does not say is 0.
func appendUsage(dst []byte, u *infer.Usage) []byte {
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.PromptTokens), 10)
	dst = append(dst, `,"input_tokens_details":{"cached_tokens":`...)
	dst = strconv.AppendInt(dst, int64(max(u.CachedTokens, 0)), 10)
	dst = append(dst, `,"cache_write_tokens":0},"output_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.CompletionTokens), 10)
	dst = append(dst, `,"output_tokens_details":{"reasoning_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.ReasoningTokens), 10)
	dst = append(dst, `},"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.PromptTokens)+int64(u.CompletionTokens), 10)
	return append(dst, '}')
}
