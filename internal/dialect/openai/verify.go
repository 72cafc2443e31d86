package openai

import (
	"bytes"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/wire/sse"
)

// Why a stream is not verified, as words for a metric's label.
const (
	unverifiedEndpoint = "endpoint" // the engine gives no ids there
	unverifiedRequest  = "request"  // what is asked for would not be the same with them
	unverifiedIDs      = "no_ids"   // the engine has given none
	unverifiedCount    = "no_count" // nor a count of them
	unverifiedEvent    = "event"    // an event could not be read
	unverifiedAbort    = "abort"    // the engine gave the request up
)

// maxVerified bounds the body of a request whose stream is verified: with the ids come
// those of the prompt, in one event, which must not be larger than what is held.
const maxVerified = 512 << 10

// Verify implements dialect.Verifiable.
//
// vLLM and SGLang send the new ids in each event (return_token_ids) and, beside them,
// their count of the choice's ids so far (continuous_usage_stats). In SGLang the
// scheduler counts, so the count shows every loss behind the scheduler. In vLLM the API
// server counts what it sends, so the count shows losses on the way from there.
//
// Verification must not change the bytes that the caller gets. This limits it:
//
//   - vLLM's system_fingerprint is in the last event about a choice, or in the event of the usage
//     if the request asks for one. With one choice the event is held back until the usage, which
//     follows. With several choices the stream is verified only if the caller asks for the usage.
//   - With echo, vLLM omits the prompt's text if it sends the prompt's ids.
//   - Without include_reasoning, vLLM counts ids that it does not send.
func (e Endpoint) Verify(h *dialect.Head, engine infer.Verify) (*dialect.Asked, dialect.Verifier, string) {
	switch {
	case e != Completions && (e != Chat || engine != infer.VerifyVLLM):
		return nil, nil, unverifiedEndpoint
	case len(h.Body) > maxVerified:
		return nil, nil, unverifiedRequest
	}
	v := &verifier{engine: engine, count: make([]tally, 0, 1)}
	var options []byte
	seen := map[string]bool{}
	for _, f := range h.Fields {
		value := h.Body[f.Start:f.End]
		switch f.Name {
		case "return_token_ids":
			v.keepIDs = dialect.KindOf(value) == 't'
		case "stream_options":
			if dialect.KindOf(value) == '{' {
				options = value
			}
		case "echo", "use_beam_search":
			if dialect.KindOf(value) != 'f' && dialect.KindOf(value) != 'n' {
				return nil, nil, unverifiedRequest
			}
		case "include_reasoning":
			if dialect.KindOf(value) == 'f' {
				return nil, nil, unverifiedRequest
			}
		}
		if seen[f.Name] {
			return nil, nil, unverifiedRequest // it has two readings
		}
		seen[f.Name] = true
	}
	wanted, rest := usageWanted(options)
	v.keepUsage, v.keepEach = wanted.usage, wanted.each && (wanted.usage || engine == infer.VerifySGLang)
	if n := e.choices(h); engine == infer.VerifyVLLM && !v.keepUsage && n != 1 {
		return nil, nil, unverifiedRequest
	}
	asked := h.Ask()
	asked.Set("return_token_ids", "true")
	ask := `{"continuous_usage_stats":true`
	if engine == infer.VerifyVLLM || wanted.usage {
		ask += `,"include_usage":true`
	}
	asked.Set("stream_options", ask+rest+"}")
	return asked, v, ""
}

// wantedUsage is which usage a caller asks for.
type wantedUsage struct{ usage, each bool }

// usageWanted reads a stream's options, and gives the others of them, with a comma
// before each.
func usageWanted(raw []byte) (w wantedUsage, rest string) {
	if raw == nil {
		return w, ""
	}
	_ = dialect.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "include_usage":
			w.usage = dialect.KindOf(value) == 't'
		case "continuous_usage_stats":
			w.each = dialect.KindOf(value) == 't'
		default:
			rest += "," + string(dialect.AppendString(nil, name)) + ":" + string(value)
		}
		return nil
	})
	return w, rest
}

// Words for a metric's label: each fault that the ids of a stream may have.
const (
	flawTotal infer.Flaw = "total_mismatch" // not as many ids as the engine counts
	flawStop  infer.Flaw = "stop_mismatch"  // an end by an id that is not the last
)

// tally is what has come of a choice.
type tally struct {
	ids     int
	trimmed int  // 1: the id that ended it was counted and not given
	proven  bool // the engine's count after the latest ids was theirs
}

