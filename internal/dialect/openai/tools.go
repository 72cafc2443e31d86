package openai

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// maxTools bounds the tools of a request.
const maxTools = 1024

// takeChatTools checks the tools of a chat and keeps them as they are, for the
// chat template. Those that are no functions are left out.
func takeChatTools(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType("tools", "an array of tools", raw)
	}
	if err := d.CheckStrict("tools", raw); err != nil {
		return err
	}
	names := map[string]bool{}
	var dropped []int
	err := dialect.EachItem(raw, func(i int, item []byte) error {
		if i == maxTools {
			return infer.Invalid("tools", "tools may hold at most %d tools", maxTools)
		}
		t := toolWalk{d: d, path: fmt.Sprintf("tools[%d]", i), names: names}
		isFunction, err := t.tool(item)
		if !isFunction {
			dropped = append(dropped, i)
		}
		return err
	})
	switch {
	case err != nil || len(names) == 0:
		return err
	case len(dropped) == 0:
		d.Tools = raw
	default:
		d.Tools = itemsOf(raw, func(i int) bool { return !slices.Contains(dropped, i) })
	}
	return nil
}

// itemsOf returns an array with some of another's items; nil where there are none.
func itemsOf(raw []byte, keep func(i int) bool) (some []byte) {
	_ = dialect.EachItem(raw, func(i int, item []byte) error { // which has been read before
		if !keep(i) {
			return nil
		}
		sep := byte(',')
		if some == nil {
			sep = '['
		}
		some = append(append(some, sep), item...)
		return nil
	})
	if some == nil {
		return nil
	}
	return append(some, ']')
}

// toolWalk checks one tool.
type toolWalk struct {
	d     *decoding
	path  string
	names map[string]bool
}

// tool reports whether the tool is a function, its type first: the other members of a tool
// of another type are none of ours to name.
func (t *toolWalk) tool(raw []byte) (isFunction bool, err error) {
	if dialect.KindOf(raw) != '{' {
		return false, dialect.WrongType(t.path, "an object", raw)
	}
	var kind, function, custom []byte
	other := ""
	err = dialect.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type":
			kind = value
		case "function":
			function = value
		case "custom":
			custom = value
		default:
			other = name
		}
		return nil
	})
	switch {
	case err != nil:
		return false, err
	case kind == nil:
		return false, infer.Invalid(t.path+".type", "%s.type is required: send \"function\"", t.path)
	case dialect.KindOf(kind) != '"':
		return false, dialect.WrongType(t.path+".type", "a string", kind)
	}
	switch word := dialect.NameOf(kind); {
	case word == "function":
	case inner("tools[] "+word) != nil:
		name := word
		if dialect.KindOf(custom) == '{' {
			_ = dialect.EachMember(custom, func(member string, value []byte) error {
				if member == "name" && dialect.KindOf(value) == '"' {
					name = dialect.NameOf(value)
				}
				return nil
			})
		}
		t.d.LeaveOutTool(inner("tools[] "+word).Name, name)
		return false, nil
	case t.d.Passes(t.path + ".type"):
		return false, nil
	default:
		return false, t.d.UnknownType(t.path+".type", word, "only tools of type \"function\" are", "function", "custom")
	}
	if custom != nil && other == "" {
		other = "custom"
	}
	if other != "" {
		if err := t.d.UnknownMember(t.path+"."+dialect.Clip(other, 64), "type", "function"); err != nil {
			return false, err
		}
	}
	switch {
	case function == nil:
		return false, infer.Invalid(t.path+".function", "%s.function is required", t.path)
	case dialect.KindOf(function) != '{':
		return false, dialect.WrongType(t.path+".function", "an object", function)
	}
	return true, t.function(function)
}

