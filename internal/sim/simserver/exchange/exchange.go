// Package exchange carries one HTTP request to a simulated engine and its answer back, for all wires:
// results are digested into outputs, in which faults take effect, and what they have pending is written
// through a form, which holds the differences between the wires.
package exchange

import (
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/conns"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
	"weir/internal/workload/content"
)

// Exchange is one HTTP request in the engine and its answer, for all wires. It runs on the
// handler's goroutine. Results reach it through its outbox and are digested into its
// outputs, and all pending output is written at once by a form.
type Exchange struct {
	Run     *engine.Engine
	Vocab   *vocab.Vocab
	Writer  http.ResponseWriter
	Request *http.Request
	ID      string // of the request, for faults

	Created      int64 // when its head was read, ns
	AtOnce       bool  // it is answered by one document, not by a stream
	PromptTokens int   // of each prompt once
	Outputs      []Output
	Open         int // outputs that have not ended

	box     engine.Outbox
	Taken   engine.Batch
	changed []uint32 // outputs with something to write, by slot

	Fault  sim.Fault
	Faulty bool
	tokens int // generated for all outputs
	split  splitting
}

// Output is one of an exchange's outputs: a choice, or an item of a batch.
type Output struct {
	engine.Job
	accepted bool // the engine has it
	over     bool // the engine is done with it
	changed  bool // it is in the exchange's list
	Began    bool // something of it was written

	Pair    *Pair                 // its part of a pair on vLLM
	Mute    bool                  // nothing is written of it before its end
	Explain func(*sim.Done) error // what an error of its pair is in the wire's words

	Name   string // its own, where the wire has one
	Prompt []uint32
	// ShowStop shows the text that stopped the output. Its id is always sent.
	ShowStop bool
	Stops    StopScanner
	partial  []byte // the beginning of a rune

	Ask      content.Ask // what the request's fields ask for
	Scripted bool        // it is not words alone

	// Text is not yet written; if nothing is streamed, it is the whole text.
	Text []byte
	IDs  []uint32

	Sent   int // ids written
	Offset int // bytes of text written

	Completion int   // ids generated
	Latest     int64 // when the latest was, ns
	Cached     int   // prompt tokens found in the cache
	Rank       int   // the DP rank that has it

	Retractions int
	Stamps      infer.Stamps
	Reason      infer.Reason // set when it ended
	Matched     Match        // with ReasonStop
	Failure     error        // why the engine refused it, or ended it
	Queued      bool         // it was in the queue when it ended
	Summary     sim.Done
}

// Match is the id or stop string that stopped an output.
type Match struct {
	Set  bool
	ID   uint32
	Text string // where it is a string
}

// Append appends what stopped an output, or null.
func (m Match) Append(b []byte) []byte {
	switch {
	case !m.Set:
		return append(b, "null"...)
	case m.Text != "":
		return append(b, web.Quote(m.Text)...)
	}
	return strconv.AppendUint(b, uint64(m.ID), 10)
}

// Form is a wire's way of writing streams.
type Form interface {
	// Event appends what an output has pending as events; the exchange clears it
	// afterwards.
	Event(b []byte, o *Output) []byte
	// Stray appends an event about an output that nobody asked for.
	Stray(b []byte) []byte
	// End appends what ends the stream.
	End(b []byte) []byte
}

// New begins the exchange of a request that came at a time. id is the request's, for faults.
func New(run *engine.Engine, v *vocab.Vocab, w http.ResponseWriter, r *http.Request, id string, created int64) Exchange {
	return Exchange{Run: run, Vocab: v, Writer: w, Request: r, ID: id, Created: created, box: engine.NewOutbox(0, nil)}
}

// Draw draws the request's fault.
func (x *Exchange) Draw(prompts [][]uint32) {
	conns.Of(x.Request.Context()).Mold(nil) // of an earlier request
	x.Fault, x.Faulty = x.Run.Fault(x.ID, func() []byte { return x.Vocab.PromptText(prompts...) })
}

