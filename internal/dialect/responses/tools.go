package responses

import (
	"fmt"
	"slices"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// maxTools bounds the tools of a request.
const maxTools = 1024

// tool is a function as the request has it, which the model calls by dialect.Tool's Name. Its
// parts are raw JSON, nil where they were not sent.
type tool struct {
	dialect.Tool
	rawName, description []byte
	strict               []byte
	space                *namespace // nil for a function in none
	custom               bool       // it takes free text (custom.go)
	format               []byte     // of a custom tool
}

func takeTools(d *decoding, raw []byte) error {
	if err := d.CheckStrict("tools", raw); err != nil {
		return err
	}
	s := toolSet{d: d, seen: map[string]bool{}}
	return s.takeAll("tools", raw, nil)
}

// toolSet adds tools to a request.
type toolSet struct {
	d     *decoding
	seen  map[string]bool // the names by which the model calls them
	count int             // those left out among them
}

// takeAll reads the tools of a request, or those of one of its namespaces.
func (s *toolSet) takeAll(field string, raw []byte, space *namespace) error {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType(field, "an array of tools", raw)
	}
	return dialect.EachItem(raw, func(i int, item []byte) error {
		if s.count++; s.count > maxTools {
			return infer.Invalid(field, "tools may hold at most %d tools, those in namespaces counted", maxTools)
		}
		return s.take(fmt.Sprintf("%s[%d]", field, i), item, space)
	})
}

// take reads one tool, its type first: the other fields of a tool that is not a
// function are none of ours to name.
func (s *toolSet) take(path string, raw []byte, space *namespace) error {
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(path, "an object", raw)
	}
	kind, err := typeOf(path, raw)
	if err != nil {
		return err
	}
	row := inner(space.row() + " " + kind)
	switch {
	case kind == "":
		return infer.Invalid(path+".type", "%s.type is required: send \"function\"", path)
	case kind == "function", kind == "custom" && space == nil:
		t, grammar, err := s.d.function(path, raw, space, kind == "custom")
		switch {
		case err != nil:
			return err
		case grammar:
			s.d.leaveOut(grammarTool, kind, raw)
			return nil
		case s.seen[t.Name]:
			return infer.Invalid(path+".name", "%s.name: %q is the name of two tools", path, t.Name)
		}
		s.seen[t.Name] = true
		s.d.tools = append(s.d.tools, t)
	case kind == "namespace" && space == nil:
		return s.namespace(path, raw)
	case row != nil:
		s.d.leaveOut(row.Name, kind, raw)
	case s.d.Passes(path + ".type"):
	default:
		return s.d.UnknownType(path+".type", kind, "only tools of type \"function\" are, which the caller runs itself", toolTypes...)
	}
	return nil
}

// function reads a tool that the caller runs; grammar reports that it is a custom one whose text
// is to match a grammar.
func (d *decoding) function(path string, raw []byte, space *namespace, custom bool) (t tool, grammar bool, err error) {
	t.space, t.custom = space, custom
	known := functionMembers
	if custom {
		known, t.Parameters = customMembers, []byte(customParameters)
	}
	err = dialect.EachMember(raw, func(name string, value []byte) error {
		at := path + "." + dialect.Clip(name, 64)
		isNull := dialect.KindOf(value) == 'n'
		if !slices.Contains(known, name) {
			if !isNull {
				return d.UnknownMember(at, known[:len(known)-2]...)
			}
			return nil
		}
		switch name {
		case "name":
			t.rawName = value
			t.Name, err = dialect.StringOf(at, value)
			return err
		case "description":
			if isNull {
				return nil
			}
			if dialect.KindOf(value) != '"' {
				return dialect.WrongType(at, "a string", value)
			}
			t.description = value
		case "parameters":
			if isNull {
				return nil
			}
			if dialect.KindOf(value) != '{' {
				return dialect.WrongType(at, "a JSON Schema, which is an object", value)
			}
			t.Parameters = value
		case "strict": // said back as false where nothing makes the model keep to the schema
			if !isNull {
				t.strict = value
				t.Strict, err = dialect.BoolOf(at, value)
				return err
			}
		case "format":
			if !isNull {
				t.format = value
				grammar, err = d.customFormat(at, value)
				return err
			}
		case "defer_loading", "async", "allowed_callers", "output_schema":
			return d.judge(space.row()+"."+name, at, value)
		}
		return nil
	})
	switch {
	case err != nil:
		return t, grammar, err
	case t.rawName == nil:
		return t, grammar, infer.Invalid(path+".name", "%s.name is required", path)
	case !dialect.ToolName(t.Name):
		return t, grammar, infer.Invalid(path+".name", "%s.name is %q; a name has 1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes", path, dialect.Clip(t.Name, 64))
	}
	t.Name = space.call(t.Name)
	return t, grammar, nil
}

