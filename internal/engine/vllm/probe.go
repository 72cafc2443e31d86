package vllm

import (
	"context"
	"strconv"

	"weir/internal/engine"
	"weir/internal/engine/idstream"
)

// Probe implements engine.Prober by a generation of one id.
func (e *Engine) Probe(ctx context.Context, p engine.Probe) error {
	srv := e.server.Load()
	body := []byte(`{"model":`)
	body = idstream.AppendString(body, srv.model)
	if srv.generate {
		body = append(body, `,"token_ids":[0],"sampling_params":{"max_tokens":1,"temperature":0}}`...)
	} else {
		body = append(body, `,"prompt":[0],"max_tokens":1,"temperature":0}`...)
	}
	rank := p.Rank
	if rank >= srv.ranks {
		rank = -1
	}
	if rank < 0 {
		_, err := e.client.Generate(ctx, srv.path(srv.generate), body)
		return err
	}
	_, err := e.client.Generate(ctx, srv.path(srv.generate), body, rankHeader, strconv.Itoa(rank))
	return err
}

// Generates implements engine.Prober.
func (*Engine) Generates() bool { return true }

// Reach implements engine.Reachable by the engine's model list.
func (e *Engine) Reach(ctx context.Context) error { return e.client.Reach(ctx) }
