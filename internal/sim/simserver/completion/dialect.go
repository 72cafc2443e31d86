package completion

import (
	"strconv"

	"weir/internal/sim/simserver/web"
)

// Dialect holds the differences between chat and text completions.
type Dialect struct {
	chat          bool
	idPrefix      string
	object, chunk string
	// Around the text of an event's choice, and of a whole answer's.
	openDelta, closeDelta string
	openWhole, closeWhole string
}

var (
	Chat = &Dialect{
		chat:     true,
		idPrefix: "chatcmpl-", object: "chat.completion", chunk: "chat.completion.chunk",
		openDelta: `"delta":{"content":"`, closeDelta: `"}`,
		openWhole: `"message":{"role":"assistant","content":"`, closeWhole: `"}`,
	}
	Text = &Dialect{
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

// head returns an answer's or an event's JSON up to the value of choices.
func head(id, object, model string, created int64) string {
	return `{"id":` + web.Quote(id) + `,"object":"` + object + `","created":` + strconv.FormatInt(created, 10) +
		`,"model":` + web.Quote(model) + `,"choices":`
}
