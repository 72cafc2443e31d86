package prepare

import (
	"slices"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// templateKwargs returns what the chat template gets besides the conversation: what the
// caller gave, and the variable by which the template knows how much the model is to
// reason.
func (p *preparing) templateKwargs() ([]byte, error) {
	given, effort, field := p.Request.ChatTemplateKwargs, p.Request.Effort, p.Request.Fields.Effort
	if effort == "" {
		return given, nil
	}
	if !p.Folder.KnowsEffort(effort) {
		return nil, infer.Invalid(field, "%s is %q; model %s knows low, medium and high", field, effort, p.to.Model.Name)
	}
	name, value := p.Folder.EffortVariable(effort)
	if name == "" {
		return nil, &infer.Error{Code: infer.CodeUnsupported, Param: field,
			Message: field + ": the chat template of model " + p.to.Model.Name + " has nothing by which it could be told how much to reason; leave it out"}
	}
	out := append(append(append(append([]byte(`{"`), name...), `":`...), value...), '}')
	if given == nil {
		return out, nil
	}
	out[len(out)-1] = ','
	none := true
	err := dialect.EachMember(given, func(other string, raw []byte) error {
		if none = false; other == name {
			return infer.Invalid(field, "%s and chat_template_kwargs.%s say the same thing; give one of them", field, name)
		}
		return nil
	})
	if none {
		out[len(out)-1] = '}'
		return out, err
	}
	i := 1 + slices.Index(given, '{')
	return append(out, given[i:]...), err
}
