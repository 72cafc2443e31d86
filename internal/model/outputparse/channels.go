package outputparse

import (
	"bytes"
	"strings"
)

// Muse Glimmer's answer is a sequence of messages, each to a recipient:
//
//	<|start|>assistant [ to=RECIPIENT] <|message|>TEXT <|eom|>
//
// The prompt begins the first message, and <|eot|> ends the last one. A message to self is
// reasoning. A message to a tool has calls in tags. The model also begins a message to a tool
// without ending its reasoning.
const (
	museMessage  = "<|message|>"
	museStart    = "<|start|>"
	museSelf     = "self"
	museUser     = "user"
	museReceiver = " to="
)

// museEnds are the markers that end a message to a tool. Any other message also ends where the next
// one begins without them.
var (
	museEnds   = []string{"<|eom|>", "<|eot|>", museStart}
	museBegins = []string{museStart, museReceiver}
)

func (p *Parser) startMuse(prompt []byte) {
	p.mail.ends = newMarkers(museEnds, []string{museReceiver})
	p.mail.begins, p.mail.next = museBegins, (*Parser).museHead
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
	p.state = (*Parser).message
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
		// It is text of this message, and no head of the next.
		p.mail.within = false
		n, _ := p.reject(d, len(museReceiver))
		p.state = (*Parser).message
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
