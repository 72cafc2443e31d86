package trace

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
)

// Context is a request's place in a trace that several services have a part in (W3C Trace
// Context).
type Context struct {
	Trace  [16]byte
	Span   [8]byte // weir's own, of the request
	Parent [8]byte // the caller's; zero: it has none
	Flags  byte
	State  string // what other systems add, as it came
}

// sampledFlag is the flag by which a caller says that the trace is kept.
const sampledFlag = 1

// Sampled reports whether the trace is kept.
func (c *Context) Sampled() bool { return c.Flags&sampledFlag != 0 }

// maxState bounds a tracestate that is handed on.
const maxState = 512

// JoinTrace begins the request's span in the trace that its caller has named by the header
// fields traceparent and tracestate; nil where that names none, as a field that is not
// valid does not.
func JoinTrace(parent, state string) *Context {
	// 00-TRACE-PARENT-FLAGS; a later version may add more behind a dash.
	if len(parent) < 55 || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' || parent[:2] == "ff" || len(parent) > 55 && (parent[:2] == "00" || parent[55] != '-') {
		return nil
	}
	c := &Context{}
	var flags, version [1]byte
	for _, f := range []struct {
		to   []byte
		from string
	}{{version[:], parent[:2]}, {c.Trace[:], parent[3:35]}, {c.Parent[:], parent[36:52]}, {flags[:], parent[53:55]}} {
		for _, b := range []byte(f.from) {
			if 'A' <= b && b <= 'F' { // which hex would take
				return nil
			}
		}
		if _, err := hex.Decode(f.to, []byte(f.from)); err != nil {
			return nil
		}
	}
	if c.Trace == [16]byte{} || c.Parent == [8]byte{} {
		return nil
	}
	if c.Flags = flags[0] & sampledFlag; len(state) <= maxState {
		c.State = state
	}
	rand.Read(c.Span[:]) // never fails
	return c
}

// NewTrace begins a trace.
func NewTrace(sampled bool) *Context {
	c := &Context{}
	rand.Read(c.Trace[:])
	rand.Read(c.Span[:])
	if sampled {
		c.Flags = sampledFlag
	}
	return c
}

// Child is the id of the request's n-th span below its own.
func (c *Context) Child(n int) (id [8]byte) {
	v := binary.BigEndian.Uint64(c.Span[:]) + uint64(n) + 1
	if v == 0 {
		v = 1 << 63 // no span has that id
	}
	binary.BigEndian.PutUint64(id[:], v)
	return id
}

// The numbers of a request's spans below its own. Those of stages come first.
const (
	firstLeg = 100
	legParts = 10 // spans of a leg: its own, and its engine's
)

// Leg is the id of the span of the request's n-th leg, of all attempts, which its engine
// is told as its caller's; and part of those below it, from 1.
func (c *Context) Leg(n, part int) [8]byte { return c.Child(firstLeg + n*legParts + part) }

// Caller is what an engine is told of the trace that a request is part of.
type Caller struct {
	Parent, State string // traceparent and tracestate
	// Own states that the parent is weir's span and not the caller's.
	Own bool
}

// Sampled reports whether the trace is kept.
func (c *Caller) Sampled() bool {
	return len(c.Parent) >= 55 && (c.Parent[54]-'0')&sampledFlag != 0
}

// Caller is what the engine of the request's n-th leg is told, nil of no trace. own says
// that weir has spans.
func (c *Context) Caller(n int, own bool) *Caller {
	switch {
	case c == nil:
		return nil
	case own:
		return &Caller{c.Header(c.Leg(n, 0)), c.State, true}
	}
	return &Caller{c.Header(c.Parent), c.State, false}
}

// Header is the traceparent by which a span is named to whom it calls.
func (c *Context) Header(span [8]byte) string {
	b := make([]byte, 0, 55)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, c.Trace[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, span[:])
	b = append(b, '-')
	return string(hex.AppendEncode(b, []byte{c.Flags}))
}
