package prepare

import (
	"weir/internal/dialect"
	"weir/internal/fleet/route"
	"weir/internal/infer"
)

// Forms returns the forms in which a request for a model is prepared: ids for token engines,
// the caller's own bytes for relay engines, and both while no engine is known. Weir itself
// answers requests to a tokenizer if it has the model's tokenizer.
func (pr *Preparer) Forms(m *route.Model, e dialect.Endpoint) (needs route.Needs) {
	t, folder, unknown := e.Traits(), pr.Folder(m) != nil, !m.Known()
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

// Effects reports whether engines may do more at a path than compute an answer.
func (pr *Preparer) Effects(path string) bool { return pr.opts.Allow.Paths.Added(path) }

// CheckPath refuses a path that is not served for a model.
func (pr *Preparer) CheckPath(m *route.Model, e dialect.Endpoint, path string) error {
	folder := pr.Folder(m) != nil
	switch t := e.Traits(); {
	case asksTokenizer(e) && !folder && m.Relayed.Kind == "":
		e := infer.Errorf(infer.CodeUnsupported, "model %q has no tokenizer here; give its folder with --model %s=DIR", m.Name, m.Name)
		e.Param = "model"
		return e
	case t.TokensOnly && (!folder || m.ByIDs.Kind == "" && m.Relayed.Kind != ""):
		return infer.Errorf(infer.CodeUnsupported, "%s is not served by engine kind %s, which is relayed; it is by those that take ids: weir, vllm-core, sglang-ipc, and sglang or vllm for a server of theirs (--engine sglang=URL, --engine vllm=URL)",
			path, m.Relayed.Kind)
	case t.RelaysOnly && folder && m.ByIDs.Kind != "" && m.Relayed.Kind == "":
		if pr.Services.Meant(path) != "" {
			return pr.Services.NothingAt(path)
		}
		return infer.Errorf(infer.CodeNotFound, "%s is not served by engine kind %s, which takes ids and generates; it serves /v1/chat/completions, /v1/completions, /v1/messages and /v1/responses. "+
			"A server that has %s is one for --engine openai=URL", path, m.ByIDs.Kind, path)
	}
	return nil
}
