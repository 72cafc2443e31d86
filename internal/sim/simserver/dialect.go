package simserver

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// dialect is what differs between chat and text completions.
type dialect struct {
	idPrefix      string
	object, chunk string
	// Around the text of a token event's choice, and of a whole answer's.
	openDelta, closeDelta string
	openWhole, closeWhole string
	role                  string // a choice's first event, empty when there is none
	emptyDelta            string
}

var (
	chatDialect = &dialect{
		idPrefix: "chatcmpl-", object: "chat.completion", chunk: "chat.completion.chunk",
		openDelta: `"delta":{"content":"`, closeDelta: `"}`,
		openWhole: `"message":{"role":"assistant","content":"`, closeWhole: `"}`,
		role:       `"delta":{"role":"assistant","content":""}`,
		emptyDelta: `"delta":{}`,
	}
	textDialect = &dialect{
		idPrefix: "cmpl-", object: "text_completion", chunk: "text_completion",
		openDelta: `"text":"`, closeDelta: `"`,
		openWhole: `"text":"`, closeWhole: `"`,
		emptyDelta: `"text":""`,
	}
)

// encoder appends the events of one answer. All that does not change from
// event to event is put together once, so that a token costs a few copies.
type encoder struct {
	d         *dialect
	head      string // up to the choices
	usageNull string // in all events but the last when usage was asked for
	choice    []choiceEncoder
}

type choiceEncoder struct {
	open  string // of a token event up to its text
	close string // of a token event after its text
}

func newEncoder(d *dialect, id, model string, created int64, choices int, usage bool) *encoder {
	e := &encoder{d: d, head: head(id, d.chunk, model, created)}
	if usage {
		e.usageNull = `,"usage":null`
	}
	for i := range choices {
		e.choice = append(e.choice, choiceEncoder{
			open:  "data: " + e.head + `[{"index":` + strconv.Itoa(i) + `,` + d.openDelta,
			close: d.closeDelta + `,"logprobs":null,"finish_reason":null}]` + e.usageNull + "}\n\n",
		})
	}
	return e
}

// head gives an answer's or an event's JSON up to the value of choices.
func head(id, object, model string, created int64) string {
	return `{"id":` + quote(id) + `,"object":"` + object + `","created":` + strconv.FormatInt(created, 10) +
		`,"model":` + quote(model) + `,"choices":`
}

// quote gives s as a JSON string; what is not UTF-8 becomes U+FFFD.
func quote(s string) string {
	b, _ := jsontext.AppendQuote(nil, s)
	return string(b)
}

// token appends a token's event. The text of words needs no escape.
func (e *encoder) token(b []byte, choice uint32, text string) []byte {
	c := &e.choice[choice]
	b = append(b, c.open...)
	b = append(b, text...)
	return append(b, c.close...)
}

// begin appends a choice's first event.
func (e *encoder) begin(b []byte, choice uint32) []byte {
	if e.d.role == "" {
		return b
	}
	return e.event(b, choice, e.d.role, "null")
}

// finish appends a choice's last event.
func (e *encoder) finish(b []byte, choice uint32, reason infer.Reason) []byte {
	return e.event(b, choice, e.d.emptyDelta, `"`+string(reason)+`"`)
}

func (e *encoder) event(b []byte, choice uint32, body, reason string) []byte {
	b = append(b, "data: "...)
	b = append(b, e.head...)
	b = append(b, `[{"index":`...)
	b = strconv.AppendUint(b, uint64(choice), 10)
	b = append(b, ',')
	b = append(b, body...)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	b = append(b, reason...)
	b = append(b, "}]"...)
	b = append(b, e.usageNull...)
	return append(b, "}\n\n"...)
}

// usage appends the event that carries the usage and no choice.
func (e *encoder) usage(b []byte, prompt, completion int) []byte {
	b = append(b, "data: "...)
	b = append(b, e.head...)
	b = append(b, `[],"usage":`...)
	b = appendUsage(b, prompt, completion)
	return append(b, "}\n\n"...)
}

func appendUsage(b []byte, prompt, completion int) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(completion), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt+completion), 10)
	return append(b, '}')
}

// whole gives a complete answer that is not streamed.
func (d *dialect) whole(id, model string, created int64, choices []choice, prompt, completion int) []byte {
	b := append([]byte(nil), head(id, d.object, model, created)...)
	b = append(b, '[')
	for i := range choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, ',')
		b = append(b, d.openWhole...)
		b = append(b, choices[i].text...)
		b = append(b, d.closeWhole...)
		b = append(b, `,"logprobs":null,"finish_reason":"`...)
		b = append(b, choices[i].reason...)
		b = append(b, `"}`...)
	}
	b = append(b, `],"usage":`...)
	b = appendUsage(b, prompt, completion)
	return append(b, '}')
}
