package responses

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/api"
	"weir/internal/infer"
)

// maxTools bounds the tools of a request.
const maxTools = 1024

// tool is a function as the request has it. Its parts are raw JSON.
type tool struct {
	api.Tool
	rawName, description []byte
}

func takeTools(d *decoding, raw []byte) error {
	if api.KindOf(raw) != '[' {
		return api.WrongType("tools", "an array of tools", raw)
	}
	if err := api.CheckStrict("tools", raw); err != nil {
		return err
	}
	seen := map[string]bool{}
	return api.EachItem(raw, func(i int, item []byte) error {
		if i == maxTools {
			return infer.Invalid("tools", "tools may hold at most %d tools", maxTools)
		}
		path := fmt.Sprintf("tools[%d]", i)
		t, err := d.tool(path, item)
		switch {
		case err != nil:
			return err
		case t.rawName == nil: // it was left out
			return nil
		case seen[t.Name]:
			return infer.Invalid(path+".name", "%s.name %q is the name of two tools", path, t.Name)
		}
		seen[t.Name] = true
		d.tools = append(d.tools, t)
		return nil
	})
}

// tool reads one tool, its type first: the other fields of a tool that is not a
// function are none of ours to name.
func (d *decoding) tool(path string, raw []byte) (t tool, err error) {
	if api.KindOf(raw) != '{' {
		return t, api.WrongType(path, "an object", raw)
	}
	kind, err := typeOf(path, raw)
	switch {
	case err != nil:
		return t, err
	case kind == "":
		return t, infer.Invalid(path+".type", "%s.type is required: send \"function\"", path)
	case kind == "function":
	case inner("tools[] "+kind) != nil:
		d.leaveOut(inner("tools[] "+kind).Name, kind, raw)
		return t, nil
	case d.Passes(path + ".type"):
		return t, nil
	default:
		return t, d.UnknownType(path+".type", kind, "only tools of type \"function\" are, which the caller runs itself", toolTypes...)
	}
	err = api.EachMember(raw, func(name string, value []byte) error {
		at := path + "." + api.Clip(name, 64)
		isNull := api.KindOf(value) == 'n'
		switch name {
		case "type":
		case "name":
			t.rawName = value
			t.Name, err = api.StringOf(at, value)
			return err
		case "description":
			if isNull {
				return nil
			}
			if api.KindOf(value) != '"' {
				return api.WrongType(at, "a string", value)
			}
			t.description = value
		case "parameters":
			if isNull {
				return nil
			}
			if api.KindOf(value) != '{' {
				return api.WrongType(at, "a JSON Schema, which is an object", value)
			}
			t.Parameters = value
		case "strict": // said back as false where nothing makes the model keep to the schema
			if !isNull {
				t.Strict, err = api.BoolOf(at, value)
				return err
			}
		case "defer_loading", "async", "allowed_callers", "output_schema":
			return d.judge("tools[]."+name, at, value)
		default:
			if !isNull {
				return d.UnknownMember(at, "type", "name", "description", "parameters", "strict")
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return t, err
	case t.rawName == nil:
		return t, infer.Invalid(path+".name", "%s.name is required", path)
	case !api.ToolName(t.Name):
		return t, infer.Invalid(path+".name", "%s.name is %q; a name has 1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes", path, api.Clip(t.Name, 64))
	}
	return t, nil
}

// toolTypes are the types of tools that are known.
var toolTypes = func() (words []string) {
	for i := range innerFields {
		if word, ok := strings.CutPrefix(innerFields[i].Name, "tools[] "); ok {
			words = append(words, strings.TrimSuffix(word, "*"))
		}
	}
	return words
}()

// leaveOut notes a tool that is no function, by the type by which a tool_choice may
// call it and by its name.
func (d *decoding) leaveOut(field, kind string, raw []byte) {
	d.LeaveOutTool(field, kind)
	_ = api.EachMember(raw, func(name string, value []byte) error {
		if name == "name" && api.KindOf(value) == '"' {
			d.LeaveOutTool(field, api.NameOf(value))
		}
		return nil
	})
}

// typeOf gives the type of an item, a part or a tool, empty when it has none.
func typeOf(path string, raw []byte) (kind string, err error) {
	err = api.EachMember(raw, func(name string, value []byte) (err error) {
		if name == "type" {
			if api.KindOf(value) != '"' {
				return api.WrongType(path+".type", "a string", value)
			}
			kind = api.NameOf(value)
		}
		return nil
	})
	return kind, err
}

// takeToolChoice reads who decides on calls.
func takeToolChoice(d *decoding, raw []byte) error {
	const field = "tool_choice"
	d.echo.toolChoice = raw
	if api.KindOf(raw) == '"' {
		return d.toolMode(field, raw, "an object that names a tool", "none")
	}
	if api.KindOf(raw) != '{' {
		return api.WrongType(field, "\"auto\", \"none\", \"required\" or an object", raw)
	}
	if err := api.CheckStrict(field, raw); err != nil {
		return err
	}
	kind, err := typeOf(field, raw)
	if err != nil {
		return err
	}
	switch kind {
	case "function":
		err = d.namedTool(raw)
	case "allowed_tools":
		err = d.allowedTools(raw)
	case "":
		return infer.Invalid(field+".type", "tool_choice.type is required: send \"function\" or \"allowed_tools\"")
	default:
		return &infer.Error{Code: infer.CodeUnsupported, Param: field + ".type",
			Message: fmt.Sprintf("tool_choice.type %q forces a tool that %s cannot run; send \"function\", \"allowed_tools\", or \"auto\" alone", api.Clip(kind, 32), d.Carrier())}
	}
	return err
}

// toolMode reads auto, required and, where it may be, another word.
func (d *decoding) toolMode(path string, raw []byte, or, none string) error {
	word, err := api.StringOf(path, raw)
	switch {
	case err != nil:
		return err
	case word == "auto":
	case word == "required":
		d.ForcedAny = true
	case word == none && none != "":
		d.NoTools = true
	case none == "":
		return infer.Invalid(path, "%s must be \"auto\" or \"required\", found %q", path, api.Clip(word, 32))
	default:
		return infer.Invalid(path, "%s must be \"auto\", \"none\", \"required\" or %s, found %q", path, or, api.Clip(word, 32))
	}
	return nil
}

// namedTool reads {"type": "function", "name": NAME}.
func (d *decoding) namedTool(raw []byte) error {
	err := api.EachMember(raw, func(name string, value []byte) (err error) {
		switch name {
		case "type":
		case "name":
			d.ForcedTool, err = api.StringOf("tool_choice.name", value)
		default:
			return d.UnknownMember("tool_choice."+api.Clip(name, 64), "type", "name", "mode", "tools")
		}
		return err
	})
	if err == nil && d.ForcedTool == "" {
		return infer.Invalid("tool_choice.name", "tool_choice.name is required: name the function to call")
	}
	return err
}

// allowedTools reads {"type": "allowed_tools", "mode": ..., "tools": [...]}. The
// model is told of no others.
func (d *decoding) allowedTools(raw []byte) error {
	const field = "tool_choice.tools"
	var mode bool
	err := api.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type":
		case "mode":
			mode = true
			return d.toolMode("tool_choice.mode", value, "", "")
		case "tools":
			if api.KindOf(value) != '[' {
				return api.WrongType(field, "an array", value)
			}
			d.allowed = []string{}
			return api.EachItem(value, func(i int, item []byte) error {
				if i == maxTools {
					return infer.Invalid(field, "%s may name at most %d tools", field, maxTools)
				}
				return d.allowedTool(fmt.Sprintf("%s[%d]", field, i), item)
			})
		default:
			return d.UnknownMember("tool_choice."+api.Clip(name, 64), "type", "name", "mode", "tools")
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !mode:
		return infer.Invalid("tool_choice.mode", "tool_choice.mode is required: send \"auto\" or \"required\"")
	case len(d.allowed) == 0 && !d.allowedAny:
		return infer.Invalid(field, "tool_choice.tools is required: name at least one of tools")
	}
	return nil
}

func (d *decoding) allowedTool(path string, raw []byte) error {
	if api.KindOf(raw) != '{' {
		return api.WrongType(path, "an object", raw)
	}
	var kind, tool string
	err := api.EachMember(raw, func(name string, value []byte) (err error) {
		switch at := path + "." + api.Clip(name, 64); name {
		case "type":
			kind, err = api.StringOf(at, value)
		case "name":
			tool, err = api.StringOf(at, value)
		case "server_label":
		default:
			return d.UnknownMember(at, "type", "name")
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case kind != "function" && kind != "" && inner("tools[] "+kind) != nil: // it was left out, if it was there
		d.allowedAny = true
		return nil
	case kind != "function":
		return infer.Invalid(path+".type", "%s.type must be \"function\", found %q", path, api.Clip(kind, 32))
	case tool == "":
		return infer.Invalid(path+".name", "%s.name is required", path)
	}
	d.allowed = append(d.allowed, tool)
	return nil
}

// finishTools says which of the tools the model may call, and whether it must.
func (d *decoding) finishTools() error {
	const field = "tool_choice"
	d.echo.tools = d.tools
	has := func(name string) bool {
		return slices.ContainsFunc(d.tools, func(t tool) bool { return t.Name == name })
	}
	for i, name := range d.allowed {
		if !has(name) {
			path := fmt.Sprintf("%s.tools[%d].name", field, i)
			return infer.Invalid(path, "%s is %q, which is none of tools", path, api.Clip(name, 64))
		}
	}
	if d.allowed != nil {
		d.tools = slices.DeleteFunc(slices.Clone(d.tools), func(t tool) bool { return !slices.Contains(d.allowed, t.Name) })
	}
	if len(d.tools) > 0 {
		d.Tools = appendChatTools(nil, d.tools)
	}
	for _, t := range d.tools {
		d.Declared = append(d.Declared, t.Tool)
	}
	d.echo.strict = d.ForcedAny || d.ForcedTool != ""
	return d.FinishTools("tool_choice.name", "", strictTool)
}

// appendChatTools appends the tools as chat templates take them.
func appendChatTools(dst []byte, tools []tool) []byte {
	dst = append(dst, '[')
	for i := range tools {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"type":"function","function":{`...)
		dst = append(tools[i].appendMembers(dst), `}}`...)
	}
	return append(dst, ']')
}

func (t *tool) appendMembers(dst []byte) []byte {
	dst = append(append(dst, `"name":`...), t.rawName...)
	if t.description != nil {
		dst = append(append(dst, `,"description":`...), t.description...)
	}
	if t.Parameters != nil {
		dst = append(append(dst, `,"parameters":`...), t.Parameters...)
	}
	return dst
}

func takeParallel(d *decoding, raw []byte) error {
	parallel, err := api.BoolOf("parallel_tool_calls", raw)
	d.SingleCall = !parallel
	return err
}
