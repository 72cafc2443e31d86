package gateway

import (
	"errors"
	"slices"
	"strings"

	"weir/internal/dialect"
	"weir/internal/fleet/route"
	"weir/internal/gateway/footprint"
	"weir/internal/infer"
	"weir/internal/model/chat"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// gate is stage 2, the refusals that cost nothing: unknown model, a field that no engine of the
// model carries, too much in flight. It reserves an estimate, which tokenize settles.
func (p *preparing) gate() error {
	if err := p.findModel(); err != nil {
		return err
	}
	p.rec.Known()
	p.folder = p.g.Folder(p.model)
	if err := p.g.checkPath(p.model, p.endpoint, p.path); err != nil {
		return err
	}
	if err := p.isolate(); err != nil {
		return err
	}
	p.needs = p.g.forms(p.model, p.endpoint)
	if err := p.refuseEarly(); err != nil {
		return err
	}
	estimate, err := p.gateForms()
	if err != nil {
		return err
	}
	p.reservation, err = p.g.gate.Enter(p.caller, p.rec.Arrival, estimate)
	return err
}

// gateForms is the gate for each form in which engines of the model take the request. It gives
// an estimate of its tokens.
func (p *preparing) gateForms() (estimate int64, err error) {
	switch ids, bytes := p.needs.HasIDs(), p.needs.HasBytes(); {
	case asksTokenizer(p.endpoint) && ids:
		return 0, p.tokenization.decode(p) // no engine generates any
	case ids && bytes:
		return p.gateBoth()
	case ids:
		estimate, err = p.gateIDs()
	default:
		estimate, err = p.gateBytes(&p.footprint)
	}
	if err != nil {
		return 0, err
	}
	return estimate, p.checkAlone()
}

// gateBoth keeps the forms in which engines can be given the request. It is refused where that
// is none of the two.
func (p *preparing) gateBoth() (estimate int64, err error) {
	f := new(footprint.Footprint)
	estimate, forIDs := p.gateIDs()
	if forIDs != nil && !p.ofForm(forIDs) {
		return 0, forIDs
	}
	relayed, forBytes := p.gateBytes(f)
	switch {
	case forIDs != nil && forBytes != nil:
		return 0, carriedByNone(forIDs, forBytes)
	case forIDs != nil:
		estimate, p.footprint.Bytes = relayed, f
		p.bind(forIDs)
	case forBytes != nil:
		p.needs.Bytes = infer.AnotherForm
	default:
		p.footprint.Bytes = f
	}
	return estimate, p.checkAlone()
}

// ofForm reports whether an error is about a form of the request: about what weir would
// have to understand of it to give an engine ids.
func (p *preparing) ofForm(err error) bool {
	switch infer.AsError(err).Code {
	case infer.CodeInvalid, infer.CodeUnsupported, infer.CodeContext:
		return p.needs.HasBytes()
	}
	return false
}

// bind makes a request of two forms a relayed one, because its ids could not be made.
func (p *preparing) bind(err error) {
	p.noIDs, p.needs.IDs = infer.AsError(err), infer.AnotherForm
	p.footprint = *p.footprint.Bytes
	p.req, p.stops, p.format, p.ids, p.more, p.hasMedia, p.toContext = nil, nil, nil, nil, nil, false, false
}

// carriedByNone refuses a request that neither engines which take ids can be given nor those
// that are relayed.
func carriedByNone(forIDs, forBytes error) error {
	e, other := *infer.AsError(forIDs), infer.AsError(forBytes)
	if e.Message != other.Message {
		e.Message += "; nor can it be relayed: " + other.Message
	}
	return &e
}

// gateBytes is the gate for engines that receive the caller's own bytes. It stores the
// request's footprint in their books in f.
func (p *preparing) gateBytes(f *footprint.Footprint) (estimate int64, err error) {
	if err := p.g.opts.Prepare.Allow.CheckRelayed(p.plain, p.header); err != nil {
		return 0, err
	}
	if err := p.checkSalted(); err != nil {
		return 0, err
	}
	if err := p.capRelayed(); err != nil {
		return 0, err
	}
	if err := p.checkAsks(); err != nil {
		return 0, err
	}
	estimate = int64(len(p.body) / 4)
	p.footprintOfBody(f)
	return estimate, p.checkPrompt("", int(estimate))
}

// gateIDs is the gate for engines that take ids.
func (p *preparing) gateIDs() (estimate int64, err error) {
	if err := p.decodeFields(); err != nil {
		return 0, err
	}
	if err := p.g.opts.Prepare.Allow.CheckDecoded(p.plain, p.req); err != nil {
		return 0, err
	}
	if err := p.checkCap(); err != nil {
		return 0, err
	}
	if err := p.checkSizes(); err != nil {
		return 0, err
	}
	if err := p.checkFields(); err != nil {
		return 0, err
	}
	return int64(len(p.body)/4) + p.mediaEstimate() + int64(p.req.MaxTokens)*int64(max(1, p.req.N)*(1+len(p.req.MorePrompts))), nil
}

// refuseEarly refuses a request that would wait for an engine in vain, before the work.
func (p *preparing) refuseEarly() (err error) {
	if p.endpoint.Traits().Wants != dialect.Answer {
		return nil // no engine hears of it
	}
	if p.beginBy, err = beginBy(p.header, p.rec.Arrival, trace.Now); err != nil {
		return err
	}
	return p.g.held.early(p.caller, p.model, p.beginBy, int64(cap(p.body)), !p.dry)
}

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
	if p.req.Tools == nil {
		return nil
	}
	forced := p.req.ForcedAny || p.req.ForcedTool != ""
	refuse := func(field, format string, args ...any) error {
		e := infer.Errorf(infer.CodeUnsupported, format, args...)
		e.Param = field
		return e
	}
	switch told := p.folder.Templates.Tools(); {
	case told == chat.ToolsIgnored && forced:
		return refuse("tool_choice", "tool_choice wants a tool to be called, and the chat template of model %s has no place for tools; send \"auto\", or use a model whose template has one", p.model.Name)
	case told == chat.ToolsIgnored && p.needs.HasBytes():
		return refuse("tools", "tools: the chat template of model %s has no place for tools", p.model.Name)
	case told == chat.ToolsIgnored:
		p.req.Tools = nil
		p.req.Ignore("tools")
	case !forced && p.folder.Format.Tools() == "":
		return refuse("tools", "tools: how model %s writes calls is not known from its folder; leave them out, or name it with --model ...,tool-parser=NAME", p.model.Name)
	}
	return nil
}

