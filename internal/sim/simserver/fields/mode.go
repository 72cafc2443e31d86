package fields

import (
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/workload/content"
)

// Mode are the fields of a completion that select the parts of the answer, of OpenAI,
// vLLM and SGLang.
type Mode struct {
	Tools             jsontext.Value `json:"tools"`
	ToolChoice        jsontext.Value `json:"tool_choice"`
	ParallelToolCalls bool           `json:"parallel_tool_calls"`
	ResponseFormat    jsontext.Value `json:"response_format"`
	TemplateKwargs    jsontext.Value `json:"chat_template_kwargs"`
	ReasoningEffort   *string        `json:"reasoning_effort"`
	SeparateReasoning *bool          `json:"separate_reasoning"` // SGLang's
	IncludeReasoning  *bool          `json:"include_reasoning"`  // vLLM's

	StructuredOutputs jsontext.Value `json:"structured_outputs"` // vLLM's, as the next four
	GuidedJSON        jsontext.Value `json:"guided_json"`
	GuidedRegex       jsontext.Value `json:"guided_regex"`
	GuidedChoice      jsontext.Value `json:"guided_choice"`
	GuidedGrammar     jsontext.Value `json:"guided_grammar"`
	JSONSchema        jsontext.Value `json:"json_schema"` // SGLang's, as the next three
	Regex             jsontext.Value `json:"regex"`
	EBNF              jsontext.Value `json:"ebnf"`
	StructuralTag     jsontext.Value `json:"structural_tag"`
}

// parallelCalls is how many calls an answer makes when parallel_tool_calls is
// true.
const parallelCalls = 2

// Ask reads the fields. messages is the chat's, empty where it is none.
func (f *Mode) Ask(messages jsontext.Value) (ask content.Ask, err error) {
	if err := f.AskFormat(&ask); err != nil {
		return ask, err
	}
	if err := f.askThinking(&ask); err != nil {
		return ask, err
	}
	if len(messages) == 0 {
		return ask, nil
	}
	ask.Chat = true
	return ask, f.askTools(&ask, messages)
}

// AskFormat reads the fields that ask for a document. It refuses unsupported forms.
func (f *Mode) AskFormat(ask *content.Ask) error {
	for _, x := range []struct {
		name  string
		value jsontext.Value
	}{
		{"guided_regex", f.GuidedRegex}, {"guided_choice", f.GuidedChoice}, {"guided_grammar", f.GuidedGrammar},
		{"regex", f.Regex}, {"ebnf", f.EBNF}, {"structural_tag", f.StructuralTag},
	} {
		if !IsNull(x.value) {
			return infer.Invalid(x.name, "this simulated engine has no %s; of grammars it has JSON Schema", x.name)
		}
	}
	schema, err := Schema("guided_json", f.GuidedJSON)
	if err != nil {
		return err
	}
	if ask.Schema = schema; schema == nil {
		if ask.Schema, err = Schema("json_schema", f.JSONSchema); err != nil {
			return err
		}
	}
	if err := askStructured(ask, f.StructuredOutputs); err != nil {
		return err
	}
	return askResponseFormat(ask, f.ResponseFormat)
}

// Schema reads a JSON Schema, given as JSON or as a string of JSON. It returns nil if
// there is none.
func Schema(param string, v jsontext.Value) (*content.Schema, error) {
	if IsNull(v) {
		return nil, nil
	}
	if v.Kind() == '"' {
		var text string
		if err := json.Unmarshal(v, &text); err != nil {
			return nil, infer.Invalid(param, "%s is not valid: %v", param, err)
		}
		v = jsontext.Value(text)
	}
	s, err := content.CompileSchema(v)
	if err != nil {
		return nil, infer.Invalid(param, "%s: %v", param, err)
	}
	return s, nil
}

// askStructured reads vLLM's structured_outputs.
func askStructured(ask *content.Ask, v jsontext.Value) error {
	if IsNull(v) {
		return nil
	}
	var fields map[string]jsontext.Value
	if err := json.Unmarshal(v, &fields); err != nil {
		return infer.Invalid("structured_outputs", "structured_outputs must be an object")
	}
	for name, value := range fields {
		if IsNull(value) {
			continue
		}
		param := "structured_outputs." + name
		switch name {
		case "json":
			schema, err := Schema(param, value)
			if err != nil {
				return err
			}
			ask.Schema = schema
		case "json_object":
			if value.Kind() == 't' {
				ask.Schema = content.AnyObject()
			}
		case "disable_any_whitespace", "disable_fallback", "disable_additional_properties", "whitespace_pattern":
			// How a document is written is the engine's.
		default:
			return infer.Invalid(param, "this simulated engine has no %s; of grammars it has JSON Schema", param)
		}
	}
	return nil
}

