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
	// Next takes in what came from the engine, and gives what can be sent now. It is
	// not called again after the last part. After one with an error it is called only
	// where another engine goes on with what follows (Tokens).
	Next(in *Input, s *Scratch, at Stages) Part
	// AppendError appends what is still due of a stream that ends with an error, and
	// the error's event. ok is false where an event cannot be appended, because the
	// stream stands inside one.
	AppendError(dst []byte, e *infer.Error) (out []byte, ok bool)
	// Usage gives the counts of tokens so far. ok is false where none are known.
	Usage() (u infer.Usage, ok bool)
}

// Stages learns which stage of the request's time begins (package trace).
type Stages interface {
	Enter(trace.Stage)
}

// Input is what came from an engine.
type Input struct {
	// Cells are what a mailbox held; for Tokens.
	Cells []stream.Cell

	// N is how many bytes were read into Relayed.Room, and Err why no more can be:
	// io.EOF, or what is wrong. Now is when. For Relayed.
	N   int
	Err error
	Now int64
}

// Part is what follows of a response.
type Part struct {
	// Out are the bytes to send. They are the scratch's and good until its next use.
	Out []byte
	// Last says that the response is whole with Out.
	Last bool
	// Err is why the answer ends here. With Last, the response itself says that the
	// engine failed; otherwise AppendError does, or another attempt follows: one that
	// begins anew with another answer, or one that goes on with this one.
	Err error
	// Failed is set where Out is the first of a relayed answer and ends with an error of the
	// engine's that another engine may not share: another attempt may follow in place of it.
	// Otherwise Out is sent as it is.
	Failed *infer.Error
	// Stops are the choices of which nothing is wanted any more although the engine
	// may go on. They are the scratch's too.
	Stops []Stop
}

// Stop is a choice that has ended by its text. Running says that the engine does not
// know yet.
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

// Trim lets go of what a very large delta or event needed. It is called when nothing of
// the scratch is in use.
func (s *Scratch) Trim() {
	if cap(s.text) > keepScratch || cap(s.events) > keepScratch/64 {
		s.text, s.events = nil, nil // events refer to the text
	}
	s.out, s.stops = infer.Reuse(s.out, keepScratch), infer.Reuse(s.stops, keepScratch)
	if cap(s.read) > 2*readMax {
		s.read = nil
	}
}
