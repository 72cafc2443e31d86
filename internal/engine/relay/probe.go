package relay

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
	"weir/internal/trace"
)

const maxProbeBody = 4 << 20

var probeHeader = http.Header{"Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"weir"}}

// probe reads /v1/models.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	const path = "/v1/models"
	at := e.client.URL(path)
	resp, err := e.client.Do(ctx, &upstream.Request{Method: http.MethodGet, Path: path, Header: probeHeader, Leg: &trace.Leg{}})
	if err != nil {
		return engine.Facts{}, fmt.Errorf("probe %s: %w", at, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody))
	if err != nil {
		return engine.Facts{}, fmt.Errorf("probe %s: %w", at, err)
	}
	if resp.Status != http.StatusOK {
		if e.opts.Model != "" && resp.Status < 500 {
			return engine.Facts{Models: []string{e.opts.Model}}, nil
		}
		return engine.Facts{}, fmt.Errorf("probe %s: status %d; if the engine has no model list, name its model with model=NAME",
			at, resp.Status)
	}
	facts, err := parseModels(data)
	if err != nil {
		return engine.Facts{}, fmt.Errorf("probe %s: %w", at, err)
	}
	facts.Software = resp.Header.Get("Server")
	return facts, nil
}

func parseModels(data []byte) (engine.Facts, error) {
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return engine.Facts{}, fmt.Errorf("not a model list: %w", err)
	}
	var f engine.Facts
	for _, m := range list.Data {
		if m.ID == "" {
			continue
		}
		f.Models = append(f.Models, m.ID)
		if m.MaxModelLen > 0 && (f.ContextLength == 0 || m.MaxModelLen < f.ContextLength) {
			f.ContextLength = m.MaxModelLen
		}
	}
	if len(f.Models) == 0 {
		return engine.Facts{}, fmt.Errorf("the model list is empty")
	}
	return f, nil
}