// checkNeeds refuses what no engine of the model carries that takes ids, so far as the fields
// by themselves did not show it.
func (p *preparing) checkNeeds() error {
	p.needs.IDs = p.req.Needs()
	if lacks := p.needs.IDs &^ p.model.ByIDs.Carries; lacks != 0 {
		names, field := p.req.Fields, lacks.String()
		switch {
		case lacks&infer.CarriesMinTokens != 0:
			lacks, field = infer.CarriesMinTokens, names.MinTokens
		case lacks&infer.CarriesSeed != 0:
			lacks, field = infer.CarriesSeed, names.Seed
		}
		e := infer.Errorf(infer.CodeUnsupported, "%s is not supported by engine kind %q; leave it out", field, p.model.ByIDs.Kind)
		e.Param, e.Lacks = field, lacks
		return p.explain(e)
	}
	return nil
}

// checkAsks refuses what every relayed engine of the model is known to lose. All else
// passes as it came.
func (p *preparing) checkAsks() error {
	e, ok := p.endpoint.(dialect.Judged)
	if !ok {
		return nil
	}
	asks := e.Asks()
	p.needs.Bytes = p.head.Needs(asks)
	if lacks := p.needs.Bytes &^ p.model.Relayed.Carries; lacks != 0 {
		path, lacks := p.head.Asking(asks, lacks)
		e := dialect.Unsupported(path, "model "+p.model.Name, nil)
		e.Lacks = lacks
		return p.explain(e)
	}
	return nil
}

// checkAlone refuses what only several engines would carry between them.
func (p *preparing) checkAlone() error {
	if !p.model.Alone(p.needs) {
		return infer.Errorf(infer.CodeUnsupported, "the request needs %s, and no engine of model %s carries all of it, though each is carried by some; ask for less at once", p.needs, p.model.Name)
	}
	return nil
}

// explain adds to a refusal why the engines do not carry what they would have to.
func (p *preparing) explain(err error) error {
	var refused *infer.Error
	if !errors.As(err, &refused) || refused.Lacks == 0 {
		return err
	}
	reasons := p.model.Why(refused.Lacks)
	if len(reasons) == 0 {
		return err
	}
	explained := *refused
	explained.Message += " (the engine " + strings.Join(reasons, "; another ") + ")"
	return &explained
}

