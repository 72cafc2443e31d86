package openai

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// maxTools bounds the tools of a request.
const maxTools = 1024

// toolName is what the API lets a tool be called, and a little more: names of
// tools from elsewhere have dots and slashes.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_./:-]{1,128}$`)

// takeChatTools checks the tools of a chat and keeps them as they are, for the
// chat template.
func takeChatTools(d *decoding, raw []byte) error {
	if kindOf(raw) != '[' {
		return wrongType("tools", "an array of tools", raw)
	}
	if err := checkStrict("tools", raw); err != nil {
		return err
	}
	names := map[string]bool{}
	err := eachItem(raw, func(i int, item []byte) error {
		if i == maxTools {
			return infer.Invalid("tools", "tools may hold at most %d tools", maxTools)
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
	if kindOf(raw) != '{' {
		return wrongType(t.path, "an object", raw)
	}
	var kind, function []byte
	err := eachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type":
			kind = value
		case "function":
			function = value
		default:
			return t.d.unsupported(t.path+"."+clip(name, 64), nil)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case kind == nil:
		return infer.Invalid(t.path+".type", "%s.type is required: send \"function\"", t.path)
	case kindOf(kind) != '"':
		return wrongType(t.path+".type", "a string", kind)
	case nameOf(kind) != "function":
		return &infer.Error{Code: infer.CodeUnsupported, Param: t.path + ".type",
			Message: fmt.Sprintf("%s.type %q is not supported by %s; only tools of type \"function\" are", t.path, clip(nameOf(kind), 32), t.d.carrier())}
	case function == nil:
		return infer.Invalid(t.path+".function", "%s.function is required", t.path)
	case kindOf(function) != '{':
		return wrongType(t.path+".function", "an object", function)
	}
	return t.function(function)
}

func (t *toolWalk) function(raw []byte) error {
	path := t.path + ".function"
	var name, parameters []byte
	err := eachMember(raw, func(field string, value []byte) error {
		at := path + "." + clip(field, 64)
		want, kind := "a string", jsontext.Kind('"')
		switch field {
		case "name":
			name = value
			return nil
		case "description":
		case "parameters":
			want, kind = "a JSON Schema, which is an object", '{'
			if kindOf(value) == '{' {
				parameters = value
			}
		case "strict":
			if k := kindOf(value); k != 'f' && k != 'n' {
				return t.d.unsupported(at, []string{"false"})
			}
			return nil
		default:
			return t.d.unsupported(at, nil)
		}
		if k := kindOf(value); k != kind && k != 'n' {
			return wrongType(at, want, value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if name == nil {
		return infer.Invalid(path+".name", "%s.name is required", path)
	}
	word, err := stringOf(path+".name", name)
	switch {
	case err != nil:
		return err
	case !toolName.MatchString(word):
		return infer.Invalid(path+".name", "%s.name is %q; a name has 1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes", path, clip(word, 64))
	case t.names[word]:
		return infer.Invalid(path+".name", "%s.name %q is the name of two tools", path, word)
	}
	t.names[word] = true
	t.d.tools = append(t.d.tools, toolFunction{word, parameters})
	return nil
}

// takeToolChoice reads who decides on calls. That one is made can only be
// forced by an engine that is told what it may generate; asking another for it
// is refused rather than hoped for.
func takeToolChoice(d *decoding, raw []byte) error {
	const field = "tool_choice"
	switch kindOf(raw) {
	case '"':
		switch word := nameOf(raw); word {
		case "auto":
			return nil
		case "none":
			d.noTools = true
			return nil
		case "required":
			d.ForcedAny = true
		default:
			return infer.Invalid(field, "tool_choice must be \"auto\", \"none\", \"required\" or an object that names a tool, found %q", clip(word, 32))
		}
	case '{':
		if err := checkStrict(field, raw); err != nil {
			return err
		}
		if err := d.namedTool(raw); err != nil {
			return err
		}
	default:
		return wrongType(field, "\"auto\", \"none\", \"required\" or an object", raw)
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
	err := eachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type":
			kind = value
		case "function":
			function = value
		default:
			return d.unsupported("tool_choice."+clip(name, 64), nil)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case kindOf(kind) != '"' || nameOf(kind) != "function":
		return infer.Invalid("tool_choice.type", "tool_choice.type must be \"function\"")
	case kindOf(function) != '{':
		return infer.Invalid("tool_choice.function", "tool_choice.function must be an object with the tool's name")
	}
	err = eachMember(function, func(name string, value []byte) (err error) {
		if name != "name" {
			return d.unsupported("tool_choice.function."+clip(name, 64), nil)
		}
		d.ForcedTool, err = stringOf("tool_choice.function.name", value)
		return err
	})
	if err == nil && d.ForcedTool == "" {
		return infer.Invalid("tool_choice.function.name", "tool_choice.function.name is required")
	}
	return err
}

// toolFunction is a tool's function. Without parameters it takes any object.
type toolFunction struct {
	name       string
	parameters []byte
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
		text, err := anyOf(d.tools, d.SingleCall)
		if err != nil {
			return err
		}
		schema = text
	} else {
		i := slices.IndexFunc(d.tools, func(f toolFunction) bool { return f.name == d.ForcedTool })
		if i < 0 {
			return infer.Invalid(field+".function.name", "tool_choice names the tool %q, which is none of tools", clip(d.ForcedTool, 64))
		}
		schema = d.tools[i].schema()
	}
	return d.guide(field, infer.Guide{Kind: infer.GuideJSONSchema, Text: schema})
}

func (f *toolFunction) schema() string {
	if f.parameters == nil {
		return anyObject
	}
	return string(f.parameters)
}

// anyOf is the schema of an array of calls. What the tools' schemas define for
// their own references moves to the root, where references point.
func anyOf(tools []toolFunction, single bool) (string, error) {
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
		name, _ := jsontext.AppendQuote(nil, f.name)
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
func (f *toolFunction) hoist(b *strings.Builder, defs map[string]map[string]string) error {
	if f.parameters == nil {
		b.WriteString(anyObject)
		return nil
	}
	sep := byte('{')
	err := eachMember(f.parameters, func(name string, value []byte) error {
		if known := defs[name]; known != nil && kindOf(value) == '{' {
			return eachMember(value, func(name string, value []byte) error {
				if other, ok := known[name]; ok && other != string(value) {
					return infer.Invalid("tools", "the parameters of two tools define %q differently, and tool_choice \"required\" puts them into one schema; rename one", clip(name, 64))
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
	parallel, err := boolOf("parallel_tool_calls", raw)
	d.SingleCall = !parallel
	return err
}
