package outputparse

import (
	"bytes"
	"slices"
)

// The special tokens of harmony. An answer is a sequence of messages,
//
//	<|start|>assistant [ to=RECIPIENT] <|channel|>CHANNEL [ to=RECIPIENT] [<|constrain|>TYPE] <|message|>TEXT <|end|>
//
// the first of which the prompt has begun. The last ends with <|return|>, or
// <|call|> where it is a call.
const (
	harmonyStart     = "<|start|>"
	harmonyChannel   = "<|channel|>"
	harmonyConstrain = "<|constrain|>"
	harmonyMessage   = "<|message|>"
	harmonyEnd       = "<|end|>"
	harmonyReturn    = "<|return|>"
	harmonyCall      = "<|call|>"
)

// harmonyFunctions is how a recipient begins that is one of the request's tools.
const harmonyFunctions = "functions."

// harmonyChannels are those of an answer, and harmonyKinds what its texts may be
// declared to be.
var (
	harmonyChannels = []string{"analysis", "commentary", "final"}
	harmonyKinds    = []string{"", "json", "text", "code"}
)

// mail is the message at hand.
type mail struct {
	first bool // its role is in the prompt
	call  bool // it is a call
	text  bool // it has arguments
	ends  *markers
}

func (p *Parser) startHarmony(prompt []byte) {
	p.exact = true
	p.mail.ends = newMarkers([]string{harmonyEnd, harmonyReturn, harmonyCall, harmonyStart, harmonyChannel})
	if len(prompt) > 0 && !bytes.HasSuffix(prompt, []byte(harmonyStart+"assistant")) {
		// The prompt ends within a message, which is to be continued.
		p.state = (*Parser).message
		if at := bytes.LastIndex(prompt, []byte(harmonyMessage)); at >= 0 && bytes.HasSuffix(prompt[:at], []byte(harmonyChannel+"analysis")) {
			p.span = Reasoning
		}
		return
	}
	p.state, p.mail.first = (*Parser).messageHead, true
}

// messageHead is the state where a message begins.
func (p *Parser) messageHead(d []byte, eof bool) (int, bool) {
	c := cursor{d: d, eof: eof}
	ok := p.readHead(&c)
	switch {
	case len(d) == 0 && eof:
		return 0, true
	case c.short:
		return 0, true
	case ok:
		return c.i, false
	}
	// Text that is not a message is content, up to where a message may begin.
	p.span, p.mail.call = Content, false
	p.mail.first = false
	n, _ := p.reject(d, c.i)
	p.state = (*Parser).message
	return n, false
}

// readHead reads a message's head and opens the message.
func (p *Parser) readHead(c *cursor) bool {
	if c.space(); c.lit(harmonyStart) {
		if c.space(); !c.lit("assistant") {
			return false
		}
	} else if !p.mail.first {
		at := c.i
		if !c.lit(harmonyChannel) {
			return false
		}
		c.i = at
	}
	to := c.recipient(nil)
	channel := ""
	if c.lit(harmonyChannel) {
		c.space()
		channel = string(c.name())
	}
	to = c.recipient(to)
	if c.space(); c.lit(harmonyConstrain) {
		c.space()
	}
	kind := string(c.name()) // of the text
	c.space()
	if !c.lit(harmonyMessage) || c.short {
		return false
	}
	// A recipient that is not known here would be lost: such a head is content.
	name, isFunction := bytes.CutPrefix(to, []byte(harmonyFunctions))
	isCall := isFunction && len(name) > 0 && p.tools != nil
	if to != nil && !isCall || !slices.Contains(harmonyKinds, kind) || !isCall && !slices.Contains(harmonyChannels, channel) ||
		channel != "" && !slices.Contains(harmonyChannels, channel) {
		return false
	}
	m := &p.mail
	m.first, m.text, p.blank = false, false, true
	if m.call = isCall; isCall {
		p.beginCall(string(name), "")
	}
	p.span = Content
	if channel == "analysis" {
		p.span = Reasoning
	}
	p.state = (*Parser).message
	return true
}

// recipient reads to=NAME.
func (c *cursor) recipient(before []byte) []byte {
	if c.space(); c.lit("to=") {
		return c.name()
	}
	return before
}

// message is the state within a message's text. Its framing goes before what
// the text is: a marker ends it wherever it stands.
func (p *Parser) message(d []byte, eof bool) (int, bool) {
	at, length := p.mail.ends.find(d)
	end := at
	if at < 0 || eof && length == 0 {
		end = len(d)
	}
	p.tell(d[:end])
	if at < 0 || length == 0 {
		if eof {
			p.endMessage(false)
		}
		return end, true
	}
	p.endMessage(true)
	p.state = (*Parser).messageHead
	switch string(d[at : at+length]) {
	case harmonyStart, harmonyChannel:
		return at, false
	}
	return at + length, false
}

// tell gives out a message's text.
func (p *Parser) tell(b []byte) {
	m := &p.mail
	switch {
	case len(b) == 0:
		return
	case !m.call:
		p.say(b)
		return
	}
	m.text = m.text || spaces(b) < len(b)
	if !p.wrong {
		n, ended := p.feed(b)
		if b = b[n:]; ended {
			n = spaces(b)
			p.wrong = n < len(b)
			b = b[n:]
		}
	}
	p.emit(Arguments, b)
}

// endMessage ends a message: whole, or with the answer.
func (p *Parser) endMessage(whole bool) {
	m := &p.mail
	if !m.call {
		return
	}
	m.call = false
	if !m.text && whole {
		p.emit(Arguments, []byte("{}"))
		p.end(true)
		return
	}
	p.end(!p.wrong && p.scan.end())
}
