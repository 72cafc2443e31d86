package content

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The tests' vocabulary: bytes, control tokens from 256, then as vocabulary.
const (
	turnID = 256 + iota
	endTurnID
	toolCallID
	specialID
)

func chatVocabulary(words int) (size int, text func(id uint32) []byte, ordinary func(id uint32) ([]byte, bool)) {
	size, plain := vocabulary(words)
	control := map[uint32]string{turnID: "<|im_start|>", endTurnID: "<|im_end|>", toolCallID: "<tool_call>", specialID: "<|bos|>"}
	text = func(id uint32) []byte {
		if s, ok := control[id]; ok {
			return []byte(s)
		}
		b, _ := plain(id)
		return b
	}
	return size, text, func(id uint32) ([]byte, bool) {
		if id == toolCallID {
			return text(id), true
		}
		return plain(id)
	}
}

func newSpeaker(t testing.TB, o SpeakerOptions) *Speaker {
	t.Helper()
	o.Size, o.Text, o.Ordinary = 0, nil, nil
	size, text, ordinary := chatVocabulary(2048)
	w, err := New(size, ordinary)
	if err != nil {
		t.Fatal(err)
	}
	o.Size, o.Text, o.Ordinary = size, text, ordinary
	if o.MeanTokens == 0 {
		o.MeanTokens = 30
	}
	s, err := w.Speaker(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// spell writes a prompt, control tokens by their text.
func (s *Speaker) spell(t testing.TB, text string) []uint32 {
	t.Helper()
	var ids []uint32
	for text != "" {
		at, which := len(text), uint32(0)
		for id := uint32(turnID); id <= specialID; id++ {
			if i := strings.Index(text, string(s.o.Text(id))); i >= 0 && i < at {
				at, which = i, id
			}
		}
		var err error
		if ids, err = s.Spell(ids, text[:at]); err != nil {
			t.Fatal(err)
		}
		text = text[at:]
		if which != 0 {
			ids, text = append(ids, which), text[len(s.o.Text(which)):]
		}
	}
	return ids
}

func (s *Speaker) asText(ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		b.Write(s.Text(id))
	}
	return b.String()
}

// answer says a prompt's answer.
func (s *Speaker) answer(t testing.TB, prompt string, ask Ask, seed uint64) string {
	t.Helper()
	script, err := s.Script(&Request{Prompt: s.spell(t, prompt), Seed: seed, MaxTokens: 100000, Ask: ask})
	if err != nil {
		t.Fatalf("%q: %v", prompt, err)
	}
	if script == nil {
		return "(words)"
	}
	return s.asText(script.IDs)
}

const (
	weather = `{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7}},"required":["city"]}}}`
	toolSys = "<|im_start|>system\nBe terse.\nCall with <tool_call> and its end.\n<tools>\n" + weather + "\n</tools><|im_end|>\n"
	asked   = "<|im_start|>user\nhow are you?<|im_end|>\n"
	header  = "<|im_start|>assistant\n"
)

func mustSchema(t testing.TB, text string) *Schema {
	t.Helper()
	s, err := CompileSchema([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

func mustTools(t testing.TB, texts ...string) (tools []Tool) {
	t.Helper()
	for _, text := range texts {
		tool, err := ParseTool([]byte(text), "tools[0]")
		if err != nil {
			t.Fatal(err)
		}
		tools = append(tools, tool)
	}
	return tools
}

func TestModesFromThePromptAlone(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{})
	for _, c := range []struct{ name, prompt, prefix, suffix string }{
		{"words", asked + header, "(words)", ""},
		{"tools", toolSys + asked + header, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \" ", "}\n</tool_call>"},
		{"after a tool's result", toolSys + asked + header + "<tool_call>\n{}\n</tool_call><|im_end|>\n<|im_start|>tool\n<tool_response>\nsunny\n</tool_response><|im_end|>\n" + header, "(words)", ""},
		{"as Qwen writes results", toolSys + asked + "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n" + header, "(words)", ""},
		{"required after a result", toolSys + asked + "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>system\n[weir-sim {\"tool_choice\": \"required\"}]<|im_end|>\n" + header, "<tool_call>", "</tool_call>"},
		{"none", toolSys + asked + "<|im_start|>system\n[weir-sim {\"tool_choice\": \"none\"}]<|im_end|>\n" + header, "(words)", ""},
		{"named", toolSys + "<|im_start|>user\n[weir-sim {\"tool_choice\": {\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}}]\nhi<|im_end|>\n" + header, "<tool_call>", "</tool_call>"},
		{"two calls", toolSys + "<|im_start|>user\n[weir-sim {\"calls\": 2}]\nhi<|im_end|>\n" + header, "<tool_call>", "}\n</tool_call>"},
		{"think", asked + "<|im_start|>system\n[weir-sim {\"think\": true}]<|im_end|>\n" + header, "<think>\n ", ""},
		{"echo", "<|im_start|>user\n[weir-sim {\"content\": \"echo\"}]\nHällo {} <|im_end|>\n" + header, "Hällo {} ", ""},
		{"schema", asked + "<|im_start|>system\n[weir-sim {\"schema\": {\"type\": \"array\", \"minItems\": 1, \"items\": {\"const\": 7}}}]<|im_end|>\n" + header, "[7", "]"},
		{"json", "<|im_start|>user\n[weir-sim {\"content\": \"json\"}]\nhi<|im_end|>\n" + header, `{"answer": " `, "}"},
		{"think and schema", asked + "<|im_start|>system\n[weir-sim {\"think\": \"low\", \"schema\": {\"const\": 7}}]<|im_end|>\n" + header, "<think>\n ", "\n</think>\n\n7"},
		{"both directives", "<|im_start|>user\n[weir-sim {\"content\": \"echo\"}]\nhi<|im_end|>\n<|im_start|>system\n[weir-sim {\"think\": \"low\"}]<|im_end|>\n" + header, "<think>\n ", "\n</think>\n\nhi"},
		{"raw", "hello there", "(words)", ""},
		{"raw echo", "<|bos|>[weir-sim {\"content\": \"echo\"}]\nhello there", "\nhello there", ""},
		{"raw json", "[weir-sim {\"schema\": {\"const\": 7}}]\nhello there", "\n7", ""},
		{"no directive", "<|im_start|>user\n[weir-sim is nice<|im_end|>\n" + header, "(words)", ""},
	} {
		got := s.answer(t, c.prompt, Ask{}, 0)
		if !strings.HasPrefix(got, c.prefix) || !strings.HasSuffix(got, c.suffix) {
			t.Errorf("%s: %q, want %q ... %q", c.name, got, c.prefix, c.suffix)
		}
		if n := strings.Count(got, "<tool_call>"); c.name == "two calls" && n != 2 {
			t.Errorf("%d calls: %q", n, got)
		}
	}
}

func TestAsks(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{})
	tools := mustTools(t, weather, `{"type":"function","function":{"name":"now"}}`)
	for _, c := range []struct {
		name, prompt   string
		ask            Ask
		prefix, suffix string
	}{
		{"tools", "hi", Ask{Tools: tools[1:]}, "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", ""},
		{"answered", "hi", Ask{Tools: tools, Answered: true}, "(words)", ""},
		{"none", asked + header, Ask{Tools: tools, Choice: ChoiceNone}, "(words)", ""},
		{"schema", asked + header, Ask{Schema: mustSchema(t, `{"enum":[[1, {"b":2}]]}`)}, `[1,{"b":2}]`, ""},
		{"schema after tools", asked + header, Ask{Schema: mustSchema(t, `{"const":1}`), Tools: tools, Answered: true}, `1`, ""},
		{"words whatever else", asked + header, Ask{Mode: ModeWords, Tools: tools}, "(words)", ""},
		{"think", asked + header, Ask{Think: EffortLow, Schema: mustSchema(t, `{"const":1}`)}, "<think>\n ", "\n</think>\n\n1"},
		{"another's chat", "[INST] hi [/INST]", Ask{Chat: true, Schema: mustSchema(t, `{"const":1}`)}, "1", ""},
		{"another's, without tools", "[INST] hi [/INST]", Ask{Chat: true, Think: EffortLow}, "<think>\n ", ""},
		{"the prompt first", "<|im_start|>user\n[weir-sim {\"think\":false,\"content\":\"echo\"}]\nx<|im_end|>\n" + header, Ask{Think: EffortHigh, Mode: ModeJSON}, "x", ""},
	} {
		if got := s.answer(t, c.prompt, c.ask, 0); !strings.HasPrefix(got, c.prefix) || !strings.HasSuffix(got, c.suffix) {
			t.Errorf("%s: %q, want %q ... %q", c.name, got, c.prefix, c.suffix)
		}
	}
	forced := newSpeaker(t, SpeakerOptions{Mode: ModeEcho, Think: EffortLow})
	if got := forced.answer(t, asked+header, Ask{Tools: tools, Think: EffortNone}, 0); !strings.HasPrefix(got, "<think>") || !strings.HasSuffix(got, "how are you?") {
		t.Errorf("a forced engine says %q", got)
	}
}

func TestAskErrors(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{})
	for prompt, mention := range map[string]string{
		"[weir-sim {\"content\":\"song\"}]":                                `no content mode "song"`,
		"[weir-sim {\"contnet\":\"echo\"}]":                                `no "contnet"`,
		"[weir-sim {]":                                                     "JSON object",
		"[weir-sim 7]":                                                     "JSON object",
		"[weir-sim {\"think\":\"hard\"}]":                                  "no reasoning effort",
		"[weir-sim {\"schema\":{\"not\":{}}}]":                             `"not" is not supported`,
		"[weir-sim {\"calls\":0}]":                                         "calls must be",
		"[weir-sim {\"tool_choice\":{}}]":                                  "tool_choice must be",
		"[weir-sim {\"tool_choice\":\"required\"}]":                        "there are no tools",
		"[weir-sim {\"tool_choice\":\"nobody\"}]":                          `"nobody", which is none`,
		strings.Replace(toolSys, `"integer"`, `"int"`, 1) + asked + header: "properties/days",
	} {
		_, err := s.Script(&Request{Prompt: s.spell(t, prompt), MaxTokens: 10})
		if err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%q: %v, want %q", prompt, err, mention)
		}
	}
}

