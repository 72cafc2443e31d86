//go:build linux

package main

import (
	_ "embed"
	"fmt"
	"strings"
	"time"

	"weir/internal/lab/nightly"
)

//go:embed steps.txt
var rows string

// A reader takes figures from what a step printed and from the file that it wrote.
type reader func(printed, file []byte) ([]nightly.Figure, error)

// readers are what the rows name.
var readers = map[string]reader{
	"":           nil,
	"fuzz":       nightly.FuzzTargets,
	"hot":        nightly.Benchmarks(hotQuotients...),
	"measure":    measureFigures,
	"mutations":  nightly.Mutations,
	"outputpath": outputPathFigures,
	"packages":   nightly.Packages,
	"routing":    routingFigures,
	"scenario":   scenarioFigures,
	"tests":      nightly.Tests,
	"tokenizer":  nightly.Benchmarks(tokenizerQuotients...),
}

// parseSteps reads rows; steps.txt says what is in one.
func parseSteps(rows string) (steps []nightly.Step, err error) {
	number := 0
	for line := range strings.Lines(rows) {
		number++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		columns := strings.SplitN(line, "|", 6)
		if len(columns) < 6 {
			return nil, fmt.Errorf("line %d: %d columns, want 6", number, len(columns))
		}
		for i, c := range columns {
			columns[i] = strings.TrimSpace(c)
		}
		s := nightly.Step{
			Name: columns[0], Needs: strings.Fields(columns[2]), Why: columns[4],
			Command: strings.ReplaceAll(columns[5], "{hot}", "-bench '"+hotBenchmarks+"' -skip '^BenchmarkDispatch$/^copy' "+hotPackages),
		}
		typical, limit, _ := strings.Cut(columns[1], " ")
		if s.Typical, err = time.ParseDuration(typical); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if s.Limit, err = time.ParseDuration(strings.TrimSpace(limit)); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		read, ok := readers[columns[3]]
		if !ok {
			return nil, fmt.Errorf("line %d: there is no reader %q", number, columns[3])
		}
		s.Read = read
		steps = append(steps, s)
	}
	return steps, nil
}

// These benchmarks cover the code that every token passes, from the engine's frame to
// the client's bytes, and the code that every request passes at its admission and in the
// pool. Sinks that copy are left out, because they allocate for the benchmark only.
const (
	hotBenchmarks = "^Benchmark(OfferTake|AppendText|Decode|NewStream|ParseAndEncode|Delta|Turn|RelayTurn|Read|Chunks|ParseResponse|Splitter|Parser|Content|Dispatch|Gate|Run)$"
	hotPackages   = "./internal/gateway/stream ./internal/dialect/openai ./internal/gateway ./internal/gateway/answer ./internal/wire/http1 ./internal/wire/sse ./internal/model/outputparse ./internal/engine/plane ./internal/fleet/admission ./internal/model/pool"
)

// Ratios of benchmarks of one run, which are comparable between machines.
var (
	hotQuotients = []nightly.Quotient{
		{Name: "a delta where reasoning may come, beside no parser", Of: "gateway/answer.ParseAndEncode/reasoning", By: "gateway/answer.ParseAndEncode/none"},
		{Name: "a delta where tools may be called, beside no parser", Of: "gateway/answer.ParseAndEncode/tools", By: "gateway/answer.ParseAndEncode/none"},
		{Name: "a plane's step by hand, beside generated code", Of: "engine/plane.Dispatch/decode/ids=1", By: "engine/plane.Dispatch/decode-generated/ids=1"},
	}
	tokenizerQuotients = []nightly.Quotient{
		{Name: "stop strings, beside none", Of: "model/tokenizer.Detokenize/stops", By: "model/tokenizer.Detokenize/plain"},
		{Name: "a chat's new turn with its earlier ones seen, beside cold", Of: "model/tokenizer.Prefix/english/chat/shared", By: "model/tokenizer.Prefix/english/chat/cold"},
		{Name: "text seen before, beside cold", Of: "model/tokenizer.Encode/english/160K/warm", By: "model/tokenizer.Encode/english/160K/cold"},
	}
)
