package sglang

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
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

	completion, prompt, cached int // the engine's counts; -1 where it gives none

	finish  string // type of the finish reason, empty while there is none
	matched int    // ids of the matched stop, and the last of them
	stopID  uint32
	message string // why it aborted, or of an error
	status  int    // HTTP status that goes with it; 0 when not given
	failed  bool   // the event is an error

	// Wall times in seconds, and a duration; 0 where the engine gives none.
	queueTime, forwardEntry, prefillFinished, requestReceived, responseSent float64
}

// scanner reads events. It keeps its memory from one to the next.
type scanner struct {
	in  bytes.Reader
	dec *jsontext.Decoder
	ids []uint32

	large  bool   // the event before was large
	scored bool   // events have log probabilities
	rest   []byte // meta_info without them
}

// keepEvent is the size in bytes of the events whose buffers a scanner keeps.
const keepEvent = 256 << 10

func newScanner() *scanner {
	return &scanner{dec: jsontext.NewDecoder(bytes.NewReader(nil))}
}

var (
	idsKey  = []byte(`"output_ids":[`)
	metaKey = []byte(`],"meta_info":`)
)

// scan reads an event's data. Only the end is read of an event in the usual form,
// which is the text, the array and then the counts without white space between
// them: a quote inside of a JSON string is escaped, so neither key can be found
// inside of the text. Everything else is decoded in full. Data must stay as it
// is while the event is in use.
func (s *scanner) scan(data []byte, e *event) error {
	if s.large { // what it needed is not kept
		scored := s.scored
		*s = *newScanner()
		s.scored = scored
	}
	s.large = len(data) > keepEvent
	*e = event{completion: -1, prompt: -1, cached: -1}
	if ok, err := s.usual(data, e); ok || err != nil {
		return err
	}
	*e = event{completion: -1, prompt: -1, cached: -1}
	return s.full(data, e)
}

// usual is scan for the usual form; ok says that it was one.
func (s *scanner) usual(data []byte, e *event) (ok bool, err error) {
	from, to := s.bounds(data)
	if from < 0 {
		return false, nil
	}
	array := data[from:to]
	meta := data[to+len(metaKey):]
	if s.scored {
		meta = s.cut(meta, e)
	}
	if running(meta, e) {
		e.take(array)
		return true, nil
	}
	s.reset(meta)
	if s.dec.PeekKind() != '{' {
		return false, nil
	}
	if err := s.meta(e); err != nil {
		return true, err
	}
	if rest := meta[s.dec.InputOffset():]; len(rest) != 1 || rest[0] != '}' {
		return false, nil // more members, which may be of interest
	}
	e.take(array)
	return true, nil
}

// bounds gives where the text of output_ids stands; negative when the event is not
// in the usual form. Which end is nearer to it depends on what meta_info holds.
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
	if from = bytes.Index(data[:to], idsKey); from < 0 {
		return -1, -1
	}
	return from + len(idsKey), to
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
	stampKey = []byte(`_time":`) // of those that a server with stamps sends in every chunk
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
	if at < 0 || !bytes.Contains(meta, runKey) || bytes.Contains(meta, object) || bytes.Contains(meta, stampKey) || bytes.Contains(meta, sentKey) {
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

func (s *scanner) reset(b []byte) {
	s.in.Reset(b)
	s.dec.Reset(&s.in)
}

// full decodes all members of an event.
func (s *scanner) full(data []byte, e *event) error {
	s.reset(data)
	if s.dec.PeekKind() != '{' {
		return errors.New("the event is no JSON object")
	}
	err := s.members(func(name []byte) error {
		switch string(name) {
		case "output_ids":
			if s.dec.PeekKind() != '[' {
				return s.dec.SkipValue() // null while there is none
			}
			return s.array(data, e)
		case "meta_info":
			if s.dec.PeekKind() != '{' {
				return s.dec.SkipValue()
			}
			return s.meta(e)
		case "error":
			e.failed = true
			if s.dec.PeekKind() != '{' {
				return s.dec.SkipValue()
			}
			return s.failure(e)
		}
		return s.dec.SkipValue()
	})
	if err != nil {
		return err
	}
	if rest := bytes.TrimSpace(data[s.dec.InputOffset():]); len(rest) > 0 {
		return errors.New("something follows the event's JSON object")
	}
	return nil
}

// members calls f for each member of the object that comes next, with its name;
// f consumes the value.
func (s *scanner) members(f func(name []byte) error) error {
	if _, err := s.dec.ReadToken(); err != nil {
		return err
	}
	for s.dec.PeekKind() != '}' {
		name, err := s.dec.ReadValue()
		if err != nil {
			return err
		}
		// No name that is looked for needs an escape.
		if err := f(name[1 : len(name)-1]); err != nil {
			return err
		}
	}
	_, err := s.dec.ReadToken()
	return err
}

// array notes the bounds of output_ids and checks what is in it.
func (s *scanner) array(data []byte, e *event) error {
	if _, err := s.dec.ReadToken(); err != nil {
		return err
	}
	from := s.dec.InputOffset()
	e.n = 0
	for s.dec.PeekKind() != ']' {
		v, err := s.dec.ReadValue()
		if err != nil {
			return err
		}
		if _, err := parseID(v); err != nil {
			return err
		}
		e.n++
	}
	to := s.dec.InputOffset()
	if _, err := s.dec.ReadToken(); err != nil {
		return err
	}
	e.array = data[from:to]
	return nil
}

func parseID(b []byte) (uint32, error) {
	id, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%.20q is no token id", b)
	}
	return uint32(id), nil
}