// No prompt makes a speaker panic, and what it says to one goes on.
func TestAnyPrompt(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{Mode: ModeEcho})
	id := rapid.OneOf(rapid.Uint32Range(turnID-2, specialID+2), rapid.SampledFrom(s.spell(t, "assistant\nuser\nsystem\n[weir-sim {}]<tools>\n{}")), rapid.Uint32())
	rapid.Check(t, func(t *rapid.T) {
		prompt := rapid.SliceOfN(id, 1, 40).Draw(t, "prompt")
		whole, err := s.Script(&Request{Prompt: prompt, MaxTokens: 1000})
		if err != nil {
			return
		}
		cut := rapid.IntRange(0, len(whole.IDs)).Draw(t, "cut")
		rest, err := s.Script(&Request{Prompt: slices.Concat(prompt, whole.IDs[:cut]), MaxTokens: 1000})
		if err != nil || !slices.Equal(rest.IDs, whole.IDs[cut:]) {
			t.Fatalf("%v, cut after %d of %v: %+v, %v", prompt, cut, whole.IDs, rest, err)
		}
	})
}

// An engine's text is the same wherever another engine goes on with it, in every mode, for chats
// and for other prompts.
func TestScriptContinuation(t *testing.T) {
	prompts := []string{
		toolSys + asked + header,
		toolSys + "<|im_start|>user\n[weir-sim {\"calls\": 3, \"think\": true}]\nhi<|im_end|>\n" + header,
		asked + "<|im_start|>system\n[weir-sim {\"think\": true}]<|im_end|>\n" + header,
		asked + "<|im_start|>system\n[weir-sim {\"think\": \"low\", \"content\": \"json\"}]<|im_end|>\n" + header,
		"<|im_start|>user\n[weir-sim {\"content\": \"echo\"}]\n\nTwo\nlines.\n\n<|im_end|>\n" + header,
		asked + header + " and\n then",
		"a\nb\nc\n",
		"\n\n\n",
		"x\nx\nx",
		"[weir-sim {\"content\": \"echo\", \"think\": \"low\"}]\nab\nab",
		"[weir-sim {\"content\": \"json\"}]\n{\n",
	}
	asks := []Ask{
		{}, {Mode: ModeEcho}, {Mode: ModeJSON}, {Think: EffortLow},
		{Schema: mustSchema(t, tree)},
		{Tools: mustTools(t, weather), Choice: ChoiceRequired, Think: EffortLow},
	}
	s := newSpeaker(t, SpeakerOptions{})
	for _, text := range prompts {
		for i, ask := range asks {
			prompt := s.spell(t, text)
			whole, err := s.Script(&Request{Prompt: prompt, Seed: 7, MaxTokens: 100000, Ask: ask})
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			if whole == nil {
				continue
			}
			for cut := range len(whole.IDs) + 1 {
				rest, err := s.Script(&Request{Prompt: slices.Concat(prompt, whole.IDs[:cut]), Seed: 7, MaxTokens: 100000, Ask: ask})
				if err != nil || rest == nil || !slices.Equal(rest.IDs, whole.IDs[cut:]) {
					t.Fatalf("%q, ask %d, cut after %d of %q: %v", text, i, cut, s.asText(whole.IDs), err)
				}
			}
		}
	}
}