// askResponseFormat reads OpenAI's response_format.
func askResponseFormat(ask *content.Ask, v jsontext.Value) error {
	if IsNull(v) {
		return nil
	}
	var format struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Schema jsontext.Value `json:"schema"`
		} `json:"json_schema"`
	}
	if err := json.Unmarshal(v, &format); err != nil {
		return infer.Invalid("response_format", "response_format is not valid: %v", err)
	}
	switch format.Type {
	case "text":
	case "json_object":
		ask.Schema = content.AnyObject()
	case "json_schema":
		const param = "response_format.json_schema.schema"
		if IsNull(format.JSONSchema.Schema) {
			return infer.Invalid(param, "%s is missing", param)
		}
		schema, err := Schema(param, format.JSONSchema.Schema)
		if err != nil {
			return err
		}
		ask.Schema = schema
	default:
		return infer.Invalid("response_format.type", "response_format.type is %q; it must be text, json_object or json_schema", format.Type)
	}
	return nil
}

// askThinking reads the ways to ask for reasoning: reasoning_effort, and what
// templates call enable_thinking or thinking.
func (f *Mode) askThinking(ask *content.Ask) (err error) {
	if !IsNull(f.TemplateKwargs) {
		var kwargs struct {
			EnableThinking *bool `json:"enable_thinking"`
			Thinking       *bool `json:"thinking"`
		}
		if err := json.Unmarshal(f.TemplateKwargs, &kwargs); err != nil {
			return infer.Invalid("chat_template_kwargs", "chat_template_kwargs is not valid: %v", err)
		}
		for _, on := range []*bool{kwargs.EnableThinking, kwargs.Thinking} {
			switch {
			case on == nil:
			case *on:
				ask.Think = content.EffortMedium
			default:
				ask.Think = content.EffortNone
			}
		}
	}
	if f.ReasoningEffort != nil && ask.Think == content.EffortUnset {
		if ask.Think, err = content.ParseEffort(*f.ReasoningEffort); err != nil {
			return infer.Invalid("reasoning_effort", "reasoning_effort: %v", err)
		}
	}
	return nil
}

// askTools reads the tools and whether one is to be called.
func (f *Mode) askTools(ask *content.Ask, messages jsontext.Value) error {
	var tools []jsontext.Value
	if !IsNull(f.Tools) {
		if err := json.Unmarshal(f.Tools, &tools); err != nil {
			return infer.Invalid("tools", "tools must be a list of tools: %v", err)
		}
	}
	// Not nil even if there are none: the server knows, and the prompt is not asked.
	ask.Tools = make([]content.Tool, 0, len(tools))
	for i, raw := range tools {
		t, err := content.ParseTool(raw, "tools["+strconv.Itoa(i)+"]")
		if err != nil {
			return AskInvalid(err)
		}
		ask.Tools = append(ask.Tools, t)
	}
	if f.ParallelToolCalls {
		ask.Calls = parallelCalls
	}
	if err := f.askChoice(ask); err != nil {
		return err
	}
	if len(tools) > 0 {
		var roles []struct {
			Role string `json:"role"`
		}
		if err := json.Unmarshal(messages, &roles); err != nil {
			return infer.Invalid("messages", "messages is not valid: %v", err)
		}
		ask.Answered = len(roles) > 0 && roles[len(roles)-1].Role == "tool"
	}
	return nil
}

// askChoice reads tool_choice. Without tools it may only be auto or none.
func (f *Mode) askChoice(ask *content.Ask) error {
	var word string
	switch f.ToolChoice.Kind() {
	case 0, 'n':
		return nil
	case '"':
		if err := json.Unmarshal(f.ToolChoice, &word); err != nil {
			return infer.Invalid("tool_choice", "tool_choice is not valid: %v", err)
		}
	case '{':
		return f.askNamed(ask)
	}
	switch word {
	case "auto":
	case "none":
		ask.Choice = content.ChoiceNone
	case "required":
		ask.Choice = content.ChoiceRequired
	default:
		return infer.Invalid("tool_choice", "tool_choice must be auto, none, required or name a function")
	}
	return nil
}

func (f *Mode) askNamed(ask *content.Ask) error {
	var named struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if err := json.Unmarshal(f.ToolChoice, &named); err != nil || named.Function.Name == "" {
		return infer.Invalid("tool_choice", "tool_choice must be auto, none, required or name a function")
	}
	for _, t := range ask.Tools {
		if t.Name == named.Function.Name {
			ask.Tools, ask.Choice = []content.Tool{t}, content.ChoiceRequired
			return nil
		}
	}
	return infer.Invalid("tool_choice", "tool_choice names %q, which is none of the tools", named.Function.Name)
}

// Offered returns the tools for the template: none when none may be called.
func (f *Mode) Offered() []byte {
	var word string
	if f.ToolChoice.Kind() == '"' && json.Unmarshal(f.ToolChoice, &word) == nil && word == "none" {
		return nil
	}
	return f.Tools
}

// Separate reports whether reasoning is a separate field of the answer, which is the
// default.
func (f *Mode) Separate() bool {
	return f.SeparateReasoning == nil || *f.SeparateReasoning
}
