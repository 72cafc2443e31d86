// Package completion serves completions of the OpenAI API: chats and texts, as its owner documents them
// and as vLLM and SGLang speak it.
package completion

import (
	"strconv"

	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/speech"
	"weir/internal/sim/simserver/web"
)

// Answer is the answer to one completion request in the OpenAI API, in one of
// its dialects and voices. It is the form of its own exchange.
type Answer struct {
	exchange.Exchange
	d     *Dialect
	voice voice
	said  []saying // by output
	of    *Server

	Model      string   // as it is told
	head       string   // of an event, up to its choices
	heads      []string // by output, where they differ
	headWhole  string
	rids       []string // by output, on SGLang
	Streamed   bool
	WithUsage  bool // in the stream, in an event at its end
	Continuous bool // in each event
	n          int  // choices of each prompt
	Logprobs   int  // alternatives at each token, -1 for none at all
	tokenIDs   bool
	// tokensAsIDs names the tokens of log probabilities by their ids.
	tokensAsIDs bool
	Empty       bool // the request asks for nothing but whether there is such an endpoint
	Failed      bool // an error event was written; nothing but [DONE] follows
}

// saying is how the text of an output is taken apart.
type saying struct {
	speech *speech.Parser // nil where it is text alone
	part   *speech.Part   // that the next event tells of
	called bool           // it ended by calls
}

// Event implements exchange.Form.
func (a *Answer) Event(b []byte, o *exchange.Output) []byte {
	if o.Failure != nil {
		// When the engine itself aborts, the last event is an error event.
		a.Failed = true
		b = append(b, "data: "...)
		if a.voice == sglang {
			b = web.AppendSGLangError(b, o.Failure)
		} else {
			b = web.AppendVLLMError(b, o.Failure)
		}
		return append(b, "\n\n"...)
	}
	if !o.Began && a.d.chat {
		b = a.role(b, o)
	}
	if a.said[o.Slot].speech != nil {
		// SGLang reports the ends of all choices at the end of the stream.
		if b = a.speak(b, o, a.voice != vllm); o.Reason != "" && a.voice == plain {
			b = a.finish(b, o)
		}
		o.Clear()
		return b
	}
	said, ended := len(o.Text) > 0 || (a.tokenIDs || a.Logprobs >= 0) && len(o.IDs) > 0, o.Reason != ""
	switch {
	case a.voice == vllm, a.voice == sglang && !a.d.chat:
		if said || ended || len(o.IDs) > 0 {
			b = a.chunk(b, o, ended)
		}
	case a.voice == sglang:
		// The ends of all choices come at the end of the stream.
		if said {
			b = a.chunk(b, o, false)
		}
	default:
		if said {
			b = a.chunk(b, o, false)
		}
		if ended {
			b = a.finish(b, o)
		}
	}
	o.Clear()
	return b
}

// choiceHead appends an event up to the inside of its choice.
func (a *Answer) choiceHead(b []byte, slot uint32) []byte {
	b = append(b, "data: "...)
	if int(slot) < len(a.heads) {
		b = append(b, a.heads[slot]...)
	} else {
		b = append(b, a.head...)
	}
	b = append(b, `[{"index":`...)
	b = strconv.AppendUint(b, uint64(slot), 10)
	return append(b, ',')
}

// choiceTail appends the rest of an event after its choice.
func (a *Answer) choiceTail(b []byte, o *exchange.Output, ended bool) []byte {
	b = append(b, "}]"...)
	switch {
	case a.Continuous:
		b = append(b, `,"usage":`...)
		b = a.appendUsage(b, len(o.Prompt), a.Reported(o), -1, a.voice == plain)
	case a.WithUsage && a.voice == plain:
		b = append(b, `,"usage":null`...)
	case a.voice == sglang && !a.d.chat:
		b = append(b, `,"usage":null`...)
	}
	if ended && !a.WithUsage {
		b = a.appendFingerprint(b)
	}
	return append(b, "}\n\n"...)
}