// Members of tools that the caller runs; those of the last two are judged by their rows.
var (
	functionMembers = []string{"type", "name", "description", "parameters", "strict", "async", "output_schema", "defer_loading", "allowed_callers"}
	customMembers   = []string{"type", "name", "description", "format", "async", "defer_loading", "allowed_callers"}
)

// toolTypes are the types of tools that are known.
var toolTypes = dialect.ToolTypes(innerFields)

// leaveOut notes a tool that is no function, by the type by which a tool_choice may
// call it and by its name.
func (d *decoding) leaveOut(field, kind string, raw []byte) {
	d.LeaveOutTool(field, kind)
	_ = dialect.EachMember(raw, func(name string, value []byte) error {
		if name == "name" && dialect.KindOf(value) == '"' {
			d.LeaveOutTool(field, dialect.NameOf(value))
		}
		return nil
	})
}

// typeOf returns the type of an item, a part or a tool, empty when it has none.
func typeOf(path string, raw []byte) (kind string, err error) {
	err = dialect.EachMember(raw, func(name string, value []byte) (err error) {
		if name == "type" {
			if dialect.KindOf(value) != '"' {
				return dialect.WrongType(path+".type", "a string", value)
			}
			kind = dialect.NameOf(value)
		}
		return nil
	})
	return kind, err
}

// takeToolChoice reads who decides on calls.
func takeToolChoice(d *decoding, raw []byte) error {
	const field = "tool_choice"
	d.echo.toolChoice = raw
	if dialect.KindOf(raw) == '"' {
		return d.toolMode(field, raw, "an object that names a tool", "none")
	}
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(field, "\"auto\", \"none\", \"required\" or an object", raw)
	}
	if err := d.CheckStrict(field, raw); err != nil {
		return err
	}
	kind, err := typeOf(field, raw)
	if err != nil {
		return err
	}
	switch kind {
	case "function", "custom":
		d.forced, err = d.namedTool(field, raw)
	case "allowed_tools":
		err = d.allowedTools(raw)
	case "":
		return infer.Invalid(field+".type", "tool_choice.type is required: send \"function\" or \"allowed_tools\"")
	default:
		return &infer.Error{Code: infer.CodeUnsupported, Param: field + ".type",
			Message: fmt.Sprintf("tool_choice.type %q forces a tool that %s cannot run; send \"function\", \"allowed_tools\", or \"auto\" alone", dialect.Clip(kind, 32), d.Carrier())}
	}
	return err
}

// toolMode reads auto, required and, where it may be, another word.
func (d *decoding) toolMode(path string, raw []byte, or, none string) error {
	word, err := dialect.StringOf(path, raw)
	switch {
	case err != nil:
		return err
	case word == "auto":
	case word == "required":
		d.ForcedAny = true
	case word == none && none != "":
		d.NoTools = true
	case none == "":
		return infer.Invalid(path, "%s must be \"auto\" or \"required\", found %q", path, dialect.Clip(word, 32))
	default:
		return infer.Invalid(path, "%s must be \"auto\", \"none\", \"required\" or %s, found %q", path, or, dialect.Clip(word, 32))
	}
	return nil
}

// namedTool reads {"type": "function", "name": NAME}, maybe with a namespace beside it.
func (d *decoding) namedTool(path string, raw []byte) (n named, err error) {
	err = dialect.EachMember(raw, func(name string, value []byte) (err error) {
		switch at := path + "." + dialect.Clip(name, 64); name {
		case "type":
		case "name":
			n.name, err = dialect.StringOf(at, value)
		case "namespace":
			n.space, err = wordOf(at, value)
		default:
			return d.UnknownMember(at, "type", "name", "namespace", "mode", "tools")
		}
		return err
	})
	if err == nil && n.name == "" {
		err = infer.Invalid(path+".name", "%s.name is required: name the function to call", path)
	}
	return n, err
}

