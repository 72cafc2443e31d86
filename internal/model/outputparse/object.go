package outputparse

import "github.com/go-json-experiment/json/jsontext"

// object is a JSON object that holds a call's name and arguments, while it is
// held. Places are those in the text that was not taken.
type object struct {
	pos  int // read so far
	at   objectPlace
	list bool // it is in a list
	bare bool // there was no marker: only a tool of the request's counts
	// named: the name came before the arguments, which are no member.
	named bool
	// closed: the object's end was read.
	closed bool

	member     byte // of the value at hand: 'n'ame, 'a'rguments, 'i'd, 't'ype, a n'u'mber in the answer
	from       int  // where the string or value at hand begins
	escaped    bool // the byte before was a backslash that counts
	name, id   string
	hasName    bool
	args       [2]int // the arguments, where they come before the name
	scan       jsonScan
	hasMembers bool
}

type objectPlace uint8

const (
	objectStart objectPlace = iota // at the brace
	objectMember
	objectName // within a member's name
	objectColon
	objectValue  // a value must begin
	objectString // within a value that is a string
	objectArgs   // within arguments that come before the name
	objectNext   // after a value
)

// readObject is the state within an object whose call has not begun: the call
// begins where its arguments do and the name is known, or at the object's end.
func (p *Parser) readObject(d []byte, eof bool) (int, bool) {
	o := &p.object
	for ; o.pos < len(d); o.pos++ {
		if o.pos > maxHeld {
			return p.reject(d, o.pos)
		}
		b := d[o.pos]
		switch o.at {
		case objectArgs:
			n, status := o.scan.scan(d[o.pos : o.pos+1])
			if status == jsonBad {
				return p.reject(d, o.pos)
			}
			if status == jsonEnded {
				o.args = [2]int{o.from, o.pos + n}
				o.at = objectNext
				if n == 0 {
					o.pos-- // a number ends before this byte
				}
			}
			continue
		case objectName, objectString:
			switch {
			case o.escaped:
				o.escaped = false
			case b == '\\':
				o.escaped = true
			case b == '"':
				if !p.objectString(d[o.from : o.pos+1]) {
					return p.reject(d, o.pos)
				}
			case o.pos-o.from > maxName || b < ' ':
				return p.reject(d, o.pos)
			}
			continue
		}
		if isSpace(b) {
			continue
		}
		if o.at == objectValue && o.member == 'a' && o.hasName {
			p.beginCall(o.name, o.id)
			p.state = (*Parser).arguments
			return o.pos, false
		}
		if b == '}' && (o.at == objectNext || o.at == objectMember && !o.hasMembers) {
			return p.endObject(d)
		}
		if !o.step(b) {
			return p.reject(d, o.pos)
		}
	}
	if eof {
		return p.reject(d, len(d))
	}
	return 0, true
}

// step takes a byte of structure.
func (o *object) step(b byte) bool {
	switch o.at {
	case objectStart:
		o.at = objectMember
		return b == '{'
	case objectMember:
		o.at, o.from, o.hasMembers = objectName, o.pos, true
		return b == '"'
	case objectColon:
		o.at = objectValue
		return b == ':'
	case objectNext:
		o.at = objectMember
		return b == ','
	}
	// A value begins.
	o.from = o.pos
	if o.member == 'a' {
		if o.args[1] > 0 {
			return false
		}
		o.scan.reset()
		_, status := o.scan.scan([]byte{b})
		o.at = objectArgs
		return status == jsonMore
	}
	o.at = objectString
	return b == '"'
}

// objectString takes a whole string: a member's name or value.
func (p *Parser) objectString(quoted []byte) bool {
	o := &p.object
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return false
	}
	if o.at == objectName {
		o.at = objectColon
		if p.tools.keyed {
			o.member = 'a'
			tool, ok := p.listed.resolve(string(text))
			o.name, o.hasName = tool, ok
			return ok
		}
		switch string(text) {
		case "name", "tool_name":
			o.member = 'n'
		case "arguments", "parameters":
			o.member = 'a'
		case "id":
			o.member = 'i'
		case "type":
			o.member = 't'
		case "tool_call_id":
			o.member = 'u' // which is no id: they begin anew with each answer
		default:
			return false
		}
		return true
	}
	o.at = objectNext
	switch o.member {
	case 'n':
		tool, ok := p.listed.resolve(string(text))
		if o.hasName || !ok || o.bare && !p.listed.has(tool) {
			return false
		}
		o.name, o.hasName = tool, true
	case 'i':
		if o.id != "" {
			return false
		}
		o.id = string(text)
	case 't':
		return string(text) == "function"
	}
	return true
}

// endObject begins the call at the end of its object: the arguments came first,
// or there are none.
func (p *Parser) endObject(d []byte) (int, bool) {
	o := &p.object
	if !o.hasName || o.args[1] == 0 && o.bare {
		return p.reject(d, o.pos)
	}
	args := d[o.args[0]:o.args[1]]
	if o.args[1] == 0 {
		args = []byte("{}")
	}
	p.wholeCall(o.name, o.id, args)
	o.closed = true
	return o.pos + 1, false
}

// wholeCall gives out a call whose arguments were held.
func (p *Parser) wholeCall(name, id string, args []byte) {
	p.beginCall(name, id)
	for p.state = (*Parser).arguments; p.open; {
		n, _ := p.state(p, args, true)
		args = args[n:]
	}
	p.state = (*Parser).after
}