func (t *toolWalk) function(raw []byte) error {
	path := t.path + ".function"
	var name, parameters []byte
	strict := false
	err := dialect.EachMember(raw, func(field string, value []byte) (err error) {
		at := path + "." + dialect.Clip(field, 64)
		want, kind := "a string", jsontext.Kind('"')
		switch field {
		case "name":
			name = value
			return nil
		case "description":
		case "parameters":
			want, kind = "a JSON Schema, which is an object", '{'
			if dialect.KindOf(value) == '{' {
				parameters = value
			}
		case "strict": // forced calls keep to their schema in any case, others as the model does
			if dialect.KindOf(value) == 'n' {
				return nil
			}
			strict, err = dialect.BoolOf(at, value)
			return err
		default:
			return t.d.UnknownMember(at, "name", "description", "parameters", "strict")
		}
		if k := dialect.KindOf(value); k != kind && k != 'n' {
			return dialect.WrongType(at, want, value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if name == nil {
		return infer.Invalid(path+".name", "%s.name is required", path)
	}
	word, err := dialect.StringOf(path+".name", name)
	switch {
	case err != nil:
		return err
	case !dialect.ToolName(word):
		return infer.Invalid(path+".name", "%s.name is %q; a name has 1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes", path, dialect.Clip(word, 64))
	case t.names[word]:
		return infer.Invalid(path+".name", "%s.name %q is the name of two tools", path, word)
	}
	t.names[word] = true
	t.d.Declared = append(t.d.Declared, dialect.Tool{Name: word, Parameters: parameters, Strict: strict})
	return nil
}

// takeToolChoice reads who decides on calls.
func takeToolChoice(d *decoding, raw []byte) error {
	const field = "tool_choice"
	switch dialect.KindOf(raw) {
	case '"':
		switch word := dialect.NameOf(raw); word {
		case "auto":
			return nil
		case "none":
			d.NoTools = true
			return nil
		case "required":
			d.ForcedAny = true
		default:
			return infer.Invalid(field, "tool_choice must be \"auto\", \"none\", \"required\" or an object that names a tool, found %q", dialect.Clip(word, 32))
		}
	case '{':
		if err := d.CheckStrict(field, raw); err != nil {
			return err
		}
		return d.namedTool(raw)
	default:
		return dialect.WrongType(field, "\"auto\", \"none\", \"required\" or an object", raw)
	}
	return nil
}

// namedTool reads {"type": "function", "function": {"name": NAME}}, or what tools are
// allowed, its type first: the other fields of a choice of another type are none of ours
// to name.
func (d *decoding) namedTool(raw []byte) error {
	var kind string
	other := ""
	members := map[string][]byte{}
	err := dialect.EachMember(raw, func(name string, value []byte) (err error) {
		switch name {
		case "type":
			kind, err = dialect.StringOf("tool_choice.type", value)
		case "function", "allowed_tools", "custom":
			members[name] = value
		default:
			other = "tool_choice." + dialect.Clip(name, 64)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case kind == "auto" || kind == "none" || kind == "required":
		return infer.Invalid("tool_choice.type", "tool_choice.type must be \"function\"; for %s send the string %q as tool_choice", kind, kind)
	case kind == "custom":
		return &infer.Error{Code: infer.CodeUnsupported, Param: "tool_choice.type",
			Message: fmt.Sprintf("tool_choice.type \"custom\" forces a tool that %s cannot run; name a function, or send auto", d.Carrier())}
	case kind == "":
		return infer.Invalid("tool_choice.type", "tool_choice.type is required: send \"function\" or \"allowed_tools\"")
	case kind != "function" && kind != "allowed_tools":
		return infer.Invalid("tool_choice.type", "tool_choice.type must be \"function\" or \"allowed_tools\", found %q", dialect.Clip(kind, 32))
	}
	for name := range members {
		if name != kind && other == "" {
			other = "tool_choice." + name
		}
	}
	if other != "" {
		if err := d.UnknownMember(other, "type", kind); err != nil {
			return err
		}
	}
	path := "tool_choice." + kind
	switch {
	case kind == "function" && dialect.KindOf(members[kind]) != '{':
		return infer.Invalid(path, "%s must be an object with the tool's name", path)
	case dialect.KindOf(members[kind]) != '{':
		return infer.Invalid(path, "%s must be an object with mode and tools", path)
	case kind == "allowed_tools":
		return d.allowedTools(path, members[kind])
	}
	d.ForcedTool, err = d.functionName(path, members[kind])
	return err
}

// functionName reads {"name": NAME}.
func (d *decoding) functionName(path string, raw []byte) (word string, err error) {
	err = dialect.EachMember(raw, func(name string, value []byte) (err error) {
		if name != "name" {
			return d.UnknownMember(path+"."+dialect.Clip(name, 64), "name")
		}
		word, err = dialect.StringOf(path+".name", value)
		return err
	})
	if err == nil && word == "" {
		err = infer.Invalid(path+".name", "%s.name is required", path)
	}
	return word, err
}

// allowedTools reads {"mode": ..., "tools": [...]}. The model is told of no others.
func (d *decoding) allowedTools(path string, raw []byte) error {
	mode := ""
	d.allowed = []string{}
	err := dialect.EachMember(raw, func(name string, value []byte) (err error) {
		switch name {
		case "mode":
			if mode, err = dialect.StringOf(path+".mode", value); err == nil && mode != "auto" && mode != "required" {
				err = infer.Invalid(path+".mode", "%s.mode must be \"auto\" or \"required\", found %q", path, dialect.Clip(mode, 32))
			}
			return err
		case "tools":
			if dialect.KindOf(value) != '[' {
				return dialect.WrongType(path+".tools", "an array", value)
			}
			return dialect.EachItem(value, func(i int, item []byte) error {
				if i == maxTools {
					return infer.Invalid(path+".tools", "%s.tools may name at most %d tools", path, maxTools)
				}
				return d.allowedTool(fmt.Sprintf("%s.tools[%d]", path, i), item)
			})
		}
		return d.UnknownMember(path+"."+dialect.Clip(name, 64), "mode", "tools")
	})
	switch {
	case err != nil:
		return err
	case mode == "":
		return infer.Invalid(path+".mode", "%s.mode is required: send \"auto\" or \"required\"", path)
	case len(d.allowed) == 0:
		return infer.Invalid(path+".tools", "%s.tools is required: name at least one of tools", path)
	}
	d.ForcedAny = mode == "required"
	return nil
}

// allowedTool reads {"type": "function", "function": {"name": NAME}}, or one that was left
// out.
func (d *decoding) allowedTool(path string, raw []byte) error {
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(path, "an object", raw)
	}
	var kind string
	var named []byte
	err := dialect.EachMember(raw, func(name string, value []byte) (err error) {
		switch name {
		case "type":
			kind, err = dialect.StringOf(path+".type", value)
		case "function", "custom":
			named = value
		default:
			err = d.UnknownMember(path+"."+dialect.Clip(name, 64), "type", "function")
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case kind == "":
		return infer.Invalid(path+".type", "%s.type is required: send \"function\"", path)
	case kind != "function" && kind != "custom":
		return infer.Invalid(path+".type", "%s.type must be \"function\", found %q", path, dialect.Clip(kind, 32))
	case dialect.KindOf(named) != '{':
		return infer.Invalid(path+"."+kind, "%s.%s must be an object with the tool's name", path, kind)
	}
	name, err := d.functionName(path+"."+kind, named)
	if err == nil {
		d.allowed = append(d.allowed, name)
	}
	return err
}

// finishTools reports which of the tools the model may call, and whether it must.
func (d *decoding) finishTools() error {
	const allowed = "tool_choice.allowed_tools.tools"
	for i, name := range d.allowed {
		has := slices.ContainsFunc(d.Declared, func(t dialect.Tool) bool { return t.Name == name })
		if path := fmt.Sprintf("%s[%d]", allowed, i); !has && d.ForcesLeftOut(path, name) == nil {
			return infer.Invalid(path, "%s is %q, which is not in tools", path, dialect.Clip(name, 64))
		}
	}
	if d.allowed != nil && d.Tools != nil {
		isAllowed := func(t dialect.Tool) bool { return slices.Contains(d.allowed, t.Name) }
		d.Tools = itemsOf(d.Tools, func(i int) bool { return isAllowed(d.Declared[i]) })
		d.Declared = slices.DeleteFunc(d.Declared, func(t dialect.Tool) bool { return !isAllowed(t) })
	}
	return d.FinishTools("tool_choice.function.name", "continue_final_message is true", strictTool)
}

func takeParallel(d *decoding, raw []byte) error {
	parallel, err := dialect.BoolOf("parallel_tool_calls", raw)
	d.SingleCall = !parallel
	return err
}
