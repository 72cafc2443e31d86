// Package outputtest writes answers as models of each family write them, and spoils them as
// models do, for tests of parsers.
package outputtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Answer is a model's answer.
type Answer struct {
	// Text is what the model writes, and Spoiled how it is not as it should be; empty: it
	// is, and means what the other fields say.
	Text    string
	Spoiled string

	Reasoning, Content string
	Calls              []Call
}

// Call is a call of a tool, its arguments as JSON.
type Call struct{ Name, Arguments string }

// tools are those that are called, as testdata/tools.json of outputparse has them.
var tools = []struct {
	name   string
	params []string
}{
	{"get_weather", []string{"city", "days", "unit", "opts", "ids"}},
	{"now", nil},
}

// writer puts an answer together of pieces: markers, and what stands between them.
type writer struct {
	*rand.Rand
	pieces []string
	answer Answer
}

func (w *writer) say(pieces ...string) { w.pieces = append(w.pieces, pieces...) }

func (w *writer) pick(of ...string) string { return of[w.IntN(len(of))] }

// formats are the families, and how each writes its calls.
var formats = map[string]func(*writer, []call){
	"hermes":        (*writer).hermes,
	"qwen3-coder":   (*writer).qwen,
	"glm-4.5":       (*writer).glm,
	"deepseek-v3":   (*writer).deepseek3,
	"deepseek-v3.1": (*writer).deepseek31,
	"deepseek-v3.2": (*writer).dsml,
	"minimax-m2":    (*writer).minimax,
	"kimi-k2":       (*writer).kimi,
	"mistral":       (*writer).mistral,
	"llama3-json":   (*writer).llama,
	"pythonic":      (*writer).pythonic,
	"harmony":       (*writer).harmony,
	"muse-glimmer":  (*writer).muse,
	"json":          (*writer).tagged,
	"apertus":       (*writer).apertus,
	"gemma4":        func(w *writer, calls []call) { w.gemma("<|tool_call>", "<tool_call|>", `<|"|>`, calls) },
	"functiongemma": func(w *writer, calls []call) {
		w.gemma("<start_function_call>", "<end_function_call>", "<escape>", calls)
	},
}

// call is a call to be written.
type call struct {
	name string
	keys []string
	args map[string]any
}

func (c *call) json() string {
	if len(c.keys) == 0 {
		return "{}"
	}
	var b strings.Builder
	for i, key := range c.keys {
		fmt.Fprintf(&b, "%s%q: %s", []string{"{", ", "}[min(i, 1)], key, spell(c.args[key]))
	}
	return b.String() + "}"
}

// spell is a value as JSON in a model's writing: spaces behind commas and colons.
func spell(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		panic("no JSON")
	}
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), `","`, `", "`)
}

func (w *writer) call() call {
	tool := tools[w.IntN(len(tools))]
	c := call{name: tool.name, args: map[string]any{}}
	for _, key := range tool.params {
		if w.IntN(3) == 0 {
			continue
		}
		c.keys = append(c.keys, key)
		switch key {
		case "days":
			c.args[key] = w.IntN(100)
		case "unit":
			c.args[key] = w.pick("c", "f")
		case "opts":
			c.args[key] = map[string]any{"a": []any{w.IntN(9), w.word()}, "b": map[string]any{"c": w.word()}}
		case "ids":
			c.args[key] = []any{w.word(), w.IntN(9), nil, true}
		default:
			c.args[key] = w.word()
		}
	}
	return c
}

func (w *writer) word() string {
	return w.pick("Paris", "12", "São Paulo", "東京 😀", "a \"b\" c", "x < y && y > z", "two\nlines", "{\"a\": 1}", "it's", "[1, 2]", "true", "a,b;c")
}