// tail gives the last n ids of the event, valid until the next call. n is at
// most the event's.
func (s *scanner) tail(e *event, n int) ([]uint32, error) {
	if cap(s.ids) < n {
		s.ids = make([]uint32, max(n, 2*cap(s.ids)))
	}
	s.ids = s.ids[:n]
	rest := e.array
	for i := n - 1; i >= 0; i-- {
		at := bytes.LastIndexByte(rest, ',')
		id, err := parseID(bytes.TrimSpace(rest[at+1:]))
		if err != nil {
			return nil, err
		}
		s.ids[i] = id
		rest = rest[:max(at, 0)]
	}
	return s.ids, nil
}

// meta reads meta_info.
func (s *scanner) meta(e *event) error {
	return s.members(func(name []byte) error {
		switch string(name) {
		case "completion_tokens":
			return s.count(&e.completion)
		case "prompt_tokens":
			return s.count(&e.prompt)
		case "cached_tokens":
			return s.count(&e.cached)
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
		case "finish_reason":
			if s.dec.PeekKind() != '{' {
				return s.dec.SkipValue()
			}
			return s.reason(e)
		}
		return s.dec.SkipValue()
	})
}

// count reads a count; null means that it is not known.
func (s *scanner) count(n *int) error {
	v, err := s.dec.ReadValue()
	if err != nil {
		return err
	}
	if v.Kind() == 'n' {
		return nil
	}
	c, err := strconv.ParseInt(string(v), 10, 32)
	if err != nil || c < 0 {
		return fmt.Errorf("%.20q is no count", v)
	}
	*n = int(c)
	return nil
}

// seconds reads what is a number, and passes over anything else.
func (s *scanner) seconds(f *float64) error {
	v, err := s.dec.ReadValue()
	if err != nil || v.Kind() != '0' {
		return err
	}
	*f, err = strconv.ParseFloat(string(v), 64)
	return err
}

// reason reads a finish reason that is there.
func (s *scanner) reason(e *event) error {
	e.finish = "unknown"
	return s.members(func(name []byte) error {
		switch string(name) {
		case "type":
			return s.text(&e.finish)
		case "message":
			return s.text(&e.message)
		case "status_code":
			return s.count(&e.status)
		case "matched":
			switch s.dec.PeekKind() {
			case '0':
				e.matched = 1
				return s.stop(e)
			case '[':
				return s.matchedList(e)
			}
		}
		return s.dec.SkipValue()
	})
}

func (s *scanner) matchedList(e *event) error {
	if _, err := s.dec.ReadToken(); err != nil {
		return err
	}
	for s.dec.PeekKind() != ']' {
		if err := s.stop(e); err != nil {
			return err
		}
		e.matched++
	}
	_, err := s.dec.ReadToken()
	return err
}

func (s *scanner) stop(e *event) error {
	v, err := s.dec.ReadValue()
	if err == nil {
		e.stopID, err = parseID(v)
	}
	return err
}

// failure reads an error that comes in place of output.
func (s *scanner) failure(e *event) error {
	return s.members(func(name []byte) error {
		switch string(name) {
		case "message":
			return s.text(&e.message)
		case "code":
			if s.dec.PeekKind() != '0' {
				return s.dec.SkipValue()
			}
			return s.count(&e.status)
		}
		return s.dec.SkipValue()
	})
}

func (s *scanner) text(to *string) error {
	if s.dec.PeekKind() != '"' {
		return s.dec.SkipValue()
	}
	t, err := s.dec.ReadToken()
	if err != nil {
		return err
	}
	*to = t.String()
	return nil
}
