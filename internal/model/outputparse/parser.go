package outputparse

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"weir/internal/model/stop"
)

// Bounds of what a parser holds back.
const (
	// maxHeld bounds an object whose name comes last, and a value that is not
	// a string.
	maxHeld = 256 << 10
	// maxEdge bounds the white space that is held because a marker may follow.
	maxEdge = 64
)

// Options say how to read one answer.
type Options struct {
	Format Format
	// Calls is set if the request has tools. Without, calls are not looked for and
	// their text is content.
	Calls bool
	// Tools are the request's tools, needed only where Format.ReadsTools.
	Tools *Tools
	// ForcedTool and ForcedAny say that the engine was made to call tools, by a
	// grammar: the answer is no text in the model's syntax but JSON, the arguments
	// of that tool, or an array of objects with name and parameters.
	ForcedTool string
	ForcedAny  bool
	// Prompt is the rendered prompt, or its last PromptTail bytes. How it ends
	// says where the answer begins: within reasoning, if it leaves that open.
	Prompt []byte
	// Continues says that the answer goes on with a text of the prompt: line breaks at its
	// beginning are text.
	Continues bool
	// Single ends the answer with the end of its first call.
	Single bool
	// Stops end the answer where one of them is complete in its content.
	Stops *stop.Set
}

// PromptTail is the length of the end of a prompt that determines how the answer
// begins.
const PromptTail = 256

// Parser reads one answer. It serves one goroutine at a time.
//
// It is a state machine with a state for each place in the syntax. A state gets all
// text that was not consumed yet, consumes a part of it, and either sets the next state
// or waits for more text; the rest is held. Some states need their whole text before
// they can decide (the beginning of a call, a value that is not a string). The text
// that they wait for is bounded, and if it may be long, the state resumes where it was
// instead of reading it again.
type Parser struct {
	tools  *toolSyntax // nil: none are looked for
	think  *thinkTags
	listed *Tools // those of the request; nil: not known
	single bool
	stops  *stop.Search // nil: there are no stop strings

	state  func(p *Parser, d []byte, eof bool) (n int, wait bool)
	events []Event // of the call under way
	held   []byte  // text not taken yet
	taken  int     // of held, by the call before
	out    []byte  // texts of events that are not in the input

	spanState
	callState
}

// spanState is the state of the current span of text.
type spanState struct {
	span  Kind    // Content or Reasoning
	blank bool    // it has nothing but white space so far
	edge  bool    // it began at a marker, or with the answer
	start bool    // it is the answer's first, and blank
	exact bool    // white space counts: in a message
	said  [2]bool // there was text of that kind, so that a line is put before more of it
	space []byte
	*marked
}

// marked are the markers of a syntax.
type marked struct {
	atStart  *markers // of content, while it is blank
	inside   *markers // of content
	thinking *markers // of reasoning
	ends     *markers // of arguments that are not valid JSON, or of a value in tags
	strays   *markers // and where a value in tags ends that holds one of these
}

// syntax is what marked is made of. There are few, because formats are the package's own.
type syntax struct {
	tools *toolSyntax
	think *thinkTags
}

// known has the markers of each syntax that an answer was parsed in.
var known struct {
	sync.RWMutex
	of map[syntax]*marked
}

// unmarked has no markers.
var unmarked = new(marked)

// marks returns the markers of a syntax.
func (s syntax) marks() *marked {
	known.RLock()
	m := known.of[s]
	known.RUnlock()
	if m != nil {
		return m
	}
	m = new(marked)
	var calls []string
	if s := s.tools; s != nil {
		calls = append(append(calls, s.section...), s.call...)
		m.ends = newMarkers(s.valueEnd, s.tagEnd, s.closing)
		m.strays = newMarkers(s.tagEnd, s.key, s.callEnd)
	}
	if s.think != nil {
		calls = append(calls, s.think.ends...)
	}
	m.inside = newMarkers(calls)
	m.atStart = m.inside
	if s.think != nil && s.think.framed == nil {
		m.atStart = newMarkers(calls, []string{s.think.open})
		m.thinking = newMarkers(calls, []string{s.think.close})
	}
	known.Lock()
	defer known.Unlock()
	if known.of == nil {
		known.of = map[syntax]*marked{}
	}
	known.of[s] = m
	return m
}

