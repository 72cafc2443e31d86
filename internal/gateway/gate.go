package gateway

import (
	"slices"
	"strings"

	"weir/internal/infer"
	"weir/internal/openai"
	"weir/internal/route"
)

// gate is stage 2, the refusals that cost nothing: unknown model, a field the
// engine kind cannot carry, too much in flight. What it reserves is an estimate
// that tokenize settles.
func (x *exchange) gate() error {
	if err := x.findModel(); err != nil {
		return err
	}
	if tokenizes(x.endpoint) && !x.relayed {
		return x.gateTokenization()
	}
	estimate := int64(len(x.body) / 4)
	if !x.relayed {
		req, err := x.endpoint.Request(x.head, x.model.Kind, x.model.Carries)
		if err != nil {
			return err
		}
		// A copy: what the dialect's stands in may refer to the body, which is let go
		// of while the stream lives.
		own := *req
		x.req = &own
		if err := x.checkNamedIDs(); err != nil {
			return err
		}
		if req.Tools != nil && !req.ForcedAny && req.ForcedTool == "" && x.folder.Format.Tools() == "" {
			e := infer.Errorf(infer.CodeUnsupported, "tools: how model %s writes calls is not known from its folder; leave them out, or name it with --model ...,tool-parser=NAME", x.model.Name)
			e.Param = "tools"
			return e
		}
		estimate += x.takeMedia()
		estimate += int64(req.MaxTokens) * int64(max(1, req.N)*(1+len(req.MorePrompts)))
	}
	reservation, err := x.g.gate.Enter(estimate)
	if err != nil {
		return err
	}
	x.reservation = reservation
	return nil
}

// findModel looks the model up in the fleet of this moment.
func (x *exchange) findModel() error {
	x.fleet = x.g.opts.Snapshot()
	if err := x.chooseModel(); err != nil {
		return err
	}
	model := x.fleet.Models[x.head.Model]
	if model == nil {
		e := infer.Errorf(infer.CodeNotFound, "there is no model %q; %s", x.head.Model, servedModels(x.fleet))
		e.Param = "model"
		return e
	}
	x.model = model
	x.rec.Model = model.Name
	if model.Fault != "" {
		return infer.Errorf(infer.CodeUnavailable, "model %q cannot be served: its engine %s", model.Name, model.Fault)
	}
	x.folder = x.g.folder(model)
	x.relayed = model.Relayed || x.folder == nil
	if tokenizes(x.endpoint) {
		return x.findTokenizer()
	}
	if x.endpoint == x.g.generate && x.relayed {
		return infer.Errorf(infer.CodeUnsupported, "%s is not served by engine kind %s, which is relayed; it is by those that take ids: weir, vllm-core, sglang-ipc, and sglang for a server of SGLang's (--engine sglang=URL)",
			x.response.r.URL.Path, x.model.Kind)
	}
	if x.endpoint == openai.Other && !x.relayed {
		if x.g.services.meant(x.response.r.URL.Path) != "" {
			return x.g.services.nothingAt(x.response.r.URL.Path)
		}
		return infer.Errorf(infer.CodeNotFound, "%s is not served by engine kind %s, which takes ids and generates; it serves /v1/chat/completions, /v1/completions, /v1/messages and /v1/responses. "+
			"A server that has %s is one for --engine openai=URL", x.response.r.URL.Path, x.model.Kind, x.response.r.URL.Path)
	}
	return nil
}

// chooseModel takes the only model that is served, whatever adapters of it there
// are, for that of a body that names none.
func (x *exchange) chooseModel() error {
	if x.head.Model != "" {
		return nil
	}
	switch models := served(x.fleet); len(models) {
	case 0:
		return infer.Errorf(infer.CodeUnavailable, "no engine has joined yet")
	case 1:
		x.head.Model = models[0].Name
		return nil
	}
	return infer.Invalid("model", "the body names no model, and there are several; add a field model: %s", servedModels(x.fleet))
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
