package prepare

import (
	"errors"
	"strings"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/model/chat"
)

// checkFields refuses fields that only the model's folder can show to be invalid.
func (p *preparing) checkFields() error {
	if err := p.checkNamedIDs(); err != nil {
		return err
	}
	if err := p.checkNeeds(); err != nil {
		return err
	}
	return p.checkTools()
}

// checkTools leaves out tools of which the chat template does not tell the model, unless an
// engine can be given the request as it came.
func (p *preparing) checkTools() error {
	if p.Request.Tools == nil {
		return nil
	}
	forced := p.Request.ForcedAny || p.Request.ForcedTool != ""
	refuse := func(field, format string, args ...any) error {
		e := infer.Errorf(infer.CodeUnsupported, format, args...)
		e.Param = field
		return e
	}
	switch told := p.Folder.Templates.Tools(); {
	case told == chat.ToolsIgnored && forced:
		return refuse("tool_choice", "tool_choice wants a tool to be called, and the chat template of model %s has no place for tools; send \"auto\", or use a model whose template has one", p.to.Model.Name)
	case told == chat.ToolsIgnored && p.to.Needs.HasBytes():
		return refuse("tools", "tools: the chat template of model %s has no place for tools", p.to.Model.Name)
	case told == chat.ToolsIgnored:
		p.Request.Tools = nil
		p.Request.Ignore("tools")
	case !forced && p.Folder.Format.Tools() == "":
		return refuse("tools", "tools: how model %s writes calls is not known from its folder; leave them out, or name it with --model ...,tool-parser=NAME", p.to.Model.Name)
	}
	return nil
}

// checkNeeds refuses what no engine of the model carries that takes ids, so far as the fields
// by themselves did not show it.
func (p *preparing) checkNeeds() error {
	p.to.Needs.IDs = p.Request.Needs()
	if lacks := p.to.Needs.IDs &^ p.to.Model.ByIDs.Carries; lacks != 0 {
		names, field := p.Request.Fields, lacks.String()
		switch {
		case lacks&infer.CarriesMinTokens != 0:
			lacks, field = infer.CarriesMinTokens, names.MinTokens
		case lacks&infer.CarriesSeed != 0:
			lacks, field = infer.CarriesSeed, names.Seed
		}
		e := infer.Errorf(infer.CodeUnsupported, "%s is not supported by engine kind %q; leave it out", field, p.to.Model.ByIDs.Kind)
		e.Param, e.Lacks = field, lacks
		return p.explain(e)
	}
	return nil
}

// checkAsks refuses what every relayed engine of the model is known to lose. All else
// passes as it came.
func (p *preparing) checkAsks() error {
	e, ok := p.in.Endpoint.(dialect.Judged)
	if !ok {
		return nil
	}
	asks := e.Asks()
	p.to.Needs.Bytes = p.Head.Needs(asks)
	if lacks := p.to.Needs.Bytes &^ p.to.Model.Relayed.Carries; lacks != 0 {
		path, lacks := p.Head.Asking(asks, lacks)
		e := dialect.Unsupported(path, "model "+p.to.Model.Name, nil)
		e.Lacks = lacks
		return p.explain(e)
	}
	return nil
}

// checkAlone refuses what only several engines would carry between them.
func (p *preparing) checkAlone() error {
	if !p.to.Model.Alone(p.to.Needs) {
		return infer.Errorf(infer.CodeUnsupported, "the request needs %s, and no engine of model %s carries all of it, though each is carried by some; ask for less at once", p.to.Needs, p.to.Model.Name)
	}
	return nil
}

// explain adds to a refusal why the engines do not carry what they would have to.
func (p *preparing) explain(err error) error {
	var refused *infer.Error
	if !errors.As(err, &refused) || refused.Lacks == 0 {
		return err
	}
	reasons := p.to.Model.Why(refused.Lacks)
	if len(reasons) == 0 {
		return err
	}
	explained := *refused
	explained.Message += " (the engine " + strings.Join(reasons, "; another ") + ")"
	return &explained
}
