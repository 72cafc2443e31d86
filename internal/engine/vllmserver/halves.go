package vllmserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
)

// meetsWithin bounds the request by which a server says how its halves meet.
const meetsWithin = time.Minute

// Meets asks a server how its halves of requests meet. Only the answer to a prefill half shows
// that, so the server gets one with a prompt of one word. A decode engine with MooncakeConnector
// does not survive this, and reports its connector only from vLLM 0.33 on. A server that was
// given this role (decodes) is therefore asked only if it reports NIXL's connector.
func Meets(ctx context.Context, c *upstream.Client, model string, decodes bool) (engine.Meets, error) {
	switch data, _, err := c.Get(ctx, "/metrics"); {
	case err == nil && bytes.Contains(data, []byte("\nvllm:mooncake_")):
		return engine.Meets{}, errors.New("it runs with MooncakeConnector; weir knows the halves of NixlConnector and NixlPushConnector: start it with one of these, or leave role= out")
	case decodes && (err != nil || !bytes.Contains(data, []byte("\nvllm:nixl_"))):
		return engine.Meets{}, errors.New("its /metrics show no NixlConnector (vllm:nixl_...), and with another connector a decode engine may end when it is asked how its half of a request meets the other: add handover=pull or handover=push, or leave role= out")
	}
	ctx, cancel := context.WithTimeout(ctx, meetsWithin)
	defer cancel()
	ask := &engine.Meets{Way: engine.ByPull}
	body, err := json.Marshal(map[string]any{
		"model": model, "prompt": "x", "max_tokens": 1, "kv_transfer_params": jsontext.Value(ask.PrefillParams("")),
	}, json.Deterministic(true))
	if err != nil {
		return engine.Meets{}, err
	}
	answer, err := c.Generate(ctx, CompletionsPath, body)
	if err != nil {
		return engine.Meets{}, err
	}
	var said struct {
		Params jsontext.Value `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(answer, &said); err != nil {
		return engine.Meets{}, fmt.Errorf("its answer to a prefill half cannot be read: %w", err)
	}
	return engine.ReadMeets(said.Params, -1)
}