// Add prepares an output.
func (x *Exchange) Add(o Output, p sim.Params) (sim.Request, error) {
	p.Stall, p.StallAfter = x.Faulty && x.Fault.Kind == sim.Stall, x.Fault.After
	var err error
	if o.Scripted, err = x.Vocab.Script(&p, o.Ask); err != nil {
		return sim.Request{}, err
	}
	prepared, err := x.Run.Options().Prepare(p)
	if err != nil {
		return prepared, err
	}
	o.Prompt = p.Prompt
	if o.Leg != nil {
		o.Leg.Fault, o.Leg.Faulty = x.Fault, x.Faulty
	}
	o.Job = engine.Job{Slot: uint32(len(x.Outputs)), Seed: int64(p.Seed), Leg: o.Leg, AtOnce: x.AtOnce}
	x.Outputs = append(x.Outputs, o)
	return prepared, nil
}

// Delay applies the faults that take effect before the engine is asked; refuse answers with
// an error. It returns false if the request ended here.
func (x *Exchange) Delay(refuse func(error)) bool {
	if !x.Faulty {
		return true
	}
	switch x.Fault.Kind {
	case sim.Unavailable:
		refuse(infer.Errorf(infer.CodeUnavailable, "unavailable by fault"))
		return false
	case sim.Fail:
		x.fail()
		return false
	case sim.Throttle:
		x.throttle()
		return false
	case sim.Hang:
		select {
		case <-x.Request.Context().Done():
		case <-x.Run.Done():
		}
		x.breakOff(sim.Cut)
		return false
	case sim.Slow:
		t := time.NewTimer(x.Fault.Delay)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-x.Request.Context().Done():
		case <-x.Run.Done():
		}
		x.breakOff(sim.Cut)
		return false
	}
	return true
}

// Submit hands an output to the engine.
func (x *Exchange) Submit(o *Output, r sim.Request) error {
	o.Box = &x.box
	if err := x.Run.Submit(x.Request.Context(), &o.Job, x.Created, r); err != nil {
		return err
	}
	o.accepted = true
	x.Open++
	return nil
}

// Abandon aborts the outputs that the engine still works on.
func (x *Exchange) Abandon() {
	for i := range x.Outputs {
		if o := &x.Outputs[i]; o.accepted && !o.over && o.Reason == "" {
			x.Run.Abort(&o.Job)
		}
	}
}

// wait waits for results and takes them. It is false when there will be none:
// the client left, or the engine stopped.
func (x *Exchange) wait() bool {
	for {
		select {
		case <-x.Request.Context().Done():
			return false
		case <-x.Run.Done():
			return false
		case <-x.box.Wake():
		}
		if x.box.Take(&x.Taken) {
			return true
		}
	}
}

// Drop takes what results there are and drops them. It does not wait.
func (x *Exchange) Drop() {
	if x.box.Take(&x.Taken) {
		for _, d := range x.Taken.Done {
			x.Outputs[d.Slot].over = true
		}
	}
}

// Stream writes the answer as events, with one write for all pending output. each asks for
// one event per token; otherwise all pending output of a choice is one event.
func (x *Exchange) Stream(f Form, each bool) {
	flush := http.NewResponseController(x.Writer)
	var buf []byte
	for first := true; first || x.Open > 0; first = false {
		// Outputs that the engine refused come first.
		if x.Open > 0 && len(x.changed) == 0 && !x.wait() {
			x.breakOff(sim.Cut)
			return
		}
		var struck bool
		buf, struck = x.Digest(buf[:0], f, each)
		if !struck && x.Open == 0 {
			buf = f.End(buf)
		}
		if len(buf) > 0 {
			if err := x.write(buf, flush.Flush); err != nil {
				return
			}
		}
		if struck {
			x.breakOff(x.Fault.Kind)
			return
		}
	}
}

// Whole waits until the answer is complete. It is false when the answer broke
// off, or never will be.
func (x *Exchange) Whole(refuse func(error)) bool {
	for x.Open > 0 {
		if !x.wait() {
			if x.Request.Context().Err() == nil {
				refuse(engine.ErrStopped())
			}
			return false
		}
		if _, struck := x.Digest(nil, nil, false); struck && x.Fault.After == 0 && x.Fault.Kind != sim.Truncate {
			x.breakOff(x.Fault.Kind)
			return false
		}
	}
	for i := range x.Outputs {
		if err := x.Outputs[i].Failure; err != nil {
			refuse(err)
			return false
		}
	}
	return true
}

