package load

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// words are what generated prompts are made of: short, common, lower-case, so
// that a word is about one token in any vocabulary trained on English.
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

// appendPrompt appends the prompt of the i-th request: n words that depend on
// seed and i alone. No two prompts share a beginning worth caching.
func appendPrompt(dst []byte, seed uint64, i, n int) []byte {
	rng := rand.NewPCG(seed^promptStream, uint64(i))
	for k := range n {
		if k > 0 {
			dst = append(dst, ' ')
		}
		// A multiply-shift instead of a remainder; the bias is below 2^-50.
		dst = append(dst, words[(rng.Uint64()>>32)*uint64(len(words))>>32]...)
	}
	return dst
}

// message builds the requests of a run: what all share is rendered once.
type message struct {
	plan   *Plan
	head   []byte // request line and headers, up to the value of Content-Length
	before []byte // body up to the prompt
	after  []byte // body after it
}

// newMessage renders what the requests of a plan share. model has been
// settled.
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
	h.WriteString("Content-Length: ")
	m.head = []byte(h.String())

	b := append([]byte(`{"model":`), marshal(model)...)
	if !p.NoStream {
		b = append(b, `,"stream":true`...)
		if !p.NoUsage {
			b = append(b, `,"stream_options":{"include_usage":true}`...)
		}
	}
	if p.OutputTokens > 0 {
		b = append(b, `,"max_tokens":`...)
		b = strconv.AppendInt(b, int64(p.OutputTokens), 10)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Body)) {
		value, err := json.Marshal(p.Body[name])
		if err != nil {
			return nil, fmt.Errorf("body field %q: %w", name, err)
		}
		b = append(append(append(append(b, ','), marshal(name)...), ':'), value...)
	}
	if p.API == Chat {
		m.before = append(b, `,"messages":[{"role":"user","content":"`...)
		m.after = []byte(`"}]}`)
	} else {
		m.before = append(b, `,"prompt":"`...)
		m.after = []byte(`"}`)
	}
	if p.Prompt != "" {
		quoted := marshal(p.Prompt)
		m.before = append(m.before, quoted[1:len(quoted)-1]...)
	}
	return m, nil
}

// lengthDigits is room for any Content-Length that fits a body in memory.
const lengthDigits = 19

// render builds the i-th request as it goes on the wire, in buf's storage, and
// returns it and the storage for the next call. Generated prompts need no
// escaping: they are lower-case words.
func (m *message) render(buf []byte, i int) (wire, storage []byte) {
	// The body's length is known only once it is written, so that the head is
	// put right before it afterwards.
	room := len(m.head) + lengthDigits + len("\r\n\r\n")
	buf = slices.Grow(buf[:0], room+len(m.before)+len(m.after))[:room]
	buf = append(buf, m.before...)
	if m.plan.Prompt == "" {
		buf = appendPrompt(buf, m.plan.Seed, i, m.plan.InputTokens)
	}
	buf = append(buf, m.after...)

	var digits [lengthDigits]byte
	length := strconv.AppendInt(digits[:0], int64(len(buf)-room), 10)
	start := room - len("\r\n\r\n") - len(length) - len(m.head)
	at := start + copy(buf[start:], m.head)
	at += copy(buf[at:], length)
	copy(buf[at:], "\r\n\r\n")
	return buf[start:], buf
}