// callState is the state of the calls of an answer, and of the one that is read now.
type callState struct {
	calls  int  // begun
	open   bool // a call has begun and not ended
	again  bool // the call to open follows another
	muted  bool // the call under way is text: its tool is none of the request's
	done   bool
	forced string // the tool that is called, whatever the answer
	object object
	scan   jsonScan
	wrong  bool // the arguments at hand are not valid JSON
	quoted bool // they are JSON in a JSON string
	params params
	python python
	mail   mail
}

// New makes a parser for one answer.
func New(o Options) *Parser {
	p := &Parser{think: o.Format.think, single: o.Single, stops: stop.NewSearch(o.Stops), state: (*Parser).text, spanState: spanState{blank: true, marked: unmarked}}
	p.edge, p.start = !o.Continues, true
	if o.Calls {
		p.tools = o.Format.tools
		p.listed = o.Tools
	}
	switch {
	case o.ForcedTool != "" || o.ForcedAny:
		p.startForced(o.ForcedTool)
		return p
	case o.Format.framed():
		p.think.start(p, o.Prompt)
		return p
	}
	p.marked = syntax{p.tools, p.think}.marks()
	if p.think != nil && p.think.opened(o.Prompt) {
		p.begin(Reasoning)
		p.start = true
	}
	return p
}

// Plain reports whether all text from here on is content as it is, so that the parser
// is no longer needed.
func (p *Parser) Plain() bool {
	return p.tools == nil && p.stops == nil && p.span == Content && !p.blank && !p.exact && len(p.space) == 0 && len(p.held) == p.taken
}

// Holds reports whether text is held back whose meaning is not known yet. Other text
// that is in no event is syntax.
func (p *Parser) Holds() bool {
	return len(p.held) > p.taken || len(p.space) > 0 || p.stops.Held() > 0
}

// Done reports whether the answer has ended: with its last piece, with a stop string, or with
// its first call if Options.Single is set. Further text is not read.
func (p *Parser) Done() bool { return p.done }

// Stop returns the index of the stop string that ended the answer, or -1.
func (p *Parser) Stop() int { return p.stops.Found() }

// Early says whether what follows comes too early for stop strings: what is complete in it
// is text.
func (p *Parser) Early(early bool) {
	if p.stops != nil {
		p.stops.Early = early
	}
}

// Calls is how many calls have begun.
func (p *Parser) Calls() int { return p.calls }

// Append reads the next piece of the answer and appends its events to dst; last is set
// if it is the last piece. The texts of the events are valid until the next call, and
// only as long as text is.
func (p *Parser) Append(dst []Event, text []byte, last bool) []Event {
	if p.done {
		return dst
	}
	p.events = dst
	d := p.rest()
	if len(d) > 0 {
		p.held = append(p.held, text...)
		d = p.held
	} else {
		d = text
	}
	n := p.run(d, false)
	switch {
	case last:
		p.finish(d[n:])
	case len(p.held) > 0:
		p.taken = n
	default:
		p.held = append(p.held, d[n:]...)
	}
	dst, p.events = p.events, nil
	return dst
}

// finish gives out what is held: nothing follows.
func (p *Parser) finish(d []byte) {
	if !p.done {
		p.run(d, true)
	}
	if p.open {
		p.end(false)
	}
	if !p.done && (!p.blank || !p.edge) {
		p.release()
	}
	p.flush()
	p.done = true
}

// rest prepares for the next piece: what was given out before is void.
func (p *Parser) rest() []byte {
	p.out = p.out[:0]
	if p.taken > 0 {
		p.held = p.held[:copy(p.held, p.held[p.taken:])]
		p.taken = 0
	}
	return p.held
}

