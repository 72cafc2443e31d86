package openai

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/api"
	"weir/internal/infer"
)

// maxTools bounds the tools of a request.
const maxTools = 1024

// takeChatTools checks the tools of a chat and keeps them as they are, for the
// chat template.
func takeChatTools(d *decoding, raw []byte) error {
	if api.KindOf(raw) != '[' {
		return api.WrongType("tools", "an array of tools", raw)
	}
	if err := api.CheckStrict("tools", raw); err != nil {
		return err
	}
	names := map[string]bool{}
	err := api.EachItem(raw, func(i int, item []byte) error {
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
	if api.KindOf(raw) != '{' {
		return api.WrongType(t.path, "an object", raw)
	}
	var kind, function []byte
	err := api.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type":
			kind = value
		case "function":
			function = value
		default:
			return t.d.unsupported(t.path+"."+api.Clip(name, 64), nil)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case kind == nil:
		return infer.Invalid(t.path+".type", "%s.type is required: send \"function\"", t.path)
	case api.KindOf(kind) != '"':
		return api.WrongType(t.path+".type", "a string", kind)
	case api.NameOf(kind) != "function":
		return &infer.Error{Code: infer.CodeUnsupported, Param: t.path + ".type",
			Message: fmt.Sprintf("%s.type %q is not supported by %s; only tools of type \"function\" are", t.path, api.Clip(api.NameOf(kind), 32), t.d.carrier())}
	case function == nil:
		return infer.Invalid(t.path+".function", "%s.function is required", t.path)
	case api.KindOf(function) != '{':
		return api.WrongType(t.path+".function", "an object", function)
	}
	return t.function(function)
}

func (t *toolWalk) function(raw []byte) error {
	path := t.path + ".function"
	var name, parameters []byte
	err := api.EachMember(raw, func(field string, value []byte) error {
		at := path + "." + api.Clip(field, 64)
		want, kind := "a string", jsontext.Kind('"')
		switch field {
		case "name":
			name = value
			return nil
		case "description":
		case "parameters":
			want, kind = "a JSON Schema, which is an object", '{'
			if api.KindOf(value) == '{' {
				parameters = value
			}
		case "strict": // forced calls keep to their schema in any case, others as the model does
			if api.KindOf(value) == 'n' {
				return nil
			}
			_, err := api.BoolOf(at, value)
			return err
		default:
			return t.d.unsupported(at, nil)
		}
		if k := api.KindOf(value); k != kind && k != 'n' {
			return api.WrongType(at, want, value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if name == nil {
		return infer.Invalid(path+".name", "%s.name is required", path)
	}
	word, err := api.StringOf(path+".name", name)
	switch {
	case err != nil:
		return err
	case !api.ToolName(word):
		return infer.Invalid(path+".name", "%s.name is %q; a name has 1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes", path, api.Clip(word, 64))
	case t.names[word]:
		return infer.Invalid(path+".name", "%s.name %q is the name of two tools", path, word)
	}
	t.names[word] = true
	t.d.Declared = append(t.d.Declared, api.Tool{Name: word, Parameters: parameters})
	return nil
}

// takeToolChoice reads who decides on calls.
func takeToolChoice(d *decoding, raw []byte) error {
	const field = "tool_choice"
	switch api.KindOf(raw) {
	case '"':
		switch word := api.NameOf(raw); word {
		case "auto":
			return nil
		case "none":
			d.NoTools = true
			return nil
		case "required":
			d.ForcedAny = true
		default:
			return infer.Invalid(field, "tool_choice must be \"auto\", \"none\", \"required\" or an object that names a tool, found %q", api.Clip(word, 32))
		}
	case '{':
		if err := api.CheckStrict(field, raw); err != nil {
			return err
		}
		return d.namedTool(raw)
	default:
		return api.WrongType(field, "\"auto\", \"none\", \"required\" or an object", raw)
	}
	return nil
}

// namedTool reads {"type": "function", "function": {"name": NAME}}, its type first:
// the other fields of a choice of another type are none of ours to name.
func (d *decoding) namedTool(raw []byte) error {
	var kind, other string
	var function []byte
	err := api.EachMember(raw, func(name string, value []byte) (err error) {
		switch name {
		case "type":
			kind, err = api.StringOf("tool_choice.type", value)
		case "function":
			function = value
		default:
			other = "tool_choice." + api.Clip(name, 64)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case kind == "auto" || kind == "none" || kind == "required":
		return infer.Invalid("tool_choice.type", "tool_choice.type must be \"function\"; for %s send the string %q as tool_choice", kind, kind)
	case kind != "function":
		return infer.Invalid("tool_choice.type", "tool_choice.type must be \"function\", found %q", api.Clip(kind, 32))
	case other != "":
		return d.Unsupported(other)
	case api.KindOf(function) != '{':
		return infer.Invalid("tool_choice.function", "tool_choice.function must be an object with the tool's name")
	}
	err = api.EachMember(function, func(name string, value []byte) (err error) {
		if name != "name" {
			return d.unsupported("tool_choice.function."+api.Clip(name, 64), nil)
		}
		d.ForcedTool, err = api.StringOf("tool_choice.function.name", value)
		return err
	})
	if err == nil && d.ForcedTool == "" {
		return infer.Invalid("tool_choice.function.name", "tool_choice.function.name is required")
	}
	return err
}

func takeParallel(d *decoding, raw []byte) error {
	parallel, err := api.BoolOf("parallel_tool_calls", raw)
	d.SingleCall = !parallel
	return err
}
