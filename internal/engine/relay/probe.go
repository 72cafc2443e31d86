package relay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/go-json-experiment/json"

	"weir/internal/engine"
	"weir/internal/engine/sglangserver"
	"weir/internal/engine/upstream"
	"weir/internal/engine/vllmserver"
	"weir/internal/infer"
)

// readings are what is known of an engine's pages.
type readings struct {
	models  upstream.Reading[upstream.List]
	owner   string // as in its model list
	sglang  sglangserver.Server
	vllm    upstream.Reading[software]
	figures upstream.Reading[*vllmserver.Figures] // vLLM's
	process upstream.Process
}

// probe reads the model list, and of an engine whose sources are known what its own API
// loses and how busy it is.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	list, err := e.client.ReadModels(ctx, &e.known.models)
	facts, owner := list.Facts, upstream.Owner(list.Cards)
	if e.opts.VerifyIDs {
		facts.Verify = verify(owner)
	}
	// An engine that judges callers by their keys refuses weir, which has none.
	if e.opts.Model != "" && (upstream.Nameless(err) || e.opts.PassKey && upstream.Unauthorized(err)) {
		facts, err = engine.Facts{Models: []string{e.opts.Model}, Verify: facts.Verify}, nil
	}
	if err != nil {
		e.met = engine.Meets{} // it may come back as another
		return facts, err
	}
	if e.known.owner != owner {
		e.known = readings{models: e.known.models, owner: owner}
	}
	if owner == "sglang" {
		facts.Models = withAdapters(list.Cards)
	}
	facts.Old = e.known.models.Old(nil, upstream.ModelsPath)
	if len(facts.Old) > 0 {
		e.met = engine.Meets{}
	}
	said, err := e.software(ctx)
	if err != nil {
		return facts, err
	}
	facts.Lacks, facts.Salts = said.lacks, said.salts
	facts.Role, facts.RoleSaid, facts.Meets, facts.Forgets = said.role, said.roleSaid, said.meets, said.forgets
	e.alone.Store(said.alone)
	if owner == "vllm" && e.opts.AskHalves {
		if e.met.Way == engine.Nowhere {
			if e.met, err = vllmserver.Meets(ctx, e.client, facts.Models[0], e.opts.Decodes); err != nil {
				return facts, err
			}
		}
		facts.Meets = e.met
	}
	facts.Instance = e.known.process.Is(e.client, cmp.Or(said.started, e.readLoad(ctx, said.mode)))
	facts.Old = e.known.sglang.Old(facts.Old)
	facts.Old = e.known.vllm.Old(facts.Old, vllmserver.VersionPath)
	facts.Old = e.known.figures.Old(facts.Old, vllmserver.MetricsPath)
	return facts, nil
}

// withAdapters returns the models of an SGLang by the names that its API reads. Under an adapter's
// own name, which it lists, it answers with the base model without a word.
func withAdapters(cards []upstream.Card) (names []string) {
	for _, c := range cards {
		var base string
		if c.Parent.Kind() == '"' && json.Unmarshal(c.Parent, &base) == nil && base != "" {
			names = append(names, base+":"+c.ID)
		} else if c.ID != "" {
			names = append(names, c.ID)
		}
	}
	return names
}

// probes are the requests of one token, by the end of a path. The prompt is a word, and
// the answer's text does not matter.
var probes = map[string]map[string]any{
	"chat/completions": {"messages": []map[string]string{{"role": "user", "content": "x"}}, "max_tokens": 1},
	"completions":      {"prompt": "x", "max_tokens": 1},
	"messages":         {"messages": []map[string]string{{"role": "user", "content": "x"}}, "max_tokens": 1},
	"responses":        {"input": "x", "max_output_tokens": 1, "store": false},
	"generate":         {"text": "x", "sampling_params": map[string]int{"max_new_tokens": 1}},
	"embeddings":       {"input": "x"},
	"classify":         {"input": "x"},
	"pooling":          {"input": "x"},
	"score":            {"text_1": "x", "text_2": "x"},
	"rerank":           {"query": "x", "documents": []string{"x"}},
}

// Probe implements engine.Prober by a request of the same kind as the latest one, with one
// token if it generates. For an SGLang engine that serves halves, it is a half without a
// counterpart.
func (e *Engine) Probe(ctx context.Context, p engine.Probe) error {
	target, _, _ := strings.Cut(p.Path, "?")
	if target == "" {
		target = "/v1/chat/completions"
	}
	fields, ok := kindOf(target)
	if !ok {
		return fmt.Errorf("probe %s: %w: no request of one token is known there", e.client.URL(target), engine.ErrNoProbe)
	}
	if h := e.alone.Load(); h != nil {
		fields = maps.Clone(fields)
		fields["bootstrap_host"], fields["bootstrap_port"], fields["bootstrap_room"] = h.Bootstrap.Host, h.Bootstrap.Port, h.Bootstrap.Room
	}
	// It cannot fail: there are only strings and numbers.
	body, _ := json.Marshal(fields, json.Deterministic(true))
	if p.Model != "" {
		name, err := json.Marshal(p.Model)
		if err != nil {
			return fmt.Errorf("probe %s: %w: %w", e.client.URL(target), engine.ErrNoProbe, err)
		}
		body = append(append(append([]byte(`{"model":`), name...), ','), body[1:]...)
	}
	_, err := e.client.Generate(ctx, target, body)
	return err
}

// kindOf returns what a request of one token at a path has.
func kindOf(target string) (map[string]any, bool) {
	if strings.HasSuffix(target, "/chat/completions") {
		return probes["chat/completions"], true
	}
	fields, ok := probes[path.Base(target)]
	return fields, ok
}

// Generates implements engine.Prober.
func (*Engine) Generates() bool { return true }