// appendFingerprint appends vLLM's system_fingerprint. It is in the last event about a
// choice or, if there is an event of the usage, in that.
func (a *Answer) appendFingerprint(b []byte) []byte {
	if a.voice != vllm || a.of.vllm.Fingerprint == "" {
		return b
	}
	b = append(b, `,"system_fingerprint":`...)
	return append(b, web.Quote(a.of.vllm.Fingerprint)...)
}

// role appends the first event of a chat's choice.
func (a *Answer) role(b []byte, o *exchange.Output) []byte {
	b = a.choiceHead(b, o.Slot)
	b = append(b, `"delta":{`...)
	if a.voice == sglang {
		b = append(b, `"reasoning_content":null,`...)
	}
	b = append(b, `"role":"assistant","content":""},"logprobs":null,"finish_reason":null`...)
	switch a.voice {
	case sglang:
		b = append(b, `,"matched_stop":null}]}`...)
		return append(b, "\n\n"...)
	case vllm:
		b = append(b, `}],"prompt_token_ids":`...)
		b = a.appendOwnIDs(b, o.Prompt)
		if a.Continuous {
			b = append(b, `,"usage":`...)
			b = a.appendUsage(b, len(o.Prompt), 0, -1, false)
		}
		return append(b, "}\n\n"...)
	}
	return a.choiceTail(b, o, false)
}

// chunk appends an event with all that a choice has pending, and with its end
// where that is in the same event.
func (a *Answer) chunk(b []byte, o *exchange.Output, ended bool) []byte {
	b = a.choiceHead(b, o.Slot)
	if p := a.said[o.Slot].part; p != nil {
		b = a.appendDelta(b, p)
	} else {
		if a.d.chat && a.voice == sglang {
			b = append(b, `"delta":{"reasoning_content":null,"content":"`...)
		} else {
			b = append(b, a.d.openDelta...)
		}
		b = web.AppendText(b, o.Text)
		b = append(b, a.d.closeDelta...)
	}
	b = append(b, `,"logprobs":`...)
	b = a.appendLogprobs(b, o)
	b = append(b, `,"finish_reason":`...)
	b = a.AppendReason(b, o, ended)
	switch {
	case a.voice == vllm && a.d.chat:
		if ended {
			b = append(b, `,"stop_reason":`...)
			b = a.AppendStopReason(b, o)
		}
		b = append(b, `,"token_ids":`...)
		b = a.appendOwnIDs(b, o.IDs)
	case a.voice == vllm:
		b = append(b, `,"stop_reason":`...)
		b = a.AppendStopReason(b, o)
		b = append(b, `,"prompt_token_ids":`...)
		if o.Began {
			b = append(b, "null"...)
		} else {
			b = a.appendOwnIDs(b, o.Prompt)
		}
		b = append(b, `,"token_ids":`...)
		b = a.appendOwnIDs(b, o.IDs)
	case a.voice == sglang:
		b = append(b, `,"matched_stop":`...)
		if ended {
			b = o.Matched.Append(b)
		} else {
			b = append(b, "null"...)
		}
		if a.tokenIDs && !a.d.chat {
			b = append(b, `,"token_ids":`...)
			b = a.appendOwnIDs(b, o.IDs)
			if !o.Began {
				b = append(b, `,"prompt_token_ids":`...)
				b = a.appendOwnIDs(b, o.Prompt)
			}
		}
	}
	return a.choiceTail(b, o, ended)
}

// finish appends a choice's last event, where that is one of its own.
func (a *Answer) finish(b []byte, o *exchange.Output) []byte {
	b = a.choiceHead(b, o.Slot)
	switch {
	case a.voice == sglang:
		b = append(b, `"delta":{"reasoning_content":null}`...)
	case a.d.chat:
		b = append(b, `"delta":{}`...)
	default:
		b = append(b, `"text":""`...)
	}
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	b = a.AppendReason(b, o, true)
	if a.voice == sglang {
		b = append(b, `,"matched_stop":`...)
		b = o.Matched.Append(b)
		return append(b, "}]}\n\n"...)
	}
	return a.choiceTail(b, o, true)
}

