// Package weir_test holds what is true of the whole module.
package weir_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// directions says which packages of weir a package may import. Imports point
// from the process down to the vocabulary; data flows through gateway, not
// through imports. Pure stages do not see each other. The simulated engine and
// the load generator meet the gateway over a wire only.
const directions = `
	# vocabulary
	internal/infer:
	internal/sse:
	internal/trace: internal/infer
	internal/content:
	internal/http1:
	internal/latency:
	internal/plot:
	internal/ports:
	internal/sock:
	internal/spell:
	internal/logs:
	internal/busy: internal/trace
	internal/epoll: internal/sock
	internal/zmtp:
	internal/kvindex:
	internal/kvevents: internal/kvindex
	internal/cost:
	internal/health:
	internal/retry:
	internal/queue: internal/cost
	internal/workload:
	models:

	# pure stages
	internal/api: internal/infer internal/spell internal/sse
	internal/api/apitest: internal/api
	internal/media: internal/infer
	internal/allow: internal/api internal/infer internal/spell
	internal/anthropic: internal/api internal/infer internal/media
	internal/openai: internal/api internal/infer internal/media internal/sse
	internal/generate: internal/api internal/infer internal/media
	internal/responses: internal/api internal/infer internal/media internal/openai internal/sse
	internal/promptkey: internal/api internal/kvindex
	internal/chat/jinja:
	internal/chat/parse:
	internal/chat: internal/infer internal/chat/jinja
	internal/tokenizer: internal/infer
	internal/model: internal/chat internal/chat/parse internal/infer internal/tokenizer
	internal/stream: internal/infer
	internal/admit: internal/infer
	internal/pool: internal/infer internal/trace

	# engines: the contract, its suite, an adapter per wire
	internal/engine: internal/infer internal/trace
	internal/engine/enginetest: internal/engine internal/infer internal/trace
	internal/engine/mux: internal/engine internal/infer
	internal/engine/plane/planepb:
	internal/engine/remote:
	internal/engine/plane: internal/engine internal/engine/access internal/engine/mux internal/engine/plane/planepb internal/engine/remote internal/infer internal/media internal/sock internal/trace
	internal/engine/upstream: internal/engine internal/engine/access internal/http1 internal/infer internal/sock internal/trace
	internal/engine/fenced: internal/engine internal/engine/mux internal/engine/remote internal/infer internal/trace internal/zmtp
	internal/engine/vllmcore: internal/engine internal/engine/fenced internal/engine/mux internal/infer internal/sock internal/trace internal/zmtp
	internal/engine/vllmcore/coretest: internal/trace internal/zmtp
	internal/engine/auto: internal/engine internal/engine/access internal/engine/upstream internal/engine/vllmserver
	internal/engine/relay: internal/engine internal/engine/access internal/engine/sglangmode internal/engine/upstream internal/engine/vllmserver internal/http1 internal/infer internal/trace
	internal/engine/sglangipc: internal/engine internal/engine/fenced internal/engine/mux internal/engine/sglang internal/engine/sglangmode internal/infer internal/sock internal/trace internal/zmtp
	internal/engine/access:
	internal/engine/sglangipc/schedtest: internal/infer internal/zmtp
	internal/engine/idstream: internal/engine internal/engine/access internal/engine/upstream internal/epoll internal/infer internal/sse internal/trace
	internal/engine/sglang: internal/engine internal/engine/idstream internal/engine/remote internal/engine/sglangmode internal/engine/upstream internal/infer internal/trace
	internal/engine/vllm: internal/engine internal/engine/idstream internal/engine/upstream internal/engine/vllmserver internal/infer internal/trace
	internal/engine/vllmserver: internal/engine internal/engine/upstream internal/trace
	internal/engine/sglangmode: internal/engine internal/infer
	internal/kvsub: internal/engine internal/kvevents internal/trace internal/zmtp
	internal/balance: internal/cost internal/kvindex internal/spell
	internal/judge: internal/cost internal/engine internal/health internal/infer internal/trace
	internal/route: internal/balance internal/cost internal/engine internal/health internal/infer internal/judge internal/kvevents internal/kvindex internal/retry
	internal/fleet: internal/balance internal/cost internal/engine internal/health internal/infer internal/judge internal/kvevents internal/kvindex internal/kvsub internal/retry internal/route internal/trace

	# views
	internal/timeline: internal/infer internal/trace
	internal/integrity: internal/infer
	internal/otlp: internal/infer internal/trace
	internal/page:
	internal/watch: internal/busy internal/trace
	internal/metrics: internal/admit internal/cost internal/engine internal/health internal/infer internal/judge internal/kvevents internal/pool internal/queue internal/route internal/timeline internal/tokenizer internal/trace

	# the request path
	internal/gateway/answer: internal/api internal/chat/parse internal/infer internal/sse internal/stream internal/tokenizer internal/trace
	internal/gateway: internal/admit internal/allow internal/anthropic internal/api internal/balance internal/busy internal/chat internal/chat/parse internal/cost internal/engine internal/engine/relay internal/epoll internal/gateway/answer internal/generate internal/health internal/infer internal/integrity internal/judge internal/kvindex internal/metrics internal/model internal/openai internal/pool internal/promptkey internal/queue internal/responses internal/retry internal/route internal/sock internal/stream internal/timeline internal/tokenizer internal/trace internal/watch

	# beyond the wire
	internal/sim: internal/content internal/infer
	internal/sim/kvpub: internal/sim internal/zmtp
	internal/sim/offline: internal/infer internal/latency internal/sim internal/workload
	internal/fleetsim: internal/balance internal/content internal/cost internal/engine internal/infer internal/kvindex internal/plot internal/queue internal/route internal/sim internal/slo internal/spell internal/workload
	internal/sim/simserver: internal/content internal/engine/plane/planepb internal/infer internal/media internal/sim internal/sim/kvpub internal/trace
	internal/sim/simtest: internal/content internal/sim internal/sim/simserver
	internal/load: internal/content internal/epoll internal/latency internal/sock internal/sse internal/trace internal/workload
	internal/live: internal/load
	internal/slo:
	internal/experiment: internal/config internal/infer internal/slo
	internal/report: internal/experiment internal/infer internal/latency internal/load internal/plot internal/slo internal/trace

	# the benchmark of the output path, and what it runs
	internal/bench/cell: internal/tokenizer models
	internal/bench/proc:
	internal/bench/loadengine: internal/bench/cell internal/engine/plane/planepb internal/engine/vllmcore/coretest internal/sock internal/trace
	internal/bench/control: internal/bench/cell internal/engine/plane/planepb internal/tokenizer internal/trace internal/watch models
	internal/bench/client: internal/bench/cell internal/bench/proc internal/sock
	internal/bench: internal/bench/cell internal/bench/client internal/bench/control internal/bench/loadengine internal/bench/proc internal/ports

	internal/forward:
	internal/scenario: internal/bench internal/bench/cell internal/bench/client internal/bench/control internal/bench/proc internal/content internal/forward internal/load internal/ports internal/tokenizer internal/trace internal/watch internal/workload models

	internal/nightly:

	internal/calibrate: internal/bench internal/bench/cell internal/bench/proc internal/load internal/ports

	# the process
	internal/config: internal/spell
	internal/cli: internal/admit internal/allow internal/balance internal/bench internal/bench/proc internal/calibrate internal/config internal/content internal/cost internal/engine internal/engine/access internal/engine/auto internal/engine/fenced internal/engine/plane internal/engine/relay internal/engine/sglang internal/engine/sglangipc internal/engine/vllm internal/engine/vllmcore internal/experiment internal/fleet internal/fleetsim internal/gateway internal/generate internal/health internal/infer internal/integrity internal/judge internal/kvevents internal/live internal/load internal/logs internal/metrics internal/model internal/page internal/otlp internal/pool internal/report internal/retry internal/route internal/scenario internal/sim internal/sim/kvpub internal/sim/offline internal/sim/simserver internal/slo internal/spell internal/timeline internal/tokenizer internal/trace internal/watch internal/workload internal/zmtp models
	cmd/weir: internal/cli

	# what runs the tests, and what end-to-end tests run weir with
	internal/certtest:
	internal/scripttest:
	test/e2e/harness: internal/certtest internal/cli internal/content internal/engine/vllmcore/coretest internal/forward internal/load internal/ports internal/tokenizer internal/trace models
	test/e2e/neighbour: internal/bench/proc internal/trace test/e2e/harness
	test/mutate:
	test/slowest:
`

