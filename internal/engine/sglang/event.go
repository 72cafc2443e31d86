package sglang

import (
	"bytes"
	"strconv"

	"weir/internal/engine/idstream"
	"weir/internal/infer"
)

// event is one event of a /generate stream.
type event struct {
	// array is the text between the brackets of output_ids, n how many ids are in
	// it. It is looked into by tail only.
	array []byte
	n     int
	// own and top are the text between the brackets of the lists of log
	// probabilities; nil where there are none. They are looked into by scores only.
	own, top []byte
	// promptOwn and promptTop are the same of the prompt, where it was asked for them.
	promptOwn, promptTop []byte

	completion, prompt, cached int // the engine's counts; -1 where it gives none

	finish  string // type of the finish reason, empty while there is none
	matched int    // ids of the matched stop, and the last of them
	stopID  uint32
	message string // why it aborted, or of an error
	status  int    // HTTP status that goes with it; 0 when not given
	failed  bool   // the event is an error

	// Wall times in seconds, and a duration; 0 where the engine gives none.
	queueTime, forwardEntry, prefillFinished, requestReceived, responseSent float64
	// named are the timeline's own stamps, which servers give that were patched for them.
	named     [infer.NumStamps]float64
	retracted int // how often it went back to the queue
}

// scanner reads events with what whoever has a turn has at hand.
type scanner struct {
	*idstream.Scanner
	scored bool // events have log probabilities
	prompt bool // and those of the prompt
}

var (
	idsKey  = []byte(`"output_ids":[`)
	metaKey = []byte(`],"meta_info":`)
)

// scan reads an event's data. An event of a usual length is read in place, member by member,
// if it goes on and has nothing that is rare. Of a longer one in the usual form only the end
// is read, which is the text, the array and then the counts without white space between
// them: a quote inside of a JSON string is escaped, so neither key can be found
// inside of the text. Everything else is decoded in full. Data must stay as it
// is while the event is in use.
func (s *scanner) scan(data []byte, e *event) error {
	*e = event{completion: -1, prompt: -1, cached: -1}
	if len(data) <= shortEvent && !s.scored && !s.prompt {
		if short(data, e) {
			return nil
		}
	} else if ok, err := s.usual(data, e); ok || err != nil {
		return err
	}
	*e = event{completion: -1, prompt: -1, cached: -1}
	return s.full(data, e)
}

// shortEvent is the length up to which it is cheaper to read an event from its beginning to
// its end than to look for its parts.
const shortEvent = 1 << 10

// short reads an event that goes on in place. It is false for all others, and for one that
// has something that only full takes in.
func short(data []byte, e *event) bool {
	c := idstream.NewCursor(data)
	var array, meta bool
	for more := c.Open('{'); more; more = c.More('}') {
		switch string(c.Name()) {
		case "output_ids":
			if c.Peek() != '[' {
				return false
			}
			e.array, e.n = c.IDs()
			array = true
		case "meta_info":
			if meta || !shortMeta(&c, e) {
				return false
			}
			meta = true
		case "error":
			return false
		default:
			c.Skip()
		}
	}
	return c.Whole() && array && meta
}

// shortMeta reads a meta_info that has counts and a finish reason of null.
func shortMeta(c *idstream.Cursor, e *event) bool {
	for more := c.Open('{'); more; more = c.More('}') {
		switch name := c.Name(); string(name) {
		case "completion_tokens":
			e.completion = c.Count()
		case "prompt_tokens":
			e.prompt = c.Count()
		case "cached_tokens":
			e.cached = c.Count()
		case "num_retractions":
			e.retracted = c.Count()
		case "finish_reason":
			c.Null()
		case "id", "weight_version", "reasoning_tokens":
			c.Skip()
		case "queue_time", "forward_entry_time", "prefill_finished_time", "request_received_ts", "response_sent_to_client_ts",
			"output_token_logprobs", "output_top_logprobs", "input_token_logprobs", "input_top_logprobs":
			return false
		default:
			if _, ok := infer.StampNamed(name); ok {
				return false
			}
			c.Skip()
		}
	}
	return !c.Bad() && e.completion >= 0
}

// usual is scan for the usual form; ok says that it was one.
func (s *scanner) usual(data []byte, e *event) (ok bool, err error) {
	from, to := s.bounds(data)
	if from < 0 {
		return false, nil
	}
	array := data[from:to]
	meta := data[to+len(metaKey):]
	known := true
	if s.scored {
		meta, known = s.cut(meta, e)
	}
	if known && running(meta, e) {
		e.take(array)
		return true, nil
	}
	s.Reset(meta)
	if s.Dec.PeekKind() != '{' {
		return false, nil
	}
	if err := s.meta(e); err != nil {
		return true, err
	}
	if rest := meta[s.Dec.InputOffset():]; len(rest) != 1 || rest[0] != '}' {
		return false, nil // more members, which may be of interest
	}
	e.take(array)
	return true, nil
}

