package openai

import (
	"bytes"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/wire/sse"
)

// Count implements dialect.Counted. OpenAI's streams state their usage only if the request asks
// for it (stream_options.include_usage), in an event of its own at the end. A caller that has
// not asked does not get that event.
func (e Endpoint) Count(h *dialect.Head) (*dialect.Asked, dialect.Verifier) {
	if e != Chat && e != Completions {
		return nil, nil
	}
	var options []byte
	for _, f := range h.Fields {
		if value := h.Body[f.Start:f.End]; f.Name == "stream_options" && dialect.KindOf(value) == '{' {
			options = value
		}
	}
	wanted, rest := usageWanted(options)
	if wanted.usage {
		return nil, nil
	}
	asked := h.Ask()
	asked.Set("stream_options", `{"include_usage":true`+rest+"}")
	return asked, new(counter)
}

// counter takes the event of the usage out of a stream. The Inspector has read it before.
type counter struct{ walk sse.Walker }

var usageName = []byte(`"usage"`)

// Events implements dialect.Verifier.
func (c *counter) Events(dst, region []byte) (out []byte, good int, err error) {
	at := c.walk.Begin(region)
	from := 0 // of what is to be passed on
	for at < len(region) {
		b, next := c.walk.Block(region, at)
		if b.Lines == 1 && !b.Cut && bytes.Contains(b.Data, usageName) && usageOnly(b.Data) {
			dst = append(dst, region[from:at]...)
			from = next
		}
		at = next
	}
	return append(dst, region[from:]...), len(region), nil
}

// usageOnly reports whether an event has a usage and is about no choice.
func usageOnly(data []byte) bool {
	var choices, usage part
	ok := members(data, 0, func(name []byte, p part) {
		switch string(name) {
		case "choices":
			choices = p
		case "usage":
			usage = p
		}
	})
	return ok && usage.there() && data[usage.start] == '{' && choices.there() && data[choices.start] == '[' &&
		data[blanks(data, choices.start+1)] == ']'
}

// Rest implements dialect.Verifier.
func (*counter) Rest(dst []byte) []byte { return dst }

// Verified implements dialect.Verifier: nothing was verified.
func (*counter) Verified() (ok bool, why string) { return false, "" }

// Usage implements dialect.Verifier: the Inspector has it.
func (*counter) Usage() (infer.Usage, bool) { return infer.Usage{}, false }