// served says which files of internal/cli alone may import a package. The commands
// share a package, but those that load a server, simulate an engine or read a model's
// folder do not know the gateway.
const served = `
	internal/gateway: cores.go flags.go frontend.go process.go serve.go
	internal/engine/auto: serve.go
	internal/engine/plane: serve.go
	internal/engine/relay: serve.go
	internal/engine/sglang: serve.go
	internal/engine/sglangipc: cores.go
	internal/engine/vllm: serve.go
	internal/engine/vllmcore: cores.go frontend.go
`

// table reads lines of a name and what belongs to it.
func table(t *testing.T, text string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			t.Fatalf("%q has no colon", line)
		}
		out[name] = strings.Fields(rest)
	}
	return out
}

// TestOnlyServingKnowsTheGateway holds the files of internal/cli to their part.
func TestOnlyServingKnowsTheGateway(t *testing.T) {
	imports := map[string][]string{} // files by what they import
	paths, err := filepath.Glob("internal/cli/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, name := range ours(t, path) {
			imports[name] = append(imports[name], filepath.Base(path))
		}
	}
	for name, files := range table(t, served) {
		if !slices.Equal(imports[name], files) {
			t.Errorf("%s is imported by %v of internal/cli, and may be by %v", name, imports[name], files)
		}
	}
}

// ours gives the packages of weir that a file imports.
func ours(t *testing.T, path string) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range file.Imports {
		full, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if name, ok := strings.CutPrefix(full, "weir/"); ok {
			names = append(names, name)
		}
	}
	return names
}

func TestImportDirections(t *testing.T) {
	allowed := table(t, directions)
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || slices.Contains([]string{"node_modules", "testdata", "interop", "tools"}, d.Name()) || path == "bench") {
			return filepath.SkipDir
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		seen[dir] = true
		may, ok := allowed[dir]
		if !ok {
			t.Errorf("%s is not in the directions", dir)
			return nil
		}
		for _, name := range ours(t, path) {
			if !slices.Contains(may, name) {
				t.Errorf("%s imports %s, which the directions do not allow", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range allowed {
		if !seen[name] {
			t.Errorf("the directions name %s, which does not exist", name)
		}
	}
}
