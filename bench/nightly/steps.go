//go:build linux

package main

import (
	"time"

	"weir/internal/lab/nightly"
)

// steps returns the steps, the shortest first. A step is here because it takes too long
// for .ci/run, or because it ends in a figure. The Why of a step names the property that
// nothing faster shows.
func steps() []nightly.Step {
	python, npm := "python3", "npm"
	scenario := func(name, why string) nightly.Step {
		return nightly.Step{
			Name: name, Why: why, Typical: 2 * time.Minute, Limit: 10 * time.Minute, Read: scenarioFigures,
			Command: "make -s nginx build && bin/weir scenario " + name + " --json " + file,
		}
	}
	return []nightly.Step{
		{
			Name: "bench", Why: "time and allocations of the code that every token passes",
			Typical: 2 * time.Minute, Limit: 15 * time.Minute,
			Command: "go test -run '^$' -bench '" + hotBenchmarks + "' -skip '^BenchmarkDispatch$/^copy' -benchmem -benchtime 200ms -count 5 " + hotPackages,
			Read:    nightly.Benchmarks(hotQuotients...),
		},
		{
			// Allocations of encoders are no figures: encoders yield by time, and a
			// yield allocates.
			Name: "tokenizer", Why: "time of tokenizing large texts and hostile ones, and back, and what seen prompts save",
			Typical: 2 * time.Minute, Limit: 15 * time.Minute,
			Command: "go test -run '^$' -bench '^Benchmark(Encode|Run|Prefix|Detokenize)$' -benchtime 200ms -count 5 ./internal/model/tokenizer",
			Read:    nightly.Benchmarks(tokenizerQuotients...),
		},
		{
			Name: "routing", Why: "captured reuse, evenness and lost figures of cost beside other policies, in virtual time: the same on whatever machine",
			Typical: 6 * time.Minute, Limit: 30 * time.Minute,
			Command: "go run ./bench/routing -check bench/routing/part.json", Read: routingFigures,
		},
		scenario("backlog", "thousands of streams step at one instant, beside a control that falls behind and beside nginx"),
		scenario("collapse", "920 prompts of 40k tokens at once on two engines, and a control that takes them out for its own lateness"),
		scenario("continuation", "one of three engines is killed under 1,000 streams, beside a control that ends those that were there"),
		scenario("loss", "batches land before their readers wake, beside a control that loses tokens"),
		scenario("overload", "ten times what two engines can do is asked of them, beside a control that gives them everything at once"),
		scenario("starvation", "prompts of 40k tokens beside small streams, and a control that tokenizes on its one loop and takes live engines out"),
		scenario("tenants", "ten times what two engines can do is asked of them, nearly all by one of a hundred tenants, beside a control with one key for all"),
		{
			Name: "outputpath", Why: "what carrying a token costs beside nginx, in the same run",
			Typical: 6 * time.Minute, Limit: 30 * time.Minute, Needs: []string{"nginx"},
			Command: "make -s nginx && go run ./bench/outputpath -n 3 -measure 3s -warm 1s -gateways 'nginx,weir relay,weir plane' -json " + file,
			Read:    outputPathFigures,
		},
		{
			Name: "mutations", Why: "a change of the output path that a script or a property must catch, and none does",
			Typical: 15 * time.Minute, Limit: 40 * time.Minute,
			Command: "make -s mutations", Read: nightly.Mutations,
		},
		{
			Name: "measure", Why: "bounds of time, memory of streams, hang-ups of thousands, bad neighbours beside 512 streams, an hour offline: on which no test may depend",
			Typical: 17 * time.Minute, Limit: 60 * time.Minute,
			Command: "make measure", Read: measureFigures,
		},
		{
			Name: "race", Why: "every test at its full length, the end-to-end ones too, with the race detector in both processes",
			Typical: 30 * time.Minute, Limit: 80 * time.Minute, Needs: []string{"gcc"},
			Command: "make toolchain && CGO_ENABLED=1 go test -race -count=1 -timeout 50m ./...", Read: nightly.Packages,
		},
		{
			Name: "soak", Why: "leaks and counts that drift need longer than the two minutes of .ci/run",
			Typical: 22 * time.Minute, Limit: 35 * time.Minute,
			Command: "make soak SOAK=20m", Read: nightly.Tests,
		},
		{
			Name: "fuzz", Why: "inputs that nobody thought of, for every parser and every cutting",
			Typical: 40 * time.Minute, Limit: 80 * time.Minute,
			Command: "make fuzz FUZZTIME=30s", Read: nightly.FuzzTargets,
		},
		{
			Name: "interop", Why: "the official clients and the reference libraries, with samples that .ci/run takes a fifth of",
			Typical: 15 * time.Minute, Limit: 60 * time.Minute, Needs: []string{python, npm},
			Command: "make interop-full", Read: nightly.Packages,
		},
		{
			Name: "clients", Why: "clients as their projects release them: 1.6 GB to install",
			Typical: 5 * time.Minute, Limit: 30 * time.Minute, Needs: []string{python, npm},
			Command: "make interop-clients", Read: nightly.Tests,
		},
		{
			Name: "engines", Why: "vLLM and transformers' server as released, on the CPU, and clients as released before it: 8 GB to install and slow to start",
			Typical: 45 * time.Minute, Limit: 105 * time.Minute, Needs: []string{python, npm},
			Command: "make interop-engines", Read: nightly.Tests,
		},
		{
			Name: "faults", Why: "one of three engines fails in each way over each wire, beside what engines must live with: how soon it is out and back, and what clients see",
			Typical: 35 * time.Minute, Limit: 80 * time.Minute,
			Command: "make -s build && bin/weir scenario faults --json " + file, Read: scenarioFigures,
		},
	}
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