// verifier implements dialect.Verifier.
type verifier struct {
	engine                       infer.Verify
	keepIDs, keepUsage, keepEach bool // the caller asked for them

	walk   sse.Walker
	events int
	given  bool   // some event had ids
	why    string // it cannot be verified any more
	count  []tally
	usage  infer.Usage
	stated bool
	held   []byte // an event that waits for the usage, with the place for the fingerprint in it
	place  int
}

// Usage implements dialect.Verifier.
func (v *verifier) Usage() (infer.Usage, bool) { return v.usage, v.stated }

// Verified implements dialect.Verifier.
func (v *verifier) Verified() (ok bool, why string) {
	switch {
	case v.why != "":
		return false, v.why
	case !v.given:
		return false, unverifiedIDs
	}
	for i := range v.count {
		if !v.count[i].proven {
			return false, unverifiedCount
		}
	}
	return true, ""
}

// Rest implements dialect.Verifier.
func (v *verifier) Rest(dst []byte) []byte {
	dst = append(dst, v.held...)
	v.held = v.held[:0]
	return dst
}

// Events implements dialect.Verifier.
func (v *verifier) Events(dst, region []byte) (out []byte, good int, err error) {
	at := v.walk.Begin(region)
	dst = append(dst, region[:at]...)
	for at < len(region) {
		b, next := v.walk.Block(region, at)
		block := region[at:next]
		if b.Lines > 0 || b.Cut {
			v.events++
		}
		switch {
		case b.Cut, b.Lines > 1:
			v.why = unverifiedEvent
		case b.Lines == 1 && len(b.Data) > 0 && b.Data[0] == '{' && v.why != unverifiedEvent:
			if dst, err = v.event(dst, block, b.Data); err != nil {
				return dst, at, dialect.EventFault(v.events, err)
			}
			at = next
			continue
		}
		dst = append(v.Rest(dst), block...)
		at = next
	}
	return dst, at, nil
}

// part is where something stands in an event's data.
type part struct{ from, start, end int } // of a member, with the comma before it; its value

func (p part) value(data []byte) []byte { return data[p.start:p.end] }

func (p part) there() bool { return p.end > 0 }

// eventParts are those of an event that matter here.
type eventParts struct {
	choices, usage, prompt, fingerprint part
}

// choiceParts are those of a choice.
type choiceParts struct {
	index                                                     int
	ids, prompt, reason, delta, logprobs, stopReason, matched part
}

// event takes in one event, and appends what the caller gets of it.
func (v *verifier) event(dst, block, data []byte) ([]byte, error) {
	var e eventParts
	if !members(data, 0, func(name []byte, p part) {
		switch string(name) {
		case "choices":
			e.choices = p
		case "usage":
			e.usage = p
		case "prompt_token_ids":
			e.prompt = p
		case "system_fingerprint":
			e.fingerprint = p
		}
	}) {
		v.why = unverifiedEvent
		return append(v.Rest(dst), block...), nil
	}
	counted, prompt := counts(data, e.usage)
	var edit edits
	var choice choiceParts
	choices := 0
	if e.choices.there() && data[e.choices.start] == '[' {
		at := e.choices.start + 1
		for {
			at = blanks(data, at)
			if at >= len(data) || data[at] != '{' {
				break
			}
			choice = choiceParts{}
			end := readChoice(data, at, &choice)
			if end < 0 {
				v.why = unverifiedEvent
				return append(v.Rest(dst), block...), nil
			}
			choices++
			if err := v.choice(data, &choice); err != nil {
				return dst, err
			}
			v.strip(&edit, data, choice.ids, v.keepIDs)
			v.strip(&edit, data, choice.prompt, v.keepIDs)
			if at = blanks(data, end); at < len(data) && data[at] == ',' {
				at++
			}
		}
	}
	if counted >= 0 {
		if err := v.hold(&choice, choices, counted); err != nil {
			return dst, err
		}
		v.note(prompt)
	}
	v.strip(&edit, data, e.prompt, v.keepIDs)
	if choices == 0 {
		if v.engine == infer.VerifyVLLM && !v.keepUsage && counted >= 0 {
			// The event of the usage: it has the fingerprint in place of the one before.
			return v.release(dst, data, e.fingerprint), nil
		}
		return v.write(v.Rest(dst), block, data, &edit), nil
	}
	ends := choice.reason.there() && data[choice.reason.start] == '"'
	if v.engine == infer.VerifyVLLM && !v.keepIDs && choices == 1 && !ends && empty(data, &choice) {
		return dst, nil // it came for its ids alone
	}
	if v.keepEach {
		return v.write(v.Rest(dst), block, data, &edit), nil
	}
	if v.engine == infer.VerifySGLang {
		edit.add(e.usage.start, e.usage.end, "null", e.usage.there())
		return v.write(v.Rest(dst), block, data, &edit), nil
	}
	edit.add(e.usage.from, e.usage.end, "", e.usage.there())
	if !ends || v.keepUsage || !e.usage.there() {
		return v.write(v.Rest(dst), block, data, &edit), nil
	}
	dst = v.Rest(dst)
	v.held = v.write(v.held[:0], block, data, &edit)
	v.place = edit.moved(e.usage.from) + bytes.Index(block, data)
	return dst, nil
}

