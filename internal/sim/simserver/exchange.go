package simserver

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
	"weir/internal/workload/content"
)

// exchange is one HTTP request in the engine and its answer, for all wires. It runs on the
// handler's goroutine. Results reach it through its outbox and are digested into its
// outputs, and all pending output is written at once by a form.
type exchange struct {
	run   *engine.Engine
	vocab *vocab.Vocab
	w     http.ResponseWriter
	r     *http.Request
	id    string // of the request, for faults

	created      int64 // when its head was read, ns
	atOnce       bool  // it is answered by one document, not by a stream
	promptTokens int   // of each prompt once
	outputs      []output
	open         int // outputs that have not ended

	box     engine.Outbox
	taken   engine.Batch
	changed []uint32 // outputs with something to write, by slot

	fault  sim.Fault
	faulty bool
	tokens int // generated for all outputs
	split  splitting
}

// output is one of an exchange's outputs: a choice, or an item of a batch.
type output struct {
	engine.Job
	accepted bool // the engine has it
	over     bool // the engine is done with it
	changed  bool // it is in the exchange's list
	began    bool // something of it was written

	pair    *vllmPair             // its part of a pair on vLLM
	mute    bool                  // nothing is written of it before its end
	explain func(*sim.Done) error // what an error of its pair is in the wire's words

	name   string // its own, where the wire has one
	prompt []uint32
	// showStop shows the text that stopped the output. Its id is always sent.
	showStop bool
	stops    stopScanner
	partial  []byte // the beginning of a rune

	ask      content.Ask // what the request's fields ask for
	scripted bool        // it is not words alone

	// text is not yet written; if nothing is streamed, it is the whole text.
	text []byte
	ids  []uint32

	sent   int // ids written
	offset int // bytes of text written

	completion int   // ids generated
	latest     int64 // when the latest was, ns
	cached     int   // prompt tokens found in the cache
	rank       int   // the DP rank that has it

	retractions int
	stamps      infer.Stamps
	reason      infer.Reason // set when it ended
	matched     match        // with ReasonStop
	failure     error        // why the engine refused it, or ended it
	queued      bool         // it was in the queue when it ended
	summary     sim.Done
}

// match is the id or stop string that stopped an output.
type match struct {
	set  bool
	id   uint32
	text string // where it is a string
}

// form is a wire's way of writing streams.
type form interface {
	// event appends what an output has pending as events; the exchange clears it
	// afterwards.
	event(b []byte, o *output) []byte
	// stray appends an event about an output that nobody asked for.
	stray(b []byte) []byte
	// end appends what ends the stream.
	end(b []byte) []byte
}

// newExchange begins the exchange of a request that came at a time. id is the request's, for faults.
func newExchange(run *engine.Engine, v *vocab.Vocab, w http.ResponseWriter, r *http.Request, id string, created int64) exchange {
	return exchange{run: run, vocab: v, w: w, r: r, id: id, created: created, box: engine.NewOutbox(0, nil)}
}

// draw draws the request's fault.
func (x *exchange) draw(prompts [][]uint32) {
	conns.Of(x.r.Context()).Mold(nil) // of an earlier request
	x.fault, x.faulty = x.run.Fault(x.id, func() []byte { return x.vocab.PromptText(prompts...) })
}

// add prepares an output.
func (x *exchange) add(o output, p sim.Params) (sim.Request, error) {
	p.Stall, p.StallAfter = x.faulty && x.fault.Kind == sim.Stall, x.fault.After
	var err error
	if o.scripted, err = x.vocab.Script(&p, o.ask); err != nil {
		return sim.Request{}, err
	}
	prepared, err := x.run.Options().Prepare(p)
	if err != nil {
		return prepared, err
	}
	o.prompt = p.Prompt
	if o.Leg != nil {
		o.Leg.Fault, o.Leg.Faulty = x.fault, x.faulty
	}
	o.Job = engine.Job{Slot: uint32(len(x.outputs)), Seed: int64(p.Seed), Leg: o.Leg, AtOnce: x.atOnce}
	x.outputs = append(x.outputs, o)
	return prepared, nil
}

// delay applies the faults that take effect before the engine is asked; refuse answers with
// an error. It returns false if the request ended here.
func (x *exchange) delay(refuse func(error)) bool {
	if !x.faulty {
		return true
	}
	switch x.fault.Kind {
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
		case <-x.r.Context().Done():
		case <-x.run.Done():
		}
		x.breakOff(sim.Cut)
		return false
	case sim.Slow:
		t := time.NewTimer(x.fault.Delay)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-x.r.Context().Done():
		case <-x.run.Done():
		}
		x.breakOff(sim.Cut)
		return false
	}
	return true
}

