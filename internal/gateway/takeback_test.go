package gateway

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/model/chat"
	"weir/models"
)

// conversing is a conversation in a dialect, as a client leads it that sends back what it got.
type conversing struct {
	path  string
	field string // of the conversation
	more  map[string]any
	turns []any
	needs []string // words that the next prompt must contain
}

func (c *conversing) body(tools []byte) string {
	b := map[string]any{"model": models.SimName, c.field: c.turns}
	for name, v := range c.more {
		b[name] = v
	}
	if tools != nil {
		var all []struct{ Function map[string]any }
		_ = json.Unmarshal(tools, &all)
		f := all[0].Function
		switch c.path {
		case chatPath:
			b["tools"] = json.RawMessage(tools)
		case messagesPath:
			b["tools"] = []any{map[string]any{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}}
		default:
			b["tools"] = []any{map[string]any{"type": "function", "name": f["name"], "description": f["description"], "parameters": f["parameters"]}}
		}
	}
	out, _ := json.Marshal(b)
	return string(out)
}

// wordsOf are the words of a text that no escaping changes.
var wordsOf = regexp.MustCompile(`[A-Za-z]{4,}`)

func (c *conversing) need(text string) {
	c.needs = append(c.needs, wordsOf.FindAllString(text, -1)...)
}

// takeBack appends an answer, a result for each of its calls, and a further question.
func (c *conversing) takeBack(t *testing.T, answer []byte) {
	t.Helper()
	var a struct {
		Choices []struct{ Message map[string]any }
		Content []map[string]any
		Output  []map[string]any
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	c.needs = nil
	var results []any
	result := func(of map[string]any) {
		text := fmt.Sprintf("outcome%c", 'a'+len(results))
		c.need(text)
		for name, v := range of {
			if v == "" {
				of[name] = text
			}
		}
		results = append(results, of)
	}
	say := func(v any) string { s, _ := v.(string); return s }
	question := any(map[string]any{"role": "user", "content": "furthermore"})
	c.need("furthermore")
	switch c.path {
	case chatPath:
		m := a.Choices[0].Message
		c.turns = append(c.turns, m)
		c.need(say(m["content"]))
		calls, _ := m["tool_calls"].([]any)
		for _, call := range calls {
			call := call.(map[string]any)
			f := call["function"].(map[string]any)
			c.need(say(f["name"]) + " " + say(f["arguments"]))
			result(map[string]any{"role": "tool", "tool_call_id": call["id"], "content": ""})
		}
	case messagesPath:
		c.turns = append(c.turns, map[string]any{"role": "assistant", "content": a.Content})
		for _, block := range a.Content {
			c.need(say(block["text"]))
			if block["type"] == "tool_use" {
				input, _ := json.Marshal(block["input"])
				c.need(say(block["name"]) + " " + string(input))
				result(map[string]any{"type": "tool_result", "tool_use_id": block["id"], "content": ""})
			}
		}
		if results != nil {
			question = map[string]any{"role": "user", "content": append(slices.Clone(results), map[string]any{"type": "text", "text": "furthermore"})}
			results = nil
		}
	default:
		for _, item := range a.Output {
			c.turns = append(c.turns, item)
			parts, _ := item["content"].([]any)
			for _, p := range parts {
				if item["type"] == "message" {
					c.need(say(p.(map[string]any)["text"]))
				}
			}
			if item["type"] == "function_call" {
				c.need(say(item["name"]) + " " + say(item["arguments"]))
				result(map[string]any{"type": "function_call_output", "call_id": item["call_id"], "output": ""})
			}
		}
	}
	c.turns = append(append(c.turns, results...), question)
}

// answersOf draws what a model may say: text, reasoning, calls as its template writes them, whole
// and cut, with arguments that are no JSON or none.
func answersOf(r *rand.Rand, m *model.Folder) (text string, tools []byte) {
	text = []string{"", "Hereafter", "Firstly\n\nsecondly"}[r.IntN(3)]
	if m.Format.Reasoning() == "think" && r.IntN(2) == 0 {
		text = "<think>\nwondering\n</think>\n\n" + text
	}
	samples := m.Templates.Samples()
	if len(samples) == 0 || m.Format.Tools() == "" {
		return text, nil
	}
	s := samples[r.IntN(len(samples))]
	for range r.IntN(3) {
		call := s.Answer
		switch r.IntN(5) {
		case 0:
			call = call[:r.IntN(len(call)+1)]
		case 1:
			call = strings.Replace(call, s.Arguments, []string{"{}", "", `{"half": `, `["listed"]`, "gibberish"}[r.IntN(5)], 1)
		}
		text += call
	}
	return text, s.Tools
}

// Every answer that weir gives is taken back in the history of the next request, in each dialect and
// for each template, and its text stands in the prompt. What a template has no place for is named.
func TestTakesBackItsAnswers(t *testing.T) {
	files, err := filepath.Glob("../model/chat/testdata/templates/*.jinja")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	taken, calls := 0, 0
	for i, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".jinja")
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.Load(folder(t, map[string]func(string) string{"chat_template.jinja": func(string) string { return string(source) }}))
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, uint64(i)))
		e := &tokenEngine{name: "a"}
		inOneWay(t, Options{Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: m}}}, []any{e}, func(t *testing.T, b *bench) {
			asked := 0
			for n := range 18 {
				c := &conversing{path: chatPath, field: "messages"}
				switch n % 3 {
				case 1:
					c = &conversing{path: messagesPath, field: "messages", more: map[string]any{"max_tokens": 1000}}
				case 2:
					c = &conversing{path: "/v1/responses", field: "input"}
				}
				c.turns = []any{map[string]any{"role": "user", "content": "beforehand"}}
				for range 2 {
					text, tools := answersOf(r, m)
					if m.Templates.Tools() == chat.ToolsIgnored {
						tools = nil
					}
					asking := c.body(tools)
					caller := b.post(c.path, asking)
					asked++
					if e.count() != asked {
						t.Fatalf("%s, %s: %s was refused: %s", name, c.path, asking, caller.answer().body)
					}
					call := e.call(t, asked)
					prompt := simModel().Tokenizer.Decode(call.req.Prompt, false)
					reason := []infer.Reason{infer.ReasonStop, infer.ReasonLength}[r.IntN(2)]
					call.end(reason, said(t, text)...)
					a := caller.answer()
					if a.status != 200 {
						t.Fatalf("%s, %s: status %d: %s", name, c.path, a.status, a.body)
					}
					for _, word := range c.needs {
						if !strings.Contains(prompt, word) && a.header.Get(prepare.IgnoredHeader) == "" {
							t.Fatalf("%s, %s: %q of %s is not in the prompt\n%s", name, c.path, word, asking, prompt)
						}
					}
					calls += strings.Count(string(a.body), `"weir_probe"`)
					taken++
					c.takeBack(t, a.body)
				}
			}
		})
	}
	t.Logf("%d answers with %d calls", taken, calls)
	if calls < taken/8 {
		t.Errorf("%d answers have %d calls: the test says too little", taken, calls)
	}
}
