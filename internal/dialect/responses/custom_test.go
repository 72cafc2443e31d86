package responses

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/internal/infer"
)

const run = `{"type":"custom","name":"run","description":"Runs.","format":{"type":"text"}}`

// The model is shown a custom tool as a function of one text; a choice may name it; one with a
// grammar is left out.
func TestCustomTools(t *testing.T) {
	const (
		runs    = `{"type":"function","function":{"name":"run","description":"Runs.","parameters":` + customParameters + `}}`
		get     = `{"type":"function","function":{"name":"get"}}`
		grammar = `{"type":"custom","name":"patch","format":{"type":"grammar","syntax":"lark","definition":"start: X"}}`
	)
	for _, test := range []struct {
		tools, choice         string
		shown, forced, ignore string
	}{
		{run + `,` + own, `"auto"`, runs + `,` + get, "", ""},
		{own + `,` + run, `{"type":"custom","name":"run"}`, get + `,` + runs, "run", ""},
		{own + `,` + run, `{"type":"allowed_tools","mode":"auto","tools":[{"type":"custom","name":"run"}]}`, runs, "", ""},
		{run + `,` + grammar, `{"type":"allowed_tools","mode":"auto","tools":[{"type":"custom","name":"run"},{"type":"custom","name":"patch"}]}`, runs, "", grammarTool},
		{`{"type":"custom","name":"run","description":"Runs.","format":null,"defer_loading":true}`, `"required"`, runs, "", deferLoading},
	} {
		r, err := decode(t, `{"model":"m","input":"x","tools":[`+test.tools+`],"tool_choice":`+test.choice+`}`, infer.CarriesAll)
		if err != nil {
			t.Errorf("%s: %v", test.choice, err)
			continue
		}
		if diff := cmp.Diff(`[`+test.shown+`]`, string(r.Tools)); diff != "" || r.ForcedTool != test.forced {
			t.Errorf("%s: forced %q: %s", test.choice, r.ForcedTool, diff)
		}
		var left []string
		if r.LeftOut != nil {
			left = r.LeftOut.Fields
		}
		if strings.Join(left, " ") != test.ignore {
			t.Errorf("%s: left out %q, want %q", test.choice, left, test.ignore)
		}
		if said := string(whole(r, nil)); test.forced != "" && !strings.Contains(said, `"tools":[`+test.tools[:len(own)-1]) || !strings.Contains(said, `"type":"custom","name":"run"`) {
			t.Errorf("%s: the answer says %s", test.choice, said)
		}
	}
	for _, test := range []struct{ tools, choice, param string }{
		{`{"type":"custom"}`, `"auto"`, "tools[0].name"},
		{`{"type":"custom","name":"run","format":"text"}`, `"auto"`, "tools[0].format"},
		{`{"type":"custom","name":"run","format":{}}`, `"auto"`, "tools[0].format.type"},
		{`{"type":"custom","name":"run","format":{"type":"xml"}}`, `"auto"`, "tools[0].format.type"},
		{`{"type":"custom","name":"run","format":{"type":"text","syntax":"lark"}}`, `"auto"`, "tools[0].format.syntax"},
		{`{"type":"custom","name":"run","parameters":{}}`, `"auto"`, "tools[0].parameters"},
		{`{"type":"custom","name":"get"},` + own, `"auto"`, "tools[1].name"},
		{grammar + `,` + own, `{"type":"custom","name":"patch"}`, "tool_choice.name"},
		{own, `{"type":"custom","name":"run"}`, "tool_choice.name"},
	} {
		_, err := decode(t, `{"model":"m","input":"x","tools":[`+test.tools+`],"tool_choice":`+test.choice+`}`, infer.CarriesAll)
		if e := infer.AsError(err); err == nil || e.Param != test.param {
			t.Errorf("%s, %s: %v, want one about %s", test.tools, test.choice, err, test.param)
		}
	}
}

// An earlier answer's call was a call of the function that the model knows, in the words of
// vLLM's server.
func TestCustomInput(t *testing.T) {
	r, err := decode(t, `{"model":"m","input":[{"role":"user","content":"Hi"},
		{"type":"custom_tool_call","id":"ctc_1","call_id":"a","name":"run","input":"say \"h\u00e9\"\n","status":"completed"},{"type":"custom_tool_call_output","call_id":"a","output":"1"}]}`, infer.CarriesAll)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"role":"user","content":"Hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"run","arguments":"{\"input\": \"say \\\"hé\\\"\\n\"}"}}]},` +
		`{"role":"tool","tool_call_id":"a","content":"1"}]`
	if diff := cmp.Diff(want, string(r.Messages)); diff != "" {
		t.Error(diff)
	}
	for item, param := range map[string]string{
		`{"type":"custom_tool_call","call_id":"a","name":"run"}`:                             "input[0].input",
		`{"type":"custom_tool_call","call_id":"a","name":"run","input":{}}`:                  "input[0].input",
		`{"type":"custom_tool_call","call_id":"a","name":"run","input":"","arguments":"{}"}`: "input[0].arguments",
		`{"type":"custom_tool_call_output","call_id":"a","output":"1"}`:                      "input[0].call_id",
		`{"type":"function_call","call_id":"a","name":"run","input":"x"}`:                    "input[0].input",
	} {
		if _, err := decode(t, `{"model":"m","input":[`+item+`]}`, infer.CarriesAll); err == nil || infer.AsError(err).Param != param {
			t.Errorf("%s: %v, want one about %s", item, err, param)
		}
	}
}

// In whatever pieces arguments come: the text is what a JSON parser reads, and the inside of a
// JSON string even where they are no JSON.
func TestCustomText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arguments := rapid.StringOfN(rapid.RuneFrom([]rune("{\" :,input\\u0dD8Ec}x\n\x01é😀")), 0, 24, -1).Draw(t, "arguments")
		switch rapid.IntRange(0, 2).Draw(t, "form") {
		case 0: // anything behind a beginning
			arguments = `{"input":"` + arguments
		case 1: // what a model writes
			quoted, err := json.Marshal(arguments)
			if err != nil {
				t.Fatal(err)
			}
			space := rapid.SampledFrom([]string{"", " ", "\n  "})
			arguments = "{" + space.Draw(t, "a") + `"input"` + space.Draw(t, "b") + ":" + space.Draw(t, "c") + string(quoted) + space.Draw(t, "d") + "}"
		}
		var c customText
		var said []byte
		for rest := []byte(arguments); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			for n < len(rest) && rest[n]&0xC0 == 0x80 {
				n++ // pieces are whole runes
			}
			said = c.append(said, rest[:n])
			rest = rest[n:]
		}
		said = c.end(said)
		var got string
		if err := json.Unmarshal([]byte(`"`+string(said)+`"`), &got); err != nil {
			t.Fatalf("%q gives %q: %v", arguments, said, err)
		}
		var whole struct{ Input *string }
		if json.Unmarshal([]byte(arguments), &whole) == nil && whole.Input != nil && strings.HasPrefix(strings.TrimLeft(arguments, "{ \n"), `"input"`) && *whole.Input != got {
			t.Fatalf("%q gives %q, want %q", arguments, got, *whole.Input)
		}
	})
}
