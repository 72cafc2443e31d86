package outputparse

// forcedTools is the syntax of calls that an engine was made to write.
var forcedTools = &toolSyntax{name: "forced", body: objectBody, bare: "[", separator: ","}

func (p *Parser) startForced(tool string) {
	p.tools, p.think = forcedTools, nil
	none := newMarkers()
	p.marked = &marked{inside: none, atStart: none, ends: none}
	if tool != "" {
		p.forced, p.state = tool, (*Parser).forcedCall
	}
}

// forcedCall is the state before arguments that are all of the answer.
func (p *Parser) forcedCall(d []byte, _ bool) (int, bool) {
	n := spaces(d)
	if n == len(d) {
		return n, true
	}
	p.beginCall(p.forced, "")
	p.object = object{named: true}
	p.state = (*Parser).arguments
	return n, false
}