// A script does not depend on its bound, which only ends it.
func TestScriptBound(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{})
	prompt := s.spell(t, toolSys+asked+header)
	whole, _ := s.Script(&Request{Prompt: prompt, MaxTokens: 100000})
	for n := 1; n < len(whole.IDs); n++ {
		part, err := s.Script(&Request{Prompt: prompt, MaxTokens: n})
		if err != nil || len(part.IDs) < n || !slices.Equal(part.IDs[:n], whole.IDs[:n]) {
			t.Fatalf("of at most %d: %v, %v", n, part, err)
		}
	}
}

// Where words follow a script, because no end is wanted, a continuation has
// nothing more to say of it.
func TestWordsAfterScript(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{})
	prompt := s.spell(t, asked+"<|im_start|>system\n[weir-sim {\"think\": true}]<|im_end|>\n"+header)
	whole, _ := s.Script(&Request{Prompt: prompt, MaxTokens: 100000})
	all := slices.Concat(prompt, whole.IDs)
	all = append(all, s.generate(all, 0, 20)...)
	rest, err := s.Script(&Request{Prompt: all, MaxTokens: 100000})
	if err != nil || rest == nil || len(rest.IDs) != 0 {
		t.Fatalf("%+v, %v", rest, err)
	}
	// The words follow those of the script.
	text := s.asText(all[len(prompt):])
	reasoning, answer, _ := strings.Cut(strings.TrimPrefix(text, "<think>\n"), "\n</think>\n\n")
	p := s.Proof()
	if err := p.Reasoning(EffortMedium, reasoning, true); err != nil {
		t.Fatal(err)
	}
	v := p.Words()
	_, _ = v.WriteString(answer)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}

