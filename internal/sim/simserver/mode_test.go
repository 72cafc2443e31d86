package simserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine/plane/planepb"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/web"
	"weir/internal/workload/content"
)

// spokenAnswer is an answer taken apart as the OpenAI API does it.
type spokenAnswer struct {
	status    int
	text      string
	reasoning string
	calls     []spokenCall
	reason    string
	done      bool
	raw       string
	usage     *usage
}

type spokenCall struct{ id, name, arguments string }

// converse posts a chat and puts the answer together, streamed or not.
func (b *bench) converse(url, body string) (a spokenAnswer) {
	b.t.Helper()
	resp, err := b.client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	a.status, a.raw = resp.StatusCode, string(raw)
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		a.read(b.t, raw)
		return a
	}
	for event := range strings.SplitSeq(strings.TrimSuffix(a.raw, "\n\n"), "\n\n") {
		data := strings.TrimPrefix(event, "data: ")
		if data == "[DONE]" {
			a.done = true
			continue
		}
		a.read(b.t, []byte(data))
	}
	return a
}

func (a *spokenAnswer) read(t testing.TB, data []byte) {
	t.Helper()
	type message struct {
		Content          string `json:"content"`
		ReasoningContent string `json:"reasoning_content"`
		Reasoning        string `json:"reasoning"`
		ToolCalls        []struct {
			Index    int    `json:"index"`
			ID       string `json:"id"`
			Type     string `json:"type"`
			Function struct {
				Name      string `json:"name"`
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	}
	var w struct {
		Choices []struct {
			Delta        message `json:"delta"`
			Message      message `json:"message"`
			FinishReason string  `json:"finish_reason"`
		} `json:"choices"`
		Usage *usage `json:"usage"`
	}
	if err := json.Unmarshal(data, &w); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	if w.Usage != nil {
		a.usage = w.Usage
	}
	for _, c := range w.Choices {
		for _, m := range []message{c.Delta, c.Message} {
			a.text += m.Content
			a.reasoning += m.ReasoningContent + m.Reasoning
			for i, call := range m.ToolCalls {
				at := call.Index
				if call.ID != "" {
					if at = max(at, i); at != len(a.calls) || call.Type != "function" {
						t.Errorf("call %d of %d: %s", at, len(a.calls), data)
					}
					a.calls = append(a.calls, spokenCall{id: call.ID, name: call.Function.Name})
				}
				a.calls[at].arguments += call.Function.Arguments
			}
		}
		a.reason += c.FinishReason
	}
}

const modeTools = `[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7}},"required":["city","days"]}}},{"type":"function","function":{"name":"now"}}]`

func mustTools(t testing.TB) (tools []content.Tool) {
	t.Helper()
	var raw []jsontext.Value
	if err := json.Unmarshal([]byte(modeTools), &raw); err != nil {
		t.Fatal(err)
	}
	for _, r := range raw {
		tool, err := content.ParseTool(r, "tools")
		if err != nil {
			t.Fatal(err)
		}
		tools = append(tools, tool)
	}
	return tools
}

// Every server gives documents, calls and reasoning as real engines do, streamed
// or whole, and each part verifies from its text.
func TestModesOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		tools := mustTools(t)
		const schemaText = `{"type":"object","properties":{"name":{"type":"string"},"n":{"enum":[1,2,3]}},"required":["name","n"],"additionalProperties":false}`
		schema, err := content.CompileSchema([]byte(schemaText))
		if err != nil {
			t.Fatal(err)
		}
		document := func(s *content.Schema) func(a spokenAnswer, p *content.Proof) error {
			return func(a spokenAnswer, p *content.Proof) error {
				if a.reason != "stop" || len(a.calls) != 0 {
					return fmt.Errorf("ended by %q", a.reason)
				}
				return p.Document(s, a.text, true)
			}
		}
		call := func(n int, offered []content.Tool) func(a spokenAnswer, p *content.Proof) error {
			return func(a spokenAnswer, p *content.Proof) error {
				if a.reason != "tool_calls" || len(a.calls) != n || a.text != "" {
					return fmt.Errorf("ended by %q after %d calls and the text %q", a.reason, len(a.calls), a.text)
				}
				for i, c := range a.calls {
					if c.id == "" || i > 0 && c.id == a.calls[i-1].id {
						return fmt.Errorf("ids %+v", a.calls)
					}
					if err := p.Call(offered, c.name, c.arguments, true); err != nil {
						return err
					}
				}
				return nil
			}
		}
		words := func(a spokenAnswer, p *content.Proof) error {
			if len(a.calls) != 0 || a.text == "" {
				return fmt.Errorf("%d calls, text %q", len(a.calls), a.text)
			}
			v := p.Words()
			_, _ = v.WriteString(a.text)
			return v.Close()
		}
		const answered = `"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[]},{"role":"tool","content":"y"}]`
		for _, c := range []struct {
			name, fields string
			think        content.Effort
			check        func(a spokenAnswer, p *content.Proof) error
		}{
			{"schema", `"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":` + schemaText + `}}`, 0, document(schema)},
			{"object", `"response_format":{"type":"json_object"}`, 0, document(content.AnyObject())},
			{"guided", `"guided_json":` + web.Quote(schemaText), 0, document(schema)},
			{"structured", `"structured_outputs":{"json":` + schemaText + `}`, 0, document(schema)},
			{"sglang's", `"json_schema":` + web.Quote(schemaText), 0, document(schema)},
			{"auto", `"tools":` + modeTools, 0, call(1, tools)},
			{"required", `"tools":` + modeTools + `,"tool_choice":"required","parallel_tool_calls":true`, 0, call(2, tools)},
			{"named", `"tools":` + modeTools + `,"tool_choice":{"type":"function","function":{"name":"now"}}`, 0, call(1, tools[1:])},
			{"none", `"tools":` + modeTools + `,"tool_choice":"none","max_tokens":9`, 0, words},
			{"answered", answered + `,"tools":` + modeTools + `,"max_tokens":9`, 0, words},
			{"answered, required", answered + `,"tools":` + modeTools + `,"tool_choice":"required"`, 0, call(1, tools)},
			{"thinking", `"chat_template_kwargs":{"enable_thinking":true}`, content.EffortMedium, words},
			{"effort", `"reasoning_effort":"low","response_format":{"type":"json_object"}`, content.EffortLow, document(content.AnyObject())},
			{"effort and tools", `"reasoning_effort":"low","tools":` + modeTools, content.EffortLow, call(1, tools)},
			{"no effort", `"reasoning_effort":"none","max_tokens":9`, 0, words},
		} {
			for _, url := range []string{b.openai + chat, b.vllm + chat, b.sglang + chat} {
				switch c.name {
				case "guided", "sglang's": // of older releases of vLLM's, and of SGLang's completions
					if !strings.HasPrefix(url, b.openai) {
						continue
					}
				case "structured":
					if strings.HasPrefix(url, b.sglang) {
						continue // vLLM's words: SGLang passes over them
					}
				}
				for _, stream := range []string{"false", "true"} {
					body := `{` + c.fields + `,"stream":` + stream
					if !strings.Contains(c.fields, `"messages"`) {
						body += `,"messages":[{"role":"user","content":"say ` + c.name + `"}]`
					}
					a := b.converse(url, body+`}`)
					p := b.words.Proof()
					if a.status != 200 || a.done != (stream == "true") || (a.reasoning != "") != (c.think > 0) {
						t.Errorf("%s, %s, stream %s: status %d, done %t, reasoning %q: %s", c.name, url, stream, a.status, a.done, a.reasoning, a.raw)
						continue
					}
					if c.think > 0 {
						if err := p.Reasoning(c.think, a.reasoning, true); err != nil {
							t.Errorf("%s, %s, stream %s: %v", c.name, url, stream, err)
							continue
						}
					}
					if err := c.check(a, p); err != nil {
						t.Errorf("%s, %s, stream %s: %v\n%.600s", c.name, url, stream, err, a.raw)
					}
				}
			}
		}
		// A native request that asks for a document.
		got := b.generate(`{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":500,"json_schema":` + web.Quote(schemaText) + `}}`)
		if err := b.words.Proof().Document(schema, strings.TrimPrefix(*got.last().Text, "\n"), true); err != nil || got.last().Meta.FinishReason.Type != "stop" {
			t.Errorf("generate: %v: %s", err, got.raw)
		}
	})
}

