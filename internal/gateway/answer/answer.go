// Package answer makes the response to a request from the output of an engine: the ids
// of a token engine ([Tokens]) or the bytes of a relay engine ([Relayed]). It is the
// core of the output path, and pure: it has no clock, no socket and no goroutine. Its
// arguments are the bytes or ids that were received. Its results are the bytes to send
// to the client and the actions that the caller must take, such as aborting a
// generation.
//
// The scripts in testdata show inputs and outputs.
package answer

import (
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/model/outputparse"
	"weir/internal/trace"
)

// Answer is the answer to one request by one attempt. It serves one goroutine at a
// time.
type Answer interface {
	// Next reads input from the engine and returns the output that can be sent now. It
	// is not called again after the last part. After a part with an error it is called
	// only if another engine continues the answer (Tokens).
	Next(in *Input, s *Scratch, at Stages) Part
	// AppendError appends the pending output of a stream that ends with an error, and
	// the error's event. ok is false if the event cannot be appended because the stream
	// has sent only a part of another event.
	AppendError(dst []byte, e *infer.Error) (out []byte, ok bool)
	// Usage returns the counts of tokens so far. ok is false if none are known.
	Usage() (u infer.Usage, ok bool)
}

// Stages is notified when a stage of the request's time begins (package trace).
type Stages interface {
	Enter(trace.Stage) (now int64)
}

// Input is output of an engine.
type Input struct {
	// Cells are the content of a mailbox, for Tokens.
	Cells []stream.Cell

	// These are for Relayed. N is the number of bytes read into Relayed.Room. Err is
	// set when no more can be read: io.EOF, or another error. Now is the time of the
	// read.
	N   int
	Err error
	Now int64
}

// Part is the next part of a response.
type Part struct {
	// Out are the bytes to send. They belong to the scratch and are valid until its
	// next use.
	Out []byte
	// Last is set if the response is whole with Out.
	Last bool
	// Err is the error that ends the answer. If Last is set, the response already
	// contains the engine's error. Otherwise either AppendError adds it, or another
	// attempt follows, which begins a new answer or continues this one.
	Err error
	// Failed is set if Out is the beginning of a relayed answer and ends with an error of
	// the engine that another engine may not have. Another attempt may then replace it.
	// Otherwise Out is sent as it is.
	Failed *infer.Error
	// Stops are the choices that need no further output although the engine may
	// continue. They too belong to the scratch.
	Stops []Stop
}

// Stop is a choice that has ended by its text. Running is set if the engine has not
// ended it yet.
type Stop struct {
	Choice  uint32
	Running bool
}

// Scratch holds the buffers that an answer needs during a call and not between
// calls, so that answers that wait need not have them. The zero value is ready.
type Scratch struct {
	out    []byte
	text   []byte
	events []outputparse.Event
	stops  []Stop
	read   []byte
}

// keepScratch is what each buffer of an idle scratch may hold, in elements.
const keepScratch = 64 << 10

// Trim releases the buffers of very large deltas and events. It is called when no part
// of the scratch is in use.
func (s *Scratch) Trim() {
	if cap(s.text) > keepScratch || cap(s.events) > keepScratch/64 {
		s.text, s.events = nil, nil // events refer to the text
	}
	s.out, s.stops = infer.Reuse(s.out, keepScratch), infer.Reuse(s.stops, keepScratch)
	if cap(s.read) > 2*readMax {
		s.read = nil
	}
}
