package relay

import (
	"context"
	"strconv"
	"strings"

	"weir/internal/engine"
	"weir/internal/engine/sglangmode"
)

// Load implements engine.Loaded, as of the latest probe of an engine that tells.
func (e *Engine) Load() (engine.Load, bool) {
	l := e.load.Load()
	if l == nil {
		return engine.Load{}, false
	}
	return *l, true
}

// readLoad reads how busy an engine is, whose model list says whose it is.
func (e *Engine) readLoad(ctx context.Context, owner string) {
	var l *engine.Load
	switch owner {
	case "vllm":
		if data, _, err := e.client.Get(ctx, "/metrics"); err == nil {
			l = vllmLoad(string(data))
		}
	case "sglang":
		if data, _, err := e.client.Get(ctx, e.said.loads); err == nil {
			if loads, err := sglangmode.ParseLoads(data); err == nil {
				if running, waiting, usage, ok := loads.Sum(); ok {
					l = &engine.Load{Running: running, Waiting: waiting, KVUsage: usage}
				}
			}
		}
	}
	e.load.Store(l)
}

// vllmLoad reads the load among vLLM's metrics, which are in Prometheus' text format, a
// line for each of its engines; nil: there is none.
func vllmLoad(metrics string) *engine.Load {
	var running, waiting, usage float64
	engines, usages := 0, 0
	for line := range strings.Lines(metrics) {
		name, rest, _ := strings.Cut(line, "{")
		if !strings.HasPrefix(name, "vllm:") {
			continue
		}
		fields := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])
		if len(fields) == 0 {
			continue
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil || !(v >= 0 && v < 1<<53) { // NaN too
			continue
		}
		switch name {
		case "vllm:num_requests_running":
			running += v
			engines++
		case "vllm:num_requests_waiting":
			waiting += v
		case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc": // the latter up to 0.10
			usage += v
			usages++
		}
	}
	if engines == 0 {
		return nil
	}
	l := &engine.Load{Running: int(running), Waiting: int(waiting), KVUsage: -1}
	if usages > 0 {
		l.KVUsage = usage / float64(usages)
	}
	return l
}
