package outputparse

import (
	"bytes"
	"slices"
	"strings"

	"weir/internal/model/callid"
)

// Format is how a model writes calls and reasoning. The zero value knows
// neither: all text is content. Formats are compared and copied freely.
type Format struct {
	tools *toolSyntax
	think *thinkTags
}

// body is what comes after a call's name, or holds it.
type body uint8

const (
	objectBody  body = iota // a JSON object that holds name and arguments, or with nameEnd the arguments after the name
	jsonBody                // the arguments as a JSON value
	taggedBody              // a tag for each argument
	pythonBody              // arguments as in Python
	harmonyBody             // a message to the tool
	literalBody             // the arguments as an object in a notation of its own, with bare keys
)

// toolSyntax is one way to write calls:
//
//	[section] call [prefix] name nameEnd body callEnd [... more calls] [sectionEnd]
//
// White space may stand between the parts. Where there are several forms of a
// part, any of them will do.
type toolSyntax struct {
	name string
	body body

	section    []string
	sectionEnd []string
	call       []string
	prefix     string
	nameEnd    []string
	callEnd    []string
	// idBegin comes between a name and its nameEnd, and the call's id after it.
	idBegin string
	// valueEnd is where arguments that are not valid JSON end.
	valueEnd []string
	// bare are the bytes that begin calls without a marker, at the answer's
	// beginning and by the name of a tool that the request has.
	bare string
	// separator are the bytes that stand between calls that are objects without list
	// brackets. With one, there may be a list, too, which has commas.
	separator string
	// keyed: the name of an object's member is the tool, and its value the arguments.
	keyed bool
	// quote is a marker on both sides of a string, in which nothing is escaped.
	quote string

	// For taggedBody: key, keyEnd, tagBegin, the value, tagEnd.
	key      []string
	keyEnd   string
	tagBegin string
	tagEnd   []string
	// closing are markers that close a value whose tag was left out.
	closing []string
	// attributes: the names of calls and parameters are attributes of their tags,
	// name="NAME", and a parameter may have string="true" or string="false".
	attributes bool
	// newline after a tag and before one is the tag's, not the value's.
	newline bool
	// untypedJSON: the value of a parameter without a type in the tool's schema
	// may be JSON; otherwise it is a string.
	untypedJSON bool

	// ids is the form of the calls' ids. A typed id stands in place of the name.
	ids callid.Form
}

// thinkTags is a way to mark reasoning.
type thinkTags struct {
	name        string
	open, close string
	// framed are the markers of the messages that the whole answer consists of, where it does: then
	// its calls are read as its reasoning is. start begins such an answer.
	framed []string
	start  func(p *Parser, prompt []byte)
	// ends are the markers that end a message whose text is searched for calls.
	ends []string
}

