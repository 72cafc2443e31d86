package responses

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// Inspector checks a stream of this API's events that is relayed unchanged from an
// engine to a client. It implements dialect.Inspector. The rules of a stream:
//
//   - Every event's data is one JSON object with a type, a string. An event whose
//     data is empty is a keep-alive, as is a comment.
//   - The sequence_number of an event, if it has one, is one above the last that had one.
//   - The stream ends with one response.completed, response.incomplete or response.failed, or with
//     an error event. Nothing but [DONE], which some engines send, comes after the former.
//   - An answer's usage, where present, holds non-negative integers, and its
//     total is the sum of input and output.
//
// An event that is too large for the splitter is judged by its beginning, and its
// usage is not read. The last event may be that large, because it repeats all of the
// answer.
//
// An error event reports a failure of the engine.
type Inspector struct {
	walk   dialect.EventWalk
	ended  bool // by an event that may still be under way
	marked bool // [DONE] has come
	odd    dialect.Odd
	failed bool
	next   int64 // the next sequence_number, once one is known
	counts bool

	usage    infer.Usage
	hasUsage bool
}

// Done implements dialect.Inspector.
func (in *Inspector) Done() bool { return in.ended && !in.walk.Inside() || in.failed }

// Whole implements dialect.Inspector. Only the last event shows that a stream is
// whole.
func (in *Inspector) Whole() bool { return in.Done() }

// Failed implements dialect.Inspector.
func (in *Inspector) Failed() bool { return in.failed }

// FailedAs implements dialect.Inspector. It returns 0, because the dialect's error events have
// a word instead of a status.
func (in *Inspector) FailedAs() int { return 0 }

// Usage implements dialect.Inspector.
func (in *Inspector) Usage() (infer.Usage, bool) { return in.usage, in.hasUsage }

// Odd implements dialect.Inspector.
func (in *Inspector) Odd() dialect.Odd { return in.odd }

// Events implements dialect.Inspector.
func (in *Inspector) Events(region []byte) (good int, err error) { return in.walk.Events(region, in) }

// Words for a metric's label: each fault that an event may have, beside those of package dialect.
const (
	flawAfterEnd infer.Flaw = "after_end" // an event after the one that ends the stream
	flawSequence infer.Flaw = "sequence"  // an event is missing, or comes twice
)

// Next implements dialect.EventJudge.
func (in *Inspector) Next() error {
	if in.marked {
		return dialect.Flawf(flawAfterEnd, "comes after [DONE]")
	}
	return nil
}

// Marker implements dialect.EventJudge.
func (in *Inspector) Marker() error {
	if !in.ended && !in.failed {
		return dialect.Flawf(dialect.FlawShape, "is [DONE], but the answer has not ended")
	}
	if in.marked {
		in.odd |= dialect.DoneTwice
	}
	in.marked = true
	return nil
}

// another judges that there is an event with data.
func (in *Inspector) another() error {
	if in.ended {
		return dialect.Flawf(flawAfterEnd, "comes after the end of the answer")
	}
	return nil
}

// ends reports whether events of a type end the stream.
func ends(kind string) bool {
	return slices.Contains([]string{"response.completed", "response.incomplete", "response.failed"}, kind)
}

// Cut implements dialect.EventJudge. All known events have their type first, or in
// the event field.
func (in *Inspector) Cut(event, data []byte) error {
	if err := cmp.Or(in.Next(), in.another()); err != nil {
		return err
	}
	kind := string(event)
	dec := dialect.Lenient(data)
	defer dec.Release()
	if tok, err := dec.ReadToken(); err == nil && tok.Kind() == '{' {
		for dec.PeekKind() == '"' {
			name, err := dec.ReadValue()
			if err != nil {
				break
			}
			word := dialect.NameOf(name)
			if word != "type" && word != "sequence_number" {
				break
			}
			value, err := dec.ReadValue()
			if err != nil {
				break
			}
			if err := in.member(word, value, &kind); err != nil {
				return err
			}
		}
	}
	in.ended = ends(kind)
	in.failed = in.failed || kind == "response.failed" || kind == "error"
	return nil
}

// member reads one of the members that every event has.
func (in *Inspector) member(name string, value []byte, kind *string) error {
	switch name {
	case "type":
		if dialect.KindOf(value) != '"' {
			return dialect.Flawf(dialect.FlawShape, "has %s for its type", dialect.Found(value))
		}
		*kind = string(dialect.Spelled(value))
	case "sequence_number":
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || n < 0 {
			return nil // some engines number not all of their events
		}
		if in.counts && n != in.next {
			return dialect.Flawf(flawSequence, "has the number %d where %d belongs", n, in.next)
		}
		in.counts, in.next = true, n+1
	}
	return nil
}

// Object implements dialect.EventJudge.
func (in *Inspector) Object(data []byte, _ dialect.Notes) error {
	if err := in.another(); err != nil {
		return err
	}
	var kind string
	var response []byte
	err := dialect.EachMember(data, func(name string, value []byte) error {
		if name == "response" {
			response = value
		}
		return in.member(name, value, &kind)
	})
	switch {
	case err != nil:
		return err
	case kind == "":
		if bytes.Contains(data, []byte(`"error"`)) {
			in.failed = true // as engines write an error in every API
			return nil
		}
		return dialect.Flawf(dialect.FlawShape, "has no type")
	case kind == "error":
		in.failed = true
	case ends(kind):
		in.ended = true
		in.failed = in.failed || kind == "response.failed"
		if dialect.KindOf(response) != '{' {
			return dialect.Flawf(dialect.FlawShape, "is %s without the answer", kind)
		}
		return in.takeUsage(response)
	}
	return nil
}

var usageNames = dialect.UsageNames{Prompt: "input_tokens", Completion: "output_tokens", PromptDetails: "input_tokens_details"}

// takeUsage judges the usage of an answer's object and keeps it.
func (in *Inspector) takeUsage(response []byte) error {
	return dialect.EachMember(response, func(name string, value []byte) error {
		if name != "usage" {
			return nil
		}
		u, stated, err := dialect.UsageOf(value, &usageNames)
		if stated {
			in.usage, in.hasUsage = u, true
		}
		return err
	})
}
