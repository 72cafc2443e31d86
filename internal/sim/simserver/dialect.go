package simserver

import (
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// dialect holds the differences between chat and text completions.
type dialect struct {
	chat          bool
	idPrefix      string
	object, chunk string
	// Around the text of an event's choice, and of a whole answer's.
	openDelta, closeDelta string
	openWhole, closeWhole string
}

var (
	chatDialect = &dialect{
		chat:     true,
		idPrefix: "chatcmpl-", object: "chat.completion", chunk: "chat.completion.chunk",
		openDelta: `"delta":{"content":"`, closeDelta: `"}`,
		openWhole: `"message":{"role":"assistant","content":"`, closeWhole: `"}`,
	}
	textDialect = &dialect{
		idPrefix: "cmpl-", object: "text_completion", chunk: "text_completion",
		openDelta: `"text":"`, closeDelta: `"`,
		openWhole: `"text":"`, closeWhole: `"`,
	}
)

// voice is how an engine speaks the OpenAI API.
type voice uint8

const (
	// plain is the API as its owner documents it: an event per token.
	plain voice = iota
	// vllm and sglang merge all pending output into one event, and have fields of their
	// own.
	vllm
	sglang
)

// quote returns s as a JSON string; invalid UTF-8 becomes U+FFFD.
func quote(s string) string {
	b, _ := jsontext.AppendQuote(nil, s)
	return string(b)
}

// appendText appends text as the inside of a JSON string. Words, which are nearly all of
// it, need no escape.
func appendText[T string | []byte](b []byte, text T) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf || c == 0x7f {
			at := len(b)
			b, _ = jsontext.AppendQuote(b, text)
			// Without its quotes.
			copy(b[at:], b[at+1:])
			return b[:len(b)-2]
		}
	}
	return append(b, text...)
}

// appendIDs appends ids as the inside of a JSON array. Package dialect of the gateway has
// the same function; the simulated engine shares no code with it, so that each checks the
// other.
func appendIDs(b []byte, ids []uint32) []byte {
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return b
}

// head returns an answer's or an event's JSON up to the value of choices.
func head(id, object, model string, created int64) string {
	return `{"id":` + quote(id) + `,"object":"` + object + `","created":` + strconv.FormatInt(created, 10) +
		`,"model":` + quote(model) + `,"choices":`
}