// StrayChoice is a choice that nobody can ask for.
const StrayChoice = 1 << 20

// Stray implements exchange.Form.
func (a *Answer) Stray(b []byte) []byte {
	o := &exchange.Output{Job: engine.Job{Slot: StrayChoice}}
	b = a.choiceHead(b, o.Slot)
	if a.d.chat {
		b = append(b, `"delta":{}`...)
	} else {
		b = append(b, `"text":""`...)
	}
	b = append(b, `,"logprobs":null,"finish_reason":null`...)
	return a.choiceTail(b, o, false)
}

// End implements exchange.Form.
func (a *Answer) End(b []byte) []byte {
	if a.voice == sglang && a.d.chat && !a.Failed {
		for i := range a.Outputs {
			b = a.finish(b, &a.Outputs[i])
		}
	}
	if a.WithUsage && !a.Failed {
		b = append(b, "data: "...)
		b = append(b, a.head...)
		b = append(b, `[],"usage":`...)
		b = a.appendUsage(b, a.PromptTokens, a.Completion(), a.Cached(), true)
		b = a.appendFingerprint(b)
		if a.voice == vllm && a.measured() {
			b = append(b, `,"metrics":`...)
			b = a.appendMetrics(b)
		}
		b = append(b, "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

// WholeBody returns a complete answer that is not streamed.
func (a *Answer) WholeBody() []byte {
	b := append([]byte(nil), a.headWhole...)
	b = append(b, '[')
	for i := range a.Outputs {
		o := &a.Outputs[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, ',')
		if a.said[o.Slot].speech != nil {
			b = a.appendMessage(b, o)
		} else {
			b = append(b, a.d.openWhole...)
			b = web.AppendText(b, o.Text)
			b = append(b, a.d.closeWhole...)
		}
		b = append(b, `,"logprobs":`...)
		b = a.appendLogprobs(b, o)
		b = append(b, `,"finish_reason":`...)
		b = a.AppendReason(b, o, true)
		switch a.voice {
		case vllm:
			b = append(b, `,"stop_reason":`...)
			b = a.AppendStopReason(b, o)
			b = append(b, `,"token_ids":`...)
			b = a.appendOwnIDs(b, o.IDs)
			if !a.d.chat {
				b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...)
				b = a.appendOwnIDs(b, o.Prompt)
			}
		case sglang:
			b = append(b, `,"matched_stop":`...)
			b = o.Matched.Append(b)
			if a.tokenIDs {
				b = append(b, `,"prompt_token_ids":`...)
				b = a.appendOwnIDs(b, o.Prompt)
				b = append(b, `,"token_ids":`...)
				b = a.appendOwnIDs(b, o.IDs)
			}
		}
		b = append(b, '}')
	}
	b = append(b, ']')
	if a.voice == vllm {
		b = append(b, `,"service_tier":null`...)
		if a.of.vllm.Fingerprint == "" {
			b = append(b, `,"system_fingerprint":null`...)
		}
		b = a.appendFingerprint(b)
	}
	b = append(b, `,"usage":`...)
	b = a.appendUsage(b, a.PromptTokens, a.Completion(), a.Cached(), a.voice == plain)
	switch a.voice {
	case vllm:
		if a.d.chat {
			b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...)
			b = a.appendOwnIDs(b, a.Outputs[0].Prompt)
		}
		b = append(b, `,"kv_transfer_params":`...)
		b = a.AppendTransferParams(b, &a.Outputs[0])
		b = append(b, `,"metrics":`...)
		if a.measured() {
			b = a.appendMetrics(b)
		} else {
			b = append(b, "null"...)
		}
	case sglang:
		b = append(b, `,"metadata":{"weight_version":`...)
		b = append(b, web.Quote(a.of.sglang.WeightVersion)...)
		b = append(b, '}')
	}
	return append(b, '}')
}

// AppendReason appends why an output ended, or null.
func (a *Answer) AppendReason(b []byte, o *exchange.Output, ended bool) []byte {
	if !ended {
		return append(b, "null"...)
	}
	if a.said[o.Slot].called {
		return append(b, `"tool_calls"`...)
	}
	b = append(b, '"')
	b = append(b, o.Reason...)
	return append(b, '"')
}

// AppendStopReason appends vLLM's stop_reason: as its match, but null for the
// model's own end ids.
func (a *Answer) AppendStopReason(b []byte, o *exchange.Output) []byte {
	if o.Matched.Set && o.Matched.Text == "" && a.Vocab.Ends(o.Matched.ID) {
		return append(b, "null"...)
	}
	return o.Matched.Append(b)
}

// appendOwnIDs appends ids as an array where the caller asked for ids, null
// otherwise.
func (a *Answer) appendOwnIDs(b []byte, ids []uint32) []byte {
	if !a.tokenIDs {
		return append(b, "null"...)
	}
	b = append(b, '[')
	b = web.AppendIDs(b, ids)
	return append(b, ']')
}

// Cached is how many prompt tokens were found in the cache, each prompt once;
// -1 where the engine does not report it.
func (a *Answer) Cached() int {
	switch {
	case a.voice == sglang && !a.of.sglang.CacheReport, a.voice == vllm && !a.of.vllm.PromptTokensDetails:
		return -1
	}
	n := 0
	for i := 0; i < len(a.Outputs); i += a.n {
		if o := &a.Outputs[i]; o.Pair != nil && o.Pair.Cached >= 0 {
			n += o.Pair.Cached
		} else {
			n += o.Cached
		}
	}
	if n == 0 && a.voice == sglang {
		return -1
	}
	return n
}

// appendUsage appends a usage object. cached is -1 if it is not reported; brief leaves out
// members that are null.
func (a *Answer) appendUsage(b []byte, prompt, completion, cached int, brief bool) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(completion), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt+completion), 10)
	switch {
	case cached >= 0:
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(cached), 10)
		b = append(b, '}')
	case !brief:
		b = append(b, `,"prompt_tokens_details":null`...)
	}
	if a.voice == sglang {
		b = append(b, `,"reasoning_tokens":0`...)
	}
	return append(b, '}')
}

