package chat

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir/internal/infer"
	"weir/internal/model/chat/jinja"
)

// ErrNoTemplate means that a model has no chat template: such a model takes completions
// only.
var ErrNoTemplate = errors.New("the model has no chat template")

// ErrPassesOver means that a template would leave out what a conversation says.
var ErrPassesOver = errors.New("the chat template passes it over")

// Named is one template's source under its name.
type Named struct {
	Name, Source string
}

// Set is the named templates of one model. A nil Set is a model without one.
type Set struct {
	byName map[string]*Template
}

// ParseSet compiles a model's templates. A single template is named
// "default". The error names the template that does not parse; no template at
// all is ErrNoTemplate.
func ParseSet(templates []Named, o Options) (*Set, error) {
	if len(templates) == 0 {
		return nil, ErrNoTemplate
	}
	s := &Set{byName: map[string]*Template{}}
	for _, n := range templates {
		if _, ok := s.byName[n.Name]; ok {
			return nil, fmt.Errorf("chat template %q is given twice", n.Name)
		}
		t, err := Parse(n.Source, o)
		if err != nil {
			return nil, fmt.Errorf("chat template %q: %w", n.Name, err)
		}
		s.byName[n.Name] = t
	}
	return s, nil
}

// ParseConfig reads the chat_template entry of a tokenizer_config.json (a
// string, or a list of named templates). A missing or null entry gives no
// templates.
func ParseConfig(entry []byte) ([]Named, error) {
	if len(entry) == 0 {
		return nil, nil
	}
	v, err := jinja.DecodeJSON(entry)
	if err != nil {
		return nil, fmt.Errorf("chat_template: %w", err)
	}
	switch v := v.(type) {
	case jinja.Str:
		return []Named{{"default", string(v)}}, nil
	case *jinja.List:
		var out []Named
		for i, it := range v.Items {
			d, ok := it.(*jinja.Dict)
			if !ok {
				return nil, fmt.Errorf("chat_template[%d]: not an object", i)
			}
			name, _ := d.Get("name")
			source, _ := d.Get("template")
			n, ok := name.(jinja.Str)
			s, ok2 := source.(jinja.Str)
			if !ok || !ok2 {
				return nil, fmt.Errorf("chat_template[%d]: name and template must be strings", i)
			}
			out = append(out, Named{string(n), string(s)})
		}
		return out, nil
	}
	if v == jinja.None {
		return nil, nil
	}
	return nil, fmt.Errorf("chat_template: neither a string nor a list")
}

// Names returns the templates' names in order.
func (s *Set) Names() []string {
	if s == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(s.byName))
}

// Select returns the template of that name. With no name it is the one for tool use
// where the request has tools and there is such a template, else the default. The error
// is an *infer.Error.
func (s *Set) Select(name string, tools bool) (*Template, error) {
	if s == nil || len(s.byName) == 0 {
		return nil, &infer.Error{
			Code: infer.CodeInvalid, Param: "messages", Cause: ErrNoTemplate,
			Message: "the model has no chat template; send a prompt to /v1/completions instead",
		}
	}
	if name != "" {
		if t, ok := s.byName[name]; ok {
			return t, nil
		}
		return nil, infer.Invalid("chat_template", "the model has no chat template named %q; it has %s",
			name, strings.Join(s.Names(), ", "))
	}
	if t, ok := s.byName["tool_use"]; ok && tools {
		return t, nil
	}
	if t, ok := s.byName["default"]; ok {
		return t, nil
	}
	return nil, infer.Invalid("chat_template", "the model has several chat templates and no default; choose one of %s",
		strings.Join(s.Names(), ", "))
}

// Reads reports whether a variable's name stands in any of the templates, as it does in
// those that read the variable.
func (s *Set) Reads(variable string) bool {
	if s == nil {
		return false
	}
	for _, t := range s.byName {
		for rest := t.source; ; {
			before, after, found := strings.Cut(rest, variable)
			if !found {
				break
			}
			if !inName(before[max(0, len(before)-1):]) && !inName(after[:min(1, len(after))]) {
				return true
			}
			rest = after
		}
	}
	return false
}

// inName reports whether a byte, or none, is one of a name, or of the path to an
// attribute.
func inName(s string) bool {
	return s != "" && (s[0] == '_' || s[0] == '.' || '0' <= s[0] && s[0] <= '9' || 'a' <= s[0]|0x20 && s[0]|0x20 <= 'z')
}