// release appends the event that was held, with the fingerprint of the usage's event.
func (v *verifier) release(dst, data []byte, fingerprint part) []byte {
	if len(v.held) == 0 {
		return dst
	}
	dst = append(dst, v.held[:v.place]...)
	if fingerprint.there() {
		dst = append(append(dst, `,"system_fingerprint":`...), fingerprint.value(data)...)
	}
	dst = append(dst, v.held[v.place:]...)
	v.held = v.held[:0]
	return dst
}

// write appends an event with what was edited.
func (v *verifier) write(dst, block, data []byte, e *edits) []byte {
	if e.n == 0 {
		return append(dst, block...)
	}
	at := bytes.Index(block, data)
	dst = append(dst, block[:at]...)
	from := 0
	for i := range e.n {
		dst = append(append(dst, data[from:e.from[i]]...), e.text[i]...)
		from = e.to[i]
	}
	dst = append(dst, data[from:]...)
	return append(dst, block[at+len(data):]...)
}

// strip takes ids out of an event, as the engine would have written it without: vLLM
// has null in their place, SGLang nothing.
func (v *verifier) strip(e *edits, data []byte, p part, keep bool) {
	switch {
	case keep || !p.there() || data[p.start] != '[':
	case v.engine == infer.VerifySGLang:
		e.add(p.from, p.end, "", true)
	default:
		e.add(p.start, p.end, "null", true)
	}
}

// counts reads an event's usage: tokens of the output and of the prompt, -1 for none.
func counts(data []byte, usage part) (completion, prompt int) {
	completion, prompt = -1, -1
	if !usage.there() || data[usage.start] != '{' {
		return completion, prompt
	}
	members(data, usage.start, func(name []byte, p part) {
		switch string(name) {
		case "completion_tokens":
			completion = plainNumber(p.value(data))
		case "prompt_tokens":
			prompt = plainNumber(p.value(data))
		}
	})
	return completion, prompt
}

// choice counts the ids of a choice.
func (v *verifier) choice(data []byte, c *choiceParts) error {
	if c.index < 0 || c.index >= maxChoices {
		return nil // the Inspector's
	}
	for len(v.count) <= c.index {
		v.count = append(v.count, tally{})
	}
	t := &v.count[c.index]
	if !c.ids.there() || data[c.ids.start] != '[' {
		return nil
	}
	n, last := countIDs(c.ids.value(data))
	if n > 0 {
		t.ids, t.proven, v.given = t.ids+n, false, true
	}
	stop := plainNumber(c.stopReason.value(data))
	if v.engine == infer.VerifyVLLM && stop >= 0 && n > 0 && last != stop {
		return dialect.Flawf(flawStop, "ends choice %d by the id %d, and the last that has come is %d", c.index, stop, last)
	}
	if v.engine == infer.VerifySGLang && string(c.reason.value(data)) == `"abort"` {
		v.why = unverifiedAbort // it may give the last id again
	}
	if matched := plainNumber(c.matched.value(data)); v.engine == infer.VerifySGLang && matched >= 0 && (n == 0 || last != matched) {
		t.trimmed = 1
	}
	return nil
}

// hold holds an event's count against the ids that have come: of its choice, or of all
// where it is about none.
func (v *verifier) hold(c *choiceParts, choices, counted int) error {
	about := v.count
	switch {
	case choices == 1 && c.index >= 0 && c.index < len(v.count):
		about = v.count[c.index : c.index+1]
	case choices != 0:
		return nil
	}
	switch came := total(about); {
	case counted == came:
		for i := range about {
			about[i].proven = true
		}
	case !v.given:
		v.why = unverifiedIDs // it knows nothing of ids
	case v.why == "":
		return dialect.Flawf(flawTotal, "counts %d tokens, and %d have come", counted, came)
	}
	return nil
}

