package openai

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/jsonvalue"
)

// MaxTools bounds the tools of a request.
const MaxTools = 1024

var toolName = regexp.MustCompile(`^[A-Za-z0-9_./:-]{1,128}$`)

// ToolNameRule is ValidToolName in words.
const ToolNameRule = "a name has 1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes"

// ValidToolName says whether a tool may have the name. That is what the API
// allows, and a little more: names of tools from elsewhere have dots and slashes.
func ValidToolName(name string) bool { return toolName.MatchString(name) }

// takeChatTools checks the tools of a chat and keeps them as they are, for the
// chat template.
func takeChatTools(d *decoding, raw []byte) error {
	if jsonvalue.Kind(raw) != '[' {
		return jsonvalue.WrongType("tools", "an array of tools", raw)
	}
	if err := jsonvalue.CheckStrict("tools", raw); err != nil {
		return err
	}
	names := map[string]bool{}
	err := jsonvalue.EachItem(raw, func(i int, item []byte) error {
		if i == MaxTools {
			return infer.Invalid("tools", "tools may hold at most %d tools", MaxTools)
		}
		t := toolWalk{d: d, path: fmt.Sprintf("tools[%d]", i), names: names}
		return t.tool(item)
	})
	if len(names) > 0 {
		d.Tools = raw
	}
	return err
}

// toolWalk checks one tool.
type toolWalk struct {
	d     *decoding
	path  string
	names map[string]bool
}

func (t *toolWalk) tool(raw []byte) error {
	if jsonvalue.Kind(raw) != '{' {
		return jsonvalue.WrongType(t.path, "an object", raw)
	}
	var kind, function []byte
	err := words.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type":
			kind = value
		case "function":
			function = value
		default:
			return t.d.unsupported(t.path+"."+jsonvalue.Clip(name, 64), nil)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case kind == nil:
		return infer.Invalid(t.path+".type", "%s.type is required: send \"function\"", t.path)
	case jsonvalue.Kind(kind) != '"':
		return jsonvalue.WrongType(t.path+".type", "a string", kind)
	case words.Name(kind) != "function":
		return &infer.Error{Code: infer.CodeUnsupported, Param: t.path + ".type",
			Message: fmt.Sprintf("%s.type %q is not supported by %s; only tools of type \"function\" are", t.path, jsonvalue.Clip(words.Name(kind), 32), t.d.carrier())}
	case function == nil:
		return infer.Invalid(t.path+".function", "%s.function is required", t.path)
	case jsonvalue.Kind(function) != '{':
		return jsonvalue.WrongType(t.path+".function", "an object", function)
	}
	return t.function(function)
}

