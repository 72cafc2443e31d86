//go:build linux

package cell

import "fmt"

// EventTemplate is an event of the relayed engine as a chunk of its response. Only three
// numbers of fixed length change between events.
type EventTemplate struct {
	bytes                 []byte
	stream, number, stamp int // where they stand
}

// NumberedLen is the length of an event's content: a space, 8 digits of its
// number, a space, 19 digits of its send time.
const NumberedLen = 29

// NewEventTemplate returns an event whose numbers are all 0.
func NewEventTemplate() *EventTemplate {
	const head = `data: {"id":"chatcmpl-`
	const middle = `","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[{"index":0,"delta":{"content":" `
	const tail = `"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	event := head + "00000000" + middle + "00000000 0000000000000000000" + tail
	size := fmt.Sprintf("%x\r\n", len(event))
	t := &EventTemplate{bytes: []byte(size + event + "\r\n")}
	t.stream = len(size) + len(head)
	t.number = t.stream + 8 + len(middle)
	t.stamp = t.number + 9
	return t
}

// Fill returns the event's bytes, valid until the next call.
func (t *EventTemplate) Fill(stream, number int, stamp int64) []byte {
	putDigits(t.bytes[t.stream:t.stream+8], int64(stream))
	putDigits(t.bytes[t.number:t.number+8], int64(number))
	putDigits(t.bytes[t.stamp:t.stamp+19], stamp)
	return t.bytes
}

func putDigits(b []byte, n int64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
}

// Ending returns the bytes after a stream's last token: the usage if it was asked for, and
// the end of the body.
func Ending(stream, tokens int, usage bool) []byte {
	const head = `data: {"id":"chatcmpl-%08d","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[`
	var b []byte
	for i, event := range []string{
		fmt.Sprintf(head+`{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}`, stream),
		fmt.Sprintf(head+`],"usage":{"prompt_tokens":4,"completion_tokens":%d,"total_tokens":%d}}`, stream, tokens, tokens+4),
		"data: [DONE]",
	} {
		if i == 1 && !usage {
			continue
		}
		event += "\n\n"
		b = fmt.Appendf(b, "%x\r\n%s\r\n", len(event), event)
	}
	return append(b, "0\r\n\r\n"...)
}