var allTools = []*toolSyntax{
	{
		name: "hermes", body: objectBody,
		call: []string{"<tool_call>"}, callEnd: []string{"</tool_call>"}, valueEnd: []string{"</tool_call>"},
	},
	{
		name: "qwen3-coder", body: taggedBody,
		section: []string{"<tool_call>", "<seed:tool_call>"}, sectionEnd: []string{"</tool_call>", "</seed:tool_call>"},
		call: []string{"<function="}, nameEnd: []string{">"}, callEnd: []string{"</function>"},
		key: []string{"<parameter="}, keyEnd: ">", tagEnd: []string{"\n</parameter>", "</parameter>"}, newline: true,
		closing: []string{"\n<parameter=", "\n</function>\n</tool_call>"},
	},
	{
		name: "glm-4.5", body: taggedBody,
		call: []string{"<tool_call>"}, callEnd: []string{"</tool_call>"},
		key: []string{"<arg_key>"}, keyEnd: "</arg_key>", tagBegin: "<arg_value>", tagEnd: []string{"</arg_value>"}, untypedJSON: true,
		closing: []string{"<arg_key>", "</tool_call>"},
	},
	{
		name: "deepseek-v3", body: jsonBody,
		section: []string{"<｜tool▁calls▁begin｜>"}, sectionEnd: []string{"<｜tool▁calls▁end｜>"},
		call: []string{"<｜tool▁call▁begin｜>"}, prefix: "function<｜tool▁sep｜>", nameEnd: []string{"```json"},
		callEnd: []string{"```<｜tool▁call▁end｜>", "```\n<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"}, valueEnd: []string{"\n```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"},
	},
	{
		name: "deepseek-v3.1", body: jsonBody,
		section: []string{"<｜tool▁calls▁begin｜>"}, sectionEnd: []string{"<｜tool▁calls▁end｜>"},
		call: []string{"<｜tool▁call▁begin｜>"}, nameEnd: []string{"<｜tool▁sep｜>"},
		callEnd: []string{"<｜tool▁call▁end｜>"}, valueEnd: []string{"<｜tool▁call▁end｜>"},
	},
	{
		name: "deepseek-v3.2", body: taggedBody,
		section: []string{"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>", "<｜DSML｜ calls>"},
		sectionEnd: []string{
			"</｜DSML｜function_calls>", "</｜DSML｜tool_calls>", "</｜DSML｜toolcalls>", "</｜DSML｜tool>", "</｜DSML｜ calls>",
		},
		call: []string{"<｜DSML｜invoke", "<｜DSML｜ invoke"}, callEnd: []string{"</｜DSML｜invoke>", "</｜DSML｜ invoke>"},
		key: []string{"<｜DSML｜parameter", "<｜DSML｜ parameter"}, tagEnd: []string{"</｜DSML｜parameter>", "</｜DSML｜ parameter>"},
		closing:    []string{"<｜DSML｜parameter", "<｜DSML｜ parameter", "</｜DSML｜invoke>", "</｜DSML｜ invoke>"},
		attributes: true, untypedJSON: true,
	},
	{
		name: "minimax-m2", body: taggedBody,
		section: []string{"<minimax:tool_call>"}, sectionEnd: []string{"</minimax:tool_call>"},
		call: []string{"<invoke"}, callEnd: []string{"</invoke>"},
		key: []string{"<parameter"}, tagEnd: []string{"</parameter>"}, attributes: true,
	},
	{
		name: "kimi-k2", body: jsonBody, ids: callid.Typed,
		section: []string{"<|tool_calls_section_begin|>"}, sectionEnd: []string{"<|tool_calls_section_end|>"},
		call: []string{"<|tool_call_begin|>"}, nameEnd: []string{"<|tool_call_argument_begin|>"},
		callEnd: []string{"<|tool_call_end|>"}, valueEnd: []string{"<|tool_call_end|>"},
	},
	{
		name: "mistral", body: objectBody, ids: callid.Short, separator: ",",
		call: []string{"[TOOL_CALLS]"}, idBegin: "[CALL_ID]", nameEnd: []string{"[ARGS]"}, valueEnd: []string{"[TOOL_CALLS]"},
	},
	{
		name: "llama3-json", body: objectBody, bare: "{[", separator: ";,",
		call: []string{"<|python_tag|>", "functools"}, valueEnd: []string{"<|python_tag|>"},
	},
	{
		name: "pythonic", body: pythonBody, bare: "[",
		call: []string{"<|python_start|>", "<|tool_call_start|>"}, sectionEnd: []string{"<|python_end|>", "<|tool_call_end|>"},
	},
	{
		name: "json", body: objectBody, separator: ",",
		call:     []string{"<tool_calls>", "<|tool_call|>", "<function_call>", "<|action_start|><|plugin|>", "<|START_ACTION|>"},
		callEnd:  []string{"</tool_calls>", "</function_call>", "<|action_end|>", "<|END_ACTION|>"},
		valueEnd: []string{"</tool_calls>", "</function_call>", "<|action_end|>", "<|END_ACTION|>"},
	},
	{
		name: "apertus", body: objectBody, separator: ",", keyed: true,
		call: []string{"<|tools_prefix|>"}, callEnd: []string{"<|tools_suffix|>"}, valueEnd: []string{"<|tools_suffix|>"},
	},
	{
		name: "gemma4", body: literalBody, quote: `<|"|>`,
		call: []string{"<|tool_call>"}, prefix: "call:", callEnd: []string{"<tool_call|>"},
	},
	{
		name: "functiongemma", body: literalBody, quote: "<escape>",
		call: []string{"<start_function_call>"}, prefix: "call:", callEnd: []string{"<end_function_call>"},
	},
	{name: "harmony", body: harmonyBody},
	{
		name: "muse-glimmer", body: taggedBody,
		section: []string{"<atem:function_calls>"}, sectionEnd: []string{"</atem:function_calls>"},
		call: []string{"<atem:invoke"}, callEnd: []string{"</atem:invoke>"},
		key: []string{"<atem:parameter"}, tagEnd: []string{"</atem:parameter>"}, attributes: true, untypedJSON: true,
		closing: []string{"<atem:parameter", "</atem:invoke>"},
	},
}

