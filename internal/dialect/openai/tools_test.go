package openai

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"weir/internal/infer"
)

const twoTools = `"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"type":"string"}}}}},` +
	`{"type":"function","function":{"name":"g","strict":true}}]`

// The form that tools and the choice of tools get.
func TestTools(t *testing.T) {
	const f = `{"type":"object","properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"type":"string"}}}`
	const items = `"items":{"anyOf":[` +
		`{"type":"object","properties":{"name":{"const":"f"},"parameters":{"type":"object","properties":{"a":{"$ref":"#/$defs/A"}}}},"required":["name","parameters"],"additionalProperties":false},` +
		`{"type":"object","properties":{"name":{"const":"g"},"parameters":{"type":"object"}},"required":["name","parameters"],"additionalProperties":false}]},` +
		`"$defs":{"A":{"type":"string"}}}`
	for _, test := range []struct {
		fields        string
		tools, single bool
		tool          string
		any           bool
		guide         string
	}{
		{`"tools":[]`, false, false, "", false, ""},
		{`"tools":null,"tool_choice":null,"parallel_tool_calls":null`, false, false, "", false, ""},
		{`"tool_choice":"auto","parallel_tool_calls":true`, false, false, "", false, ""},
		{twoTools, true, false, "", false, ""},
		{twoTools + `,"tool_choice":"auto","parallel_tool_calls":false`, true, true, "", false, ""},
		{`"tool_choice":"none",` + twoTools, false, false, "", false, ""},
		{twoTools + `,"tool_choice":{"type":"function","function":{"name":"f"}}`, true, false, "f", false, f},
		{`"tool_choice":{"function":{"name":"g"},"type":"function"},` + twoTools, true, false, "g", false, `{"type":"object"}`},
		{twoTools + `,"tool_choice":"required"`, true, false, "", true, `{"type":"array","minItems":1,` + items},
		{twoTools + `,"tool_choice":"required","parallel_tool_calls":false`, true, true, "", true, `{"type":"array","minItems":1,"maxItems":1,` + items},
	} {
		r, err := decodeFor(infer.CarriesAll, Chat, chatBody(test.fields))
		if err != nil {
			t.Errorf("%s: %v", test.fields, err)
			continue
		}
		guide := ""
		if r.Guide != nil {
			guide = r.Guide.Text
		}
		if (r.Tools != nil) != test.tools || r.SingleCall != test.single || r.ForcedTool != test.tool || r.ForcedAny != test.any || guide != test.guide {
			t.Errorf("%s: tools %q, single %v, forced %q, %v, guide\n%s\nwant\n%s", test.fields, r.Tools, r.SingleCall, r.ForcedTool, r.ForcedAny, guide, test.guide)
		}
		if guide != "" && !json.Valid([]byte(guide)) {
			t.Errorf("%s: guide %q", test.fields, guide)
		}
	}
}

func TestForcedToolsRefused(t *testing.T) {
	other := strings.Replace(twoTools, `"strict":true`, `"parameters":{"$defs":{"A":{"type":"integer"}}}`, 1)
	for _, test := range []struct{ fields, param, message string }{
		{`"tool_choice":"required"`, "tool_choice", "but tools is empty"},
		{`"tools":[],"tool_choice":"required"`, "tool_choice", "but tools is empty"},
		{twoTools + `,"tool_choice":{"type":"function","function":{"name":"h"}}`, "tool_choice.function.name", `"h", which is not in tools`},
		{twoTools + `,"tool_choice":{"type":"custom"}`, "tool_choice.type", `forces a tool`},
		{twoTools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}`, "tool_choice.allowed_tools.tools", `name at least one of tools`},
		{twoTools + `,"tool_choice":{"type":"auto"}`, "tool_choice.type", `for auto send the string "auto" as tool_choice`},
		{twoTools + `,"tool_choice":{"type":1}`, "tool_choice.type", "must be a string"},
		{twoTools + `,"tool_choice":{"type":"function"}`, "tool_choice.function", "must be an object"},
		{twoTools + `,"tool_choice":{"type":"function","function":{}}`, "tool_choice.function.name", "is required"},
		{twoTools + `,"tool_choice":{"type":"function","function":{"name":1}}`, "tool_choice.function.name", "must be a string"},
		{twoTools + `,"tool_choice":{"type":"function","function":{"name":"f"},"mode":1}`, "tool_choice.mode", "not supported"},
		{twoTools + `,"tool_choice":3`, "tool_choice", "must be"},
		{twoTools + `,"tool_choice":"required","guided_json":{}`, "tool_choice", "both constrain the output"},
		{twoTools + `,"tool_choice":"required","response_format":{"type":"structural_tag","structures":[],"triggers":[]}`, "tool_choice", "both constrain the output"},
		{`"tools":[{"type":"custom","custom":{"name":"c"}}],"tool_choice":"required"`, "tool_choice", "runs none of those in tools (c)"},
		{twoTools + `,"tool_choice":"required","continue_final_message":true`, "tool_choice", "continued"},
		{other + `,"tool_choice":"required"`, "tools", `define "A" differently`},
	} {
		_, err := decodeFor(infer.CarriesAll, Chat, chatBody(test.fields))
		var e *infer.Error
		if !errors.As(err, &e) || e.Param != test.param || !strings.Contains(e.Message, test.message) {
			t.Errorf("%s: %v, want %s: %s", test.fields, err, test.param, test.message)
		}
	}
}
