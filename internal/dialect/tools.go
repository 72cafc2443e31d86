package dialect

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// AnyObject is the schema of any JSON object.
const AnyObject = `{"type":"object"}`

// toolName is what APIs let a tool be called, and a little more: names of tools
// from elsewhere have dots and slashes.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_./:-]{1,128}$`)

// ToolName reports whether a tool may have the name.
func ToolName(name string) bool { return toolName.MatchString(name) }

// Tool is a tool that the model may call. Parameters is the JSON schema of its
// arguments; without it a call may hold any object.
type Tool struct {
	Name       string
	Parameters []byte
	Strict     bool // every call must match Parameters
}

// ToolTypes returns the types of tools that have a row in a table, named "tools[] TYPE". A star
// at the end of a type is omitted.
func ToolTypes(rows []Field) (types []string) {
	for i := range rows {
		if word, ok := strings.CutPrefix(rows[i].Name, "tools[] "); ok {
			types = append(types, strings.TrimSuffix(word, "*"))
		}
	}
	return types
}

// Schema returns the JSON schema of the tool's arguments.
func (f *Tool) Schema() string {
	if f.Parameters == nil {
		return AnyObject
	}
	return string(f.Parameters)
}

// forcedSchema returns the schema of an answer that is the call of ForcedTool, which
// the caller named at a place, or with ForcedAny calls of any of the tools.
func (r *Request) forcedSchema(tools []Tool, at string) (string, error) {
	if r.ForcedAny {
		return callsSchema(tools, r.SingleCall)
	}
	i := slices.IndexFunc(tools, func(t Tool) bool { return t.Name == r.ForcedTool })
	if i < 0 {
		return "", infer.Invalid(at, "%s is %q, which is not in tools", at, Clip(r.ForcedTool, 64))
	}
	return tools[i].Schema(), nil
}

// callsSchema is the schema of an array of calls, each an object with name and
// parameters; single bounds it to one. What the tools' schemas define for
// their own references moves to the root, where references point.
func callsSchema(tools []Tool, single bool) (string, error) {
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
func (f *Tool) hoist(b *strings.Builder, defs map[string]map[string]string) error {
	if f.Parameters == nil {
		b.WriteString(AnyObject)
		return nil
	}
	sep := byte('{')
	err := EachMember(f.Parameters, func(name string, value []byte) error {
		if known := defs[name]; known != nil && KindOf(value) == '{' {
			return EachMember(value, func(name string, value []byte) error {
				if other, ok := known[name]; ok && other != string(value) {
					return infer.Invalid("tools", "the parameters of two tools define %q differently, and tool_choice \"required\" puts them into one schema; rename one", Clip(name, 64))
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