// bounds returns where the text of output_ids stands; negative when the event is not in
// the usual form. Which end is nearer to it depends on what meta_info holds.
func (s *scanner) bounds(data []byte) (from, to int) {
	if len(data) == 0 || data[0] != '{' {
		return -1, -1
	}
	if s.scored {
		if from = bytes.Index(data, idsKey); from < 0 {
			return -1, -1
		}
		from += len(idsKey)
		to = from + bytes.IndexByte(data[from:], ']')
		if to < from || !bytes.HasPrefix(data[to:], metaKey) {
			return -1, -1
		}
		return from, to
	}
	to = bytes.LastIndex(data, metaKey)
	if to < 0 {
		return -1, -1
	}
	if from = bytes.Index(data[:to], idsKey); from < 0 || data[max(from-1, 0)] == '\\' { // of a name with an escape
		return -1, -1
	}
	if from += len(idsKey); bytes.IndexByte(data[from:to], ']') >= 0 {
		return -1, -1 // the key is that of another array
	}
	return from, to
}

// take notes the text of output_ids.
func (e *event) take(array []byte) {
	e.array = array
	if len(array) > 0 {
		e.n = bytes.Count(array, comma) + 1
	}
}

var (
	comma    = []byte{','}
	object   = []byte{'{'}
	runKey   = []byte(`"finish_reason":null,`)
	countKey = []byte(`"completion_tokens":`)
	stampKey = []byte(`_time`) // of those that a server with stamps sends in every chunk
	sentKey  = []byte(`"response_sent_to_client_ts":`)
)

// running reads the one thing that matters of most chunks' meta_info, the count.
// It is false when there may be more in it: a finish reason, stamps, objects.
func running(meta []byte, e *event) bool {
	n := len(meta) - 2
	if n < 1 || meta[0] != '{' || meta[n] != '}' || meta[n+1] != '}' {
		return false
	}
	meta = meta[1:n]
	at := bytes.Index(meta, countKey)
	if at < 0 || bytes.IndexByte(meta, '\\') >= 0 || !bytes.Contains(meta, runKey) || bytes.Contains(meta, object) || bytes.Contains(meta, stampKey) || bytes.Contains(meta, sentKey) {
		return false
	}
	rest := meta[at+len(countKey):]
	end := bytes.IndexByte(rest, ',')
	if end < 0 {
		end = len(rest)
	}
	count, err := strconv.ParseInt(string(rest[:end]), 10, 32)
	if err != nil || count < 0 || bytes.Contains(rest, countKey) {
		return false
	}
	e.completion = int(count)
	return true
}

// full decodes all members of an event.
func (s *scanner) full(data []byte, e *event) error {
	return s.Event(data, func(name []byte) (err error) {
		switch string(name) {
		case "output_ids":
			if s.Dec.PeekKind() != '[' {
				return s.Dec.SkipValue() // null while there is none
			}
			e.array, e.n, err = s.Array(data)
			return err
		case "meta_info":
			return s.meta(e)
		case "error":
			e.failed = true
			return s.Failure(&e.message, &e.status)
		}
		return s.Dec.SkipValue()
	})
}

// meta reads meta_info.
func (s *scanner) meta(e *event) error {
	return s.Object(func(name []byte) error {
		switch string(name) {
		case "completion_tokens":
			return s.Count(&e.completion)
		case "prompt_tokens":
			return s.Count(&e.prompt)
		case "cached_tokens":
			return s.Count(&e.cached)
		case "num_retractions":
			return s.Count(&e.retracted)
		case "queue_time":
			return s.seconds(&e.queueTime)
		case "forward_entry_time":
			return s.seconds(&e.forwardEntry)
		case "prefill_finished_time":
			return s.seconds(&e.prefillFinished)
		case "request_received_ts":
			return s.seconds(&e.requestReceived)
		case "response_sent_to_client_ts":
			return s.seconds(&e.responseSent)
		case "output_token_logprobs":
			return s.list(&e.own)
		case "output_top_logprobs":
			return s.list(&e.top)
		case "input_token_logprobs", "input_top_logprobs":
			if to := e.listOf(name, s.prompt); to != nil {
				return s.list(to)
			}
			return s.Dec.SkipValue()
		case "finish_reason":
			if s.Dec.PeekKind() != '{' {
				return s.Dec.SkipValue()
			}
			return s.reason(e)
		}
		if i, ok := infer.StampNamed(name); ok {
			return s.seconds(&e.named[i])
		}
		return s.Dec.SkipValue()
	})
}

// seconds reads what is a number, and passes over anything else.
func (s *scanner) seconds(f *float64) error {
	v, err := s.Dec.ReadValue()
	if err != nil || v.Kind() != '0' {
		return err
	}
	*f, err = strconv.ParseFloat(string(v), 64)
	return err
}

// reason reads a finish reason that is there.
func (s *scanner) reason(e *event) error {
	e.finish = "unknown"
	return s.Members(func(name []byte) error {
		switch string(name) {
		case "type":
			return s.Text(&e.finish)
		case "message":
			return s.Text(&e.message)
		case "status_code":
			return s.Count(&e.status)
		case "matched":
			switch s.Dec.PeekKind() {
			case '0':
				e.matched = 1
				return s.ID(&e.stopID)
			case '[':
				return s.Elements(func() error {
					e.matched++
					return s.ID(&e.stopID)
				})
			}
		}
		return s.Dec.SkipValue()
	})
}
