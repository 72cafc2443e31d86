package load

import (
	"bytes"
	"fmt"
	"strconv"
)

// samplingFields are SGLang's sampling parameters, which have their own object in
// /generate.
var samplingFields = map[string]bool{
	"max_new_tokens": true, "min_new_tokens": true, "temperature": true, "top_p": true, "top_k": true, "min_p": true,
	"frequency_penalty": true, "presence_penalty": true, "repetition_penalty": true, "stop": true, "stop_token_ids": true,
	"stop_regex": true, "n": true, "json_schema": true, "regex": true, "ebnf": true, "structural_tag": true, "ignore_eos": true,
	"skip_special_tokens": true, "spaces_between_special_tokens": true, "no_stop_trim": true, "stream_interval": true,
	"logit_bias": true, "sampling_seed": true, "custom_params": true,
}

// native renders the common part of /generate requests; the id precedes it.
func (m *message) native(p *Plan) error {
	var b []byte
	if !p.NoStream {
		b = append(b, `"stream":true,`...)
	}
	other, err := appendFields(nil, p.Body, func(name string) bool { return !samplingFields[name] })
	if err != nil {
		return err
	}
	if len(other) > 0 { // its comma comes after it instead of before
		b = append(append(b, other[1:]...), ',')
	}
	m.before = append(b, `"text":"`...)
	sampling, err := appendFields(nil, p.Body, func(name string) bool { return samplingFields[name] })
	if err != nil {
		return err
	}
	if m.limited = p.OutputTokens > 0 || p.Workload != nil; m.limited {
		m.after, m.tail = []byte(`","sampling_params":{"max_new_tokens":`), sampling
	} else {
		m.after = []byte(`","sampling_params":{`)
		if len(sampling) > 0 {
			m.tail = sampling[1:]
		}
	}
	m.tail = append(m.tail, "}}"...)
	m.fixed(p)
	return nil
}

// nativeReply reads the events of SGLang's /generate. They contain the whole answer so far,
// or only new output if the server was started with --incremental-streaming-output. The
// number of ids compared with the count shows which of the two a server sends.
type nativeReply struct {
	said      []byte // the answer so far
	counted   int    // completion_tokens so far
	times     ServerTimes
	rewritten string // how an answer took back what it had said

	whole, known bool // whole answers so far; known from the second event on
}

// reset makes it ready for another answer.
func (n *nativeReply) reset() { *n = nativeReply{said: n.said[:0]} }

// parse reads one event into the chunk that OpenAI's events are read into: the
// text that is new, the counts as usage, the end.
func (n *nativeReply) parse(data []byte, c *chunk) error {
	*c = chunk{scratch: c.scratch[:0]}
	w := walker{data: data}
	ids, meta := 0, false
	w.space()
	ok := w.object(0, func(key []byte) bool {
		switch string(key) {
		case "text":
			return c.readText(&w)
		case "output_ids":
			if w.peek() == '[' {
				return w.array(1, func() bool { ids++; return w.skip(2) })
			}
		case "meta_info":
			if w.peek() == '{' {
				meta = true
				return w.object(1, func(key []byte) bool { return n.readMeta(&w, key, c) })
			}
		case "error":
			return c.readError(&w)
		}
		return w.skip(1)
	})
	w.space()
	if !ok || w.at != len(data) {
		return errBadJSON
	}
	if !meta {
		c.text, c.hasText = nil, false
		return nil // an error, or nothing that the caller accepts
	}
	c.choices, c.usage = 1, true
	n.fresh(c, ids)
	return nil
}

// fresh leaves in the chunk only the text that is new.
func (n *nativeReply) fresh(c *chunk, ids int) {
	if n.counted > 0 && !n.known && ids > 0 {
		n.known, n.whole = true, ids > c.completedTokens-n.counted
	}
	// Without ids, only the texts of two events show whether they are cumulative.
	whole := n.whole || !n.known && len(n.said) > 0 && bytes.HasPrefix(c.text, n.said)
	n.counted = c.completedTokens
	if !whole {
		n.said = append(n.said, c.text...)
		return
	}
	if !bytes.HasPrefix(c.text, n.said) {
		if n.rewritten == "" {
			n.rewritten = fmt.Sprintf("the answer took back what it had said: %.60q after %.60q", c.text, n.said)
		}
		n.said = append(n.said[:0], c.text...)
		return
	}
	c.text = c.text[len(n.said):]
	n.said = append(n.said, c.text...)
}

// readMeta reads one field of meta_info.
func (n *nativeReply) readMeta(w *walker, key []byte, c *chunk) bool {
	t := &n.times
	switch string(key) {
	case "prompt_tokens":
		return w.integer(2, &c.promptTokens)
	case "completion_tokens":
		return w.integer(2, &c.completedTokens)
	case "cached_tokens":
		return w.integer(2, &c.cachedTokens)
	case "finish_reason":
		return n.readFinish(w, c)
	case "request_received_ts", "server_created_time":
		return w.float(&t.Received)
	case "forward_entry_time", "queue_time_end", "server_start_time":
		return w.float(&t.ForwardEntry)
	case "queue_time":
		return w.float(&t.QueueTime)
	case "prefill_finished_time", "prefill_end_time":
		return w.float(&t.PrefillFinished)
	case "queue_time_start":
		return w.float(&t.QueueStart)
	case "prefill_start_time":
		return w.float(&t.PrefillStart)
	case "server_first_token_time":
		return w.float(&t.FirstToken)
	case "response_sent_to_client_ts", "first_output_time":
		if t.ResponseSent != 0 { // the last event has it again
			return w.skip(2)
		}
		return w.float(&t.ResponseSent)
	case "request_finished_ts":
		return w.float(&t.Finished)
	}
	return w.skip(2)
}

// readFinish reads why the answer ended: null, or an object with its type. An
// abort is the server's own word that the answer is not whole.
func (n *nativeReply) readFinish(w *walker, c *chunk) bool {
	if w.peek() != '{' {
		return w.skip(2)
	}
	start := w.at
	var kind, message []byte
	ok := w.object(2, func(key []byte) bool {
		switch {
		case string(key) == "type" && w.peek() == '"':
			return c.readString(w, &kind)
		case string(key) == "message" && w.peek() == '"':
			return c.readString(w, &message)
		}
		return w.skip(3)
	})
	if string(kind) == "abort" {
		c.failure, c.message, c.code = w.data[start:w.at], message, kind
	}
	c.finish = kind
	return ok
}

// float reads a value; *dst is set when it is a number.
func (w *walker) float(dst *float64) bool {
	start := w.at
	if !w.skip(2) {
		return false
	}
	if v, err := strconv.ParseFloat(string(w.data[start:w.at]), 64); err == nil {
		*dst = v
	}
	return true
}
