package responses

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/infer"
)

// crm is a namespace of two functions, shop one in which a function has the same name, as
// has own, which is in none.
const (
	own  = `{"type":"function","name":"get"}`
	crm  = `{"type":"namespace","name":"crm","description":"Customers.","tools":[{"type":"function","name":"get","description":"One.","parameters":{"type":"object","properties":{"id":{}}}},{"type":"function","name":"list"}]}`
	shop = `{"type":"namespace","name":"mcp__shop","description":"","tools":[{"type":"function","name":"get","description":null},{"type":"function","name":"buy","defer_loading":true,"output_schema":{}},{"type":"custom","name":"free"}]}`
)

// The model is shown the functions of namespaces by both names, and is told the
// description of a namespace with its first function.
func TestNamespaces(t *testing.T) {
	const (
		get  = `{"type":"function","function":{"name":"get"}}`
		crms = `{"type":"function","function":{"name":"crm__get","description":"Customers.\n\nOne.","parameters":{"type":"object","properties":{"id":{}}}}},{"type":"function","function":{"name":"crm__list"}}`
		list = `{"type":"function","function":{"name":"crm__list","description":"Customers."}}`
		shpg = `{"type":"function","function":{"name":"mcp__shop__get"}}`
		shpb = `{"type":"function","function":{"name":"mcp__shop__buy"}}`
	)
	allow := func(tools string) string { return `{"type":"allowed_tools","mode":"required","tools":[` + tools + `]}` }
	for _, test := range []struct {
		tools, choice string
		shown, forced string
	}{
		{own + `,` + crm + `,` + shop, `"auto"`, get + `,` + crms + `,` + shpg + `,` + shpb, ""},
		{crm + `,` + own, `"required"`, crms + `,` + get, ""},
		{own + `,` + crm, `{"type":"function","name":"get"}`, get + `,` + crms, "get"},
		{own + `,` + crm, `{"type":"function","namespace":"crm","name":"get"}`, get + `,` + crms, "crm__get"},
		{own + `,` + crm, `{"type":"function","name":"crm__get"}`, get + `,` + crms, "crm__get"},
		{crm, `{"type":"function","name":"list"}`, crms, "crm__list"},
		{crm, `{"type":"function","name":"list","namespace":null}`, crms, "crm__list"},
		{crm + `,` + shop, allow(`{"type":"function","name":"list"},{"type":"function","namespace":"mcp__shop","name":"buy"}`), list + `,` + shpb, ""},
		{crm + `,` + own + `,` + shop, allow(`{"type":"namespace","name":"mcp__shop"},{"type":"function","name":"get"}`), get + `,` + shpg + `,` + shpb, ""},
	} {
		r, err := decode(t, `{"model":"m","input":"x","tools":[`+test.tools+`],"tool_choice":`+test.choice+`}`, infer.CarriesAll)
		if err != nil {
			t.Errorf("%s: %v", test.choice, err)
			continue
		}
		if diff := cmp.Diff(`[`+test.shown+`]`, string(r.Tools)); diff != "" || r.ForcedTool != test.forced {
			t.Errorf("%s: forced %q: %s", test.choice, r.ForcedTool, diff)
		}
		if r.ForcedAny && strings.Count(r.Guide.Text, `"const":`) != strings.Count(test.shown, `"function":`) {
			t.Errorf("%s: the schema is %s", test.choice, r.Guide.Text)
		}
		if said := string(whole(r, nil)); strings.Count(said, `"type":"namespace"`) != strings.Count(test.tools+test.choice, `"type":"namespace"`) || !strings.Contains(said, `"tool_choice":`+test.choice) {
			t.Errorf("%s: the answer says %s", test.choice, said)
		}
	}
}