const tree = `{"$defs":{"node":{"type":"object","properties":{"name":{"type":"string"},"size":{"type":"integer","minimum":3},"kids":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["name","kids"],"additionalProperties":false}},"$ref":"#/$defs/node"}`

// parts takes an answer apart as a client has it.
type parts struct {
	reasoning, rest string
	calls           [][2]string
}

func partsOf(t testing.TB, text string) (p parts) {
	t.Helper()
	p.rest = text
	if r, ok := strings.CutPrefix(text, "<think>\n"); ok {
		p.reasoning, p.rest, _ = strings.Cut(r, "\n</think>\n\n")
	}
	for {
		r, ok := strings.CutPrefix(strings.TrimPrefix(p.rest, "\n"), "<tool_call>\n")
		if !ok {
			return p
		}
		r, p.rest, _ = strings.Cut(r, "\n</tool_call>")
		var call struct {
			Name      string
			Arguments json.RawMessage
		}
		if err := json.Unmarshal([]byte(r), &call); err != nil {
			t.Fatalf("%q: %v", r, err)
		}
		p.calls = append(p.calls, [2]string{call.Name, string(call.Arguments)})
	}
}

// Every answer passes its proof, whole and cut at any byte, and any word or
// structure that is lost, repeated or changed in it does not.
func TestProof(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{})
	schema := mustSchema(t, tree)
	tools := mustTools(t, weather, `{"name":"plot","parameters":{"properties":{"x":{"type":"array","items":{"type":"number"},"minItems":2},"on":{"type":"boolean"}},"required":["x","on"]}}`)
	prove := func(reasoning, document string, calls [][2]string, whole bool) error {
		p := s.Proof()
		if reasoning != "" {
			if err := p.Reasoning(EffortLow, reasoning, true); err != nil {
				return err
			}
		}
		for i, c := range calls {
			if err := p.Call(tools, c[0], c[1], whole || i < len(calls)-1); err != nil {
				return err
			}
		}
		if document != "" {
			return p.Document(schema, document, whole)
		}
		return nil
	}
	missed, damaged := 0, 0
	seeds := uint64(10)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		doc := partsOf(t, s.answer(t, asked+header, Ask{Think: EffortLow, Schema: schema}, seed))
		if err := prove(doc.reasoning, doc.rest, nil, true); err != nil {
			t.Fatalf("%v in %+v", err, doc)
		}
		for cut := range doc.rest {
			if err := prove(doc.reasoning, doc.rest[:cut], nil, false); err != nil {
				t.Fatalf("cut at %d: %v in %+v", cut, err, doc)
			}
			if cut > 0 && prove(doc.reasoning, doc.rest[:cut], nil, true) == nil {
				t.Fatalf("cut at %d, it passes as whole: %q", cut, doc.rest[:cut])
			}
			for _, damage := range []string{doc.rest[:cut] + doc.rest[cut+1:], doc.rest[:cut+1] + doc.rest[cut:], doc.rest[:cut] + "7" + doc.rest[cut+1:]} {
				if damage == doc.rest {
					continue
				}
				if damaged++; prove(doc.reasoning, damage, nil, true) == nil {
					missed++
				}
			}
		}
		words := strings.Fields(doc.reasoning)
		for i := range words {
			lost := " " + strings.Join(slices.Delete(slices.Clone(words), i, i+1), " ")
			if damaged++; prove(lost, doc.rest, nil, true) == nil {
				missed++
			}
		}
		call := partsOf(t, s.answer(t, asked+header, Ask{Tools: tools, Calls: 2, Think: EffortLow}, seed))
		if err := prove(call.reasoning, "", call.calls, true); err != nil || len(call.calls) != 2 {
			t.Fatalf("%v in %+v", err, call)
		}
		swapped := [][2]string{call.calls[1], call.calls[0]}
		if damaged++; prove(call.reasoning, "", swapped, true) == nil && call.calls[0] != call.calls[1] {
			missed++
		}
	}
	// Nearly all of it is seen; what is not is a change to a number that another
	// variant's document has, too.
	t.Logf("%d of %d damages were missed", missed, damaged)
	if missed*500 > damaged {
		t.Errorf("%d of %d damages were missed", missed, damaged)
	}
}

