package sglang

import (
	"context"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
)

// Probe implements engine.Prober by a generation of one id, as SGLang's own health check
// makes one; to an engine that serves halves, of a half that has no other. Where requests
// cannot name a rank the server chooses one.
func (e *Engine) Probe(ctx context.Context, p engine.Probe) error {
	srv, body := e.server.Load(), []byte(`{"input_ids":[0]`)
	rank := p.Rank
	if rank >= srv.ranks {
		rank = -1
	}
	if rank >= 0 {
		body = strconv.AppendInt(append(body, `,"routed_dp_rank":`...), int64(rank), 10)
	}
	if h := srv.mode.Alone(rank); h != nil {
		body = appendHalf(body, h)
	}
	body = append(body, `,"sampling_params":{"max_new_tokens":1,"temperature":0}}`...)
	answer, err := e.client.Generate(ctx, "/generate", body)
	if err != nil {
		return err
	}
	var said struct {
		Meta struct {
			Finish struct {
				Type    string `json:"type"`
				Message string `json:"message"`
				Status  int    `json:"status_code"`
			} `json:"finish_reason"`
		} `json:"meta_info"`
	}
	// The engine may refuse with 200 and an abort. The rest of its answer does not
	// matter.
	if err := json.Unmarshal(answer, &said, jsontext.AllowDuplicateNames(true)); err != nil {
		return fmt.Errorf("probe of %s: not an answer: %w", e.opts.Name, err)
	}
	switch f := said.Meta.Finish; {
	case f.Type != "abort":
		return nil
	case f.Status == 429 || f.Status == 503:
		return fmt.Errorf("probe of %s: %w: %s", e.opts.Name, engine.ErrBusy, f.Message)
	case f.Status >= 400 && f.Status < 500:
		return fmt.Errorf("probe of %s: %w: %s", e.opts.Name, engine.ErrNoProbe, f.Message)
	default:
		return fmt.Errorf("probe of %s: it aborted the request: %s", e.opts.Name, f.Message)
	}
}

// Generates implements engine.Prober.
func (*Engine) Generates() bool { return true }

// Reach implements engine.Reachable by the engine's model list.
func (e *Engine) Reach(ctx context.Context) error { return e.client.Reach(ctx) }
