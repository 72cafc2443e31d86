package drive

import (
	"net/http"

	"weir/internal/gateway/answer"
	"weir/internal/gateway/place"
	"weir/internal/observe/metrics"
)

// Leg is one engine's part of an attempt: the wire between the answer, which is
// pure, and the engine. There are two kinds, because token engines push their output
// and relay engines are pulled.
type Leg interface {
	// Head puts the response's head into h. events says that the response is a
	// stream of events.
	Head(h http.Header, first answer.Part) (status int, events bool)
	// Take puts what the engine has sent into h.In, without waiting; false when that is
	// nothing, and then the wait for the engine begins. It is called in rounds,
	// counted from 0, until it gives nothing.
	Take(h *Hand, round int) (ok bool, err error)
	// Stop ends the engine's work on choices that have ended by their text, last if
	// these were the last.
	Stop(choices []answer.Stop, last bool)
	// Whole reports whether all of the answer has been taken, with its end marker, and only the
	// engine's end of the response is still to come. A request that ends now is finished, whoever
	// has ended it.
	Whole() bool
	// More says that there may be something to take already.
	More() bool
	// Ready reports that Take gives something now, although the leg is not driven.
	Ready() bool
	// Glance reports whether something has come that Take gives now, by a look that does not
	// wait. The leg is not driven.
	Glance() bool
	// Wait blocks until there may be something to take.
	Wait()
	// Drive has the stream get a turn when there may be something to take; false when that
	// cannot be, and Wait is the only way.
	Drive(s *Stream) bool
	// Engine returns the engine's name.
	Engine() string
	// Close ends the engine's work on what has not ended.
	Close()
}

// Hand is what a goroutine that takes output from legs has at hand, so that the legs need not
// hold it.
type Hand struct {
	In      answer.Input
	Scratch answer.Scratch

	// Not reported yet to what all share: the books, and the metrics.
	Tally        place.Tally
	Merged, Gaps metrics.Tally
}

// Tell reports what was not reported yet. It is called before the goroutine waits.
func (h *Hand) Tell() {
	h.Tally.Tell()
	h.Merged.Tell()
	h.Gaps.Tell()
}

// Trim releases the buffers of the previous turn if they are large, and all references.
func (h *Hand) Trim() {
	h.In = answer.Input{}
	h.Scratch.Trim()
}
