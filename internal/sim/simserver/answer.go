package simserver

import (
	"net/http"
	"strconv"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
)

// answer is the answer to one completion request. Its goroutine is the
// handler's; results reach it through its outbox, and all that is pending is
// written at once.
type answer struct {
	e  *Engine
	d  *dialect
	w  http.ResponseWriter
	r  *http.Request
	id string

	created      int64 // s
	stream       bool
	usage        bool // in the stream
	promptTokens int
	choices      []choice
	open         int // choices that have not ended

	box   outbox
	taken batch

	fault  sim.Fault
	faulty bool
	tokens int // generated for all choices
}

// choice is one of an answer's outputs.
type choice struct {
	job
	accepted   bool // the engine has it
	over       bool // the engine is done with it
	began      bool // its first event was written
	stops      stopScanner
	text       []byte // not yet written, or all of it when nothing is streamed
	completion int
	reason     infer.Reason // set when it ended
}

// delay is what the faults do before the engine is asked. It is false when the
// request ended here.
func (a *answer) delay() bool {
	switch a.fault.Kind {
	case sim.Unavailable:
		writeError(a.w, infer.Errorf(infer.CodeUnavailable, "unavailable by fault"))
		return false
	case sim.Hang:
		select {
		case <-a.r.Context().Done():
		case <-a.e.done:
		}
		a.breakOff(sim.Cut)
		return false
	case sim.Slow:
		t := time.NewTimer(a.fault.Delay)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-a.r.Context().Done():
		case <-a.e.done:
		}
		a.breakOff(sim.Cut)
		return false
	}
	return true
}

// abandon aborts what the engine still works on.
func (a *answer) abandon() {
	for i := range a.choices {
		if c := &a.choices[i]; c.accepted && !c.over && c.reason == "" {
			a.e.abort(&c.job)
		}
	}
}

// wait waits for results and takes them. It is false when there will be none:
// the client left, or the engine stopped.
func (a *answer) wait() bool {
	for {
		select {
		case <-a.r.Context().Done():
			return false
		case <-a.e.done:
			return false
		case <-a.box.wake:
		}
		if a.box.take(&a.taken) {
			return true
		}
	}
}

// serveStream writes the answer as events: one for each token, one write for
// all that is pending.
func (a *answer) serveStream() {
	enc := newEncoder(a.d, a.id, a.e.prepare.Model, a.created, len(a.choices), a.usage)
	flush := http.NewResponseController(a.w)
	a.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	a.w.Header().Set("Cache-Control", "no-cache")
	a.open = len(a.choices)
	var buf []byte
	for a.open > 0 {
		if !a.wait() {
			a.breakOff(sim.Cut)
			return
		}
		var struck bool
		buf, struck = a.events(enc, buf[:0])
		if !struck && a.open == 0 {
			if a.usage {
				buf = enc.usage(buf, a.promptTokens, a.completion())
			}
			buf = append(buf, "data: [DONE]\n\n"...)
		}
		if len(buf) > 0 {
			if _, err := a.w.Write(buf); err != nil {
				return
			}
			if err := flush.Flush(); err != nil {
				return
			}
		}
		if struck {
			a.breakOff(a.fault.Kind)
			return
		}
	}
}

// events appends the events of what was taken. struck says that the answer
// breaks off after them.
func (a *answer) events(enc *encoder, buf []byte) (out []byte, struck bool) {
	for k, slot := range a.taken.slot {
		c := &a.choices[slot]
		if c.reason != "" {
			continue
		}
		times := 1
		if a.faulty && a.tokens == a.fault.After {
			switch a.fault.Kind {
			case sim.Skip:
				times = 0
			case sim.Repeat:
				times = 2
			case sim.Cut, sim.Truncate, sim.Reset:
				return buf, true
			case sim.Garble:
				buf = append(buf, garbled...)
			case sim.Stray:
				buf = enc.event(buf, strayChoice, enc.d.emptyDelta, "null")
			}
		}
		a.tokens++
		c.completion++
		if !c.began {
			c.began = true
			buf = enc.begin(buf, slot)
		}
		text, isWord := a.e.prepare.Words.Text(a.taken.id[k])
		if !isWord {
			// An end id has no text.
			continue
		}
		for range times {
			if len(c.stops.list) == 0 {
				buf = enc.token(buf, slot, text)
				continue
			}
			shown, stopped := c.stops.push(text)
			if shown != "" {
				buf = enc.token(buf, slot, shown)
			}
			if stopped {
				a.stop(c)
				buf = enc.finish(buf, slot, c.reason)
				break
			}
		}
	}
	for _, d := range a.taken.done {
		c := &a.choices[d.slot]
		c.over = true
		if c.reason != "" {
			continue
		}
		if rest := c.stops.rest(); rest != "" {
			buf = enc.token(buf, d.slot, rest)
		}
		c.reason = d.Reason
		a.open--
		buf = enc.finish(buf, d.slot, c.reason)
	}
	return buf, false
}