// Write writes an answer of a family.
func Write(r *rand.Rand, format string) Answer {
	w := &writer{Rand: r}
	var calls []call
	for range w.IntN(4) {
		calls = append(calls, w.call())
	}
	bare := format == "llama3-json" || format == "pythonic" // calls are the whole answer
	if w.IntN(3) == 0 {
		w.answer.Reasoning = w.pick("I should look.", "First the one,\n\nthen the other.")
	}
	if len(calls) == 0 || !bare && w.IntN(3) == 0 {
		w.answer.Content = w.pick("It is 18 degrees.", "Let me see:\n\n1. a < b\n2. {}", "日本 [1]")
	}
	for i := range calls {
		w.answer.Calls = append(w.answer.Calls, Call{calls[i].name, calls[i].json()})
	}
	if format != "harmony" && format != "muse-glimmer" {
		open, end := "<think>", "</think>"
		switch format {
		case "mistral":
			open, end = "[THINK]", "[/THINK]"
		case "gemma4":
			open, end = "<|channel>thought", "<channel|>"
		}
		if w.answer.Reasoning != "" {
			w.say(open, "\n"+w.answer.Reasoning+"\n", end, "\n\n")
		}
		w.say(w.answer.Content)
		if w.answer.Content != "" && len(calls) > 0 && format != "mistral" {
			w.say("\n\n")
		}
	}
	if len(calls) > 0 || format == "harmony" || format == "muse-glimmer" {
		formats[format](w, calls)
	}
	w.pieces = slices.DeleteFunc(w.pieces, func(s string) bool { return s == "" })
	w.answer.Text = strings.Join(w.pieces, "")
	return w.answer
}

// spoilers change an answer in the ways in which models err.
var spoilers = map[string]func(w *writer){
	"cut": func(w *writer) {
		last := w.IntN(len(w.pieces))
		text := []rune(w.pieces[last])
		w.pieces = append(w.pieces[:last:last], string(text[:w.IntN(len(text))]))
	},
	"a part left out": func(w *writer) { i := w.IntN(len(w.pieces)); w.pieces = slices.Delete(w.pieces, i, i+1) },
	"a part twice":    func(w *writer) { i := w.IntN(len(w.pieces)); w.pieces = slices.Insert(w.pieces, i, w.pieces[i]) },
	"text between":    func(w *writer) { w.pieces = slices.Insert(w.pieces, w.IntN(len(w.pieces)+1), "qqq") },
	"a tool that is none": func(w *writer) {
		for i, s := range w.pieces {
			w.pieces[i] = strings.ReplaceAll(strings.ReplaceAll(s, "get_weather", "rm"), "now", "rm")
		}
	},
}

// Spoilers are the names of the ways to spoil an answer.
func Spoilers() []string {
	return slices.Sorted(maps.Keys(spoilers))
}

// Spoil writes an answer of a family that is spoiled in a way.
func Spoil(r *rand.Rand, format, spoiler string) Answer {
	w := &writer{Rand: r}
	calls := []call{w.call()}
	if w.IntN(2) == 0 {
		calls = append(calls, w.call())
	}
	formats[format](w, calls)
	w.pieces = slices.DeleteFunc(w.pieces, func(s string) bool { return s == "" })
	spoilers[spoiler](w)
	return Answer{Text: strings.Join(w.pieces, ""), Spoiled: spoiler}
}

func (w *writer) hermes(calls []call) {
	for i, c := range calls {
		w.say([]string{"", "\n"}[min(i, 1)], "<tool_call>", "\n", `{"name": "`+c.name+`", "arguments": `, c.json(), "}", "\n", "</tool_call>")
	}
}

// value is a value in tags: strings as they are.
func value(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return spell(v)
}

func (w *writer) qwen(calls []call) {
	for i, c := range calls {
		w.say([]string{"", "\n"}[min(i, 1)], "<tool_call>", "\n", "<function="+c.name+">", "\n")
		for _, key := range c.keys {
			w.say("<parameter="+key+">", "\n", value(c.args[key]), "\n", "</parameter>", "\n")
		}
		w.say("</function>", "\n", "</tool_call>")
	}
}

func (w *writer) glm(calls []call) {
	nl := w.pick("\n", "")
	for i, c := range calls {
		w.say([]string{"", "\n"}[min(i, 1)], "<tool_call>", c.name, nl)
		for _, key := range c.keys {
			w.say("<arg_key>", key, "</arg_key>", nl, "<arg_value>", value(c.args[key]), "</arg_value>", nl)
		}
		w.say("</tool_call>")
	}
}