// Digest moves results into the outputs and, if f is not nil, appends their events. struck
// reports whether the answer breaks off after them. Without a form the results after the
// fault are digested too, because half of the whole answer is written.
func (x *Exchange) Digest(b []byte, f Form, each bool) (out []byte, struck bool) {
	for i := range x.Taken.First {
		first := &x.Taken.First[i]
		o := &x.Outputs[first.Slot]
		o.Stamps, o.Cached, o.Rank = first.Stamps, first.Cached, first.DPRank
	}
	for _, slot := range x.Taken.Retracted {
		x.Outputs[slot].Retractions++
	}
	for i := range x.Taken.Done {
		d := &x.Taken.Done[i]
		o := &x.Outputs[d.Slot]
		o.Summary, o.Queued, o.Retractions = d.Done, d.Queued, d.Retractions
	}
	for k, slot := range x.Taken.Slot {
		o := &x.Outputs[slot]
		if o.Reason != "" {
			continue
		}
		times := 1
		if x.Faulty && x.tokens == x.Fault.After {
			switch x.Fault.Kind {
			case sim.Skip:
				times = 0
			case sim.Repeat:
				times = 2
			case sim.Cut, sim.Truncate, sim.Reset:
				struck = true
				if f != nil {
					return x.flush(b, f), true
				}
			case sim.Garble:
				if f != nil {
					b = append(x.flush(b, f), garbled...)
				}
			case sim.Stray:
				if f != nil {
					b = f.Stray(x.flush(b, f))
				}
			default:
				if b = x.strike(b, f); x.giveUp(o) {
					continue
				}
			}
		}
		x.tokens++
		o.Completion++
		o.Latest = x.Taken.End
		x.mark(o)
		x.say(o, x.Taken.ID[k], times)
		if f != nil && (each || x.split.due) {
			b = x.splitEvent(x.flush(b, f))
		}
	}
	for i := range x.Taken.Kept {
		x.kept(&x.Taken.Kept[i])
	}
	for i := range x.Taken.Done {
		d := &x.Taken.Done[i]
		x.finish(&x.Outputs[d.Slot], d.End)
	}
	x.Taken.Reset()
	if f != nil {
		b = x.flush(b, f)
	}
	return b, struck
}

// garbled is an event that ends in the middle of its own JSON.
const garbled = `data: {"id":"chatcmpl-1","choices":[{"index":` + "\n\n"

// mark notes that an output has something to write.
func (x *Exchange) mark(o *Output) {
	if !o.changed && !(o.Mute && o.Reason == "") {
		o.changed = true
		x.changed = append(x.changed, o.Slot)
	}
}

// flush appends the events of all that is pending.
func (x *Exchange) flush(b []byte, f Form) []byte {
	for _, slot := range x.changed {
		o := &x.Outputs[slot]
		b = f.Event(b, o)
		o.changed, o.Began = false, true
	}
	x.changed = x.changed[:0]
	return b
}

// say adds an id to an output the given number of times. The end id, or a matched stop id,
// is counted; wire and caller decide whether it is shown or sent.
func (x *Exchange) say(o *Output, id uint32, times int) {
	text := ""
	if s := &o.Summary; s.Reason == infer.ReasonStop && s.Matched >= 0 && s.Completion == o.Completion {
		o.Matched = Match{Set: true, ID: id}
		if o.ShowStop {
			text = x.Vocab.Text(id)
		}
	} else {
		text = x.Vocab.Text(id)
	}
	for range times {
		o.IDs = append(o.IDs, id)
		shown, stopped := o.Stops.push(o.runes(text))
		o.Text = append(o.Text, shown...)
		if stopped {
			o.Matched = Match{Set: true, Text: o.Stops.found}
			o.Reason = infer.ReasonStop
			x.Open--
			x.Run.End(&o.Job, infer.ReasonStop)
			return
		}
	}
}

// runes returns the whole runes that an id's text completes, and keeps an incomplete one.
// Words, which are nearly all of the text, take a short path.
func (o *Output) runes(text string) string {
	if len(o.partial) == 0 && utf8.ValidString(text) {
		return text
	}
	b := append(o.partial, text...)
	end := len(b)
	for k := 1; k < utf8.UTFMax && k <= len(b); k++ {
		if c := b[len(b)-k]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-k:]) {
				end -= k
			}
			break
		}
	}
	whole := string(b[:end])
	o.partial = append(o.partial[:0], b[end:]...)
	return whole
}