// submit hands an output to the engine.
func (x *exchange) submit(o *output, r sim.Request) error {
	o.Box = &x.box
	if err := x.run.Submit(x.r.Context(), &o.Job, x.created, r); err != nil {
		return err
	}
	o.accepted = true
	x.open++
	return nil
}

// abandon aborts the outputs that the engine still works on.
func (x *exchange) abandon() {
	for i := range x.outputs {
		if o := &x.outputs[i]; o.accepted && !o.over && o.reason == "" {
			x.run.Abort(&o.Job)
		}
	}
}

// wait waits for results and takes them. It is false when there will be none:
// the client left, or the engine stopped.
func (x *exchange) wait() bool {
	for {
		select {
		case <-x.r.Context().Done():
			return false
		case <-x.run.Done():
			return false
		case <-x.box.Wake():
		}
		if x.box.Take(&x.taken) {
			return true
		}
	}
}

// stream writes the answer as events, with one write for all pending output. each asks for
// one event per token; otherwise all pending output of a choice is one event.
func (x *exchange) stream(f form, each bool) {
	flush := http.NewResponseController(x.w)
	var buf []byte
	for first := true; first || x.open > 0; first = false {
		// Outputs that the engine refused come first.
		if x.open > 0 && len(x.changed) == 0 && !x.wait() {
			x.breakOff(sim.Cut)
			return
		}
		var struck bool
		buf, struck = x.digest(buf[:0], f, each)
		if !struck && x.open == 0 {
			buf = f.end(buf)
		}
		if len(buf) > 0 {
			if err := x.write(buf, flush.Flush); err != nil {
				return
			}
		}
		if struck {
			x.breakOff(x.fault.Kind)
			return
		}
	}
}

// whole waits until the answer is complete. It is false when the answer broke
// off, or never will be.
func (x *exchange) whole(refuse func(error)) bool {
	for x.open > 0 {
		if !x.wait() {
			if x.r.Context().Err() == nil {
				refuse(engine.ErrStopped())
			}
			return false
		}
		if _, struck := x.digest(nil, nil, false); struck && x.fault.After == 0 && x.fault.Kind != sim.Truncate {
			x.breakOff(x.fault.Kind)
			return false
		}
	}
	for i := range x.outputs {
		if err := x.outputs[i].failure; err != nil {
			refuse(err)
			return false
		}
	}
	return true
}

// digest moves results into the outputs and, if f is not nil, appends their events. struck
// reports whether the answer breaks off after them. Without a form the results after the
// fault are digested too, because half of the whole answer is written.
func (x *exchange) digest(b []byte, f form, each bool) (out []byte, struck bool) {
	for i := range x.taken.First {
		first := &x.taken.First[i]
		o := &x.outputs[first.Slot]
		o.stamps, o.cached, o.rank = first.Stamps, first.Cached, first.DPRank
	}
	for _, slot := range x.taken.Retracted {
		x.outputs[slot].retractions++
	}
	for i := range x.taken.Done {
		d := &x.taken.Done[i]
		o := &x.outputs[d.Slot]
		o.summary, o.queued, o.retractions = d.Done, d.Queued, d.Retractions
	}
	for k, slot := range x.taken.Slot {
		o := &x.outputs[slot]
		if o.reason != "" {
			continue
		}
		times := 1
		if x.faulty && x.tokens == x.fault.After {
			switch x.fault.Kind {
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
					b = f.stray(x.flush(b, f))
				}
			default:
				if b = x.strike(b, f); x.giveUp(o) {
					continue
				}
			}
		}
		x.tokens++
		o.completion++
		o.latest = x.taken.End
		x.mark(o)
		x.say(o, x.taken.ID[k], times)
		if f != nil && (each || x.split.due) {
			b = x.splitEvent(x.flush(b, f))
		}
	}
	for i := range x.taken.Kept {
		x.kept(&x.taken.Kept[i])
	}
	for i := range x.taken.Done {
		d := &x.taken.Done[i]
		x.finish(&x.outputs[d.Slot], d.End)
	}
	x.taken.Reset()
	if f != nil {
		b = x.flush(b, f)
	}
	return b, struck
}

// garbled is an event that ends in the middle of its own JSON.
const garbled = `data: {"id":"chatcmpl-1","choices":[{"index":` + "\n\n"

// mark notes that an output has something to write.
func (x *exchange) mark(o *output) {
	if !o.changed && !(o.mute && o.reason == "") {
		o.changed = true
		x.changed = append(x.changed, o.Slot)
	}
}