func (w *writer) deepseek3(calls []call) {
	w.say("<｜tool▁calls▁begin｜>")
	for i, c := range calls {
		w.say([]string{"", "\n"}[min(i, 1)], "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>", c.name, "\n```json\n", c.json(), "\n```", "<｜tool▁call▁end｜>")
	}
	w.say("<｜tool▁calls▁end｜>")
}

func (w *writer) deepseek31(calls []call) {
	w.say("<｜tool▁calls▁begin｜>")
	for _, c := range calls {
		w.say("<｜tool▁call▁begin｜>", c.name, "<｜tool▁sep｜>", c.json(), "<｜tool▁call▁end｜>")
	}
	w.say("<｜tool▁calls▁end｜>")
}

func (w *writer) dsml(calls []call) {
	section := w.pick("function_calls", "tool_calls")
	w.say("<｜DSML｜"+section+">", "\n")
	for _, c := range calls {
		if len(c.keys) == 0 && w.IntN(2) == 0 {
			w.say(`<｜DSML｜invoke name="`+c.name+`"/>`, "\n")
			continue
		}
		w.say(`<｜DSML｜invoke name="`+c.name+`">`, "\n")
		for _, key := range c.keys {
			_, text := c.args[key].(string)
			w.say(`<｜DSML｜parameter name="`+key+`" string="`+strconv.FormatBool(text)+`">`, value(c.args[key]), "</｜DSML｜parameter>", "\n")
		}
		w.say("</｜DSML｜invoke>", "\n")
	}
	w.say("</｜DSML｜" + section + ">")
}

func (w *writer) minimax(calls []call) {
	w.say("<minimax:tool_call>", "\n")
	for _, c := range calls {
		w.invoke("", c)
	}
	w.say("</minimax:tool_call>")
}

// invoke writes a call in tags that have a prefix.
func (w *writer) invoke(prefix string, c call) {
	w.say("<"+prefix+`invoke name="`+c.name+`">`, "\n")
	for _, key := range c.keys {
		w.say("<"+prefix+`parameter name="`+key+`">`, value(c.args[key]), "</"+prefix+"parameter>", "\n")
	}
	w.say("</"+prefix+"invoke>", "\n")
}

func (w *writer) kimi(calls []call) {
	w.say("<|tool_calls_section_begin|>")
	for i, c := range calls {
		w.say("<|tool_call_begin|>", fmt.Sprintf("functions.%s:%d", c.name, i), "<|tool_call_argument_begin|>", c.json(), "<|tool_call_end|>")
	}
	w.say("<|tool_calls_section_end|>")
}

func (w *writer) mistral(calls []call) {
	if w.IntN(2) == 0 {
		for _, c := range calls {
			w.say("[TOOL_CALLS]", c.name, "[ARGS]", c.json())
		}
		return
	}
	w.say("[TOOL_CALLS]", " [")
	for i, c := range calls {
		w.say([]string{"", ", "}[min(i, 1)], `{"name": "`+c.name+`", "arguments": `, c.json(), "}")
	}
	w.say("]")
}

func (w *writer) llama(calls []call) {
	if w.IntN(2) == 0 {
		w.say(w.pick("", "functools") + "[")
		for i, c := range calls {
			w.say([]string{"", ", "}[min(i, 1)], `{"name": "`+c.name+`", "arguments": `, c.json(), "}")
		}
		w.say("]")
		return
	}
	for i, c := range calls {
		w.say([]string{"", "; "}[min(i, 1)], `{"name": "`+c.name+`", "parameters": `, c.json(), "}")
	}
}

