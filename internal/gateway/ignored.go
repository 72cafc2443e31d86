package gateway

import (
	"strconv"
	"strings"

	"weir/internal/dialect"
)

// ignoredHeader names what a request asked for besides its answer and was left out, in
// the head of the response.
const ignoredHeader = "Weir-Ignored"

// maxIgnored bounds its value, in bytes; what is beyond is counted.
const maxIgnored = 1024

// leftOut is the report of a request's fields that were left out.
type leftOut struct {
	*dialect.LeftOut
	headers []string // of the request's head, by their names in the dialect's table
	counted bool
}

// leftOut returns what was left out of a request that weir has decoded.
func (p *preparing) leftOut() (l leftOut) {
	switch t := &p.tokenization; {
	case p.req != nil:
		l.LeftOut = p.req.LeftOut
	case t.encode != nil:
		l.LeftOut = t.encode.LeftOut
	case t.detok != nil:
		l.LeftOut = t.detok.LeftOut
	default:
		return l
	}
	for _, h := range p.endpoint.Traits().Ignored {
		if len(p.header[h.Canonical]) > 0 {
			l.headers = append(l.headers, h.Name)
		}
	}
	return l
}

// leaves reports the fields that were left out, at once if no engine supports them.
func (x *exchange) leaves(p *preparing) {
	l := p.leftOut()
	if l.LeftOut == nil && l.headers == nil {
		return
	}
	if !p.needs.HasBytes() {
		x.tellIgnored(&l)
		return
	}
	kept := l
	x.ignored = &kept
}

// leavesToo reports what the chat template had no place for, besides what was reported.
func (x *exchange) leavesToo(p *preparing) {
	l := p.leftOut()
	if p.needs.HasBytes() {
		x.ignored = &l
		return
	}
	x.response.Served.Writer.Header().Set(ignoredHeader, l.value())
	x.g.opts.Metrics.Ignored(dialectOf(x.endpoint), p.passed)
}

// tellIgnored names what was left out, in the response's head and in the metric.
func (x *exchange) tellIgnored(l *leftOut) {
	x.response.Served.Writer.Header().Set(ignoredHeader, l.value())
	if l.counted {
		return
	}
	l.counted = true
	dialect := dialectOf(x.endpoint)
	for _, name := range l.Ignored() {
		x.g.opts.Metrics.Ignored(dialect, name)
	}
	for _, name := range l.headers {
		x.g.opts.Metrics.Ignored(dialect, name)
	}
	for range l.Unknown() {
		x.g.opts.Metrics.Ignored(dialect, "unknown")
	}
}

// value is the list as the header has it.
func (l *leftOut) value() string {
	var b strings.Builder
	more := 0
	add := func(name string) {
		const rest = len(", 1234 more")
		if more > 0 || b.Len()+len(", ")+len(name) > maxIgnored-rest {
			more++
			return
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(name)
	}
	for _, name := range l.Ignored() {
		add(name)
	}
	for _, name := range l.headers {
		add(name)
	}
	for _, path := range l.Unknown() {
		add(headerWord(path))
	}
	if more > 0 {
		b.WriteString(", " + strconv.Itoa(more) + " more")
	}
	return b.String()
}

// headerWord makes a caller's name one that a header may hold, and that is one word of a
// list.
func headerWord(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("_-.[]", r):
			return r
		}
		return '?'
	}, dialect.Clip(name, 64))
}