var allThink = []*thinkTags{
	{name: "think", open: "<think>", close: "</think>"},
	{name: "mistral", open: "[THINK]", close: "[/THINK]"},
	{name: "seed", open: "<seed:think>", close: "</seed:think>"},
	{name: "cohere", open: "<|START_THINKING|>", close: "<|END_THINKING|>"},
	{name: "gemma4", open: "<|channel>thought", close: "<channel|>"},
	{name: "kimi-vl", open: "◁think▷", close: "◁/think▷"},
	{
		name: "harmony", start: (*Parser).startHarmony,
		framed: []string{harmonyStart, harmonyChannel, harmonyConstrain, harmonyMessage, harmonyEnd, harmonyReturn, harmonyCall},
	},
	{name: "muse-glimmer", start: (*Parser).startMuse, framed: append([]string{museMessage, museReceiver}, museEnds...), ends: museEnds},
}

// ToolNames and ReasoningNames list the names that Named knows.
func ToolNames() []string {
	var names []string
	for _, s := range allTools {
		names = append(names, s.name)
	}
	return names
}

// ReasoningNames: see ToolNames.
func ReasoningNames() []string {
	var names []string
	for _, s := range allThink {
		names = append(names, s.name)
	}
	return names
}

// Named returns the format with a syntax of calls and one of reasoning by their names;
// an empty name is none of that. Where an answer consists of messages (harmony, muse-glimmer), both
// have one name. ok is false if there is no such name, or if the two do not go together.
func Named(tools, reasoning string) (f Format, ok bool) {
	if tools != "" {
		i := slices.IndexFunc(allTools, func(s *toolSyntax) bool { return s.name == tools })
		if i < 0 {
			return Format{}, false
		}
		f.tools = allTools[i]
	}
	if reasoning != "" {
		i := slices.IndexFunc(allThink, func(s *thinkTags) bool { return s.name == reasoning })
		if i < 0 {
			return Format{}, false
		}
		f.think = allThink[i]
	}
	return f, tools == reasoning || !Framed(tools) && !Framed(reasoning)
}

// Framed reports whether a name is that of a syntax in which the answer consists of messages.
func Framed(name string) bool {
	return slices.ContainsFunc(allThink, func(t *thinkTags) bool { return t.name == name && t.framed != nil })
}

// Tools names the syntax of calls, or is empty.
func (f Format) Tools() string {
	if f.tools == nil {
		return ""
	}
	return f.tools.name
}

// CallIDs is the form of the calls' ids.
func (f Format) CallIDs() callid.Form {
	if f.tools == nil {
		return callid.Any
	}
	return f.tools.ids
}

// Reasoning names the syntax of reasoning, or is empty.
func (f Format) Reasoning() string {
	if f.think == nil {
		return ""
	}
	return f.think.name
}

// ReadsSchemas reports whether the format needs to know the parameters of the request's
// tools, and not only their names.
func (f Format) ReadsSchemas() bool {
	return f.tools != nil && (f.tools.body == taggedBody || f.tools.body == literalBody || f.tools.body == pythonBody || f.tools.ids == callid.Typed)
}

