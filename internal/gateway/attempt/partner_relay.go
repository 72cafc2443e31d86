package attempt

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/engine"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
)

// relayPrefill is a prefill half at a relay engine. Its answer is read whole. The client
// gets it where it is a refusal, and nothing of it otherwise.
type relayPrefill struct {
	p       *partner
	request *engine.RelayRequest
	refused *Refusal
}

// Refusal is an answer of an engine that can only be passed on to the client.
type Refusal struct {
	Status int
	header http.Header
	body   []byte
}

// maxPrefillAnswer bounds a prefill engine's answer, which names the pages of a prompt.
const maxPrefillAnswer = 16 << 20

func newRelayPrefill(p *partner, q *prepare.Prepared, r *http.Request) *relayPrefill {
	asked := q.Salted(q.Head.Ask(), p.target.Engine, r.URL.Path)
	p.ask(asked, infer.RolePrefill, r.URL.Path)
	return &relayPrefill{p: p, request: relayed(r, p.meets.choices[0].id, asked.Splice(p.target.Model))}
}

// relayed is a client's request as a relay engine gets it, with another id and body.
func relayed(r *http.Request, id string, body []byte) *engine.RelayRequest {
	return &engine.RelayRequest{Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header, ID: id, Body: body}
}

// other is the decode half of it, which has all but the body in common with the prefill half.
func (h *relayPrefill) other(body []byte) *engine.RelayRequest {
	req := *h.request
	req.Body = body
	return &req
}

// relayID is weir's own name of an attempt at a relay engine: the attempt before may still
// be on its way.
func relayID(id string, attempts int) string {
	if attempts > 1 {
		id += "-" + strconv.Itoa(attempts)
	}
	return id
}

// serve implements prefill: the answer is read here.
func (h *relayPrefill) serve(ctx context.Context) error {
	p := h.p
	resp, err := p.target.Relay.Forward(ctx, h.request, p.leg)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := readWhole(resp)
	switch {
	case err != nil:
		return err
	case len(body) > maxPrefillAnswer:
		return &infer.Error{Code: infer.CodeIntegrity, Engine: p.target.Name, Retryable: true, Message: fmt.Sprintf("the prefill engine answered more than %d bytes", maxPrefillAnswer)}
	}
	usage, stated, handed := dialect.PrefillAnswer(body)
	if !stated {
		usage = p.usage
	}
	if p.target.Meets.Way != engine.ByRoom && usage.CachedTokens < 0 { // the usage has it with a flag only
		usage.CachedTokens = engine.HandedCached(handed)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended(): // it was given up
	case resp.Status >= http.StatusBadRequest:
		p.ends(h.refusal(resp, body))
	default:
		p.usage = usage
		p.handed(0, handed)
		p.ends(nil)
	}
	return nil
}

// readWhole reads an answer up to one byte more than it may have. Most say how long they are.
func readWhole(resp *engine.RelayResponse) ([]byte, error) {
	if resp.Length < 0 || resp.Length > maxPrefillAnswer {
		return io.ReadAll(io.LimitReader(resp.Body, maxPrefillAnswer+1))
	}
	body := make([]byte, resp.Length)
	if _, err := io.ReadFull(resp.Body, body); err != nil {
		return nil, err
	}
	return body, nil
}

// read and abort implement prefill: all is read, and the end of the hand-over's context hangs up.
func (h *relayPrefill) read()  {}
func (h *relayPrefill) abort() {}

// refusal returns the error for the status of a prefill engine. If the decode half was under
// way, either engine may have caused a failure. The partner's lock is held.
func (h *relayPrefill) refusal(resp *engine.RelayResponse, body []byte) *infer.Error {
	p := h.p
	h.refused = &Refusal{resp.Status, http.Header{}, body}
	resp.Fields.Put(h.refused.header)
	e := &infer.Error{Engine: p.target.Name, RetryAfter: resp.RetryAfter, Cause: fmt.Errorf("status %d", resp.Status)}
	switch status := resp.Status; {
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
		e.Code, e.Retryable, e.NotRun, e.Message = infer.CodeOverloaded, true, true, "the prefill engine is overloaded"
	case status >= http.StatusInternalServerError:
		e.Code, e.Retryable, e.Handover, e.Message = infer.CodeEngine, true, !p.meets.first(), "the prefill engine failed"
	case status == http.StatusNotFound:
		e.Code, e.Message = infer.CodeNotFound, "the prefill engine refused the request"
	default:
		e.Code, e.Message = infer.CodeInvalid, "the prefill engine refused the request"
	}
	return e
}

// said returns the prefill engine's own response for the client, if that response is
// why the attempt failed by e, and nil otherwise.
func (p *partner) said(e *infer.Error) *Refusal {
	if !p.blames(e) {
		return nil
	}
	if h, ok := p.wire.(*relayPrefill); ok {
		return h.refused
	}
	return nil
}

// Write answers with it, and gives the size of the body.
func (a *Refusal) Write(w http.ResponseWriter) int {
	h := w.Header()
	maps.Copy(h, a.header)
	h.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.Status)
	n, _ := w.Write(a.body) // no client is left to report it to
	return n
}

// ask makes a relayed body that of a half.
func (p *partner) ask(asked *dialect.Asked, role infer.Role, path string) {
	h := p.meets.half(0, role)
	switch {
	case h == nil:
	case p.target.Meets.Way == engine.ByRoom:
		asked.Meet(role, h.Bootstrap)
	default:
		asked.Half(h, path)
	}
}
