package trace

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
)

// Context is a request's place in a distributed trace (W3C Trace Context).
type Context struct {
	Trace  [16]byte
	Span   [8]byte // weir's span of the request
	Parent [8]byte // the caller's span; zero: none
	Flags  byte
	State  string // what other systems have added, unchanged
}

// sampledFlag is the flag by which a caller says that the trace is kept.
const sampledFlag = 1

// Sampled reports whether the trace is kept.
func (c *Context) Sampled() bool { return c.Flags&sampledFlag != 0 }

// maxState bounds a tracestate that is handed on.
const maxState = 512

// JoinTrace begins the request's span in the trace of its caller, which the header fields
// traceparent and tracestate name. It returns nil if traceparent is absent or not valid.
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

// Child returns the id of the n-th span below the request's own.
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

// Leg returns the id of the span of the request's n-th leg, counted over all attempts.
// Its engine gets this id as its caller's span. part numbers the spans below it, from 1;
// 0 is the leg itself.
func (c *Context) Leg(n, part int) [8]byte { return c.Child(firstLeg + n*legParts + part) }

// Caller is the part of a request's trace context that an engine gets.
type Caller struct {
	Parent, State string // traceparent and tracestate
	// Own is set if the parent is weir's span and not the caller's.
	Own bool
}

// Sampled reports whether the trace is kept.
func (c *Caller) Sampled() bool {
	return len(c.Parent) >= 55 && (c.Parent[54]-'0')&sampledFlag != 0
}

// Caller returns what the engine of the request's n-th leg gets, nil if there is no
// trace. own is set if weir exports spans.
func (c *Context) Caller(n int, own bool) *Caller {
	switch {
	case c == nil:
		return nil
	case own:
		return &Caller{c.Header(c.Leg(n, 0)), c.State, true}
	}
	return &Caller{c.Header(c.Parent), c.State, false}
}

// Header returns the traceparent that names a span to the services that it calls.
func (c *Context) Header(span [8]byte) string {
	b := make([]byte, 0, 55)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, c.Trace[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, span[:])
	b = append(b, '-')
	return string(hex.AppendEncode(b, []byte{c.Flags}))
}