// tagged are objects behind a tag, in a list or one by one.
func (w *writer) tagged(calls []call) {
	open, end := "<tool_calls>", "</tool_calls>"
	switch w.IntN(4) {
	case 0:
		open, end = "<|tool_call|>", ""
	case 1, 2:
		open, end = "<function_call> ", ""
		if w.IntN(2) == 0 {
			open, end = "<|action_start|><|plugin|>\n", "<|action_end|>"
		}
		for i, c := range calls {
			w.say([]string{"", "\n"}[min(i, 1)], open, `{"name": "`+c.name+`", "arguments": `, c.json(), "}", end)
		}
		return
	}
	w.say(open, "[")
	for i, c := range calls {
		w.say([]string{"", ", "}[min(i, 1)], `{"name": "`+c.name+`", "arguments": `, c.json(), "}")
	}
	w.say("]", end)
}

func (w *writer) apertus(calls []call) {
	w.say("<|tools_prefix|>", "[")
	for i, c := range calls {
		w.say([]string{"", ", "}[min(i, 1)], `{"`+c.name+`": `, c.json(), "}")
	}
	w.say("]", "<|tools_suffix|>")
}

func (w *writer) gemma(open, end, quote string, calls []call) {
	for _, c := range calls {
		w.say(open, "call:"+c.name, "{")
		for i, key := range c.keys {
			w.say([]string{"", ","}[min(i, 1)], key+":", notation(c.args[key], quote))
		}
		w.say("}", end)
	}
}

// notation is a value as Gemma writes it.
func notation(v any, quote string) string {
	switch v := v.(type) {
	case string:
		return quote + v + quote
	case []any:
		all := make([]string, len(v))
		for i := range v {
			all[i] = notation(v[i], quote)
		}
		return "[" + strings.Join(all, ",") + "]"
	case map[string]any:
		var all []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, key+":"+notation(v[key], quote))
		}
		return "{" + strings.Join(all, ",") + "}"
	}
	return spell(v)
}

func (w *writer) pythonic(calls []call) {
	w.say("[")
	for i, c := range calls {
		w.say([]string{"", ", "}[min(i, 1)], c.name+"(")
		for j, key := range c.keys {
			w.say([]string{"", ", "}[min(j, 1)], key+"=", literal(c.args[key]))
		}
		w.say(")")
	}
	w.say("]")
}

// literal is a value as in Python.
func literal(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return map[bool]string{true: "True", false: "False"}[v]
	case []any:
		all := make([]string, len(v))
		for i := range v {
			all[i] = literal(v[i])
		}
		return "[" + strings.Join(all, ", ") + "]"
	case map[string]any:
		var all []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, "'"+key+"': "+literal(v[key]))
		}
		return "{" + strings.Join(all, ", ") + "}"
	case string:
		return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`, "\n", `\n`).Replace(v) + "'"
	}
	return spell(v)
}

func (w *writer) harmony(calls []call) {
	if w.answer.Reasoning != "" {
		w.say("<|channel|>", "analysis", "<|message|>", w.answer.Reasoning, "<|end|>", "<|start|>", "assistant")
	}
	switch {
	case w.answer.Content != "" && len(calls) > 0:
		w.say("<|channel|>", "commentary", "<|message|>", w.answer.Content, "<|end|>", "<|start|>", "assistant")
	case w.answer.Content != "":
		w.say("<|channel|>", "final", "<|message|>", w.answer.Content, "<|return|>")
	}
	for i, c := range calls {
		if i > 0 {
			w.say("<|start|>", "assistant")
		}
		w.say("<|channel|>", "commentary", " to=functions."+c.name+" ", "<|constrain|>", "json", "<|message|>", c.json(), "<|call|>")
	}
}

func (w *writer) muse(calls []call) {
	first := true
	message := func(to string) {
		if !first {
			w.say("<|eom|>", "<|start|>", "assistant")
		}
		first = false
		w.say(" to="+to, "<|message|>")
	}
	if w.answer.Reasoning != "" {
		message("self")
		w.say(w.answer.Reasoning)
	}
	if w.answer.Content != "" {
		message("user")
		w.say(w.answer.Content)
	}
	for _, c := range calls {
		message(c.name)
		w.say("<atem:function_calls>", "\n")
		w.invoke("atem:", c)
		w.say("</atem:function_calls>")
	}
	w.say("<|eot|>")
}
