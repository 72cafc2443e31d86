package anthropic

import (
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// Inspector checks a stream of events that is relayed unchanged from an engine to a
// client. The rules of a stream:
//
//   - Every event's data is one JSON object. [DONE], which vLLM appends, may come
//     after message_stop.
//   - message_start comes first and once.
//   - A content block begins when none is open, with an index above all before. Its deltas and its
//     stop have the same index and come while it is open.
//   - message_stop comes when no block is open and a message_delta has given a
//     stop_reason. Nothing but a ping comes after it.
//   - Token counts, where present, are non-negative integers.
//
// Events of other types pass, because the API allows for new ones. After an error
// event of the engine's, or an event that is too large to be seen, a message need not
// be whole.
//
// A delta is judged by its type and index, without allocating. The few other events
// of a stream are decoded.
type Inspector struct {
	walk    dialect.EventWalk
	partial bool // an event passed unseen; it may have held anything
	started bool
	stopped bool // a stop_reason came
	done    bool
	failed  bool
	odd     dialect.Odd
	next    uint64 // the least index that a block may have
	open    bool   // the block of index next-1

	usage    infer.Usage
	created  int // tokens of the prompt that were put into the cache
	hasUsage bool
}

// NewInspector implements dialect.Endpoint.
func (e Endpoint) NewInspector(*dialect.Head) dialect.Inspector {
	if e != Messages {
		return nil
	}
	return &Inspector{usage: infer.Usage{CachedTokens: -1}}
}

// Events implements dialect.Inspector.
func (in *Inspector) Events(region []byte) (good int, err error) { return in.walk.Events(region, in) }

// Done implements dialect.Inspector.
func (in *Inspector) Done() bool { return in.done }

// Whole implements dialect.Inspector. Only the last event shows that a stream is
// whole.
func (in *Inspector) Whole() bool { return in.Done() }

// Failed implements dialect.Inspector.
func (in *Inspector) Failed() bool { return in.failed }

// FailedAs implements dialect.Inspector. It returns 0, because the dialect's error events have
// a word instead of a status.
func (in *Inspector) FailedAs() int { return 0 }

// Usage implements dialect.Inspector. The prompt's tokens are the sum of three
// counts: read from the cache, written to it, and neither.
func (in *Inspector) Usage() (infer.Usage, bool) {
	u := in.usage
	u.PromptTokens += max(u.CachedTokens, 0) + in.created
	return u, in.hasUsage
}

// Odd implements dialect.Inspector.
func (in *Inspector) Odd() dialect.Odd { return in.odd }

// Reasons why a stream does not add up, beside those of api.
const (
	flawAfterStop infer.Flaw = "after_done"     // an event after message_stop
	flawStart     infer.Flaw = "message_start"  // not first, or not once
	flawBlock     infer.Flaw = "content_block"  // a block's event outside of it
	flawUnended   infer.Flaw = "no_stop_reason" // message_stop before the message was whole
)

// Next implements dialect.EventJudge.
func (in *Inspector) Next() error { return nil }

// Marker implements dialect.EventJudge.
func (in *Inspector) Marker() error {
	if !in.done {
		return dialect.Flawf(flawUnended, "is [DONE], but there was no message_stop")
	}
	return nil
}

// Cut implements dialect.EventJudge.
func (in *Inspector) Cut(_, _ []byte) error {
	in.partial = true
	return nil
}

// Object implements dialect.EventJudge.
func (in *Inspector) Object(data []byte, _ dialect.Notes) error {
	kind, index, err := head(data)
	if err != nil {
		return err
	}
	switch string(kind) {
	case "ping":
		return nil
	case "error":
		in.failed, in.done = true, true
		return nil
	}
	if in.done && string(kind) == "message_stop" {
		in.odd |= dialect.DoneTwice
		return nil
	}
	if in.done {
		return dialect.Flawf(flawAfterStop, "comes after message_stop")
	}
	if in.started == (string(kind) == "message_start") && !in.partial {
		if in.started {
			return dialect.Flawf(flawStart, "is a second message_start")
		}
		return dialect.Flawf(flawStart, "is %q, before message_start", dialect.Clip(string(kind), 32))
	}
	switch string(kind) {
	case "message_start":
		in.started = true
		return in.read(data)
	case "content_block_start":
		if in.open && !in.partial {
			return dialect.Flawf(flawBlock, "begins content block %d while block %d is open", index, in.next-1)
		}
		if index < in.next {
			return dialect.Flawf(flawBlock, "begins content block %d, and block %d has been", index, in.next-1)
		}
		in.open, in.next = true, index+1
	case "content_block_delta", "content_block_stop":
		if in.partial { // it may have begun unseen
			in.open, in.next = kind[len(kind)-1] == 'a', max(in.next, index+1)
			return nil
		}
		if !in.open || index+1 != in.next {
			return dialect.Flawf(flawBlock, "is a %s of block %d, which is not open", kind, index)
		}
		in.open = kind[len(kind)-1] == 'a'
	case "message_delta":
		return in.read(data)
	case "message_stop":
		in.done = true
		switch {
		case in.partial:
		case in.open:
			return dialect.Flawf(flawUnended, "is message_stop, and content block %d is open", in.next-1)
		case !in.stopped:
			return dialect.Flawf(flawUnended, "is message_stop, and there was no stop_reason")
		}
	}
	return nil
}

// noIndex is the index of an event that has none.
const noIndex = 1<<62 - 1

// head finds an event's type and index among its top-level members. The event is
// valid JSON.
func head(data []byte) (kind []byte, index uint64, err error) {
	index = noIndex
	err = dialect.Members(data, func(name, value []byte) (err error) {
		switch string(name) {
		case "type":
			if value[0] != '"' {
				return dialect.Flawf(dialect.FlawShape, "has %s for type", dialect.Found(value))
			}
			kind = value[1 : len(value)-1]
		case "index":
			if value[0] == 'n' {
				return nil
			}
			if index, err = strconv.ParseUint(string(value), 10, 61); err != nil {
				return dialect.Flawf(flawBlock, "has an index that is no number of a content block")
			}
		}
		return nil
	})
	if err == nil && kind == nil {
		err = dialect.Flawf(dialect.FlawShape, "has no type")
	}
	return kind, index, err
}

// read takes the events apart that give usage and a stop_reason.
func (in *Inspector) read(data []byte) error {
	return dialect.EachMember(data, func(name string, value []byte) error {
		if dialect.KindOf(value) != '{' {
			return nil
		}
		switch name {
		case "usage":
			return in.takeUsage(value)
		case "delta", "message":
			return dialect.EachMember(value, func(name string, value []byte) error {
				switch {
				case name == "stop_reason" && dialect.KindOf(value) == '"' && len(value) > 2:
					if in.stopped {
						in.odd |= dialect.FinishedTwice
					}
					in.stopped = true
				case name == "usage" && dialect.KindOf(value) == '{':
					return in.takeUsage(value)
				}
				return nil
			})
		}
		return nil
	})
}

// takeUsage keeps the latest counts.
func (in *Inspector) takeUsage(raw []byte) error {
	return dialect.EachMember(raw, func(name string, value []byte) error {
		var count *int
		switch name {
		case "input_tokens":
			count = &in.usage.PromptTokens
		case "cache_read_input_tokens":
			count = &in.usage.CachedTokens
		case "cache_creation_input_tokens":
			count = &in.created
		case "output_tokens":
			count = &in.usage.CompletionTokens
		}
		if count == nil || dialect.KindOf(value) == 'n' {
			return nil
		}
		err := dialect.CountOf(name, value, count)
		in.hasUsage = in.hasUsage || err == nil
		return err
	})
}
