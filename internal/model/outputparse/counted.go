package outputparse

import (
	"strings"

	"weir/internal/model/callid"
)

// typed returns the tool and the id that stand in place of a name: functions.NAME:NUMBER.
// Models also write other separators, and a name without a number. Where no tool of the
// request is named so, ok is false, and id is the number alone.
func (t *Tools) typed(header string) (name, id string, ok bool) {
	bare := header
	if rest, cut := strings.CutPrefix(header, "functions"); cut && strings.IndexAny(rest, separators) == 0 {
		bare = rest[1:]
	}
	digits := strings.TrimLeft(header[len(strings.TrimRight(header, "0123456789")):], "0")
	if digits == "" && strings.HasSuffix(header, "0") {
		digits = "0"
	}
	for _, whole := range []string{header, bare} {
		if t != nil && t.has(whole) {
			return whole, "", true
		}
		stem := strings.TrimRight(whole, "0123456789")
		if stem == whole || stem == "" || strings.IndexByte(separators, stem[len(stem)-1]) < 0 {
			continue
		}
		if stem = stem[:len(stem)-1]; t == nil && whole == bare && stem != "" || t.has(stem) {
			return stem, callid.Functions + stem + ":" + digits, true
		}
	}
	return bare, digits, false
}

// separators stand between the parts of such an id.
const separators = ".:_-/#"

// counts reports whether what stands for a name is an id without one: a number, or what
// APIs call their calls.
func counts(header string) bool {
	rest := header
	for _, prefix := range []string{"chatcmpl-tool", "toolu", "call"} {
		if cut, ok := strings.CutPrefix(header, prefix); ok {
			return strings.ContainsAny(cut, "0123456789")
		}
	}
	return rest != "" && strings.Trim(rest, "0123456789"+separators) == ""
}

// readCounted is the state within the arguments of a call that has a number for a name. They
// are held, because only they tell whose call it is.
func (p *Parser) readCounted(d []byte, eof bool) (int, bool) {
	o := &p.object
	if o.from == 0 {
		o.from = o.pos
	}
	for ; o.pos < len(d); o.pos++ {
		b := d[o.pos]
		if !o.scan.begun() {
			if o.from = o.pos; isSpace(b) {
				continue
			}
			if b != '{' {
				return p.reject(d, o.pos)
			}
		}
		switch _, status := o.scan.scan(d[o.pos : o.pos+1]); {
		case status == jsonBad || o.pos > maxHeld:
			return p.reject(d, o.pos)
		case status == jsonEnded:
			at := o.pos + 1
			tool, id := p.listed.fitting(d[o.from:at]), ""
			if tool == "" {
				return p.reject(d, at)
			}
			if o.id != "" {
				id = callid.Functions + tool + ":" + o.id
			}
			p.wholeCall(tool, id, d[o.from:at])
			return at, false
		}
	}
	if eof {
		return p.reject(d, len(d))
	}
	return 0, true
}
