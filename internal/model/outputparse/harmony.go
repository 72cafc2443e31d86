package outputparse

import (
	"bytes"
	"slices"
	"strings"

	"weir/internal/model/callid"
)

// The special tokens of harmony. An answer is a sequence of messages,
//
//	<|start|>assistant [ to=RECIPIENT] <|channel|>CHANNEL [ to=RECIPIENT] [<|constrain|>TYPE] <|message|>TEXT <|end|>
//
// the first of which the prompt has begun. The last ends with <|return|>, or
// <|call|> where it is a call. Models also write the parts of a head in another order, twice,
// or without one: a head with the name of a tool is that of a call, whatever else it says.
const (
	harmonyStart     = "<|start|>"
	harmonyChannel   = "<|channel|>"
	harmonyConstrain = "<|constrain|>"
	harmonyMessage   = "<|message|>"
	harmonyEnd       = "<|end|>"
	harmonyReturn    = "<|return|>"
	harmonyCall      = "<|call|>"
)

// harmonyChannels are those of an answer, and harmonyKinds what its texts may be
// declared to be.
var (
	harmonyChannels = []string{"analysis", "commentary", "final"}
	harmonyKinds    = []string{"json", "text", "code"}
	harmonyBegins   = []string{harmonyStart, harmonyChannel}
)

// maxHead bounds the head of a message.
const maxHead = 512

// mail is the message at hand.
type mail struct {
	first bool // its role is in the prompt
	call  bool // it is a call
	text  bool // it has arguments
	// within: what may be the head of the next stands in its text
	within bool
	ends   *markers
	begins []string                                               // of those, the ones with which the next message begins
	next   func(p *Parser, d []byte, eof bool) (n int, wait bool) // the state where it does
}

func (p *Parser) startHarmony(prompt []byte) {
	p.exact = true
	p.mail.ends = newMarkers([]string{harmonyEnd, harmonyReturn, harmonyCall, harmonyStart, harmonyChannel})
	p.mail.begins, p.mail.next = harmonyBegins, (*Parser).messageHead
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

// head is what a message's head says.
type head struct {
	channel string
	to      string // the recipient as it is written
	tool    string // and the tool that it is
	odd     bool   // it has a word that is known only in the head of a call
}

// readHead reads a message's head and opens the message.
func (p *Parser) readHead(c *cursor) bool {
	start := c.i
	if c.space(); c.lit(harmonyStart) {
		if c.space(); !c.lit("assistant") {
			return false
		}
	} else if !p.mail.first {
		at := c.i
		if c.lit("assistant") {
			c.space()
			at = c.i
		}
		if !c.lit(harmonyChannel) {
			return false
		}
		c.i = at
	}
	h, ok := p.readWords(c, start)
	if !ok || c.short {
		return false
	}
	// A word that is not known here would be lost: such a head is content.
	call := h.tool != ""
	if !call && (h.to != "" || h.odd) {
		return false
	}
	m := &p.mail
	m.first, m.text, p.blank = false, false, true
	if m.call = call; call {
		p.beginCall(h.tool, "")
	}
	p.span = Content
	if h.channel == "analysis" {
		p.span = Reasoning
	}
	p.state = (*Parser).message
	return true
}

// readWords reads the words and tokens of a head, up to the text of the message: its token,
// or where that is left out of a call the object itself.
func (p *Parser) readWords(c *cursor, start int) (h head, ok bool) {
	declared := false // the word at hand is a channel or a type
	for c.i-start <= maxHead {
		c.space()
		switch {
		case c.lit(harmonyMessage):
			return h, true
		case c.lit(harmonyChannel):
			c.space()
			channel := string(c.name())
			if h.channel == "" || slices.Contains(harmonyChannels, channel) {
				h.channel = channel
			}
			h.odd = h.odd || !slices.Contains(harmonyChannels, channel)
			p.recipient(&h, channel)
			continue
		case c.lit(harmonyConstrain):
			declared = true
			continue
		case c.lit("to="):
			if h.to = string(c.name()); h.to == "" {
				return h, false
			}
			h.tool, _ = p.tool(h.to)
			continue
		case c.short:
			return h, false
		case h.tool != "" && c.next() == '{':
			return h, true
		}
		word := string(c.name())
		if word == "" || c.short {
			return h, false
		}
		if !slices.Contains(harmonyKinds, word) {
			if !declared && h.channel == "" && h.tool == "" && !strings.HasPrefix(word, callid.Functions) {
				return h, false // it is the beginning of a text, and not of a head
			}
			h.odd = true
			p.recipient(&h, word)
		}
		declared = false
	}
	return h, false
}

// recipient takes a word for the recipient that it may be.
func (p *Parser) recipient(h *head, word string) {
	if tool, ok := p.tool(word); ok && h.tool == "" && strings.HasPrefix(word, callid.Functions) {
		h.tool = tool
	}
}

// tool returns the tool that a recipient is.
func (p *Parser) tool(recipient string) (string, bool) {
	if p.tools == nil {
		return "", false
	}
	if p.listed == nil && !strings.HasPrefix(recipient, callid.Functions) {
		return "", false // the tools are not known, and it does not say that it is one
	}
	return p.listed.resolve(recipient)
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
	return p.nextMessage(d, at, length), false
}

// nextMessage takes the marker that ends a message, unless the next one begins with it.
func (p *Parser) nextMessage(d []byte, at, length int) int {
	marker := string(d[at : at+length])
	p.state, p.mail.within = p.mail.next, marker == museReceiver
	if slices.Contains(p.mail.begins, marker) {
		return at
	}
	return at + length
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
