package attempt

import (
	"math"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
)

// The bounds of a relayed request are those of its prompts and of the answers that it asks for.
func TestRelayBounds(t *testing.T) {
	for _, x := range []struct {
		e                  dialect.Endpoint
		body               string
		context            int
		prompt, completion int
	}{
		{openai.Chat, `{"model":"m","messages":[{}],"max_tokens":5}`, 100, 100, 5},
		{openai.Chat, `{"model":"m","messages":[{},{}],"stop":["a","b"],"n":3}`, 100, 100, 300},
		{openai.Chat, `{"model":"m","max_tokens":500}`, 100, 100, 100},
		{openai.Chat, `{"model":"m"}`, 0, assumedContext, assumedContext},
		{openai.Chat, `{"model":"m"}`, 1 << 60, mostContext, mostContext},
		{openai.Chat, `{"model":"m","n":1000000000}`, 1 << 60, mostContext, math.MaxInt32},
		{openai.Completions, `{"model":"m","prompt":[1,2,3],"max_tokens":5}`, 100, 100, 5},
		{openai.Completions, `{"model":"m","prompt":["a","b"],"max_tokens":5,"best_of":2}`, 100, 200, 20},
		{openai.Completions, `{"model":"m","prompt":[[1],[2],[3]],"max_tokens":5}`, 100, 300, 15},
		{openai.Other, `{"model":"m","input":["a","b","c"]}`, 100, 300, 300},
		{openai.Other, `{"model":"m","query":"a","documents":[{"text":"b"},{"text":"c"}]}`, 100, 200, 200},
	} {
		head, err := x.e.ParseHead([]byte(x.body))
		if err != nil {
			t.Fatal(err)
		}
		if b := relayBounds(x.e, head, x.context); b.Prompt != x.prompt || b.Completion != x.completion {
			t.Errorf("%s: %+v, want %d and %d", x.body, b, x.prompt, x.completion)
		}
	}
}
