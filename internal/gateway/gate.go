package gateway

import (
	"errors"
	"slices"
	"strings"

	"weir/internal/dialect"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/trace"
)

// gate is stage 2, the refusals that cost nothing: unknown model, a field the
// engine kind cannot carry, too much in flight. It reserves an estimate,
// which tokenize settles.
func (p *preparing) gate() error {
	if err := p.findModel(); err != nil {
		return err
	}
	knows(p.rec, &p.flight)
	p.folder, p.relayed = p.g.folder(p.model), p.g.relays(p.model, p.endpoint)
	if err := p.g.checkPath(p.model, p.endpoint, p.path, p.relayed); err != nil {
		return err
	}
	if err := p.refuseEarly(); err != nil {
		return err
	}
	estimate := int64(len(p.body) / 4)
	switch {
	case p.relayed:
		if err := p.g.opts.Allow.CheckRelayed(p.head, p.header); err != nil {
			return err
		}
		if err := p.capRelayed(); err != nil {
			return err
		}
		if err := p.checkAsks(); err != nil {
			return err
		}
		p.footprintOfBody()
	case asksTokenizer(p.endpoint):
		if err := p.tokenization.decode(p); err != nil {
			return err
		}
		estimate = 0 // no engine generates any
	default:
		if err := p.decodeFields(); err != nil {
			return err
		}
		if err := p.g.opts.Allow.CheckDecoded(p.head, p.req); err != nil {
			return err
		}
		if err := p.checkCap(); err != nil {
			return err
		}
		if err := p.checkSizes(); err != nil {
			return err
		}
		if err := p.checkFields(); err != nil {
			return err
		}
		estimate += p.mediaEstimate()
		estimate += int64(p.req.MaxTokens) * int64(max(1, p.req.N)*(1+len(p.req.MorePrompts)))
	}
	var err error
	p.reservation, err = p.g.gate.Enter(estimate)
	return err
}

// refuseEarly refuses a request that would wait for an engine in vain, before the work.
func (p *preparing) refuseEarly() (err error) {
	if p.endpoint.Traits().Wants != dialect.Answer {
		return nil // no engine hears of it
	}
	if p.beginBy, err = beginBy(p.header, p.rec.Arrival, trace.Now); err != nil {
		return err
	}
	return p.g.held.early(p.model, p.beginBy, int64(cap(p.body)), !p.dry)
}

// checkFields refuses what only the model's folder tells of.
func (p *preparing) checkFields() error {
	if err := p.checkNamedIDs(); err != nil {
		return err
	}
	if err := p.checkNeeds(); err != nil {
		return err
	}
	if p.req.Tools != nil && !p.req.ForcedAny && p.req.ForcedTool == "" && p.folder.Format.Tools() == "" {
		e := infer.Errorf(infer.CodeUnsupported, "tools: how model %s writes calls is not known from its folder; leave them out, or name it with --model ...,tool-parser=NAME", p.model.Name)
		e.Param = "tools"
		return e
	}
	return nil
}

// checkNeeds refuses what no engine of the model carries, so far as the fields by
// themselves did not show it, and what only several would carry between them.
func (p *preparing) checkNeeds() error {
	p.needs = p.req.Needs()
	if lacks := p.needs &^ p.model.Carries; lacks != 0 {
		names, field := p.req.Fields, lacks.String()
		switch {
		case lacks&infer.CarriesMinTokens != 0:
			lacks, field = infer.CarriesMinTokens, names.MinTokens
		case lacks&infer.CarriesSeed != 0:
			lacks, field = infer.CarriesSeed, names.Seed
		}
		e := infer.Errorf(infer.CodeUnsupported, "%s is not supported by engine kind %q; leave it out", field, p.model.Kind)
		e.Param, e.Lacks = field, lacks
		return p.explain(e)
	}
	return p.checkAlone()
}