// An earlier answer's call and its output have the name that the model calls.
func TestNamespaceInput(t *testing.T) {
	const call = `{"type":"function_call","call_id":"a","name":"get","namespace":"crm","arguments":"{}"}`
	r, err := decode(t, `{"model":"m","input":[{"role":"user","content":"Hi"},`+call+`,{"type":"function_call_output","call_id":"a","name":"get","namespace":"crm","output":"1"},
		{"type":"function_call","call_id":"b","name":"get","namespace":null,"arguments":"{}"}]}`, infer.CarriesAll)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"role":"user","content":"Hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"crm__get","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"a","name":"crm__get","content":"1"},{"role":"assistant","content":null,"tool_calls":[{"id":"b","type":"function","function":{"name":"get","arguments":"{}"}}]}]`
	if diff := cmp.Diff(want, string(r.Messages)); diff != "" {
		t.Error(diff)
	}
}

func TestNamespacesRefused(t *testing.T) {
	space := func(members string) string { return `"tools":[{"type":"namespace"` + members + `}]` }
	many := `,"name":"n","tools":[` + strings.Repeat(own+`,`, maxTools) + own + `]`
	for _, test := range []struct{ fields, param, words string }{
		{space(``), "tools[0].name", "is required"},
		{space(`,"name":"a b","tools":[]`), "tools[0].name", "1 to 128"},
		{space(`,"name":1,"tools":[]`), "tools[0].name", "found a number"},
		{space(`,"name":"n"`), "tools[0].tools", "send the functions"},
		{space(`,"name":"n","tools":{}`), "tools[0].tools", "found an object"},
		{space(`,"name":"n","tools":["f"]`), "tools[0].tools[0]", "must be an object"},
		{space(`,"name":"n","description":[],"tools":[]`), "tools[0].description", "must be a string"},
		{space(`,"name":"n","tool":[],"tools":[]`), "tools[0].tool", "did you mean tools?"},
		{space(`,"name":"n","tools":[{"name":"f"}]`), "tools[0].tools[0].type", "is required"},
		{space(`,"name":"n","tools":[{"type":"namespace","name":"m","tools":[]}]`), "tools[0].tools[0].type", "is not supported"},
		{space(`,"name":"n","tools":[{"type":"function"}]`), "tools[0].tools[0].name", "is required"},
		{space(`,"name":"n","tools":[{"type":"function","name":"f","async":true}]`), "tools[0].tools[0].async", "leave it out or send false"},
		{space(`,"name":"n","tools":[{"type":"function","name":"f","parameters":[]}]`), "tools[0].tools[0].parameters", "JSON Schema"},
		{space(`,"name":"n","tools":[` + own + `,` + own + `]`), "tools[0].tools[1].name", `"n__get" is the name of two tools`},
		{space(many[:len(many)-1] + `]`), "tools[0].tools[1].name", "two tools"},
		{space(strings.ReplaceAll(many, own, `{"type":"custom"}`)), "tools[0].tools", "at most 1024"},
		{`"tools":[{"type":"function","name":"crm__get"},` + crm + `]`, "tools[1].tools[0].name", `"crm__get" is the name of two tools`},
		{`"tools":[` + crm + `,` + shop + `],"tool_choice":{"type":"function","name":"get"}`, "tool_choice.name", "in the namespaces crm, mcp__shop; send namespace"},
		{`"tools":[` + crm + `],"tool_choice":{"type":"function","name":"get","namespace":"shop"}`, "tool_choice.name", `the namespace "shop" in tools does not have`},
		{`"tools":[` + crm + `],"tool_choice":{"type":"function","name":"crm"}`, "tool_choice.name", "not in tools"},
		{`"tools":[` + crm + `],"tool_choice":{"type":"function","name":"get","namespace":7}`, "tool_choice.namespace", "must be a string"},
		{`"tools":[` + crm + `],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"namespace","name":"shop"}]}`, "tool_choice.tools[0].name", "not a namespace"},
		{`"tools":[` + crm + `],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"set"}]}`, "tool_choice.tools[0].name", "not in tools"},
		{`"tools":[` + shop + `],"tool_choice":{"type":"function","name":"free"}`, "tool_choice.name", "cannot run"},
	} {
		_, err := decode(t, `{"model":"m","input":"x",`+test.fields+`}`, infer.CarriesAll)
		var e *infer.Error
		if !errors.As(err, &e) || e.Param != test.param || !strings.Contains(e.Message, test.words) {
			t.Errorf("%.120s: %v, param %q", test.fields, err, e.Param)
		}
	}
}