// finish notes that the engine is done with an output.
func (x *Exchange) finish(o *Output, at int64) {
	o.over = true
	if o.Reason != "" {
		return
	}
	o.Latest = at
	o.Text = append(o.Text, o.Stops.rest()...)
	if len(o.partial) > 0 {
		// The beginning of a rune that nothing completes.
		o.Text = append(o.Text, "\ufffd"...)
	}
	o.Reason = o.Summary.Reason
	if err := o.Summary.Err; err != nil {
		o.Failure = err
		if o.Explain != nil && o.Summary.Stage != sim.StageNone {
			o.Failure = o.Explain(&o.Summary)
		}
	}
	x.Open--
	x.mark(o)
}

// kept notes that a prefill leg has its ids, and that its KV is kept. vLLM answers
// it then; the engine has it for longer.
func (x *Exchange) kept(k *engine.Kept) {
	o := &x.Outputs[k.Slot]
	if o.Pair == nil || o.Reason != "" {
		return
	}
	o.Pair.Kept = &k.Kept
	o.Text = append(o.Text, o.Stops.rest()...)
	o.Latest, o.Reason = k.End, k.Reason
	x.Open--
	x.mark(o)
}

// Refused notes that the engine did not take an output.
func (x *Exchange) Refused(o *Output, err error) {
	o.Reason, o.Failure = infer.ReasonAbort, err
	x.mark(o)
}

// Completion is the number of tokens to report for all outputs.
func (x *Exchange) Completion() int {
	n := 0
	for i := range x.Outputs {
		n += x.Reported(&x.Outputs[i])
	}
	return n
}

// Reported is the number of tokens to report for an output: after its end, one
// too many with sim.Miscount.
func (x *Exchange) Reported(o *Output) int {
	if x.Faulty && x.Fault.Kind == sim.Miscount && o.Slot == 0 && o.Reason != "" {
		return o.Completion + 1
	}
	return o.Completion
}

// WriteWhole writes a complete answer, or the part of it that the fault leaves.
func (x *Exchange) WriteWhole(body []byte) {
	if !x.Faulty || x.tokens <= x.Fault.After {
		x.writeJSON(body, len(body))
		return
	}
	switch x.Fault.Kind {
	case sim.Truncate:
		x.writeJSON(body[:len(body)/2], len(body)/2)
	case sim.Split:
		x.split.from, x.split.to = 0, len(body)
		x.writeJSON(body, len(body))
	case sim.Cut, sim.Reset:
		x.writeJSON(body[:len(body)/2], len(body))
		if http.NewResponseController(x.Writer).Flush() == nil {
			x.breakOff(x.Fault.Kind)
		}
	default:
		x.writeJSON(body, len(body))
	}
}

func (x *Exchange) writeJSON(body []byte, promised int) {
	x.Writer.Header().Set("Content-Type", "application/json")
	x.Writer.Header().Set("Content-Length", strconv.Itoa(promised))
	// An error here is the client's hang-up.
	_ = x.write(body, http.NewResponseController(x.Writer).Flush)
}

// breakOff ends the connection as the fault demands. Truncate ends only the answer, which
// net/http does when the handler returns.
func (x *Exchange) breakOff(kind sim.FaultKind) {
	if kind == sim.Truncate {
		return
	}
	c, _, err := http.NewResponseController(x.Writer).Hijack()
	if err != nil {
		// The connection is past saving; this breaks it too.
		panic(http.ErrAbortHandler)
	}
	if t, ok := c.(*conns.Conn); ok && kind == sim.Reset {
		t.Reset()
		return
	}
	c.Close()
}

// Pair is an output's part of a pair that vLLM's parameters describe.
type Pair struct {
	ID     string    // its request's in the engine, whose end is random
	Kept   *sim.Kept // a prefill leg, whose KV is kept
	Cached int       // a decode leg: prompt tokens that the prefill engine found; -1: not reported
}

// Clear discards the output that was written.
func (o *Output) Clear() {
	o.Sent += len(o.IDs)
	o.Offset += len(o.Text)
	o.Text, o.IDs = o.Text[:0], o.IDs[:0]
}
