package load

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"weir/internal/workload"
)

// words are the vocabulary of generated prompts: short, common, lower-case, so that a word
// is about one token in any vocabulary trained on English.
var words = strings.Fields(`the of and to in is that it was for on are as with they at be this have
from or one had by word but not what all were we when your can said there use an each which she do
how their if will up other about out many then them these so some her would make like him into time
has look two more write go see number no way could people my than first water been call who oil its
now find long down day did get come made may part over new sound take only little work know place
year live me back give most very after thing our just name good sentence man think say great where
help through much before line right too mean old any same tell boy follow came want show also around
form three small set put end does another well large must big even such because turn here why ask
went men read need land different home us move try kind hand picture again change off play spell air
away animal house point page letter mother answer found study still learn should world`)

// promptStream separates the draws of the prompts from those of the arrivals.
const promptStream = 0x70726f6d7074

// message builds the requests of a run: what all share is rendered once.
type message struct {
	plan    *Plan
	prompts prompts
	head    []byte // request line and headers, up to the request's number in its id, or to the value of Content-Length
	named   bool   // requests have ids
	length  []byte // what is between the number and the value of Content-Length
	before  []byte // body up to the prompt, or to what was said before it, after the id
	lead    []byte // between what was said before and the prompt
	after   []byte // body after it, up to the value of max_tokens where there is one
	closing int    // bytes of after that end the prompt's message
	limited bool   // there is one
	tail    []byte // body after that
}

// ask is the variable part of one request of a run.
type ask struct {
	index         int
	parts         []workload.Part // of its prompt, in a workload
	text          string          // the prompt itself, in a workload that has texts
	said          []byte          // earlier messages of its session, as JSON
	input, output int             // tokens
	from, to      int             // where its message is in the storage, of Chat
}

// indexDigits is the width of a request's number in its id: ids of one width,
// because SGLang takes an abort of "r-1" to mean "r-10" as well.
const indexDigits = 8

// newMessage renders the common part of a plan's requests. model is the resolved one.
func newMessage(p *Plan, t *target, model string) (*message, error) {
	m := &message{plan: p}

	var h strings.Builder
	fmt.Fprintf(&h, "POST %s HTTP/1.1\r\nHost: %s\r\n", t.path, t.host)
	set := map[string]bool{"host": true, "content-length": true, "transfer-encoding": true}
	for _, name := range slices.Sorted(maps.Keys(p.Header)) {
		if !set[strings.ToLower(name)] {
			fmt.Fprintf(&h, "%s: %s\r\n", name, p.Header[name])
			set[strings.ToLower(name)] = true
		}
	}
	accept := "text/event-stream"
	if p.NoStream {
		accept = "application/json"
	}
	for _, d := range [][2]string{
		{"User-Agent", "weir-bench"}, {"Content-Type", "application/json"}, {"Accept", accept},
	} {
		if !set[strings.ToLower(d[0])] {
			fmt.Fprintf(&h, "%s: %s\r\n", d[0], d[1])
		}
	}
	if m.named = p.RequestID != "" && !set["x-request-id"]; m.named {
		h.WriteString("X-Request-Id: " + p.RequestID + "-")
		m.length = []byte("\r\n")
	}
	m.length = append(m.length, "Content-Length: "...)
	m.head = []byte(h.String())
	if p.API == Generate {
		return m, m.native(p)
	}

	b := append([]byte(`{"model":`), marshal(model)...)
	if !p.NoStream {
		b = append(b, `,"stream":true`...)
		if !p.NoUsage {
			b = append(b, `,"stream_options":{"include_usage":true}`...)
		}
	}
	b, err := appendFields(b, p.Body, func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	if p.API == Chat {
		m.before, m.lead, m.after = append(b, `,"messages":[`...), []byte(`{"role":"user","content":"`), []byte(`"}]`)
		m.closing = len(`"}`)
		if len(p.Images) > 0 {
			m.lead = []byte(`{"role":"user","content":[`)
			for _, url := range p.Images {
				m.lead = append(append(append(m.lead, `{"type":"image_url","image_url":{"url":`...), marshal(url)...), `}},`...)
			}
			m.lead = append(m.lead, `{"type":"text","text":"`...)
			m.after = []byte(`"}]}]`)
			m.closing = len(`"}]}`)
		}
	} else {
		m.before = append(b, `,"prompt":"`...)
		m.after = []byte(`"`)
	}
	if m.limited = p.OutputTokens > 0 || p.Workload != nil; m.limited {
		m.after = append(m.after, `,"max_tokens":`...)
	}
	m.tail = []byte("}")
	m.fixed(p)
	return m, nil
}

// fixed puts the prompt that all requests share where it belongs.
func (m *message) fixed(p *Plan) {
	if p.Prompt != "" {
		quoted := marshal(p.Prompt)
		m.lead = append(m.lead, quoted[1:len(quoted)-1]...)
	}
}

// appendFields appends those fields of a body that are wanted, each after a
// comma.
func appendFields(b []byte, fields map[string]any, want func(string) bool) ([]byte, error) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !want(name) {
			continue
		}
		value, err := json.Marshal(fields[name])
		if err != nil {
			return nil, fmt.Errorf("body field %q: %w", name, err)
		}
		b = append(append(append(append(b, ','), marshal(name)...), ':'), value...)
	}
	return b, nil
}