// allowedTools reads {"type": "allowed_tools", "mode": ..., "tools": [...]}. The
// model is told of no others.
func (d *decoding) allowedTools(raw []byte) error {
	const field = "tool_choice.tools"
	var mode bool
	err := dialect.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type":
		case "mode":
			mode = true
			return d.toolMode("tool_choice.mode", value, "", "")
		case "tools":
			if dialect.KindOf(value) != '[' {
				return dialect.WrongType(field, "an array", value)
			}
			d.allowed = []named{}
			return dialect.EachItem(value, func(i int, item []byte) error {
				if i == maxTools {
					return infer.Invalid(field, "%s may name at most %d tools", field, maxTools)
				}
				return d.allowedTool(fmt.Sprintf("%s[%d]", field, i), item)
			})
		default:
			return d.UnknownMember("tool_choice."+dialect.Clip(name, 64), "type", "name", "mode", "tools")
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

// allowedTool reads one of the tools that may be called. Those of a type that is left out
// are not looked at.
func (d *decoding) allowedTool(path string, raw []byte) error {
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(path, "an object", raw)
	}
	kind, err := typeOf(path, raw)
	switch {
	case err != nil:
		return err
	case kind == "function", kind == "custom":
		n, err := d.namedTool(path, raw)
		n.custom = kind == "custom"
		d.allowed = append(d.allowed, n)
		return err
	case kind == "namespace":
		n, err := d.namedTool(path, raw)
		d.allowed = append(d.allowed, named{space: n.name})
		return err
	case kind != "" && inner("tools[] "+kind) != nil:
		d.allowedAny = true
		return nil
	}
	if kind == "" {
		return infer.Invalid(path+".type", "%s.type is required: send \"function\"", path)
	}
	return infer.Invalid(path+".type", "%s.type must be \"function\" or \"namespace\", found %q", path, dialect.Clip(kind, 32))
}

// finishTools reports which of the tools the model may call, and whether it must.
func (d *decoding) finishTools() error {
	const field = "tool_choice"
	d.echo.tools = d.tools
	if d.forced.name != "" {
		at, err := d.find(field+".name", d.forced)
		if err != nil {
			return err
		}
		d.ForcedTool = d.forced.name
		if at >= 0 {
			d.ForcedTool = d.tools[at].Name
		}
	}
	if d.allowed != nil {
		if err := d.keepAllowed(field + ".tools"); err != nil {
			return err
		}
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

// keepAllowed leaves of the tools those that may be called.
func (d *decoding) keepAllowed(field string) error {
	keep := make([]bool, len(d.tools))
	for i, n := range d.allowed {
		path := fmt.Sprintf("%s[%d].name", field, i)
		if n.name != "" {
			at, err := d.find(path, n)
			switch {
			case err != nil:
				return err
			case at < 0 && n.custom: // it was left out
				continue
			case at < 0:
				return infer.Invalid(path, "%s is %q, which is not in tools", path, dialect.Clip(n.name, 64))
			}
			keep[at] = true
			continue
		}
		has := false
		for at, t := range d.tools {
			if t.space != nil && t.space.name == n.space {
				keep[at], has = true, true
			}
		}
		if !has {
			return infer.Invalid(path, "%s is %q, which is not a namespace with functions in tools", path, dialect.Clip(n.space, 64))
		}
	}
	var kept []tool
	for at, t := range d.tools {
		if keep[at] {
			kept = append(kept, t)
		}
	}
	d.tools = kept
	return nil
}

// appendChatTools appends the tools as chat templates take them.
func appendChatTools(dst []byte, tools []tool) []byte {
	dst = append(dst, '[')
	var space *namespace
	for i := range tools {
		if i > 0 {
			dst = append(dst, ',')
		}
		t := tools[i]
		if t.space != nil {
			t.rawName = dialect.AppendString(nil, t.Name)
		}
		if t.space != space && t.space != nil {
			t.description = t.space.before(t.description)
		}
		space = t.space
		dst = append(dst, `{"type":"function","function":{`...)
		dst = t.appendMembers(dst)
		if t.strict != nil { // a template that writes a function as it is writes this too, as in chats
			dst = append(append(dst, `,"strict":`...), t.strict...)
		}
		dst = append(dst, `}}`...)
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
	parallel, err := dialect.BoolOf("parallel_tool_calls", raw)
	d.SingleCall = !parallel
	return err
}