func (p *Parser) run(d []byte, eof bool) int {
	i := 0
	for !p.done {
		muted, calls := p.muted, p.calls
		n, wait := p.state(p, d[i:], eof)
		if muted && p.calls == calls {
			p.sayMuted(d[i : i+n])
		}
		if i += n; wait {
			return i
		}
	}
	return len(d)
}

// sayMuted gives out the text of a call that is none, as it is. It is read as a call, so that
// what looks like a call in its arguments is not taken for one.
func (p *Parser) sayMuted(b []byte) {
	muted := p.muted
	p.muted = false
	p.emit(p.span, b)
	if p.muted = muted; !muted {
		p.blank, p.edge = false, false // what follows goes on with it
	}
}

// text is the state of content and reasoning.
func (p *Parser) text(d []byte, eof bool) (int, bool) {
	if p.muted {
		p.muted = false
		return 0, false
	}
	if len(d) == 0 {
		return 0, true
	}
	if p.tools != nil && p.tools.bare != "" && p.span == Content && p.blank && p.calls == 0 {
		if i := spaces(d); i > 0 {
			if !p.start {
				p.say(d[:i])
			}
			return i, false
		}
		if strings.IndexByte(p.tools.bare, d[0]) >= 0 {
			p.state, p.again = (*Parser).opening, false
			return 0, false
		}
	}
	m := p.inside
	switch {
	case p.span == Reasoning:
		m = p.thinking
	case p.blank:
		m = p.atStart
	}
	at, length := m.find(d)
	switch {
	case at < 0:
		p.say(d)
		return len(d), true
	case at > 0:
		// The text before may have changed what counts as a marker.
		p.say(d[:at])
		return at, false
	case length == 0 && eof:
		p.say(d)
		return len(d), true
	case length == 0:
		return 0, true
	}
	if p.think != nil {
		switch marker := string(d[:length]); {
		case slices.Contains(p.think.ends, marker):
			p.begin(Content)
			return p.nextMessage(d, 0, length), false
		case marker == p.think.open:
			p.begin(Reasoning)
			return length, false
		case marker == p.think.close:
			p.begin(Content)
			return length, false
		}
	}
	p.state, p.again = (*Parser).opening, false
	return 0, false
}

func spaces(d []byte) int {
	i := 0
	for i < len(d) && isSpace(d[i]) {
		i++
	}
	return i
}

// begin opens a span of text after a marker: the white space around that is
// the marker's.
func (p *Parser) begin(kind Kind) {
	if !p.muted {
		p.flush()
	}
	p.muted = false
	p.span, p.blank, p.edge, p.start, p.space = kind, true, true, false, p.space[:0]
	p.state = (*Parser).text
}

// say gives out text of the span, but for white space that may be a marker's.
func (p *Parser) say(b []byte) {
	if p.exact {
		p.emit(p.span, p.lineBefore(b))
		return
	}
	if p.blank {
		b = p.lead(b)
	}
	end := len(b)
	for end > 0 && isSpace(b[end-1]) {
		end--
	}
	if end > 0 {
		text := b[:end]
		if len(p.space) > 0 {
			text = p.join(p.space, text)
			p.space = p.space[:0]
		}
		p.emit(p.span, p.lineBefore(text))
	}
	p.keep(b[end:])
}

// lead takes the white space that begins a span from its text, where nothing that follows
// matters: line breaks are those of the marker before, or of the prompt's end, and what else
// the answer begins with is text.
func (p *Parser) lead(b []byte) []byte {
	if p.edge && len(p.space) == 0 {
		b = bytes.TrimLeft(b, "\r\n")
	}
	if n := spaces(b); p.start && n > 0 {
		p.emit(p.span, b[:n])
		b, p.edge = b[n:], false
	}
	p.start = p.start && len(b) == 0
	return b
}

