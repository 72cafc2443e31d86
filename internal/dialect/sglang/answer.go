package sglang

import (
	"math"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/jsonlex"
)

// Options are the gateway's settings.
type Options struct {
	// Incremental makes each event of a stream hold only the new output unless the
	// caller asks otherwise, as SGLang's --incremental-streaming-output does.
	Incremental bool
}

// New returns the endpoint of /generate.
func New(o Options) dialect.Endpoint { return &endpoint{o} }

// shape is what a request asks of the form of its answer.
type shape struct {
	rid         string // the caller's own, empty when none was given
	stream      bool
	incremental bool // an event holds what is new, not all so far
	noText      bool
	batch       bool // the answer is a list
	hidden      bool // the one id that is generated is not told
	promptIDs   bool
	interval    int  // ids between two events; 0 when the caller did not say
	scored      bool // log probabilities are told
	top         int  // with so many alternatives
	scoredText  bool // and the text of each id
}

// repeats bounds what a cumulative stream costs, which would otherwise grow with
// the square of the answer: an event comes when one part in so many of what it
// holds is new. Up to so many ids that is each of them; 16,000 ids of six
// characters come in some 1,300 events and 60 MB, in place of 16,000 and 0.8 GB.
const repeats = 256

// answer appends one answer, streamed or whole.
type answer struct {
	shape
	id         string
	promptOf   func(choice int) []uint32
	prompted   int // tokens of a prompt with media; 0: as many as its ids
	vocabulary dialect.Vocabulary
	timing     func() dialect.Timing
	choices    []choice
}

// choice is one of the answer's choices. What it has said is kept as JSON: all of
// it where events repeat it, or where there are none; otherwise what the next
// event says.
type choice struct {
	text, ids []byte
	own, tops []byte  // log probabilities
	scores    *scored // of the prompt; nil: none have come

	open   string // of meta_info, up to the finish reason
	prompt string // and from there to the count
	head   []byte // prompt_token_ids, until they are said

	count    int // ids so far
	told     int // as of the latest event
	finish   dialect.Finish
	finished bool
	closed   bool // its last event is out
}

func newAnswer(s shape, o dialect.AnswerOptions) *answer {
	a := &answer{shape: s, id: s.rid, promptOf: o.PromptOf, prompted: o.PromptTokens, vocabulary: o.Vocabulary, timing: o.Timing}
	if a.id == "" {
		a.id = o.ID
	}
	if a.promptOf == nil {
		ids := o.PromptIDs
		a.promptOf = func(int) []uint32 { return ids }
	}
	return a
}

// AppendStart implements dialect.Encoder.
func (a *answer) AppendStart(dst []byte, index int) []byte {
	a.at(index)
	return dst
}

func (a *answer) at(index int) *choice {
	for i := len(a.choices); i <= index; i++ {
		id, prompt := a.id, a.promptOf(i)
		if a.batch {
			id += "_" + strconv.Itoa(i)
		}
		prompted := len(prompt)
		if a.prompted > 0 { // and there is one prompt
			prompted = a.prompted
		}
		c := choice{
			open:   string(dialect.AppendString([]byte(`"meta_info":{"id":`), id)) + `,"finish_reason":`,
			prompt: `,"prompt_tokens":` + strconv.Itoa(prompted) + `,"completion_tokens":`,
		}
		if a.promptIDs {
			c.head = append(jsonlex.AppendIDs([]byte(`"prompt_token_ids":[`), prompt), "],"...)
		}
		a.choices = append(a.choices, c)
	}
	return &a.choices[index]
}

// scored are the log probabilities of a choice's prompt, as JSON.
type scored struct {
	own, tops []byte
	n         int // of them
}

// scorePrompt notes the log probabilities of a prompt. That of its first id, which follows
// nothing, is null.
func (a *answer) scorePrompt(c *choice, p *infer.PromptLogprobs) {
	c.scores = &scored{n: len(p.IDs) * (1 + a.top)}
	own := a.appendPair(append(c.scores.own, "[null"...), p.IDs[0])
	tops := append(c.scores.tops, "null"...)
	for i, id := range p.IDs[1:] {
		own = a.appendScore(append(own, ','), p.Own[i], id)
		tops = a.appendTops(append(tops, ','), &p.Logprobs, i)
	}
	c.scores.own, c.scores.tops = own, tops
}

// AppendText implements dialect.Encoder.
func (a *answer) AppendText(dst []byte, index int, text []byte) []byte {
	return a.AppendTokens(dst, index, text, dialect.Tokens{})
}

