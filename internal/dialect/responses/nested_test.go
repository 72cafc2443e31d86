package responses

import (
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/dialecttest"
	"weir/internal/infer"
)

// Every nested field with values of every wrong type, and every object without each of its
// members.
func TestNested(t *testing.T) {
	const (
		function  = `{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":false}`
		namespace = `{"type":"namespace","name":"n","description":"d","tools":[` + function + `]}`
	)
	dialecttest.Nested(t, func(body string) (*dialect.LeftOut, error) {
		return dialecttest.LeftOut(decode(t, body, infer.CarriesAll))
	}, Fields(),
		`{"model":"m","input":[{"type":"message","id":"i","status":"completed","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"https://h/a.png"}]},`+
			`{"type":"message","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":"b","logprobs":[]}]},{"role":"assistant","content":[{"type":"refusal","refusal":"d"}]},{"role":"user","content":"c"}]}`,
		`{"model":"m","input":[{"role":"user","content":"a"},{"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text","text":"t"}],"encrypted_content":"e"},`+
			`{"type":"function_call","call_id":"c","name":"f","namespace":"n","arguments":"{}"},{"type":"function_call_output","call_id":"c","name":"f","output":"x"},`+
			`{"type":"custom_tool_call","call_id":"d","name":"run","input":"x"},{"type":"custom_tool_call_output","call_id":"d","output":"x"},`+
			`{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"a"}]}]}`,
		`{"model":"m","input":"x","tools":[`+function+`,`+namespace+`],"tool_choice":{"type":"function","name":"f","namespace":"n"}}`,
		`{"model":"m","input":"x","tools":[`+function+`],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]},"metadata":{"a":"b"}}`,
		`{"model":"m","input":"x","tools":[`+run+`],"tool_choice":{"type":"custom","name":"run"}}`,
		`{"model":"m","input":"x","text":{"format":{"type":"json_schema","name":"n","description":"d","strict":true,"schema":{}}},"reasoning":{"effort":"low","summary":"auto","generate_summary":"auto"}}`,
		`{"model":"m","input":"x","stream":true,"stream_options":{"include_usage":true},"include":["reasoning.encrypted_content"],"stop":["a"]}`,
	)
}