// lineBefore notes that the span has text. The API has one content and one
// reasoning for all spans; so that words are not glued, each begins a line.
func (p *Parser) lineBefore(text []byte) []byte {
	if p.blank && len(text) > 0 {
		p.blank = false
		switch {
		case !p.said[p.span]:
		case p.stops != nil && p.span == Content:
			p.events = append(p.events, Event{Kind: Content, Text: []byte("\n")}) // no stop string is to find it
		default:
			text = p.join([]byte("\n"), text)
		}
		p.said[p.span] = true
	}
	return text
}

// keep holds white space.
func (p *Parser) keep(b []byte) {
	for len(p.space)+len(b) > maxEdge {
		// It is too long to be the edge of anything.
		n := maxEdge - len(p.space)
		p.emit(p.span, p.lineBefore(p.join(p.space, b[:n])))
		p.space = p.space[:0]
		b = b[n:]
	}
	p.space = append(p.space, b...)
	if p.stops != nil && len(b) > 0 && p.span == Content && !p.blank && p.stops.Completes(p.space) {
		p.release() // a stop string goes before the marker that may follow
	}
}

// release gives the held white space out as text.
func (p *Parser) release() {
	if len(p.space) > 0 {
		p.emit(p.span, p.lineBefore(p.join(p.space, nil)))
		p.space = p.space[:0]
	}
}

// join puts texts together where they live until the next call.
func (p *Parser) join(a, b []byte) []byte {
	at := len(p.out)
	p.out = append(append(p.out, a...), b...)
	return p.out[at:]
}

func (p *Parser) emit(kind Kind, text []byte) {
	if p.muted {
		return
	}
	if p.stops != nil {
		if kind != Content {
			p.flush()
		} else {
			text = p.search(text)
		}
	}
	if len(text) > 0 {
		p.events = append(p.events, Event{Kind: kind, Call: p.current(kind), Text: text})
	}
}

// search returns the content that is certain to be before a stop string, and ends the answer
// at one.
func (p *Parser) search(text []byte) []byte {
	at := len(p.out)
	p.out = p.stops.Append(p.out, text)
	p.done = p.done || p.stops.Found() >= 0
	return p.out[at:]
}

// flush gives out content that was held because of a stop string, which nothing but content
// can complete.
func (p *Parser) flush() {
	if p.stops.Held() == 0 {
		return
	}
	at := len(p.out)
	p.out = p.stops.Flush(p.out)
	p.events = append(p.events, Event{Kind: Content, Text: p.out[at:]})
}

func (p *Parser) current(kind Kind) int {
	if kind == Arguments {
		return p.calls - 1
	}
	return 0
}

// beginCall opens a call: what was held of it is syntax. The text behind the call goes on
// as that before it: reasoning that was not closed is reasoning still.
func (p *Parser) beginCall(name, id string) {
	p.begin(p.span)
	p.open, p.wrong, p.quoted = true, false, false
	p.scan.reset()
	p.events = append(p.events, Event{Kind: CallBegin, Call: p.calls, Name: name, ID: id})
	p.calls++
}

// end ends the call.
func (p *Parser) end(valid bool) {
	if p.muted {
		return
	}
	p.open = false
	p.events = append(p.events, Event{Kind: CallEnd, Call: p.calls - 1, Valid: valid})
	p.done = p.single
}

// broken ends the call where its syntax does: what follows is content. Where the
// text has ended within the call, what is left of it is the call's.
func (p *Parser) broken(d []byte, eof bool) (int, bool) {
	if eof {
		p.emit(Arguments, d)
		p.end(false)
		return len(d), true
	}
	p.end(false)
	p.state = (*Parser).text
	return 0, false
}

// reject gives up the opening of a call: its text up to the byte that does not
// fit is text, and is read on from there.
func (p *Parser) reject(d []byte, n int) (int, bool) {
	n = min(max(n, 1), len(d))
	for n < len(d) && !utf8.RuneStart(d[n]) {
		n++ // no event's text is cut within a rune, unless the answer is
	}
	p.state = (*Parser).text
	if p.muted {
		p.muted = false
		return n, false
	}
	p.say(d[:n])
	return n, false
}