// AppendTokens implements dialect.Encoder.
func (a *answer) AppendTokens(dst []byte, index int, text []byte, t dialect.Tokens) []byte {
	c := a.at(index)
	if t.Logprobs.Prompt != nil && c.scores == nil {
		a.scorePrompt(c, t.Logprobs.Prompt)
	}
	if a.hidden {
		return dst
	}
	if !a.noText {
		c.text = dialect.AppendEscaped(c.text, text)
	}
	if len(t.IDs) > 0 && len(c.ids) > 0 {
		c.ids = append(c.ids, ',')
	}
	c.ids = jsonlex.AppendIDs(c.ids, t.IDs)
	if a.scored {
		a.score(c, t)
	}
	c.count += len(t.IDs)
	if !a.stream || t.Last || !a.due(c) {
		return dst
	}
	dst = a.object(append(dst, "data: "...), index, "null", c.count)
	return append(dst, "}}\n\n"...)
}

// due reports whether it is time for an event. The first id never waits.
func (a *answer) due(c *choice) bool {
	fresh := c.count - c.told
	if c.told == 0 {
		return fresh > 0
	}
	least := max(1, a.interval)
	if !a.incremental {
		held := c.count
		if c.scores != nil {
			held += c.scores.n
		}
		least = max(least, held/repeats)
	}
	return fresh >= least
}

// object appends what a choice says, up to its count.
func (a *answer) object(dst []byte, index int, finish string, count int) []byte {
	c := &a.choices[index]
	dst = append(dst, '{')
	if !a.noText {
		dst = append(append(append(dst, `"text":"`...), c.text...), `",`...)
	}
	if a.batch {
		dst = append(strconv.AppendInt(append(dst, `"index":`...), int64(index), 10), ',')
	}
	dst = append(dst, c.head...)
	// output_ids and meta_info come last and next to each other: who reads only
	// the end of an event finds both there.
	dst = append(append(append(dst, `"output_ids":[`...), c.ids...), `],`...)
	dst = append(append(append(dst, c.open...), finish...), c.prompt...)
	dst = strconv.AppendInt(dst, int64(count), 10)
	if a.scored {
		var prompt scored
		if c.scores != nil && (!a.incremental || c.told == 0 || c.finished) {
			prompt = *c.scores
		}
		dst = append(append(dst, `,"input_token_logprobs":[`...), prompt.own...)
		dst = append(append(append(dst, `],"output_token_logprobs":[`...), c.own...), ']')
		if a.top > 0 {
			dst = append(append(dst, `,"input_top_logprobs":[`...), prompt.tops...)
			dst = append(append(append(dst, `],"output_top_logprobs":[`...), c.tops...), ']')
		}
	}
	if a.stream {
		c.told = c.count
		c.head = nil
		if a.incremental {
			c.text, c.ids, c.own, c.tops = c.text[:0], c.ids[:0], c.own[:0], c.tops[:0]
		}
	}
	return dst
}

// score notes the log probabilities of ids that are told.
func (a *answer) score(c *choice, t dialect.Tokens) {
	l := &t.Logprobs
	for i, id := range t.IDs {
		if len(c.own) > 0 {
			c.own = append(c.own, ',')
		}
		c.own = a.appendScore(c.own, l.Own[i], id)
		if a.top == 0 {
			continue
		}
		if len(c.tops) > 0 {
			c.tops = append(c.tops, ',')
		}
		c.tops = a.appendTops(c.tops, l, i)
	}
}

// appendTops appends the alternatives at a position.
func (a *answer) appendTops(dst []byte, l *infer.Logprobs, i int) []byte {
	dst = append(dst, '[')
	for k := i * a.top; k < (i+1)*a.top; k++ {
		if k > i*a.top {
			dst = append(dst, ',')
		}
		dst = a.appendScore(dst, l.Top[k], l.TopIDs[k])
	}
	return append(dst, ']')
}

// leastLogprob stands for what JSON has no number for: the log probability of
// what cannot be.
const leastLogprob = -9999

// appendScore appends a triple of log probability, id and text.
func (a *answer) appendScore(dst []byte, v float32, id uint32) []byte {
	dst = append(dst, '[')
	if f := float64(v); math.IsInf(f, 0) || math.IsNaN(f) {
		dst = strconv.AppendInt(dst, leastLogprob, 10)
	} else {
		dst = strconv.AppendFloat(dst, f, 'g', -1, 32)
	}
	return a.appendPair(dst, id)
}

// appendPair ends a triple with the id and its text.
func (a *answer) appendPair(dst []byte, id uint32) []byte {
	dst = append(strconv.AppendUint(append(dst, ','), uint64(id), 10), ',')
	if !a.scoredText {
		return append(dst, "null]"...)
	}
	dst = dialect.AppendEscaped(append(dst, '"'), a.vocabulary.TokenBytes(id))
	return append(dst, `"]`...)
}

// AppendFinish implements dialect.Encoder. The last event of an answer with one
// choice is left to AppendEnd, which knows more.
func (a *answer) AppendFinish(dst []byte, index int, f dialect.Finish) []byte {
	c := a.at(index)
	c.finish, c.finished = f, true
	if !a.stream || !a.batch {
		return dst
	}
	return a.last(dst, index, infer.Usage{CachedTokens: -1})
}