// checkAsks refuses what every relayed engine of the model is known to lose. All else
// passes as it came.
func (p *preparing) checkAsks() error {
	e, ok := p.endpoint.(dialect.Judged)
	if !ok {
		return nil
	}
	asks := e.Asks()
	p.needs = p.head.Needs(asks)
	if lacks := p.needs &^ p.model.Carries; lacks != 0 {
		path, lacks := p.head.Asking(asks, lacks)
		e := dialect.Unsupported(path, "model "+p.model.Name, nil)
		e.Lacks = lacks
		return p.explain(e)
	}
	return p.checkAlone()
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
		name, err := onlyModel(p.fleet)
		if err != nil {
			return err
		}
		p.head.Model = name
	}
	model, err := lookUp(p.fleet, p.head.Model)
	if model != nil {
		p.model, p.rec.Model = model, model.Name
	}
	return err
}

// relays says that requests for a model are relayed. Endpoints that only ask a tokenizer
// are answered by weir itself where it has the model's.
func (g *Gateway) relays(m *route.Model, e dialect.Endpoint) bool {
	return g.folder(m) == nil || m.Relayed && !asksTokenizer(e)
}

// asksTokenizer says that an endpoint asks a model's tokenizer and no engine.
func asksTokenizer(e dialect.Endpoint) bool {
	wants := e.Traits().Wants
	return wants == dialect.TokenIDs || wants == dialect.Text
}

// checkPath refuses a path that is not served for a model. relayed is what relays
// says of the two.
func (g *Gateway) checkPath(m *route.Model, e dialect.Endpoint, path string, relayed bool) error {
	switch t := e.Traits(); {
	case asksTokenizer(e) && relayed && !m.Relayed:
		e := infer.Errorf(infer.CodeUnsupported, "model %q has no tokenizer here; give its folder with --model %s=DIR", m.Name, m.Name)
		e.Param = "model"
		return e
	case t.TokensOnly && relayed:
		return infer.Errorf(infer.CodeUnsupported, "%s is not served by engine kind %s, which is relayed; it is by those that take ids: weir, vllm-core, sglang-ipc, and sglang or vllm for a server of theirs (--engine sglang=URL, --engine vllm=URL)",
			path, m.Kind)
	case t.RelaysOnly && !relayed:
		if g.services.meant(path) != "" {
			return g.services.nothingAt(path)
		}
		return infer.Errorf(infer.CodeNotFound, "%s is not served by engine kind %s, which takes ids and generates; it serves /v1/chat/completions, /v1/completions, /v1/messages and /v1/responses. "+
			"A server that has %s is one for --engine openai=URL", path, m.Kind, path)
	}
	return nil
}

// lookUp finds a model by its name. One that cannot be served comes with an error.
func lookUp(fleet *route.Snapshot, name string) (*route.Model, error) {
	model := fleet.Models[name]
	if model == nil {
		e := infer.Errorf(infer.CodeNotFound, "there is no model %q; %s", dialect.Clip(name, 128), servedModels(fleet))
		e.Param = "model"
		return nil, e
	}
	if model.Fault != "" {
		return model, infer.Errorf(infer.CodeUnavailable, "model %q cannot be served: its engine %s", model.Name, model.Fault)
	}
	return model, nil
}

// onlyModel is the model of a body that names none: the only one that is served,
// whatever adapters it has.
func onlyModel(fleet *route.Snapshot) (name string, err error) {
	switch models := served(fleet); len(models) {
	case 0:
		return "", infer.Errorf(infer.CodeUnavailable, "no engine has joined yet")
	case 1:
		return models[0].Name, nil
	}
	return "", infer.Invalid("model", "the body names no model, and there are several; add a field model: %s", servedModels(fleet))
}

// servedModels names the models that an engine has joined for.
func servedModels(snap *route.Snapshot) string {
	names := slices.DeleteFunc(snap.Names(), func(name string) bool { return snap.Models[name].Kind == "" })
	switch {
	case len(names) == 0:
		return "no engine has joined yet"
	case len(names) > 20:
		names = append(names[:20:20], "...")
	}
	return "the models here are " + strings.Join(names, ", ")
}
