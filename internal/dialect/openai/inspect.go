package openai

import (
	"bytes"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// maxChoices bounds the choices of one answer that an Inspector keeps apart. A
// choice beyond it is a failure.
const maxChoices = 1 << 16

// Inspector checks a stream of chat or text completion events that is relayed
// unchanged from an engine to a client. It gets each region of whole events, as cut
// by sse.Splitter, before the region is forwarded, and returns how much of it is
// good. It keeps no bytes.
//
// The rules of a stream:
//
//   - Every event's data is one JSON object, or exactly [DONE]. An event whose
//     data is empty is a keep-alive, as is a comment.
//   - [DONE] comes only after each choice had its finish_reason, or after an error event by which
//     the engine reported a failure. No event comes after it but a second one, which is odd.
//   - A choice that had its finish_reason gets no more text. A second finish_reason is odd. Null and
//     "" do not count as one: some engines send "" in every chunk.
//   - A choice's index is below the number of choices asked for.
//   - Usage, where present, holds non-negative integers, and its total is the
//     sum of prompt and completion.
//
// Every event is checked to be JSON, in one pass (dialect.CheckJSON). The pass also
// notes whether the event could state more than "here is more text of a choice that
// is still open". Only such an event is decoded, which happens a few times in a
// stream. An event is decoded if
//
//   - a member named finish_reason, error or usage is not null, at any depth,
//     or one named object begins like "error";
//   - any member's name is spelled with an escape, and so might be one of these;
//   - it may concern anything but exactly one open choice in range: it holds several objects where
//     choices are, or one whose index is out of range, is not a plain number, or belongs to a
//     choice that has finished, or to a new one if their number is not known.
//
// Other events are not checked further: neither that choices are an array, nor that
// text is a string.
//
// An event that is too large for the splitter passes unseen. It may have held a
// finish_reason, so from then on a missing one is no failure. All other rules still
// hold.
//
// An Inspector allocates nothing for an event of one line, decoded or not. It is used
// by one goroutine, and no longer after an error.
type Inspector struct {
	known bool // every choice below limit must come
	limit int  // indexes are below it

	walk    dialect.EventWalk
	partial bool // an event passed unseen; it may have held anything
	done    bool
	failed  bool
	odd     dialect.Odd
	status  int // of the error, 0 is none

	seen, finished choiceSet
	usage          infer.Usage
	hasUsage       bool
}

// NewInspector implements dialect.Endpoint: the streams of chats and completions are
// judged.
func (e Endpoint) NewInspector(h *dialect.Head) dialect.Inspector {
	if e != Chat && e != Completions {
		return nil
	}
	in := newInspector(e.choices(h))
	return &in
}

// newInspector returns the Inspector of an answer's stream. n is the number of
// choices the answer must have; 0 says that it is not known, and then every
// choice of which anything came must finish, and one at least.
func newInspector(n int) Inspector {
	in := Inspector{limit: maxChoices}
	if n > 0 && n <= maxChoices {
		in.known, in.limit = true, n
	}
	return in
}

// Done implements dialect.Inspector.
func (in *Inspector) Done() bool { return in.done }

// Whole implements dialect.Inspector. If the number of choices is not known, only the
// end marker shows that a stream is whole.
func (in *Inspector) Whole() bool {
	return in.done || in.known && !in.failed && !in.partial && in.complete() == nil
}

// Failed reports whether the engine reported a failure, by an event that has an
// error.
func (in *Inspector) Failed() bool { return in.failed }

// FailedAs implements dialect.Inspector: vLLM and SGLang state the status as the error's
// code.
func (in *Inspector) FailedAs() int { return in.status }

// Usage returns the latest usage that the engine stated. Its CachedTokens is -1 if
// the engine did not state it.
func (in *Inspector) Usage() (infer.Usage, bool) { return in.usage, in.hasUsage }

// Odd implements dialect.Inspector.
func (in *Inspector) Odd() dialect.Odd { return in.odd }

// Events implements dialect.Inspector.
func (in *Inspector) Events(region []byte) (good int, err error) { return in.walk.Events(region, in) }

// Next implements dialect.EventJudge.
func (in *Inspector) Next() error {
	if in.done {
		return errAfterDone
	}
	return nil
}

// Marker implements dialect.EventJudge.
func (in *Inspector) Marker() error {
	if in.done {
		in.odd |= dialect.DoneTwice
		return nil
	}
	in.done = true
	return in.complete()
}

// Cut implements dialect.EventJudge.
func (in *Inspector) Cut(_, _ []byte) error {
	in.partial = true
	return nil
}

var errAfterDone = dialect.Flawf(flawAfterDone, "comes after [DONE]")

// Words for a metric's label: each fault that an event may have.
const (
	flawAfterDone infer.Flaw = "after_done"          // an event after [DONE]
	flawUnended   infer.Flaw = "no_finish_reason"    // [DONE] before a choice had one
	flawChoice    infer.Flaw = "choice_range"        // a choice nobody asked for
	flawLate      infer.Flaw = "output_after_finish" // output for a choice that has finished
)

// complete judges the moment of [DONE].
func (in *Inspector) complete() error {
	if in.failed || in.partial {
		return nil
	}
	if !in.known && in.seen.count == 0 {
		return dialect.Flawf(flawUnended, "is [DONE], but no choice has a finish_reason")
	}
	want := &in.seen
	if in.known {
		want = nil
	}
	if choice := in.finished.lacks(want, in.limit); choice >= 0 {
		return dialect.Flawf(flawUnended, "is [DONE], but choice %d has no finish_reason", choice)
	}
	return nil
}

// Object implements dialect.EventJudge.
func (in *Inspector) Object(data []byte, n dialect.Notes) error {
	if !n.Telling {
		switch {
		case n.Objects == 0:
			return nil
		case n.Objects == 1 && n.Indexes <= 1 && n.Index >= 0 && n.Index < in.limit && !in.finished.has(n.Index) &&
			(in.known || in.seen.has(n.Index)):
			return nil
		}
	}
	return in.read(data)
}

// read takes an event apart.
func (in *Inspector) read(data []byte) error {
	return dialect.Members(data, func(name, value []byte) error {
		switch string(name) {
		case "choices":
			switch dialect.KindOf(value) {
			case 'n':
				return nil
			case '[':
				return dialect.Items(value, in.choice)
			}
			return dialect.Flawf(dialect.FlawShape, "has %s for choices", dialect.Found(value))
		case "usage":
			return in.takeUsage(value)
		case "error":
			in.failed = in.failed || filled(value)
			return in.failure(value)
		case "object":
			in.failed = in.failed || dialect.KindOf(value) == '"' && string(dialect.Spelled(value)) == "error"
		}
		return nil
	})
}

// failure takes the status out of an error.
func (in *Inspector) failure(raw []byte) error {
	if dialect.KindOf(raw) != '{' {
		return nil
	}
	return dialect.Members(raw, func(name, value []byte) error {
		if status, err := strconv.Atoi(string(value)); string(name) == "code" && err == nil && status >= 400 && status < 600 {
			in.status = status
		}
		return nil
	})
}

// choice judges one choice of an event.
func (in *Inspector) choice(_ int, raw []byte) error {
	if dialect.KindOf(raw) != '{' {
		return dialect.Flawf(dialect.FlawShape, "has %s for a choice", dialect.Found(raw))
	}
	var index uint64
	var output, finish bool
	err := dialect.Members(raw, func(name, value []byte) (err error) {
		if dialect.KindOf(value) == 'n' {
			return nil
		}
		switch string(name) {
		case "index":
			if index, err = strconv.ParseUint(string(value), 10, 62); err != nil {
				return dialect.Flawf(flawChoice, "has a choice whose index is no number of a choice")
			}
		case "finish_reason":
			if dialect.KindOf(value) != '"' {
				return dialect.Flawf(dialect.FlawShape, "has %s for finish_reason", dialect.Found(value))
			}
			finish = finish || filled(value)
		case "text":
			output = output || filled(value)
		case "delta":
			if dialect.KindOf(value) != '{' {
				return dialect.Flawf(dialect.FlawShape, "has %s for delta", dialect.Found(value))
			}
			return dialect.Members(value, func(name, value []byte) error {
				switch string(name) {
				case "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call":
					output = output || filled(value)
				}
				return nil
			})
		}
		return err
	})
	if err != nil {
		return err
	}
	if index >= uint64(in.limit) {
		return dialect.Flawf(flawChoice, "has choice %d of %d", index, in.limit)
	}
	i := int(index)
	switch ended := in.finished.has(i); {
	case ended && output:
		return dialect.Flawf(flawLate, "has output for choice %d after its finish_reason", i)
	case ended && finish:
		in.odd |= dialect.FinishedTwice
	case finish:
		in.finished.add(i)
	}
	in.seen.add(i)
	return nil
}

var usageNames = dialect.UsageNames{Prompt: "prompt_tokens", Completion: "completion_tokens", PromptDetails: "prompt_tokens_details"}

// takeUsage judges a usage object and keeps it.
func (in *Inspector) takeUsage(raw []byte) error {
	u, stated, err := dialect.UsageOf(raw, &usageNames)
	if stated {
		in.usage, in.hasUsage = u, true
	}
	return err
}

// filled reports whether a value says anything: it is not null, false, nor an
// empty string, array or object.
func filled(raw []byte) bool {
	switch dialect.KindOf(raw) {
	case 'n', 'f':
		return false
	case '"':
		return len(raw) > 2
	case '[', '{':
		return len(bytes.TrimSpace(raw[1:len(raw)-1])) > 0
	}
	return true
}

// choiceSet is a set of choices. Those of nearly all answers are in low.
type choiceSet struct {
	low   uint64
	high  []uint64 // from choice 64 on
	count int
}

func (s *choiceSet) has(choice int) bool {
	if choice < 64 {
		return s.low>>choice&1 != 0
	}
	word := choice/64 - 1
	return word < len(s.high) && s.high[word]>>(choice%64)&1 != 0
}

func (s *choiceSet) add(choice int) {
	if s.has(choice) {
		return
	}
	s.count++
	if choice < 64 {
		s.low |= 1 << choice
		return
	}
	word := choice/64 - 1
	for len(s.high) <= word {
		s.high = append(s.high, 0)
	}
	s.high[word] |= 1 << (choice % 64)
}

// lacks returns the first choice below limit that is not in s, of those in want
// where want is given, or -1.
func (s *choiceSet) lacks(want *choiceSet, limit int) int {
	wanted := limit
	if want != nil {
		wanted = want.count
	}
	if s.count >= wanted {
		return -1 // nothing is in s that is not wanted
	}
	for choice := range limit {
		if (want == nil || want.has(choice)) && !s.has(choice) {
			return choice
		}
	}
	return -1
}
