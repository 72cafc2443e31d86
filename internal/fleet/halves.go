package fleet

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"weir/internal/engine"
	"weir/internal/fleet/route"
	"weir/internal/infer"
)

// Halves is an operator's configuration of an engine for prefill and decode on two
// engines. An empty field has the value that the engine reports.
type Halves struct {
	Role  infer.Role
	Given bool // the operator has set Role
	Meets engine.Meets
	// Host is the host at which other engines reach this one, taken from its address
	// unless configured otherwise.
	Host string
}

// bootstrapPort is the default port of SGLang's registries.
const bootstrapPort = 8998

// part assigns an engine its part in requests. The operator's configuration and the
// engine's report must agree, except for the places where engines meet: there the
// operator's setting counts, since the engine may be reachable under another address.
func (h *Halves) part(e *route.Engine) error {
	f := &e.Facts
	e.Role, e.Meets = f.Role, f.Meets
	if h.Given {
		e.Role = h.Role
	}
	either := f.Role == infer.RoleBoth && f.Meets.Way != engine.Nowhere // it does whichever half it is given
	switch {
	case !h.Given || h.Role == f.Role || !f.RoleSaid || either || h.Role == infer.RoleBoth && f.Meets.Whole:
	case h.Role == infer.RoleBoth:
		return fmt.Errorf("role=both, but the engine reports that it is a %s engine, which serves no whole requests: start it without a role, or give role=%s", f.Role, f.Role)
	case f.Role == infer.RoleBoth:
		return fmt.Errorf("role=%s, but the engine reports that it serves whole requests only: start it as a %s engine (SGLang: --disaggregation-mode %s; vLLM: --kv-transfer-config), or leave the role out", h.Role, h.Role, h.Role)
	default:
		return fmt.Errorf("role=%s, but the engine reports that it is a %s engine: give role=%s, or start it as a %s engine", h.Role, f.Role, f.Role, h.Role)
	}
	if e.Role == infer.RoleBoth || !e.Ready && f.Meets.Way == engine.Nowhere && h.Meets.Way == engine.Nowhere {
		return nil // it may say how halves meet when it answers
	}
	said, told := &e.Meets, &h.Meets
	switch {
	case said.Way != engine.Nowhere && told.Way != engine.Nowhere && said.Way != told.Way:
		return fmt.Errorf("handover=%s, but the engine reports that its halves of requests meet by %s: leave handover= out", told.Way, said.Way)
	case said.Way == engine.Nowhere && told.Way == engine.Nowhere:
		return fmt.Errorf("role=%s, and it does not say how its half of a request meets the other: add handover=pull or handover=push (vLLM's NixlConnector and NixlPushConnector), or handover=room (SGLang)", e.Role)
	}
	said.Way = max(said.Way, told.Way)
	if e.Role != infer.RolePrefill {
		return nil
	}
	said.Host, said.Port = cmp.Or(told.Host, said.Host, h.Host), cmp.Or(told.Port, said.Port)
	said.EngineID = cmp.Or(told.EngineID, said.EngineID)
	switch {
	case said.Way == engine.ByRoom:
		said.Port = cmp.Or(said.Port, bootstrapPort)
	case said.Way == engine.ByPush && e.Ready && (said.EngineID == "" || said.Port == 0):
		return fmt.Errorf("role=prefill,handover=push: the engine does not report its engine id and side channel, which decode engines need: add engine-id=ID, as in the engine's own configuration, and side-channel=HOST:PORT")
	}
	return nil
}

// meetings are where prefill engines are met, each by whom.
type meetings map[string]string

// add records where a prefill engine is met, if it is met anywhere. No two engines may
// be met at the same place, because a decode engine would find the wrong one.
func (m meetings) add(e *route.Engine) error {
	if e.Role != infer.RolePrefill {
		return nil
	}
	var places []string
	at := &e.Meets
	switch at.Way {
	case engine.ByRoom:
		places = []string{"the bootstrap address " + address(at)}
	case engine.ByPush:
		places = []string{"the engine id " + at.EngineID, "the side channel " + address(at)}
	}
	for _, place := range places {
		if other := m[place]; other != "" {
			return fmt.Errorf("has %s, and so has %s: decode engines would fetch the KV of one from the other; start it with another one, or say which with bootstrap-port= (SGLang) or engine-id= and side-channel= (vLLM)", place, other)
		}
	}
	for _, place := range places {
		m[place] = e.Name
	}
	return nil
}

// join marks an engine as not ready if it cannot have its part in requests, because of its own
// error or because another engine is met at the same place.
func (m meetings) join(e *route.Engine, fault error) {
	if fault == nil {
		fault = m.add(e)
	}
	if fault == nil {
		return
	}
	e.Meets = engine.Meets{} // it meets nobody
	if e.Ready {
		e.Ready, e.Err = false, fault
	}
}

// address is where an engine is met, alike however it is spelled.
func address(at *engine.Meets) string {
	host := at.Host
	if host == "localhost" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(at.Port))
}

// halved refuses an engine whose halves of requests meet in another way than those of the
// model's others.
func halved(model *route.Model, e *route.Engine) error {
	if e.Role == infer.RoleBoth || e.Meets.Way == engine.Nowhere {
		return nil
	}
	if model.Way != engine.Nowhere && model.Way != e.Meets.Way {
		return fmt.Errorf("model %q has engines whose halves of requests meet by %s, and this one's meet by %s; give it a name of its own with model=NAME", model.Name, model.Way, e.Meets.Way)
	}
	model.Way = e.Meets.Way
	for _, side := range [][]route.Target{model.Targets, model.Prefills} {
		for i := range side {
			if t := &side[i]; t.Role != infer.RoleBoth && (t.Relay != nil) == (e.Relay != nil) && t.Meets.PageTokens > 0 && e.Meets.PageTokens > 0 && t.Meets.PageTokens != e.Meets.PageTokens {
				return fmt.Errorf("its KV pages have %d tokens, and those of %s have %d: one cannot fetch the KV of the other; start both with the same --page-size", e.Meets.PageTokens, t.Name, t.Meets.PageTokens)
			}
		}
	}
	return nil
}

// note adds to what the operator should know of an engine.
func note(e *route.Engine, what string) {
	if !strings.Contains(e.Note, what) { // it may have several ranks, and names
		e.Note = strings.TrimPrefix(e.Note+"; "+what, "; ")
	}
}

// lonely notes what the engines of a model do that lack the others, which must take requests in
// the same form.
func lonely(m *route.Model) {
	computes := func(t *route.Target) bool {
		return slices.ContainsFunc(m.Prefills, func(p route.Target) bool { return (p.Relay != nil) == (t.Relay != nil) })
	}
	for i := range m.Targets {
		switch t := &m.Targets[i]; {
		case t.Role != infer.RoleDecode || computes(t):
		case t.Meets.Whole:
			note(t.Engine, "no prefill engine of its model is ready: requests are given to it whole")
		default:
			note(t.Engine, "no prefill engine of its model is ready: no request is given to it")
		}
	}
	for i := range m.Prefills {
		p := &m.Prefills[i]
		if !slices.ContainsFunc(m.Targets, func(t route.Target) bool {
			return t.Role == infer.RoleDecode && (t.Relay != nil) == (p.Relay != nil)
		}) {
			note(p.Engine, "no decode engine of its model is ready: no request is given to it")
		}
	}
}

// promptsOnly is the fault of a model none of whose engines serves callers.
const promptsOnly = "computes prompts only (role=prefill), and no decode engine serves the model: add one with role=decode, by the same model name"