// WithoutTools is the format for a request that has no tools.
func (f Format) WithoutTools() Format {
	if !f.framed() {
		f.tools = nil
	}
	return f
}

// framed reports whether the whole answer consists of messages.
func (f Format) framed() bool { return f.think != nil && f.think.framed != nil }

// Keeps reports whether a special token of the vocabulary is a marker of the format or
// a part of one, so that it must stay in the text.
func (f Format) Keeps(token string) bool {
	return token != "" && slices.ContainsFunc(f.markers(), func(m string) bool { return strings.Contains(m, token) })
}

// markers returns every string that the format reads as one.
func (f Format) markers() []string {
	var all []string
	switch {
	case f.framed():
		all = append(all, f.think.framed...)
	case f.think != nil:
		all = append(all, f.think.open, f.think.close)
	}
	if s := f.tools; s != nil {
		all = slices.Concat(all, s.section, s.sectionEnd, s.call, s.nameEnd, s.callEnd, s.valueEnd, s.key, s.tagEnd,
			[]string{s.prefix, s.idBegin, s.keyEnd, s.tagBegin, s.quote})
	}
	return all
}

// Detect returns the format of a model by its chat template and its vocabulary; has
// reports whether a text is a single token of it. A template renders earlier answers in
// the syntax in which the model was trained to write.
func Detect(template string, has func(token string) bool) Format {
	shows := func(marker string) bool { return strings.Contains(template, marker) || has(marker) }
	if shows(harmonyChannel) && shows(harmonyMessage) {
		f, _ := Named("harmony", "harmony")
		return f
	}
	if shows("<atem:function_calls>") {
		f, _ := Named("muse-glimmer", "muse-glimmer")
		return f
	}
	tools := ""
	switch {
	case shows("｜DSML｜"):
		tools = "deepseek-v3.2"
	case strings.Contains(template, "<｜tool▁calls▁begin｜>"):
		tools = "deepseek-v3.1"
		if strings.Contains(template, "```json") {
			tools = "deepseek-v3"
		}
	case shows("<|tool_calls_section_begin|>"):
		tools = "kimi-k2"
	case shows("<minimax:tool_call>"):
		tools = "minimax-m2"
	case shows("<arg_key>"):
		tools = "glm-4.5"
	case strings.Contains(template, "<function="):
		tools = "qwen3-coder"
	case strings.Contains(template, "<tool_call>"):
		tools = "hermes"
	case shows("[TOOL_CALLS]"):
		tools = "mistral"
	case shows("<|tool_call_start|>"), shows("<|python_start|>"):
		tools = "pythonic"
	case shows("<|python_tag|>"):
		tools = "llama3-json"
	}
	reasoning := ""
	switch {
	case shows("[THINK]"):
		reasoning = "mistral"
	case shows("<seed:think>"):
		reasoning = "seed"
	case shows("<|START_THINKING|>"):
		reasoning = "cohere"
	case shows("<|channel>thought"):
		reasoning = "gemma4"
	case shows("◁think▷"):
		reasoning = "kimi-vl"
	case shows("<think>"), shows("</think>"):
		reasoning = "think"
	}
	f, _ := Named(tools, reasoning)
	return f
}

// Reasons reports how a prompt, or its last PromptTail bytes, ends: within reasoning,
// which the answer then continues, or after the end of reasoning, so that the answer
// has none.
func (f Format) Reasons(prompt []byte) (open, closed bool) {
	if f.think == nil || f.framed() {
		return false, false
	}
	return f.think.opened(prompt), bytes.HasSuffix(bytes.TrimRight(prompt, " \t\r\n"), []byte(f.think.close))
}

// opened reports whether a prompt leaves reasoning open, for the answer to go on with.
func (t *thinkTags) opened(prompt []byte) bool {
	return bytes.HasSuffix(bytes.TrimRight(prompt, " \t\r\n"), []byte(t.open))
}