// No directive and no tool makes a speaker panic, or say what does not go on.
func FuzzPrompt(f *testing.F) {
	f.Add(`{"content": "json", "think": "low", "calls": 2}`, weather)
	f.Add(`{"schema": `+tree+`}`, `{"name": "f", "parameters": {"properties": {"a": {"enum": [1]}}}}`)
	f.Add(`{"tool_choice": {"function": {"name": "get_weather"}}}`, `{"type": "function", "function": {}}`)
	s := newSpeaker(f, SpeakerOptions{})
	f.Fuzz(func(t *testing.T, directive, tool string) {
		prompt := s.spell(t, "<|im_start|>system\n<tool_call><tools>\n"+tool+"\n</tools><|im_end|>\n<|im_start|>user\n[weir-sim "+directive+"]\nhi<|im_end|>\n"+header)
		whole, err := s.Script(&Request{Prompt: prompt, MaxTokens: 2000})
		if err != nil || whole == nil {
			return
		}
		cut := len(whole.IDs) / 2
		rest, err := s.Script(&Request{Prompt: slices.Concat(prompt, whole.IDs[:cut]), MaxTokens: 2000 - cut})
		if err != nil || rest == nil || !slices.Equal(rest.IDs[:min(len(rest.IDs), len(whole.IDs)-cut)], whole.IDs[cut:]) {
			t.Fatalf("%s, %s: cut after %d of %q: %v", directive, tool, cut, s.asText(whole.IDs), err)
		}
	})
}

// The preparation of a request with tools, a schema and a directive costs little beside its prompt.
func BenchmarkScript(b *testing.B) {
	s := newSpeaker(b, SpeakerOptions{})
	for _, c := range []struct{ name, text string }{
		{"words", strings.Repeat(asked, 1000) + header},
		{"tools", toolSys + strings.Repeat(asked, 1000) + header},
	} {
		prompt := s.spell(b, c.text)
		b.Run(fmt.Sprintf("%s/%d", c.name, len(prompt)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Script(&Request{Prompt: prompt, MaxTokens: 1000}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