// flush appends the events of all that is pending.
func (x *exchange) flush(b []byte, f form) []byte {
	for _, slot := range x.changed {
		o := &x.outputs[slot]
		b = f.event(b, o)
		o.changed, o.began = false, true
	}
	x.changed = x.changed[:0]
	return b
}

// say adds an id to an output the given number of times. The end id, or a matched stop id,
// is counted; wire and caller decide whether it is shown or sent.
func (x *exchange) say(o *output, id uint32, times int) {
	text := ""
	if s := &o.summary; s.Reason == infer.ReasonStop && s.Matched >= 0 && s.Completion == o.completion {
		o.matched = match{set: true, id: id}
		if o.showStop {
			text = x.vocab.Text(id)
		}
	} else {
		text = x.vocab.Text(id)
	}
	for range times {
		o.ids = append(o.ids, id)
		shown, stopped := o.stops.push(o.runes(text))
		o.text = append(o.text, shown...)
		if stopped {
			o.matched = match{set: true, text: o.stops.found}
			o.reason = infer.ReasonStop
			x.open--
			x.run.End(&o.Job, infer.ReasonStop)
			return
		}
	}
}

// runes returns the whole runes that an id's text completes, and keeps an incomplete one.
// Words, which are nearly all of the text, take a short path.
func (o *output) runes(text string) string {
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
func (x *exchange) finish(o *output, at int64) {
	o.over = true
	if o.reason != "" {
		return
	}
	o.latest = at
	o.text = append(o.text, o.stops.rest()...)
	if len(o.partial) > 0 {
		// The beginning of a rune that nothing completes.
		o.text = append(o.text, "\ufffd"...)
	}
	o.reason = o.summary.Reason
	if err := o.summary.Err; err != nil {
		o.failure = err
		if o.explain != nil && o.summary.Stage != sim.StageNone {
			o.failure = o.explain(&o.summary)
		}
	}
	x.open--
	x.mark(o)
}

// kept notes that a prefill leg has its ids, and that its KV is kept. vLLM answers
// it then; the engine has it for longer.
func (x *exchange) kept(k *engine.Kept) {
	o := &x.outputs[k.Slot]
	if o.pair == nil || o.reason != "" {
		return
	}
	o.pair.kept = &k.Kept
	o.text = append(o.text, o.stops.rest()...)
	o.latest, o.reason = k.End, k.Reason
	x.open--
	x.mark(o)
}

// refused notes that the engine did not take an output.
func (x *exchange) refused(o *output, err error) {
	o.reason, o.failure = infer.ReasonAbort, err
	x.mark(o)
}

// completion is the number of tokens to report for all outputs.
func (x *exchange) completion() int {
	n := 0
	for i := range x.outputs {
		n += x.reported(&x.outputs[i])
	}
	return n
}

// reported is the number of tokens to report for an output: after its end, one
// too many with sim.Miscount.
func (x *exchange) reported(o *output) int {
	if x.faulty && x.fault.Kind == sim.Miscount && o.Slot == 0 && o.reason != "" {
		return o.completion + 1
	}
	return o.completion
}

// writeWhole writes a complete answer, or the part of it that the fault leaves.
func (x *exchange) writeWhole(body []byte) {
	if !x.faulty || x.tokens <= x.fault.After {
		x.writeJSON(body, len(body))
		return
	}
	switch x.fault.Kind {
	case sim.Truncate:
		x.writeJSON(body[:len(body)/2], len(body)/2)
	case sim.Split:
		x.split.from, x.split.to = 0, len(body)
		x.writeJSON(body, len(body))
	case sim.Cut, sim.Reset:
		x.writeJSON(body[:len(body)/2], len(body))
		if http.NewResponseController(x.w).Flush() == nil {
			x.breakOff(x.fault.Kind)
		}
	default:
		x.writeJSON(body, len(body))
	}
}

func (x *exchange) writeJSON(body []byte, promised int) {
	x.w.Header().Set("Content-Type", "application/json")
	x.w.Header().Set("Content-Length", strconv.Itoa(promised))
	// An error here is the client's hang-up.
	_ = x.write(body, http.NewResponseController(x.w).Flush)
}

// breakOff ends the connection as the fault demands. Truncate ends only the answer, which
// net/http does when the handler returns.
func (x *exchange) breakOff(kind sim.FaultKind) {
	if kind == sim.Truncate {
		return
	}
	c, _, err := http.NewResponseController(x.w).Hijack()
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
