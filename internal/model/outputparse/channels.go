package outputparse

import (
	"bytes"
	"strings"
)

// Muse Glimmer's answer is a sequence of messages, each to a recipient:
//
//	<|start|>assistant [ to=RECIPIENT] <|message|>TEXT <|eom|>
//
// The prompt has begun the first, and the last ends with <|eot|>. What is to itself is
// reasoning, and what is to a tool has calls in tags. The model also begins a message to a tool
// without an end of the reasoning before it.
const (
	museMessage  = "<|message|>"
	museStart    = "<|start|>"
	museSelf     = "self"
	museUser     = "user"
	museReceiver = " to="
)

// museEnds are the markers at which a message ends. At the last two the next has begun.
var museEnds = []string{"<|eom|>", "<|eot|>", museStart, museReceiver}

func (p *Parser) startMuse(prompt []byte) {
	p.mail.ends = newMarkers(museEnds)
	p.marked = syntax{p.tools, p.think}.marks()
	if len(prompt) == 0 || bytes.HasSuffix(prompt, []byte(museStart+"assistant")) {
		p.state, p.mail.first = (*Parser).museHead, true
		return
	}
	// The prompt ends within a message, which is to be continued.
	p.museOpen(museUser)
	if at := bytes.LastIndex(prompt, []byte(museMessage)); at >= 0 && bytes.HasSuffix(prompt[:at], []byte(museReceiver+museSelf)) {
		p.museOpen(museSelf)
	}
}

// museOpen begins a message.
func (p *Parser) museOpen(to string) {
	p.begin(Content)
	p.mail.first, p.exact, p.edge = false, true, false
	p.state = (*Parser).museText
	switch to {
	case museUser, "":
	case museSelf:
		p.span = Reasoning
	default: // its calls are found as in an answer without messages
		p.exact, p.edge = false, true
		p.state = (*Parser).text
	}
}

// museHead is the state where a message may begin.
func (p *Parser) museHead(d []byte, eof bool) (int, bool) {
	c := cursor{d: d, eof: eof}
	to, ok := p.readReceiver(&c)
	switch {
	case len(d) == 0 && eof, c.short:
		return 0, true
	case !ok && eof && p.museCut(d):
		return len(d), true
	case ok:
		p.museOpen(to)
		return c.i, false
	case p.mail.within:
		// What looked like the next message is text of this one.
		p.mail.within = false
		n, _ := p.reject(d, len(museReceiver))
		p.state = (*Parser).museText
		return n, false
	}
	// Without messages all is content, or calls.
	if !p.mail.first {
		p.begin(Content)
	}
	p.mail.first, p.exact = false, false
	p.state = (*Parser).text
	if marker := museStart; bytes.HasPrefix(d, []byte(marker)) { // it would be found again
		n, _ := p.reject(d, len(marker))
		return n, false
	}
	return 0, false
}

// museCut reports whether the answer ends within a message's head.
func (p *Parser) museCut(d []byte) bool {
	c := cursor{d: d}
	to, _ := p.readReceiver(&c)
	known := to == "" || strings.HasPrefix(museSelf, to) || strings.HasPrefix(museUser, to) || p.tools != nil && p.listed.begins(to)
	return c.short && known && spaces(d) < len(d)
}

// readReceiver reads a message's head.
func (p *Parser) readReceiver(c *cursor) (to string, ok bool) {
	if c.space(); c.lit(museStart) {
		if c.space(); !c.lit("assistant") {
			return "", false
		}
	} else if !p.mail.first && !p.mail.within {
		return "", false
	}
	if c.space(); c.lit(strings.TrimSpace(museReceiver)) {
		if to = string(c.name()); len(to) > maxHead {
			return "", false
		}
		c.space()
	}
	return to, c.lit(museMessage) && p.receives(to)
}

// receives reports whether a message may be to a recipient. The name of one that is not known
// would be lost.
func (p *Parser) receives(to string) bool {
	if to == "" || to == museSelf || to == museUser {
		return true
	}
	return p.tools != nil && p.listed.hasIn(to)
}

// museText is the state within a message to somebody else than a tool.
func (p *Parser) museText(d []byte, eof bool) (int, bool) {
	at, length := p.mail.ends.find(d)
	end := at
	if at < 0 || eof && length == 0 {
		end = len(d)
	}
	p.say(d[:end])
	if at < 0 || length == 0 {
		return end, true
	}
	p.state = (*Parser).museHead
	return p.museEnds(d, at, length), false
}

// museEnds takes the end of a message, or leaves the beginning of the next.
func (p *Parser) museEnds(d []byte, at, length int) int {
	p.mail.within = string(d[at:at+length]) == museReceiver
	if p.mail.within || string(d[at:at+length]) == museStart {
		return at
	}
	return at + length
}
