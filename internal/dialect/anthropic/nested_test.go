package anthropic

import (
	"slices"
	"strings"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/dialecttest"
)

// Every nested field with values of every wrong type, and every object without each of its
// members.
func TestNested(t *testing.T) {
	const (
		tool   = `{"type":"custom","name":"f","description":"d","input_schema":{"type":"object"},"eager_input_streaming":true,"strict":false}`
		pixels = `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}`
		linked = `{"type":"image","source":{"type":"url","url":"https://h/a.png"}}`
		blocks = `"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"b"},{"type":"tool_use","id":"c","name":"f","input":{}},{"type":"tool_use","id":"d","name":"f","input":{}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"x","is_error":true},{"type":"tool_result","tool_use_id":"d","content":[{"type":"text","text":"y"},IMAGE]},{"type":"text","text":"z"},IMAGES]}]`
	)
	for _, e := range []Endpoint{Messages, CountTokens} {
		t.Run(e.String(), func(t *testing.T) {
			body := func(fields string) string {
				if e == CountTokens {
					return `{"model":"m","messages":[{"role":"user","content":"hi"}],` + fields + `}`
				}
				return body(fields)
			}
			most := `"max_tokens":2048,`
			stops := `,"stop_sequences":["a"]`
			if e == CountTokens {
				most, stops = "", ""
			}
			images := strings.NewReplacer("IMAGES", pixels+","+linked, "IMAGE", linked)
			if e == CountTokens { // which counts none
				images = strings.NewReplacer(",IMAGES", "", ",IMAGE", "")
			}
			rows := slices.DeleteFunc(Fields(), func(f dialect.Field) bool {
				return f.On != 0 && f.On&(1<<e) == 0 || e == CountTokens && f.Name == "messages[].content[].source"
			})
			dialecttest.Nested(t, func(body string) (*dialect.LeftOut, error) { return dialecttest.LeftOut(decode(e, body)) }, rows,
				`{"model":"m",`+most+images.Replace(blocks)+`}`,
				body(`"system":[{"type":"text","text":"s"}]`+stops),
				body(`"system":"s","tools":[`+tool+`],"tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true}`),
				body(`"thinking":{"type":"enabled","budget_tokens":1024,"display":"summarized"}`),
				body(`"output_config":{"effort":"low","format":{"type":"json_schema","schema":{}}}`),
				body(`"output_config":{"format":null}`),
			)
		})
	}
}