func (t *toolWalk) function(raw []byte) error {
	path := t.path + ".function"
	var name, parameters []byte
	err := words.EachMember(raw, func(field string, value []byte) error {
		at := path + "." + jsonvalue.Clip(field, 64)
		want, kind := "a string", jsontext.Kind('"')
		switch field {
		case "name":
			name = value
			return nil
		case "description":
		case "parameters":
			want, kind = "a JSON Schema, which is an object", '{'
			if jsonvalue.Kind(value) == '{' {
				parameters = value
			}
		case "strict":
			if k := jsonvalue.Kind(value); k != 'f' && k != 'n' {
				return t.d.unsupported(at, []string{"false"})
			}
			return nil
		default:
			return t.d.unsupported(at, nil)
		}
		if k := jsonvalue.Kind(value); k != kind && k != 'n' {
			return jsonvalue.WrongType(at, want, value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if name == nil {
		return infer.Invalid(path+".name", "%s.name is required", path)
	}
	word, err := jsonvalue.String(path+".name", name)
	switch {
	case err != nil:
		return err
	case !ValidToolName(word):
		return infer.Invalid(path+".name", "%s.name is %q; %s", path, jsonvalue.Clip(word, 64), ToolNameRule)
	case t.names[word]:
		return infer.Invalid(path+".name", "%s.name %q is the name of two tools", path, word)
	}
	t.names[word] = true
	t.d.tools = append(t.d.tools, Function{word, parameters})
	return nil
}

// takeToolChoice reads who decides on calls. That one is made can only be
// forced by an engine that is told what it may generate; asking another for it
// is refused rather than hoped for.
func takeToolChoice(d *decoding, raw []byte) error {
	const field = "tool_choice"
	switch jsonvalue.Kind(raw) {
	case '"':
		switch word := words.Name(raw); word {
		case "auto":
			return nil
		case "none":
			d.noTools = true
			return nil
		case "required":
			d.ForcedAny = true
		default:
			return infer.Invalid(field, "tool_choice must be \"auto\", \"none\", \"required\" or an object that names a tool, found %q", jsonvalue.Clip(word, 32))
		}
	case '{':
		if err := jsonvalue.CheckStrict(field, raw); err != nil {
			return err
		}
		if err := d.namedTool(raw); err != nil {
			return err
		}
	default:
		return jsonvalue.WrongType(field, "\"auto\", \"none\", \"required\" or an object", raw)
	}
	if d.carries&infer.CarriesJSONSchema == 0 {
		return &infer.Error{Code: infer.CodeUnsupported, Param: field,
			Message: fmt.Sprintf("tool_choice: that a tool is called cannot be forced on %s; send \"auto\", or \"none\"", d.carrier())}
	}
	return nil
}

// namedTool reads {"type": "function", "function": {"name": NAME}}.
func (d *decoding) namedTool(raw []byte) error {
	var kind, function []byte
	err := words.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type":
			kind = value
		case "function":
			function = value
		default:
			return d.unsupported("tool_choice."+jsonvalue.Clip(name, 64), nil)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case jsonvalue.Kind(kind) != '"' || words.Name(kind) != "function":
		return infer.Invalid("tool_choice.type", "tool_choice.type must be \"function\"")
	case jsonvalue.Kind(function) != '{':
		return infer.Invalid("tool_choice.function", "tool_choice.function must be an object with the tool's name")
	}
	err = words.EachMember(function, func(name string, value []byte) (err error) {
		if name != "name" {
			return d.unsupported("tool_choice.function."+jsonvalue.Clip(name, 64), nil)
		}
		d.ForcedTool, err = jsonvalue.String("tool_choice.function.name", value)
		return err
	})
	if err == nil && d.ForcedTool == "" {
		return infer.Invalid("tool_choice.function.name", "tool_choice.function.name is required")
	}
	return err
}

// Function is a tool's function. Without parameters, a JSON schema, it takes any
// object.
type Function struct {
	Name       string
	Parameters []byte
}

// finishTools checks tool_choice against the tools, and makes the engine call
// them where it is to.
func (d *decoding) finishTools() error {
	const field = "tool_choice"
	switch {
	case d.noTools:
		d.Tools = nil
		return nil
	case !d.ForcedAny && d.ForcedTool == "":
		return nil
	case d.Tools == nil:
		return infer.Invalid(field, "tool_choice wants a tool to be called, and there are no tools")
	case d.ContinueFinalMessage:
		return infer.Invalid(field, "tool_choice cannot force a call in a message that is continued (continue_final_message)")
	}
	var schema string
	if d.ForcedAny {
		text, err := AnyCall(d.tools, d.SingleCall)
		if err != nil {
			return err
		}
		schema = text
	} else {
		i := slices.IndexFunc(d.tools, func(f Function) bool { return f.Name == d.ForcedTool })
		if i < 0 {
			return infer.Invalid(field+".function.name", "tool_choice names the tool %q, which is none of tools", jsonvalue.Clip(d.ForcedTool, 64))
		}
		schema = d.tools[i].Schema()
	}
	return d.guide(field, infer.Guide{Kind: infer.GuideJSONSchema, Text: schema})
}

// Schema is what a call's arguments must match.
func (f *Function) Schema() string {
	if f.Parameters == nil {
		return anyObject
	}
	return string(f.Parameters)
}

// AnyCall is the schema of an answer that calls tools, as an array of objects with
// name and parameters; single says that it is one. What the tools' schemas define for
// their own references moves to the root, where references point.
func AnyCall(tools []Function, single bool) (string, error) {
	defs := map[string]map[string]string{"$defs": {}, "definitions": {}}
	var b strings.Builder
	b.WriteString(`{"type":"array","minItems":1,`)
	if single {
		b.WriteString(`"maxItems":1,`)
	}
	b.WriteString(`"items":{"anyOf":[`)
	for i, f := range tools {
		if i > 0 {
			b.WriteByte(',')
		}
		name, _ := jsontext.AppendQuote(nil, f.Name)
		fmt.Fprintf(&b, `{"type":"object","properties":{"name":{"const":%s},"parameters":`, name)
		if err := f.hoist(&b, defs); err != nil {
			return "", err
		}
		b.WriteString(`},"required":["name","parameters"],"additionalProperties":false}`)
	}
	b.WriteString(`]}`)
	for _, where := range []string{"$defs", "definitions"} {
		sep := fmt.Sprintf(`,%q:{`, where)
		for _, name := range slices.Sorted(maps.Keys(defs[where])) {
			quoted, _ := jsontext.AppendQuote(nil, name)
			fmt.Fprintf(&b, "%s%s:%s", sep, quoted, defs[where][name])
			sep = ","
		}
		if sep == "," {
			b.WriteByte('}')
		}
	}
	b.WriteByte('}')
	return b.String(), nil
}

// hoist writes the function's schema without its definitions, and notes those.
func (f *Function) hoist(b *strings.Builder, defs map[string]map[string]string) error {
	if f.Parameters == nil {
		b.WriteString(anyObject)
		return nil
	}
	sep := byte('{')
	err := words.EachMember(f.Parameters, func(name string, value []byte) error {
		if known := defs[name]; known != nil && jsonvalue.Kind(value) == '{' {
			return words.EachMember(value, func(name string, value []byte) error {
				if other, ok := known[name]; ok && other != string(value) {
					return infer.Invalid("tools", "the parameters of two tools define %q differently, and tool_choice \"required\" puts them into one schema; rename one", jsonvalue.Clip(name, 64))
				}
				known[name] = string(value)
				return nil
			})
		}
		quoted, _ := jsontext.AppendQuote(nil, name)
		b.WriteByte(sep)
		sep = ','
		fmt.Fprintf(b, "%s:%s", quoted, value)
		return nil
	})
	if sep == '{' {
		b.WriteByte(sep)
	}
	b.WriteByte('}')
	return err
}

func takeParallel(d *decoding, raw []byte) error {
	parallel, err := jsonvalue.Bool("parallel_tool_calls", raw)
	d.SingleCall = !parallel
	return err
}
