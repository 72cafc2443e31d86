package record

import (
	"context"
	"log/slog"
	"math/rand/v2"

	"weir/internal/infer"
	"weir/internal/trace"
)

// AccessLog configures the access log, which has a line for each request, or for
// some.
type AccessLog struct {
	Log *slog.Logger
	// Share is the share of requests that have a line. Every failed request has one.
	Share float64
}

// logAccess writes the line of a request that has ended. It contains nothing from a prompt,
// an answer or a header except the caller's names of the request and the model. An error is
// logged by its code and the bound that it names, never by its message.
func (a *AccessLog) logAccess(rec *trace.Record, err *infer.Error) {
	if a.Log == nil || rec.Outcome != infer.Failed && rand.Float64() >= a.Share {
		return
	}
	ms := func(from, to int64) float64 {
		if from == 0 || to == 0 {
			return 0
		}
		return float64((to-from)/1e3) / 1e3
	}
	first := rec.FirstFlushed
	if !rec.Stream {
		first = 0
	}
	words := []slog.Attr{
		slog.String("request_id", rec.RequestID), slog.String("endpoint", rec.Endpoint), slog.String("model", rec.Model), slog.Bool("stream", rec.Stream),
		slog.String("client", rec.Client.String()), slog.Int("status", int(rec.Status)), slog.String("outcome", rec.Outcome.String()),
		slog.Float64("ms", ms(rec.Arrival, rec.Finished)), slog.Float64("ttft_ms", ms(rec.Arrival, first)),
		slog.Int("prompt_tokens", rec.PromptTokens), slog.Int("completion_tokens", rec.CompletionTokens),
		slog.Int64("bytes_in", rec.BytesIn), slog.Int64("bytes_out", rec.BytesOut), slog.Int("attempts", len(rec.Attempts)),
	}
	stage, spent := rec.Slowest()
	words = append(words, slog.String("stage", stage.String()), slog.Float64("stage_ms", ms(1, 1+spent)))
	if leg := rec.Leg(); leg != nil {
		words = append(words, slog.String("engine", leg.Engine))
	}
	if err != nil {
		words = append(words, slog.String("code", rec.Code))
		if bound := err.Bound(); bound != "" {
			words = append(words, slog.String("bound", bound))
		}
	}
	if stalled := rec.Stalled(); stalled > 0 {
		words = append(words, slog.Float64("stalled_ms", ms(1, 1+stalled)))
	}
	if a.Share < 1 && rec.Outcome != infer.Failed {
		words = append(words, slog.Float64("share", a.Share))
	}
	a.Log.LogAttrs(context.Background(), slog.LevelInfo, "request", words...)
}
