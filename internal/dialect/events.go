package dialect

import (
	"bytes"
	"errors"
	"fmt"

	"weir/internal/infer"
	"weir/internal/wire/sse"
)

// EventJudge judges the events that an EventWalk finds in a stream.
type EventJudge interface {
	// Next is called before each event that is not cut.
	Next() error
	// Object judges an event whose data is one valid JSON object, and Marker one
	// whose data is [DONE].
	Object(data []byte, n Notes) error
	Marker() error
	// Cut judges an event that is too large to be held, by its name, nil if it has
	// none, and by the beginning of its data. The rest of the event passes unseen.
	Cut(name, data []byte) error
}

// EventWalk finds the events in the regions of a stream, for an Inspector. The data
// of an event must be one JSON object, or exactly [DONE], or empty. An empty event
// and a comment are keep-alives.
//
// A walk allocates nothing for an event that is one line.
type EventWalk struct {
	walk   sse.Walker
	events int // so far
}

// Inside reports whether the stream stands inside an event that was cut.
func (w *EventWalk) Inside() bool { return w.walk.Inside() }

// The flaws that an event's data may have, as words for a metric's label.
const (
	FlawJSON  infer.Flaw = "not_json" // neither JSON nor [DONE]
	FlawShape infer.Flaw = "shape"    // a value of another type than the API's
	FlawUsage infer.Flaw = "usage"    // a count that is not a number, or counts that do not add up
)

// flaw is what is wrong with an event: "event 3 of the engine's stream" goes
// before the text.
type flaw struct {
	reason infer.Flaw
	text   string
}

func (f *flaw) Error() string { return f.text }

// Flawf returns an error that describes an event's flaw, for a judge.
func Flawf(reason infer.Flaw, format string, args ...any) error {
	return &flaw{reason, fmt.Sprintf(format, args...)}
}

// EventFault returns the error of a stream whose n-th event has a flaw.
func EventFault(n int, err error) *infer.Error {
	e := infer.Errorf(infer.CodeIntegrity, "event %d of the engine's stream %s; the output ends here, send the request again", n, err)
	if f, ok := errors.AsType[*flaw](err); ok {
		e.Cause = f.reason
	}
	return e
}

// Events implements the method of Inspector by means of a judge.
//
// A region ends with an event, or inside an event that is too large to be held, which
// is then cut.
func (w *EventWalk) Events(region []byte, j EventJudge) (good int, err error) {
	at := w.walk.Begin(region)
	for at < len(region) {
		next, err := w.line(region, at, j)
		if next == 0 {
			var b sse.Block
			b, next = w.walk.Block(region, at)
			err = w.block(&b, j)
		}
		if err != nil {
			return at, EventFault(w.events, err)
		}
		at = next
	}
	return at, nil
}

// line judges the event at region[at:] if it is what nearly all are: a data line
// with an object and nothing around it but the event's name. It gives the place
// after it, and 0 when it is not such an event, of which nothing is noted then.
func (w *EventWalk) line(region []byte, at int, j EventJudge) (next int, err error) {
	const name, field = "event:", "data:"
	if len(region)-at > len(name) && string(region[at:at+len(name)]) == name {
		end := bytes.IndexByte(region[at:], '\n')
		if end < 0 || bytes.IndexByte(region[at:at+end], '\r') >= 0 {
			return 0, nil
		}
		at += end + 1
	}
	if len(region)-at < len(field)+1 || string(region[at:at+len(field)]) != field {
		return 0, nil
	}
	at += len(field)
	if region[at] == ' ' {
		at++
	}
	if at == len(region) || region[at] != '{' {
		return 0, nil
	}
	end, n, ok := CheckJSON(region, at)
	if !ok || n.Broken {
		return 0, nil
	}
	switch rest := region[end:]; {
	case len(rest) >= 2 && rest[0] == '\n' && rest[1] == '\n':
		next = end + 2
	case len(rest) >= 4 && string(rest[:4]) == "\r\n\r\n":
		next = end + 4
	default:
		return 0, nil
	}
	w.events++
	if err := j.Next(); err != nil {
		return next, err
	}
	return next, j.Object(region[at:end], n)
}

// block judges an event, whatever it is.
func (w *EventWalk) block(b *sse.Block, j EventJudge) error {
	switch {
	case b.Cut:
		w.events++
		return j.Cut(b.Name, b.Data)
	case b.Lines == 0:
		return nil
	}
	w.events++
	data := b.Data
	if b.Lines == 1 && string(data) == sse.DoneMarker {
		return j.Marker()
	}
	if err := j.Next(); err != nil {
		return err
	}
	if len(data) == 0 {
		return nil
	}
	end, n, ok := CheckJSON(data, 0)
	if ok {
		end = SkipBlank(data, end, &n)
	}
	if !ok || end < len(data) {
		return Flawf(FlawJSON, "is neither JSON nor the end marker, from byte %d of its data", end)
	}
	if KindOf(data) != '{' {
		return Flawf(FlawShape, "is %s where an object belongs", Found(data))
	}
	return j.Object(data, n)
}