// total is how many tokens have come, those that are counted and not given among them.
func total(count []tally) (n int) {
	for i := range count {
		n += count[i].ids + count[i].trimmed
	}
	return n
}

// note keeps what was counted, for the record.
func (v *verifier) note(prompt int) {
	total := total(v.count)
	v.usage = infer.Usage{PromptTokens: max(prompt, v.usage.PromptTokens), CompletionTokens: total, CachedTokens: -1}
	v.stated = v.given
}

// empty reports whether an event tells nothing of its choice but ids.
func empty(data []byte, c *choiceParts) bool {
	delta := c.delta.value(data)
	return len(delta) == 2 && delta[0] == '{' && (!c.logprobs.there() || data[c.logprobs.start] == 'n')
}

// readChoice reads the choice at data[at:], and gives the place after it, -1 for none.
func readChoice(data []byte, at int, c *choiceParts) (end int) {
	end, _, ok := dialect.CheckJSON(data, at)
	if !ok || !members(data, at, func(name []byte, p part) {
		switch string(name) {
		case "index":
			c.index = plainNumber(p.value(data))
		case "token_ids":
			c.ids = p
		case "prompt_token_ids":
			c.prompt = p
		case "finish_reason":
			c.reason = p
		case "delta":
			c.delta = p
		case "logprobs":
			c.logprobs = p
		case "stop_reason":
			c.stopReason = p
		case "matched_stop":
			c.matched = p
		}
	}) {
		return -1
	}
	return end
}

// members shows each member of the object at data[at:]. It allocates nothing. ok is false
// where there is no object.
func members(data []byte, at int, visit func(name []byte, p part)) (ok bool) {
	at = blanks(data, at)
	if at >= len(data) || data[at] != '{' {
		return false
	}
	at = blanks(data, at+1)
	for from := at; at < len(data) && data[at] != '}'; {
		end, _, ok := dialect.CheckJSON(data, at)
		if !ok || data[at] != '"' {
			return false
		}
		name := data[at+1 : end-1]
		if at = blanks(data, end); at >= len(data) || data[at] != ':' {
			return false
		}
		at = blanks(data, at+1)
		if end, _, ok = dialect.CheckJSON(data, at); !ok {
			return false
		}
		visit(name, part{from, at, end})
		from = end
		if at = blanks(data, end); at < len(data) && data[at] == ',' {
			from, at = at, blanks(data, at+1)
		}
	}
	return at < len(data)
}

func blanks(data []byte, at int) int {
	var n dialect.Notes
	return dialect.SkipBlank(data, at, &n)
}

// plainNumber reads a whole number, -1 for anything else.
func plainNumber(raw []byte) int {
	if len(raw) == 0 || raw[0] < '0' || raw[0] > '9' {
		return -1
	}
	n, err := strconv.ParseInt(string(raw), 10, 62)
	if err != nil {
		return -1
	}
	return int(n)
}

// countIDs counts the ids of an array that is JSON, and gives the last; -1 where that is
// none.
func countIDs(raw []byte) (n, last int) {
	inside := bytes.TrimSpace(raw[1 : len(raw)-1])
	if len(inside) == 0 {
		return 0, -1
	}
	return bytes.Count(inside, []byte{','}) + 1, plainNumber(bytes.TrimSpace(inside[bytes.LastIndexByte(inside, ',')+1:]))
}

// edits are places of an event that are written anew, in their order.
type edits struct {
	n        int
	from, to [8]int
	text     [8]string
}

// add notes a place, if it is there. More than fit are left as they are.
func (e *edits) add(from, to int, text string, there bool) {
	if !there || e.n == len(e.from) {
		return
	}
	i := e.n
	for ; i > 0 && e.from[i-1] > from; i-- {
		e.from[i], e.to[i], e.text[i] = e.from[i-1], e.to[i-1], e.text[i-1]
	}
	e.from[i], e.to[i], e.text[i] = from, to, text
	e.n++
}

// moved returns where a place of the data is in what is written.
func (e *edits) moved(at int) int {
	by := 0
	for i := range e.n {
		if e.to[i] <= at {
			by += len(e.text[i]) - (e.to[i] - e.from[i])
		}
	}
	return at + by
}
