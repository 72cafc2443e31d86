package vllm

import (
	"bytes"
	"context"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
	"weir/internal/engine/idstream"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// prefills reports whether a request is a prefill half.
func prefills(req *infer.Request) bool {
	return req.Half != nil && req.Half.Role == infer.RolePrefill
}

// maxPrefill bounds the answer to a prefill half: a million blocks fit.
const maxPrefill = 8 << 20

// prefill serves a prefill half. The server returns the parameters for the decode half only in
// answers that are not streamed, so nothing confirms the request before its end. The owner of
// the sink reads the answer.
func (e *Engine) prefill(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg, srv *server, generate bool) (engine.Generation, error) {
	body, bad := srv.appendRequest(make([]byte, 0, bodyRoom+7*len(req.Prompt)), engine.PrefillOf(req), generate)
	if bad != nil {
		return nil, bad
	}
	h := &half{e: e, attempt: attempt, sink: sink, request: &upstream.Request{
		Method: http.MethodPost, Path: srv.path(generate), Header: headerOf(leg), Fields: idstream.Fields, Body: body, Leg: &trace.Leg{DPRank: leg.DPRank},
	}}
	var served context.Context
	served, h.abort = context.WithCancel(context.WithoutCancel(ctx))
	leg.ToServer = trace.Now()
	leg.Acked = leg.ToServer
	engine.Read(sink, func() { h.serve(served) })
	return h, nil
}

// half is a prefill half that the engine has.
type half struct {
	e       *Engine
	attempt uint32
	sink    engine.Sink
	request *upstream.Request
	abort   context.CancelFunc
}

// Abort implements engine.Generation: the engine stops for whoever is gone.
func (h *half) Abort() { h.abort() }

// serve sends the half, reads its answer and offers its end.
func (h *half) serve(ctx context.Context) {
	defer h.abort()
	f, err := h.answer(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		f = &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: -1, CachedTokens: -1}
	case err != nil:
		f = &infer.Finish{Reason: infer.ReasonError, PromptTokens: -1, CachedTokens: -1, Err: infer.AsError(err)}
	}
	h.sink.Offer(&infer.Delta{Attempt: h.attempt, Received: trace.Now(), Finish: f})
}

// answer returns the end of a half that was answered.
func (h *half) answer(ctx context.Context) (*infer.Finish, error) {
	body, err := h.e.host.Whole(ctx, h.request, maxPrefill)
	if err != nil {
		return nil, err
	}
	var said struct {
		Params jsontext.Value `json:"kv_transfer_params"`
		Usage  struct {
			PromptTokens *int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, &infer.Error{Code: infer.CodeIntegrity, Engine: h.e.opts.Name, Retryable: true, Message: "the engine's answer to a prefill half cannot be read", Cause: err}
	}
	f := &infer.Finish{Reason: infer.ReasonLength, PromptTokens: -1, CachedTokens: engine.HandedCached(said.Params), Params: bytes.Clone(said.Params)}
	if said.Usage.PromptTokens != nil {
		f.PromptTokens = *said.Usage.PromptTokens
	}
	return f, nil
}
