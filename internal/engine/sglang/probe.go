package sglang

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
)

// Probe implements engine.Prober by a generation of one id, as SGLang's own health check
// makes one. Where requests cannot name a rank the server chooses one.
func (e *Engine) Probe(ctx context.Context, p engine.Probe) error {
	body := `{"input_ids":[0],"sampling_params":{"max_new_tokens":1,"temperature":0}}`
	if p.Rank >= 0 && p.Rank < e.server.Load().ranks {
		body = fmt.Sprintf(`{"input_ids":[0],"routed_dp_rank":%d,"sampling_params":{"max_new_tokens":1,"temperature":0}}`, p.Rank)
	}
	answer, err := e.client.Generate(ctx, "/generate", []byte(body))
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
	// It may refuse with 200 and an abort. What else it says does not matter.
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
