package openai

import (
	"bytes"
	"math"

	"weir/internal/dialect"
)

// ParseHead implements dialect.Endpoint.
func (e Endpoint) ParseHead(body []byte) (*dialect.Head, error) {
	h, err := dialect.ParseHead(body, tables[e], func(h *dialect.Head, name string, value []byte) error { return e.take(h, name, value) })
	if err != nil {
		return nil, err
	}
	return h, h.NeedModel()
}

// take reads the fields that steer the gateway. Endpoints that weir does not
// know may mean something else by all but the model.
func (e Endpoint) take(h *dialect.Head, name string, value []byte) (err error) {
	if e.tokenizes() {
		return nil
	}
	if e == Other {
		if name == "stream" {
			h.Stream = dialect.KindOf(value) == 't'
		}
		return nil
	}
	if dialect.KindOf(value) == 'n' {
		return nil
	}
	switch name {
	case "stream":
		h.Stream, err = dialect.BoolOf(name, value)
	case "n":
		var n int64
		// A relayed engine may allow more than weir does, whose limit an error names.
		if n, err = dialect.IntOf(name, value, 1, math.MaxInt32); err != nil {
			_, err = dialect.IntOf(name, value, 1, maxAsked)
		}
		h.N = int(n)
	case "stream_options":
		if dialect.KindOf(value) != '{' {
			return dialect.WrongType(name, "an object", value)
		}
		_, err = includeUsage(value)
	}
	return err
}

// includeUsage reads the one of the stream's options that says that the caller
// wants usage at the end of it.
func includeUsage(options []byte) (include bool, err error) {
	err = dialect.Members(options, func(option, value []byte) (err error) {
		if string(option) == "include_usage" && dialect.KindOf(value) != 'n' {
			include, err = dialect.BoolOf("stream_options.include_usage", value)
		}
		return err
	})
	return include, err
}

// choices returns how many choices an answer to the request must have, or 0 when
// the head does not tell: a completion has n for each of its prompts, which the
// head does not count.
func (e Endpoint) choices(h *dialect.Head) int {
	if e != Completions {
		return h.N
	}
	for _, f := range h.Fields {
		if f.Name != "prompt" && f.Name != "prompt_embeds" {
			continue
		}
		value := h.Body[f.Start:f.End]
		if dialect.KindOf(value) != '[' {
			continue
		}
		// A list of ids is one prompt; one of anything else may be many.
		if first := bytes.TrimLeft(value[1:], " \t\r\n"); dialect.KindOf(first) != '0' {
			return 0
		}
	}
	return h.N
}
