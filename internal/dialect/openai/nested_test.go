package openai

import (
	"slices"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/dialecttest"
	"weir/internal/infer"
)

// Every nested field with values of every wrong type, and every object without each of its
// members.
func TestNested(t *testing.T) {
	const (
		function = `{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":false}}`
		texts    = `{"role":"system","content":[{"type":"text","text":"a"}]},{"role":"user","name":"n","content":"b"},{"role":"assistant","content":[{"type":"refusal","refusal":"c"}],"refusal":"d"}`
		calls    = `{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"x"},` +
			`{"role":"assistant","reasoning":"r","function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"y"}`
		media = `{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/a.png"}},{"type":"image_url","image_url":"https://h/a.png"},` +
			`{"type":"input_audio","input_audio":{"data":"UklGRiQAAABXQVZFZm10IA==","format":"wav"}},{"type":"audio_url","audio_url":{"url":"https://h/a.wav"}},{"type":"video_url","video_url":{"url":"https://h/a.mp4"}}]}`
		common = `,"stop":["a"],"stop_token_ids":[1],"logit_bias":{"5":1},"response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d","strict":true,"schema":{}}}`
		stream = `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`
	)
	for _, test := range []struct {
		on       Endpoint
		examples []string
	}{
		{Chat, []string{
			chatBody(common[1:]),
			chatBody(stream[1:] + `,"structured_outputs":{"choice":["a"]}`),
			chatBody(`"structured_outputs":{"regex":"a"}`),
			chatBody(`"structured_outputs":{"grammar":"a"}`),
			chatBody(`"structured_outputs":{"json_object":true}`),
			chatBody(`"guided_choice":["a"]`),
			`{"model":"m","messages":[` + texts + `,` + calls + `,` + media + `]}`,
			chatBody(`"tools":[` + function + `],"tool_choice":{"type":"function","function":{"name":"f"}}`),
			chatBody(`"tools":[` + function + `],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}}`),
		}},
		{Completions, []string{
			completionBody(common[1:]),
			completionBody(stream[1:] + `,"guided_choice":["a"]`),
			`{"model":"m","prompt":[1,2]}`, `{"model":"m","prompt":[[1,2],[3]]}`, `{"model":"m","prompt":["a","b"]}`,
		}},
		{Tokenize, []string{
			`{"model":"m","messages":[` + texts + `,` + calls + `],"tools":[{}]}`,
			`{"model":"m","prompt":["a"]}`,
		}},
		{Detokenize, []string{`{"model":"m","tokens":[1]}`, `{"model":"m","tokens":[[1]]}`}},
	} {
		t.Run(test.on.String(), func(t *testing.T) {
			rows := slices.DeleteFunc(Fields(), func(f dialect.Field) bool { return f.On != 0 && f.On&(1<<test.on) == 0 })
			dialecttest.Nested(t, func(body string) (*dialect.LeftOut, error) {
				if test.on == Chat || test.on == Completions {
					return dialecttest.LeftOut(decodeFor(infer.CarriesAll, test.on, body))
				}
				r, err := tokenization(test.on, body)
				switch r := r.(type) {
				case *TokenizeRequest:
					if err == nil {
						return r.LeftOut, nil
					}
				case *DetokenizeRequest:
					if err == nil {
						return r.LeftOut, nil
					}
				}
				return nil, err
			}, rows, test.examples...)
		})
	}
}
