package prepare

import (
	"net/http"
	"strconv"
	"strings"

	"weir/internal/dialect"
	"weir/internal/observe/metrics"
)

// IgnoredHeader names what a request asked for besides its answer and was left out, in
// the head of the response.
const IgnoredHeader = "Weir-Ignored"

// maxIgnored bounds its value, in bytes; what is beyond is counted.
const maxIgnored = 1024

// LeftOut is the report of a request's fields that were left out.
type LeftOut struct {
	*dialect.LeftOut
	headers []string // of the request's head, by their names in the dialect's table
	dialect string
	counted bool
}

// report returns what was left out of a request that weir has decoded; nil: nothing.
func (p *preparing) report() *LeftOut {
	var l LeftOut
	switch t := &p.tokenization; {
	case p.Request != nil:
		l.LeftOut = p.Request.LeftOut
	case t.encode != nil:
		l.LeftOut = t.encode.LeftOut
	case t.detok != nil:
		l.LeftOut = t.detok.LeftOut
	default:
		return nil
	}
	for _, h := range p.in.Endpoint.Traits().Ignored {
		if len(p.in.Header[h.Canonical]) > 0 {
			l.headers = append(l.headers, h.Name)
		}
	}
	if l.LeftOut == nil && l.headers == nil {
		return nil
	}
	l.dialect = DialectOf(p.in.Endpoint)
	kept := l
	return &kept
}

// Tell names what was left out in a response's head, and in the metric once.
func (l *LeftOut) Tell(h http.Header, m *metrics.Metrics) {
	h.Set(IgnoredHeader, l.value())
	if l.counted {
		return
	}
	l.counted = true
	for _, name := range l.Ignored() {
		m.Ignored(l.dialect, name)
	}
	for _, name := range l.headers {
		m.Ignored(l.dialect, name)
	}
	for range l.Unknown() {
		m.Ignored(l.dialect, "unknown")
	}
}

// value is the list as the header has it.
func (l *LeftOut) value() string {
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
