package anthropic

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// maxTools bounds the tools of a request.
const maxTools = 1024

// takeTools checks the tools and writes them in the shape of chat templates.
func takeTools(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType("tools", "an array of tools", raw)
	}
	if err := d.CheckStrict("tools", raw); err != nil {
		return err
	}
	out := []byte{'['}
	err := dialect.EachItem(raw, func(i int, item []byte) error {
		if i == maxTools {
			return infer.Invalid("tools", "tools may hold at most %d tools", maxTools)
		}
		var err error
		out, err = d.tool(out, fmt.Sprintf("tools[%d]", i), item)
		return err
	})
	if err == nil && len(d.Declared) > 0 {
		d.Tools = append(out, ']')
	}
	return err
}

func (d *decoding) tool(out []byte, path string, raw []byte) ([]byte, error) {
	if dialect.KindOf(raw) != '{' {
		return nil, dialect.WrongType(path, "an object", raw)
	}
	var kind, name, description, schema, strict []byte
	var others [][2][]byte
	err := dialect.EachMember(raw, func(field string, value []byte) error {
		switch field {
		case "type":
			kind = value
		case "name":
			name = value
		case "description":
			description = value
		case "input_schema":
			schema = value
		default:
			others = append(others, [2][]byte{[]byte(field), value})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if kind != nil && dialect.KindOf(kind) != 'n' {
		word, err := dialect.StringOf(path+".type", kind)
		if err != nil {
			return nil, err
		}
		switch {
		case word == "custom":
		case inner("tools[] "+word) != nil:
			d.leaveOut(inner("tools[] "+word).Name, word, name)
			return out, nil
		case d.Passes(path + ".type"):
			return out, nil
		default:
			return nil, d.UnknownType(path+".type", word, "only tools of type \"custom\" are", toolTypes...)
		}
	}
	holds := false
	for _, f := range others {
		switch string(f[0]) {
		case "strict":
			if dialect.KindOf(f[1]) != 'n' {
				strict = f[1]
				if holds, err = dialect.BoolOf(path+".strict", f[1]); err != nil {
					return nil, err
				}
			}
			continue
		case "eager_input_streaming":
			continue
		}
		if err := d.within("tools[]."+string(f[0]), path+"."+dialect.Clip(string(f[0]), 64), f[1], toolMembers...); err != nil {
			return nil, err
		}
	}
	if name == nil {
		return nil, infer.Invalid(path+".name", "%s.name is required", path)
	}
	word, err := dialect.StringOf(path+".name", name)
	switch {
	case err != nil:
		return nil, err
	case !dialect.ToolName(word):
		return nil, infer.Invalid(path+".name", "%s.name is %q; a name has 1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes", path, dialect.Clip(word, 64))
	case slices.ContainsFunc(d.Declared, func(t dialect.Tool) bool { return t.Name == word }):
		return nil, infer.Invalid(path+".name", "%s.name %q is the name of two tools", path, word)
	case description != nil && dialect.KindOf(description) != '"' && dialect.KindOf(description) != 'n':
		return nil, dialect.WrongType(path+".description", "a string", description)
	case schema == nil:
		return nil, infer.Invalid(path+".input_schema", "%s.input_schema is required: send a JSON Schema of type object", path)
	case dialect.KindOf(schema) != '{':
		return nil, dialect.WrongType(path+".input_schema", "a JSON Schema, which is an object", schema)
	}
	d.Declared = append(d.Declared, dialect.Tool{Name: word, Parameters: schema, Strict: holds})
	if len(d.Declared) > 1 {
		out = append(out, ',')
	}
	out = append(append(out, `{"type":"function","function":{"name":`...), name...)
	if description != nil && dialect.KindOf(description) == '"' {
		out = append(append(out, `,"description":`...), description...)
	}
	out = append(append(out, `,"parameters":`...), schema...)
	if strict != nil { // a template that writes a function as it is writes this too, as in chats
		out = append(append(out, `,"strict":`...), strict...)
	}
	return append(out, `}}`...), nil
}

// toolMembers are the names that a member of a tool may have.
var toolMembers = func() (names []string) {
	for i := range innerFields {
		if name, ok := strings.CutPrefix(innerFields[i].Name, "tools[]."); ok {
			names = append(names, name)
		}
	}
	return names
}()

// leaveOut notes a tool that is not the caller's, by its name and its type.
func (d *decoding) leaveOut(field, kind string, name []byte) {
	if dialect.KindOf(name) == '"' {
		kind = dialect.NameOf(name)
	}
	d.LeaveOutTool(field, kind)
}

// takeToolChoice reads who decides on calls.
func takeToolChoice(d *decoding, raw []byte) error {
	const field = "tool_choice"
	var kind, name string
	err := object(field, raw, func(member string, value []byte) (err error) {
		path := field + "." + dialect.Clip(member, 64)
		switch member {
		case "type":
			kind, err = dialect.StringOf(path, value)
		case "name":
			name, err = dialect.StringOf(path, value)
		case "disable_parallel_tool_use":
			if dialect.KindOf(value) != 'n' {
				d.SingleCall, err = dialect.BoolOf(path, value)
			}
		default:
			return d.UnknownMember(path, "type", "name", "disable_parallel_tool_use")
		}
		return err
	})
	if err != nil {
		return err
	}
	if name != "" && kind != "tool" && kind != "" {
		return infer.Invalid(field+".name", "tool_choice.name belongs to the type \"tool\"; leave it out")
	}
	switch kind {
	case "auto":
		return nil
	case "none":
		d.NoTools = true
		return nil
	case "any":
		d.ForcedAny = true
	case "tool":
		if d.ForcedTool = name; name == "" {
			return infer.Invalid(field+".name", "tool_choice.name is required with the type \"tool\"")
		}
	case "":
		return infer.Invalid(field+".type", "tool_choice.type is required: send auto, any, tool or none")
	default:
		return infer.Invalid(field+".type", "tool_choice.type must be auto, any, tool or none, found %q", dialect.Clip(kind, 32))
	}
	return nil
}