// A bound cuts every mode with reason length, and the pieces are right as far
// as they go.
func TestModesCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		tools := mustTools(t)
		for n := 1; n < 80; n++ {
			for _, stream := range []string{"false", "true"} {
				a := b.converse(b.openai+chat, fmt.Sprintf(`{"messages":[{"role":"user","content":"x"}],"tools":%s,"tool_choice":{"type":"function","function":{"name":"get_weather"}},"max_tokens":%d,"stream":%s,"stream_options":{"include_usage":true}}`, modeTools, n, stream))
				if a.reason == "tool_calls" {
					if n < 20 {
						t.Errorf("a whole call of %d tokens: %s", n, a.raw)
					}
					continue
				}
				if a.reason != "length" || a.usage == nil || a.usage.CompletionTokens != n {
					t.Fatalf("at %d: %s", n, a.raw)
				}
				for _, c := range a.calls {
					// Not streamed, a call is one when its arguments are complete.
					if err := b.words.Proof().Call(tools[:1], c.name, c.arguments, stream == "false"); err != nil {
						t.Errorf("at %d, stream %s: %v in %+v", n, stream, err, c)
					}
				}
			}
		}
	})
}

func TestModesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		for fields, param := range map[string]string{
			`"response_format":{"type":"xml"}`:                                             "response_format.type",
			`"response_format":{"type":"json_schema"}`:                                     "response_format.json_schema.schema",
			`"response_format":{"type":"json_schema","json_schema":{"schema":{"not":{}}}}`: "response_format.json_schema.schema",
			`"guided_regex":"a"`:                                                           "guided_regex",
			`"regex":"a"`:                                                                  "regex",
			`"structured_outputs":{"choice":["a"]}`:                                        "structured_outputs.choice",
			`"tools":[{"type":"web"}]`:                                                     "tools[0].type",
			`"tools":[{"type":"function","function":{"name":"x","parameters":{"type":"object","if":{}}}}]`:  "tools[0].function.parameters",
			`"tools":[{"type":"function","function":{"name":"x"}}],"tool_choice":"sometimes"`:               "tool_choice",
			`"tools":[{"type":"function","function":{"name":"x"}}],"tool_choice":{"function":{"name":"y"}}`: "tool_choice",
			`"tool_choice":"required"`:  "tool_choice",
			`"reasoning_effort":"lots"`: "reasoning_effort",
		} {
			a, err := b.post(context.Background(), chat, `{"messages":[{"role":"user","content":"x"}],`+fields+`}`)
			if err != nil || a.status != http.StatusBadRequest || a.errorParam != param {
				t.Errorf("%s: %+v, %v", fields, a, err)
			}
		}
		b.settle("rest", func(s engine.State) bool { return s.Received == s.Rejected })
	})
}