// appendIndex appends a request's number at its fixed width.
func appendIndex(dst []byte, i int) []byte {
	var digits [indexDigits]byte
	for k := len(digits) - 1; k >= 0; k-- {
		digits[k] = byte('0' + i%10)
		i /= 10
	}
	return append(dst, digits[:]...)
}

// id returns the id of the i-th request, empty where requests have none.
func (m *message) id(i int) string {
	if !m.named {
		return ""
	}
	return string(appendIndex(append([]byte(m.plan.RequestID), '-'), i))
}

// lengthDigits is room for any Content-Length that fits a body in memory.
const lengthDigits = 19

// render builds a request as it goes on the wire, in buf's storage, and returns it and the
// storage for the next call. Generated prompts need no escaping: they are lower-case words.
func (m *message) render(buf []byte, a *ask) (wire, storage []byte) {
	i := a.index
	// The body's length is known only once it is written, so that the head is
	// put right before it afterwards.
	room := len(m.head) + indexDigits + len(m.length) + lengthDigits + len("\r\n\r\n")
	buf = slices.Grow(buf[:0], room+len(m.before)+len(m.after))[:room]
	if m.plan.API == Generate {
		buf = append(buf, '{')
		if m.named {
			buf = append(append(append(buf, `"rid":"`...), m.plan.RequestID...), '-')
			buf = append(appendIndex(buf, i), `",`...)
		}
		if h := m.plan.Halves; h != nil {
			buf = h.append(buf, i)
		}
	}
	buf = append(append(buf, m.before...), a.said...)
	a.from = len(buf)
	buf = append(buf, m.lead...)
	switch {
	case m.plan.Prompt != "":
	case a.text != "":
		quoted := marshal(a.text)
		buf = append(buf, quoted[1:len(quoted)-1]...)
	case a.parts != nil:
		buf = m.prompts.appendParts(buf, m.plan.Seed, a.parts, a.input)
	default:
		buf = m.prompts.append(buf, m.plan.Seed, i, a.input)
	}
	a.to = len(buf) + m.closing
	buf = append(buf, m.after...)
	if m.limited {
		buf = strconv.AppendInt(buf, int64(a.output), 10)
	}
	buf = append(buf, m.tail...)

	var digits [lengthDigits]byte
	length := strconv.AppendInt(digits[:0], int64(len(buf)-room), 10)
	start := room - len("\r\n\r\n") - len(length) - len(m.length) - len(m.head)
	if m.named {
		start -= indexDigits
	}
	at := start + copy(buf[start:], m.head)
	if m.named {
		at = len(appendIndex(buf[:at], i))
	}
	at += copy(buf[at:], m.length)
	at += copy(buf[at:], length)
	copy(buf[at:], "\r\n\r\n")
	return buf[start:], buf
}