// findModel finds, in the fleet of this moment, the model that the body names, or
// the only one.
func (p *preparing) findModel() error {
	p.fleet = p.g.opts.Snapshot()
	if p.head.Model == "" {
		name, err := onlyModel(p.fleet, p.caller)
		if err != nil {
			return err
		}
		p.head.Model = name
	}
	model, err := lookUp(p.fleet, p.head.Model, p.caller)
	if model != nil {
		p.model, p.rec.Model = model, model.Name
	}
	return err
}

// forms returns the forms in which a request for a model is prepared: ids for token engines,
// the caller's own bytes for relay engines, and both while no engine is known. Weir itself
// answers requests to a tokenizer if it has the model's tokenizer.
func (g *Gateway) forms(m *route.Model, e dialect.Endpoint) (needs route.Needs) {
	t, folder, unknown := e.Traits(), g.Folder(m) != nil, !m.Known()
	if !folder || !asksTokenizer(e) && (t.RelaysOnly || m.ByIDs.Kind == "" && !unknown) {
		needs.IDs = infer.AnotherForm
	}
	if folder && (asksTokenizer(e) || t.TokensOnly || m.Relayed.Kind == "" && !unknown) {
		needs.Bytes = infer.AnotherForm
	}
	return needs
}

// asksTokenizer reports whether an endpoint asks a model's tokenizer and no engine.
func asksTokenizer(e dialect.Endpoint) bool {
	wants := e.Traits().Wants
	return wants == dialect.TokenIDs || wants == dialect.Text
}

// checkPath refuses a path that is not served for a model.
func (g *Gateway) checkPath(m *route.Model, e dialect.Endpoint, path string) error {
	folder := g.Folder(m) != nil
	switch t := e.Traits(); {
	case asksTokenizer(e) && !folder && m.Relayed.Kind == "":
		e := infer.Errorf(infer.CodeUnsupported, "model %q has no tokenizer here; give its folder with --model %s=DIR", m.Name, m.Name)
		e.Param = "model"
		return e
	case t.TokensOnly && (!folder || m.ByIDs.Kind == "" && m.Relayed.Kind != ""):
		return infer.Errorf(infer.CodeUnsupported, "%s is not served by engine kind %s, which is relayed; it is by those that take ids: weir, vllm-core, sglang-ipc, and sglang or vllm for a server of theirs (--engine sglang=URL, --engine vllm=URL)",
			path, m.Relayed.Kind)
	case t.RelaysOnly && folder && m.ByIDs.Kind != "" && m.Relayed.Kind == "":
		if g.services.meant(path) != "" {
			return g.services.nothingAt(path)
		}
		return infer.Errorf(infer.CodeNotFound, "%s is not served by engine kind %s, which takes ids and generates; it serves /v1/chat/completions, /v1/completions, /v1/messages and /v1/responses. "+
			"A server that has %s is one for --engine openai=URL", path, m.ByIDs.Kind, path)
	}
	return nil
}

// lookUp finds a model by its name. One that the caller may not use is not there for it. One that cannot be served comes with an error.
func lookUp(fleet *route.Snapshot, name string, c *tenancy.Caller) (*route.Model, error) {
	model := fleet.Models[name]
	if model == nil || !c.Uses(name, model.Name) {
		e := infer.Errorf(infer.CodeNotFound, "there is no model %q; %s", dialect.Clip(name, 128), servedModels(fleet, c))
		e.Param = "model"
		return nil, e
	}
	if model.Fault != "" {
		return model, infer.Errorf(infer.CodeUnavailable, "model %q cannot be served: its engine %s", model.Name, model.Fault)
	}
	return model, nil
}

// onlyModel returns the model for a body that names none: the only model that is
// served, not counting adapters.
func onlyModel(fleet *route.Snapshot, c *tenancy.Caller) (name string, err error) {
	switch models := served(fleet, c); len(models) {
	case 0:
		return "", infer.Errorf(infer.CodeUnavailable, "no engine has joined yet")
	case 1:
		return models[0].Name, nil
	}
	return "", infer.Invalid("model", "the body names no model, and there are several; add a field model: %s", servedModels(fleet, c))
}

// servedModels names the models that an engine has joined for and the caller may use.
func servedModels(snap *route.Snapshot, c *tenancy.Caller) string {
	names := slices.DeleteFunc(snap.Names(), func(name string) bool { return !snap.Models[name].Known() || !c.Uses(name, snap.Models[name].Name) })
	switch {
	case len(names) == 0:
		return "no engine has joined yet"
	case len(names) > 20:
		names = append(names[:20:20], "...")
	}
	return "the models here are " + strings.Join(names, ", ")
}