// Reach implements engine.Reachable by the engine's model list.
func (e *Engine) Reach(ctx context.Context) error { return e.client.Reach(ctx) }

// note says of an engine that would give ids with its text that nobody has asked for them.
func (e *Engine) note() string {
	if e.opts.VerifyIDs || verify(e.known.owner) == infer.VerifyUnknown {
		return ""
	}
	return "its streams are relayed without a check of their token ids: with verify=ids they are checked, and the kind " + e.known.owner + " exchanges ids"
}

// verify is how an engine by whose model list is can be asked for ids.
func verify(owner string) infer.Verify {
	switch owner {
	case "vllm":
		return infer.VerifyVLLM
	case "sglang":
		return infer.VerifySGLang
	}
	return infer.VerifyUnknown
}

// software is what an engine is, and what of requests it is known to lose for that.
type software struct {
	version  string             // of vLLM
	mode     *sglangserver.Mode // of SGLang
	started  string             // a word that each process of it keeps to
	lacks    []infer.Lack
	salts    engine.Salts
	role     infer.Role
	roleSaid bool
	meets    engine.Meets
	forgets  bool
	alone    *infer.Half // what a probe is of; nil: it is whole
}

// software finds out the software of engines that name themselves in their model list. If an
// engine does not report it this time, the earlier report holds.
func (e *Engine) software(ctx context.Context) (software, error) {
	untold := software{salts: engine.Salts{Why: untoldSalts}}
	switch e.known.owner {
	case "vllm":
		now := untold
		err := e.vllm(ctx, &now)
		if now, err = e.known.vllm.Take(e.client, now, err); err == nil {
			return now, nil
		}
	case "sglang":
		mode, err := e.known.sglang.Mode(ctx, e.client)
		if err != nil {
			return software{}, err
		}
		return software{
			mode: mode, started: mode.Started(), lacks: mode.APILacks(), salts: mode.Salts(), forgets: mode.Forgets(),
			role: mode.Role(), roleSaid: mode.Known(), meets: mode.Meets(e.opts.URL.Hostname()), alone: mode.Alone(-1),
		}, nil
	}
	return untold, nil
}

// vllm reads a vLLM server's release, unless that was read over the connection over which its
// model list has just been read: then it is the same process. No mode of it loses anything without
// a word: its front end refuses what its engine does not do.
func (e *Engine) vllm(ctx context.Context, now *software) error {
	had, _ := e.known.vllm.Known(e.client)
	over := e.client.ReadOver()
	if had.version != "" && e.over == over {
		*now = had
		return nil
	}
	version, err := vllmserver.Version(ctx, e.client)
	if err != nil {
		return err
	}
	if version == "" && had.version != "" {
		return upstream.ErrHalf
	}
	if e.over = 0; e.client.ReadOver() == over {
		e.over = over
	}
	if had.version == version && version != "" {
		*now = had
		return nil
	}
	now.version, now.lacks, now.salts = version, vllmLacks(version), vllmSalts(version)
	return nil
}

// untoldSalts is why an engine is not trusted with a salt: a server that does not know the
// field passes over it without a word.
const untoldSalts = "does not say that it is vLLM or SGLang, whose API reads cache_salt, and may pass over it"

// vllmSalts says at which paths a release of vLLM reads cache_salt.
func vllmSalts(version string) engine.Salts {
	r := vllmserver.ParseRelease(version)
	if r == (vllmserver.Release{}) || r.Before(vllmserver.WithIDs) {
		return engine.Salts{Why: fmt.Sprintf("is vLLM %q, of which it is not known that its API reads cache_salt; 0.12 and later read it", version)}
	}
	return engine.Salts{Carried: true, Paths: vllmPaths(r)}
}

// vllmPaths are the paths of a release of vLLM.
type vllmPaths vllmserver.Release

// At implements engine.SaltPaths.
func (r vllmPaths) At(target string) []string {
	since, ok := vllmSalted[strings.TrimPrefix(target[strings.LastIndex(target, "/v1/")+1:], "/")]
	if !ok || vllmserver.Release(r).Before(since) {
		return nil
	}
	return saltFields
}

var saltFields = []string{"cache_salt"}

// vllmSalted are the paths at which vLLM reads cache_salt, and since which of the releases
// whose definitions were compared (docs/isolation.md).
var vllmSalted = map[string]vllmserver.Release{
	"v1/chat/completions": vllmserver.WithIDs, "v1/completions": vllmserver.WithIDs, "v1/responses": vllmserver.WithIDs,
	"v1/messages": {Major: 0, Minor: 28}, "v1/chat/completions/batch": vllmserver.WithGenerate,
	"v1/embeddings": vllmserver.WithGenerate, "pooling": vllmserver.WithGenerate, "classify": vllmserver.WithGenerate,
	"score": vllmserver.WithGenerate, "v1/score": vllmserver.WithGenerate,
	"rerank": vllmserver.WithGenerate, "v1/rerank": vllmserver.WithGenerate, "v2/rerank": vllmserver.WithGenerate,
}

// vllmLacks returns what a release of vLLM passes over. Those before 0.12 had other
// fields, and are not judged.
func vllmLacks(version string) []infer.Lack {
	if r := vllmserver.ParseRelease(version); r == (vllmserver.Release{}) || r.Before(vllmserver.WithIDs) {
		return nil
	}
	return []infer.Lack{
		{What: infer.SpelledGuided, Why: fmt.Sprintf("is vLLM %s, whose API passes over guided_json and its like since 0.12; it reads structured_outputs", version)},
		{What: infer.SpelledSGLang | infer.SpelledStopRegex | infer.SpelledNowhere, Why: fmt.Sprintf("is vLLM %s, whose API has no such field and passes over it", version)},
	}
}