// measured reports whether the answer has vLLM's per-request metrics. They describe one
// output, so a request for several has none.
func (a *Answer) measured() bool {
	return a.of.vllm.PerRequestMetrics && len(a.Outputs) == 1
}

// appendMetrics appends vLLM's per-request metrics.
func (a *Answer) appendMetrics(b []byte) []byte {
	o := &a.Outputs[0]
	scheduled, first, last, n := o.Stamps.QueueEnd, o.Stamps.FirstToken, o.Latest, o.Completion
	b = append(b, `{"time_to_first_token_ms":`...)
	b = appendMillis(b, first-scheduled)
	b = append(b, `,"generation_time_ms":`...)
	b = appendMillis(b, last-first)
	b = append(b, `,"queue_time_ms":`...)
	b = appendMillis(b, scheduled-o.Stamps.QueueStart)
	b = append(b, `,"mean_itl_ms":`...)
	if n > 1 {
		b = appendMillis(b, (last-first)/int64(n-1))
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"tokens_per_second":`...)
	if last > scheduled {
		b = strconv.AppendFloat(b, float64(n)/(float64(last-scheduled)/1e9), 'f', 3, 64)
	} else {
		b = append(b, "null"...)
	}
	return append(b, '}')
}

// appendMillis appends nanoseconds as milliseconds.
func appendMillis(b []byte, ns int64) []byte {
	return strconv.AppendFloat(b, float64(ns)/1e6, 'f', 3, 64)
}