// last appends the last event of a choice.
func (a *answer) last(dst []byte, index int, u infer.Usage) []byte {
	dst = a.whole(append(dst, "data: "...), index, u)
	a.choices[index].closed = true
	return append(dst, "\n\n"...)
}

// whole appends the object of a choice that has ended.
func (a *answer) whole(dst []byte, index int, u infer.Usage) []byte {
	f := a.choices[index].finish
	if a.hidden {
		f = dialect.Finish{Reason: infer.ReasonLength}
	}
	dst = a.object(dst, index, string(appendReason(nil, f)), f.Tokens)
	if u.CachedTokens >= 0 {
		dst = strconv.AppendInt(append(dst, `,"cached_tokens":`...), int64(u.CachedTokens), 10)
	}
	if a.timing != nil {
		dst = appendTiming(dst, a.timing())
	}
	return append(dst, "}}"...)
}

// appendReason appends why a choice ended.
func appendReason(dst []byte, f dialect.Finish) []byte {
	switch f.Reason {
	case infer.ReasonAbort:
		return append(dst, `{"type":"abort","message":"The request was aborted.","status_code":null,"err_type":null}`...)
	case infer.ReasonLength:
		dst = append(dst, `{"type":"length","length":`...)
		return append(strconv.AppendInt(dst, int64(f.Tokens), 10), '}')
	}
	dst = append(dst, `{"type":"stop","matched":`...)
	switch {
	case f.Stop != "":
		dst = dialect.AppendString(dst, f.Stop)
	case f.ByID:
		dst = strconv.AppendUint(dst, uint64(f.StopID), 10)
	default:
		dst = append(dst, "null"...)
	}
	return append(dst, '}')
}

// appendTiming appends what is known of a request's times, in seconds, by the
// names that a server of SGLang's has for them.
func appendTiming(dst []byte, t dialect.Timing) []byte {
	for _, f := range []struct {
		name    string
		seconds float64
	}{
		{"e2e_latency", t.Duration},
		{"request_received_ts", t.Received},
		{"api_server_dispatch_finish_ts", t.Dispatched},
		{"queue_time", t.Queue},
		{"forward_entry_time", t.Started},
		{"prefill_finished_time", t.Prefilled},
		{"response_sent_to_client_ts", t.FirstSent},
		{"request_finished_ts", t.Ended},
	} {
		if f.seconds > 0 {
			dst = append(append(append(dst, `,"`...), f.name...), `":`...)
			dst = strconv.AppendFloat(dst, f.seconds, 'f', 6, 64)
		}
	}
	return dst
}

// AppendEnd implements dialect.Encoder.
func (a *answer) AppendEnd(dst []byte, u infer.Usage) []byte {
	if len(a.choices) > 1 {
		u.CachedTokens = -1 // the count is of all
	}
	if a.stream {
		for i := range a.choices {
			if !a.choices[i].closed {
				dst = a.last(dst, i, u)
			}
		}
		return append(dst, "data: [DONE]\n\n"...)
	}
	if a.batch {
		dst = append(dst, '[')
	}
	for i := range a.choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = a.whole(dst, i, u)
	}
	if a.batch {
		dst = append(dst, ']')
	}
	return dst
}

// AppendError implements dialect.Encoder: each choice that has not ended is aborted,
// in the words of a server that gives one up. No end marker follows.
func (a *answer) AppendError(dst []byte, e *infer.Error) []byte {
	a.at(0)
	class := classOf(e)
	reason := append([]byte(nil), `{"type":"abort","message":`...)
	reason = dialect.AppendString(reason, e.Message)
	reason = strconv.AppendInt(append(reason, `,"status_code":`...), int64(class.status), 10)
	reason = append(dialect.AppendString(append(reason, `,"err_type":`...), class.kind), '}')
	for i := range a.choices {
		if !a.choices[i].closed {
			dst = a.object(append(dst, "data: "...), i, string(reason), a.choices[i].count)
			dst = append(dst, "}}\n\n"...)
		}
	}
	return dst
}

// AppendCall implements dialect.Encoder. The prompt of /generate is no conversation,
// so its answer has no calls, nor reasoning apart from its text.
func (a *answer) AppendCall(dst []byte, _, _ int, _, _ string) []byte { return dst }

// EndCall implements dialect.Encoder.
func (a *answer) EndCall(dst []byte, _ int, _ bool) []byte { return dst }

// OpenDelta implements dialect.Encoder.
func (a *answer) OpenDelta(dst []byte, _ int, _ dialect.Delta, _ int) []byte { return dst }

// AppendDelta implements dialect.Encoder.
func (a *answer) AppendDelta(dst, _ []byte) []byte { return dst }

// CloseDelta implements dialect.Encoder.
func (a *answer) CloseDelta(dst []byte) []byte { return dst }

var _ dialect.Encoder = (*answer)(nil)
