package chat

import (
	"bytes"
	"context"
	"errors"

	"weir/internal/infer"
	"weir/internal/model/chat/jinja"
)

// mediaParts are the parts of one kind in the messages of one role.
type mediaParts struct{ kind, role jinja.Str }

// checkMedia checks whether the prompt that a template rendered has placeholders for
// the parts that are not text.
//
// Engines' front ends guess from a template's source whether it handles parts, and
// silently drop them if it does not. Here the rendering decides: a template that
// handles the parts of a kind renders a different prompt without them, or with empty
// text in their place. A template that prints its message's content unchanged shows the
// Python or JSON form of a part.
func (t *Template) checkMedia(ctx context.Context, in *Input, f *form, prompt []byte) error {
	vars, _, err := in.variables(f, t.tmpl.Names)
	if err != nil {
		return err
	}
	for _, group := range groups(vars["messages"].(*jinja.List)) {
		for _, replace := range []bool{false, true} {
			vars, _, err := in.variables(f, t.tmpl.Names)
			if err != nil {
				return err
			}
			group.remove(vars["messages"].(*jinja.List), replace)
			without, err := t.render(ctx, nil, in, vars)
			var e *infer.Error
			switch {
			case errors.As(err, &e) && e.Code == infer.CodeInvalid:
				// It misses them, so it has seen them.
			case err != nil:
				return err
			case bytes.Equal(without, prompt):
				return cannotPlace(string(group.kind), "it passes over such parts in messages of role "+string(group.role))
			case group.printed(prompt) > group.printed(without):
				return cannotPlace(string(group.kind), "it prints the content of messages of role "+string(group.role)+" as it is")
			}
		}
	}
	return nil
}

func cannotPlace(kind, why string) *infer.Error {
	return infer.Invalid("messages", "the model's chat template cannot place %s input: %s; send text only, or use a model whose template takes it", kind, why)
}

// groups returns the kinds of parts besides text, by the role they come in.
func groups(messages *jinja.List) (all []mediaParts) {
	seen := map[mediaParts]bool{}
	for _, it := range messages.Items {
		m := it.(*jinja.Dict)
		role, _ := m.Get("role")
		eachPart(m, func(p *jinja.Dict) {
			kind, _ := p.Get("type")
			k, _ := kind.(jinja.Str)
			r, _ := role.(jinja.Str)
			if g := (mediaParts{k, r}); k != "text" && !seen[g] {
				seen[g] = true
				all = append(all, g)
			}
		})
	}
	return all
}

func eachPart(m *jinja.Dict, visit func(*jinja.Dict)) {
	v, _ := m.Get("content")
	if l, ok := v.(*jinja.List); ok {
		for _, p := range l.Items {
			if part, ok := p.(*jinja.Dict); ok {
				visit(part)
			}
		}
	}
}

// remove takes the parts out of the messages, or replaces them by empty texts.
func (g mediaParts) remove(messages *jinja.List, replace bool) {
	for _, it := range messages.Items {
		m := it.(*jinja.Dict)
		v, _ := m.Get("content")
		l, ok := v.(*jinja.List)
		if role, _ := m.Get("role"); !ok || role != g.role {
			continue
		}
		var rest []jinja.Value
		for _, it := range l.Items {
			part, isPart := it.(*jinja.Dict)
			switch {
			case !isPart || !g.holds(part):
				rest = append(rest, it)
			case replace:
				empty := jinja.NewDict(2)
				empty.Set("type", jinja.Str("text"))
				empty.Set("text", jinja.Str(""))
				rest = append(rest, empty)
			}
		}
		if m.Set("content", &jinja.List{Items: rest}); len(rest) == 0 {
			m.Set("content", jinja.Str(""))
		}
	}
}

func (g mediaParts) holds(part *jinja.Dict) bool {
	kind, _ := part.Get("type")
	return kind == g.kind
}

// printed counts the parts that stand in a text as they are.
func (g mediaParts) printed(text []byte) int {
	return bytes.Count(text, []byte("{'type': '"+g.kind+"'}")) + bytes.Count(text, []byte(`{"type": "`+g.kind+`"}`))
}
