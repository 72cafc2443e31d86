package answer

import (
	"weir/internal/dialect"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/model/outputparse"
)

// encode is stage 12: text into response bytes in the caller's dialect, events for
// each merged delta of a stream, or all at the end. It returns the engine's error
// if the choice ended with one; what came before it is encoded all the same.
func (t *Tokens) encode(out []byte, ch *choice, c *stream.Cell, p piece, events []outputparse.Event) ([]byte, *infer.Error) {
	if !ch.started {
		ch.started = true
		if t.enc == nil {
			t.enc, t.o.Encoder = t.o.Encoder(t, t.counted), nil
		}
		out = t.enc.AppendStart(out, int(ch.index))
	}
	text := p.text
	if ch.parser != nil || ch.scores != nil {
		out = t.encodeEvents(out, ch, events)
		text = nil
	}
	if t.tokens {
		tokens := dialect.Tokens{IDs: c.IDs[:p.used], Last: p.ended}
		if c.Logprobs != nil {
			tokens.Logprobs = c.Logprobs.Cut(0, p.used, *t.o.Request.Logprobs)
		}
		out = t.enc.AppendTokens(out, int(ch.index), text, tokens)
	} else if len(text) > 0 {
		out = t.enc.AppendText(out, int(ch.index), text)
	}
	switch {
	case !p.ended && c.Finish != nil:
		return out, t.engineError(c.Finish)
	case !p.ended:
		return out, nil
	}
	reason := infer.ReasonStop
	if c.Finish != nil {
		reason = c.Finish.Reason
	}
	return t.end(out, ch, c.Finish, reason), nil
}

// encodeEvents is encode where text is taken apart.
func (t *Tokens) encodeEvents(out []byte, ch *choice, events []outputparse.Event) []byte {
	for i := 0; i < len(events); {
		e := &events[i]
		switch e.Kind {
		case outputparse.CallBegin:
			ch.called = true
			id := e.ID
			if id == "" {
				id = t.o.CallID(e.Name, e.Call)
			}
			out = t.enc.AppendCall(out, int(ch.index), e.Call, id, e.Name)
			i++
		case outputparse.CallEnd:
			ch.broken = ch.broken || !e.Valid
			out = t.enc.EndCall(out, int(ch.index), e.Valid)
			i++
		default:
			to := spanOf(events, i)
			out = t.encodeSpan(out, ch, events, i, to)
			i = to
		}
	}
	if ch.parser != nil && ch.parser.Plain() {
		ch.parser = nil
	}
	return out
}

// spanOf returns the end of the events from one on that go on with each other.
func spanOf(events []outputparse.Event, from int) (to int) {
	first := &events[from]
	to = from + 1
	for to < len(events) && events[to].Kind == first.Kind && events[to].Call == first.Call {
		to++
	}
	return to
}

// encodeSpan encodes events that go on with each other as one delta.
func (t *Tokens) encodeSpan(out []byte, ch *choice, events []outputparse.Event, from, to int) []byte {
	delta := dialect.DeltaContent
	switch events[from].Kind {
	case outputparse.Reasoning:
		delta = dialect.DeltaReasoning
	case outputparse.Arguments:
		delta = dialect.DeltaArguments
	}
	out = t.enc.OpenDelta(out, int(ch.index), delta, events[from].Call)
	for i := range events[from:to] {
		out = t.enc.AppendDelta(out, events[from+i].Text)
	}
	if ch.scores != nil && delta == dialect.DeltaContent {
		out = t.enc.AppendTokens(out, int(ch.index), nil, ch.scores.tokens(from, to))
	}
	return t.enc.CloseDelta(out)
}

// stop returns the index of the stop string that ended the choice, or -1.
func (ch *choice) stop() int {
	switch {
	case ch.ends != nil:
		return ch.ends.parser.Stop()
	case ch.detok != nil:
		return ch.detok.Stop()
	}
	return -1
}

// whole reports whether an engine has ended a generation because it is whole, or as the
// caller wants.
func (t *Tokens) whole(f *infer.Finish) bool {
	return f.Err == nil && (f.Reason == infer.ReasonStop || f.Reason == infer.ReasonLength || f.Reason == infer.ReasonAbort && t.aborted)
}

// engineError is why the engine ended a generation that is not whole. The adapter may give
// one error for every generation of a lost connection, so it is a copy.
func (t *Tokens) engineError(f *infer.Finish) *infer.Error {
	if f.Err != nil {
		err := *f.Err
		return &err
	}
	return &infer.Error{Code: infer.CodeEngine, Retryable: true, Message: "the engine gave up the request before its answer was complete"}
}

// end encodes what follows a choice's last text, and after the last choice the end
// of the answer. f is nil where a stop string or a call ended the choice.
func (t *Tokens) end(out []byte, ch *choice, f *infer.Finish, reason infer.Reason) []byte {
	if f != nil {
		if f.CachedTokens >= 0 {
			ch.cached = f.CachedTokens
		}
		ch.tokens += f.Unsent
		if t.o.EngineCounts && f.PromptTokens > 0 {
			t.counted = f.PromptTokens
		}
	}
	if reason == infer.ReasonStop && ch.called && !ch.broken {
		reason = infer.ReasonToolCalls
	}
	finish := dialect.Finish{Reason: reason, Tokens: ch.tokens}
	if f != nil {
		finish.StopID, finish.ByID = f.StopID, f.ByID
	}
	if i := ch.stop(); i >= 0 {
		finish.Stop = t.o.Request.Stop[i]
	}
	out = t.enc.AppendFinish(out, int(ch.index), finish)
	ch.ended = true
	if t.left--; t.left > 0 {
		return out
	}
	u, _ := t.Usage()
	return t.enc.AppendEnd(out, u)
}
