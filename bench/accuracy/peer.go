//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"weir/internal/lab/calibrate"
)

// Peer has the figures of a published load generator about the engine of known times,
// and those of the engine's own stamps. Times are milliseconds. The error of a
// percentile is the difference of the two percentiles, because the other tool does not
// identify requests.
type Peer struct {
	Cell, Tool string
	Completed  int
	TTFTP50    float64 `json:"median_ttft_ms"`
	TTFTP99    float64 `json:"p99_ttft_ms"`
	ITLMean    float64 `json:"mean_itl_ms"`
	ITLSigma   float64 `json:"std_itl_ms"`
	Elapsed    float64 `json:"duration"`
	Known      *calibrate.Known
}

// sglang runs the cell of a closed loop with SGLang's load generator.
func sglang(ctx context.Context, python, tokenizer string, c cell) (*Peer, error) {
	o := c.o
	if o.Streams == 0 || o.DelayAcks {
		return nil, nil // it draws Poisson arrivals of its own, and has no such setting
	}
	wanted := o.Requests
	o.Requests += 16 // it sends one or two to try
	dir, err := os.MkdirTemp("", "accuracy")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "report.jsonl")
	p := &Peer{Cell: c.Name, Tool: "sglang.bench_serving"}
	p.Known, err = calibrate.Watch(ctx, o, func(url string) error {
		cmd := exec.CommandContext(ctx, python, "-m", "sglang.bench_serving", "--backend", "vllm-chat", "--base-url", url,
			"--dataset-name", "random-ids", "--model", "exact", "--tokenizer", tokenizer, "--num-prompts", fmt.Sprint(wanted),
			"--random-input-len", "32", "--random-output-len", fmt.Sprint(o.Tokens), "--random-range-ratio", "1",
			"--max-concurrency", fmt.Sprint(o.Streams), "--disable-tqdm", "--output-file", file)
		cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("sglang.bench_serving: %w: %s", err, out[max(0, len(out)-2000):])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	// Python writes the unlimited rate of requests as Infinity, which is not JSON.
	if err := json.Unmarshal(bytes.ReplaceAll(text, []byte("Infinity"), []byte("null")), p); err != nil {
		return nil, fmt.Errorf("sglang.bench_serving's report: %w", err)
	}
	if p.Completed != wanted {
		return nil, fmt.Errorf("sglang.bench_serving completed %d of %d requests", p.Completed, wanted)
	}
	return p, nil
}

const peerHeader = "                                          TTFT p50 ms            TTFT p99 ms        ITL mean ms          ITL sigma ms\n" +
	"cell                tool                   said      did        said      did        said     did        said     did"

func peerLine(p *Peer) string {
	k := p.Known
	return fmt.Sprintf("%-18s  %-20s %8.2f %8.2f   %9.2f %8.2f   %9.2f %7.2f   %9.2f %7.2f", p.Cell, p.Tool,
		p.TTFTP50, k.TTFTP50, p.TTFTP99, k.TTFTP99, p.ITLMean, k.ITLMean, p.ITLSigma, k.ITLSigma)
}
