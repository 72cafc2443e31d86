package openai

import (
	"fmt"
	"regexp"

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
	var name []byte
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
	return nil
}

// takeToolChoice reads who decides on calls. That one must be made can only be
// forced by an engine that is told what it may generate, so asking for it is
// refused rather than hoped for.
func takeToolChoice(d *decoding, raw []byte) error {
	switch kindOf(raw) {
	case '"':
		switch word := nameOf(raw); word {
		case "auto":
			return nil
		case "none":
			d.noTools = true
			return nil
		case "required":
		default:
			return infer.Invalid("tool_choice", "tool_choice must be \"auto\" or \"none\", found %q", clip(word, 32))
		}
	case '{':
	default:
		return wrongType("tool_choice", "\"auto\", \"none\", \"required\" or an object", raw)
	}
	return &infer.Error{Code: infer.CodeUnsupported, Param: "tool_choice",
		Message: fmt.Sprintf("tool_choice: that a tool is called cannot be forced on %s; send \"auto\", or \"none\"", d.carrier())}
}

func takeParallel(d *decoding, raw []byte) error {
	parallel, err := boolOf("parallel_tool_calls", raw)
	d.SingleCall = !parallel
	return err
}
