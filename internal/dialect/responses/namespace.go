package responses

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// namespace groups functions under a name. Chat templates and engines know no namespaces, so
// the model is shown each function by both names joined, as vLLM shows it, and an answer's
// calls have the two apart again, by which the caller knows the function. A nil namespace is
// that of the functions in none.
type namespace struct {
	name                 string
	rawName, description []byte // as they came; nil for no description
}

// namespaceMark stands between the names of a namespace and of a function in it.
const namespaceMark = "__"

// call returns the name by which the model calls a function in the namespace.
func (n *namespace) call(function string) string {
	if n == nil {
		return function
	}
	return n.name + namespaceMark + function
}

// row returns the path of the namespace's tools in the table.
func (n *namespace) row() string {
	if n == nil {
		return "tools[]"
	}
	return "tools[].tools[]"
}

// before puts the namespace's description before that of a function, a raw string or nil:
// the model is told it with the first function.
func (n *namespace) before(description []byte) []byte {
	switch {
	case n.description == nil || len(n.description) == len(`""`):
		return description
	case description == nil || len(description) == len(`""`):
		return n.description
	}
	return slices.Concat(n.description[:len(n.description)-1], []byte(`\n\n`), description[1:])
}

// namespace reads a tool that is a namespace, and the tools in it.
func (s *toolSet) namespace(path string, raw []byte) error {
	var n namespace
	var tools []byte
	err := dialect.EachMember(raw, func(name string, value []byte) (err error) {
		at := path + "." + dialect.Clip(name, 64)
		switch name {
		case "type":
		case "name":
			n.rawName = value
			n.name, err = dialect.StringOf(at, value)
		case "description":
			switch dialect.KindOf(value) {
			case 'n':
			case '"':
				n.description = value
			default:
				err = dialect.WrongType(at, "a string", value)
			}
		case "tools":
			tools = value
		case "defer_loading":
			err = s.d.judge(deferLoading, at, value)
		default:
			if dialect.KindOf(value) != 'n' {
				err = s.d.UnknownMember(at, "type", "name", "description", "tools")
			}
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case n.rawName == nil:
		return infer.Invalid(path+".name", "%s.name is required", path)
	case !dialect.ToolName(n.name):
		return infer.Invalid(path+".name", "%s.name is %q; a name has 1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes", path, dialect.Clip(n.name, 64))
	case tools == nil:
		return infer.Invalid(path+".tools", "%s.tools is required: send the functions of the namespace", path)
	}
	return s.takeAll(path+".tools", tools, &n)
}

// named is a tool as tool_choice names it: a function, which may be in a namespace, or with
// an empty name all functions of a namespace.
type named struct {
	space, name string
	custom      bool // it takes free text
}

// find returns the place of a function among the tools, or -1. One in a namespace is found by
// both names, by the two joined, and by its own where no other function has that.
func (d *decoding) find(path string, n named) (int, error) {
	if n.space != "" {
		want := (&namespace{name: n.space}).call(n.name)
		at := slices.IndexFunc(d.tools, func(t tool) bool { return t.space != nil && t.space.name == n.space && t.Name == want })
		if at < 0 {
			return at, infer.Invalid(path, "%s is %q, which the namespace %q in tools does not have", path, dialect.Clip(n.name, 64), dialect.Clip(n.space, 64))
		}
		return at, nil
	}
	if at := slices.IndexFunc(d.tools, func(t tool) bool { return t.Name == n.name }); at >= 0 {
		return at, nil
	}
	at := -1
	var in []string
	for i, t := range d.tools {
		if t.space != nil && t.Name == t.space.call(n.name) {
			at, in = i, append(in, t.space.name)
		}
	}
	if len(in) > 1 {
		return at, infer.Invalid(path, "%s is %q, a function in the namespaces %s; send namespace with it", path, dialect.Clip(n.name, 64), strings.Join(in[:min(len(in), 8)], ", "))
	}
	return at, nil
}

// known is what the caller knows a tool by.
type known struct {
	namespace, name string
	custom          bool // a call has a text, not arguments
}

// knownBy returns what the caller knows those tools by that the model knows as something else:
// functions in namespaces, and custom tools. It is nil where there are none.
func knownBy(tools []tool) (all map[string]known) {
	for i := range tools {
		t := &tools[i]
		k := known{name: t.Name, custom: t.custom}
		if t.space != nil {
			k.namespace, k.name = t.space.name, strings.TrimPrefix(t.Name, t.space.call(""))
		} else if !t.custom {
			continue
		}
		if all == nil {
			all = map[string]known{}
		}
		all[t.Name] = k
	}
	return all
}

// joined returns the raw name by which the model called a function of an earlier answer.
func joined(space, name []byte) []byte {
	if len(space) <= len(`""`) || dialect.KindOf(space) != '"' {
		return name
	}
	return fmt.Appendf(nil, "\"%s%s%s\"", inside(space), namespaceMark, inside(name))
}