// garbled is an event that ends in the middle of its own JSON, and strayChoice a
// choice that nobody can ask for.
const (
	garbled     = `data: {"id":"chatcmpl-1","choices":[{"index":` + "\n\n"
	strayChoice = 1 << 20
)

// stop ends a choice at a stop string.
func (a *answer) stop(c *choice) {
	c.reason = infer.ReasonStop
	a.open--
	a.e.end(&c.job, infer.ReasonStop)
}

// completion is the number of tokens to report.
func (a *answer) completion() int {
	n := 0
	for i := range a.choices {
		n += a.choices[i].completion
	}
	if a.faulty && a.fault.Kind == sim.Miscount {
		n++
	}
	return n
}

// serveWhole writes the answer when it is complete.
func (a *answer) serveWhole() {
	a.open = len(a.choices)
	for a.open > 0 {
		if !a.wait() {
			if a.r.Context().Err() == nil {
				writeError(a.w, errStopped())
			}
			return
		}
		if a.collect() {
			a.breakOff(a.fault.Kind)
			return
		}
	}
	body := a.d.whole(a.id, a.e.prepare.Model, a.created, a.choices, a.promptTokens, a.completion())
	if !a.faulty || a.tokens <= a.fault.After {
		a.writeWhole(body, len(body))
		return
	}
	switch a.fault.Kind {
	case sim.Truncate:
		a.writeWhole(body[:len(body)/2], len(body)/2)
	case sim.Cut, sim.Reset:
		a.writeWhole(body[:len(body)/2], len(body))
		if http.NewResponseController(a.w).Flush() == nil {
			a.breakOff(a.fault.Kind)
		}
	default:
		a.writeWhole(body, len(body))
	}
}

func (a *answer) writeWhole(body []byte, promised int) {
	a.w.Header().Set("Content-Type", "application/json")
	a.w.Header().Set("Content-Length", strconv.Itoa(promised))
	// An error here is the client's hang-up.
	_, _ = a.w.Write(body)
}

// collect adds what was taken to the choices' texts. struck says that the
// answer breaks off before its head.
func (a *answer) collect() (struck bool) {
	for k, slot := range a.taken.slot {
		c := &a.choices[slot]
		if c.reason != "" {
			continue
		}
		text, _ := a.e.prepare.Words.Text(a.taken.id[k])
		times := 1
		if a.faulty && a.tokens == a.fault.After {
			switch a.fault.Kind {
			case sim.Skip:
				times = 0
			case sim.Repeat:
				times = 2
			case sim.Cut, sim.Reset:
				if a.fault.After == 0 {
					return true
				}
			}
		}
		a.tokens++
		c.completion++
		for range times {
			shown, stopped := c.stops.push(text)
			c.text = append(c.text, shown...)
			if stopped {
				a.stop(c)
				break
			}
		}
	}
	for _, d := range a.taken.done {
		c := &a.choices[d.slot]
		c.over = true
		if c.reason == "" {
			c.text = append(c.text, c.stops.rest()...)
			c.reason = d.Reason
			a.open--
		}
	}
	return false
}

// breakOff ends the connection as the fault says. Truncate ends the answer
// only, which net/http does when the handler returns.
func (a *answer) breakOff(kind sim.FaultKind) {
	if kind == sim.Truncate {
		return
	}
	c, _, err := http.NewResponseController(a.w).Hijack()
	if err != nil {
		// The connection is past saving; this breaks it too.
		panic(http.ErrAbortHandler)
	}
	if t, ok := c.(*conn); ok && kind == sim.Reset {
		t.reset()
		return
	}
	c.Close()
}