// Over the plane an engine sees ids only: what is to be said stands in them,
// and another engine goes on from any of them.
func TestModesOverPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		g := b.dial(1, 0)
		slot := uint32(0)
		say := func(prompt []uint32) []uint32 {
			t.Helper()
			slot++
			if err := g.submit(slot, 400, func(r *planepb.SubmitRequest) { r.Prompt, r.IgnoreEos = prompt, false }); err != nil {
				t.Fatal(err)
			}
			for g.finish[slot] == nil {
				if err := g.recv(); err != nil {
					t.Fatal(err)
				}
			}
			ids := g.ids[slot]
			if f := g.finish[slot]; f.Reason != planepb.Finish_REASON_STOP || ids[len(ids)-1] != 257 && ids[len(ids)-1] != 258 {
				t.Fatalf("%v after %v", f, ids)
			}
			return ids[:len(ids)-1]
		}
		text := func(ids []uint32) string { return string(b.e.vocab.PromptText(ids)) }
		tok := newToyTokenizer()
		for prompt, prefix := range map[string]string{
			`[weir-sim {"content": "echo"}]` + "\nhello": "\nhello",
			`[weir-sim {"content": "json"}]` + "\nhello": "\n{\"answer\": \"",
			`[weir-sim {"think": "low"}]` + "\nhello":    "\n<think>\n",
		} {
			ids, err := tok.Encode(prompt, false)
			if err != nil {
				t.Fatal(err)
			}
			whole := say(ids)
			if !strings.HasPrefix(text(whole), prefix) {
				t.Errorf("%s: %q", prompt, text(whole))
			}
			for cut := 0; cut <= len(whole); cut += 1 + len(whole)/7 {
				if rest := say(slices.Concat(ids, whole[:cut])); !slices.Equal(rest, whole[cut:]) {
					t.Errorf("%s: cut after %d, it goes on with %q", prompt, cut, text(rest))
				}
			}
		}
		err := g.submit(999, 5, func(r *planepb.SubmitRequest) { r.Prompt, _ = tok.Encode(`[weir-sim {"contents": 1}]`, false) })
		if err == nil || !strings.Contains(err.Error(), "InvalidArgument") || !strings.Contains(err.Error(), `"contents"`) {
			t.Errorf("a directive that is none: %v", err)
		}
	})
}
