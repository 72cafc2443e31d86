// Package weir_test holds what is true of the whole module.
package weir_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// directions says which packages of weir a package may import; names without a
// folder of the module's own are below internal/. Imports point from the process
// down to the vocabulary; data flows through gateway, not through imports. Pure
// stages do not see each other. The simulated engine and the load generator meet
// the gateway over a wire only.
const directions = `
	# the vocabulary: requests, deltas, coded errors
	infer:
	infer/spell:

	# who asks: callers, their keys and limits
	tenancy:
	tenancy/fair: tenancy
	tenancy/shared: infer tenancy

	# the clock, the stages, the record of a request
	trace: infer

	# contexts in the memory of what they belong to
	lifetime:

	# how often the garbage collector runs
	gcpace:

	# files that other processes read or change at the same time
	disk:
	disk/yamltext:

	# the parts of JSON that all who read it in place have in common
	jsonlex:

	# bytes on sockets, and whom to trust there; they know nothing of weir
	wire/bounded:
	wire/epoll: wire/sock
	wire/http1:
	wire/sock:
	wire/sse:
	wire/trust: disk
	wire/zmtp:

	# the APIs of callers
	dialect: infer infer/spell jsonlex wire/sse
	dialect/allow: dialect infer infer/spell
	dialect/anthropic: dialect dialect/media infer
	dialect/dialecttest: dialect infer
	dialect/media: infer
	dialect/openai: dialect dialect/media infer jsonlex wire/sse
	dialect/responses: dialect dialect/media dialect/openai infer wire/sse
	dialect/sglang: dialect dialect/media infer jsonlex

	# a model's folder, ready to use: template, tokenizer, reading of the output; the pool they run in
	model: infer model/callid model/chat model/outputparse model/tokenizer
	model/callid:
	model/chat: infer model/callid model/chat/jinja
	model/chat/jinja: jsonlex
	model/outputparse: jsonlex model/callid model/stop
	model/outputparse/outputtest:
	model/pool: infer lifetime tenancy tenancy/fair trace
	model/stop:
	model/tokenizer: infer jsonlex model/stop

	# engines: the contract, its suite, an adapter per wire
	engine: infer trace
	engine/access: disk wire/trust
	engine/auto: engine engine/access engine/sglangserver engine/upstream engine/vllmserver infer
	engine/coreclient: engine engine/mux engine/remote infer trace wire/zmtp
	engine/enginetest: engine infer trace
	engine/idstream: engine engine/access engine/upstream infer jsonlex lifetime trace wire/epoll wire/sse
	engine/mux: engine infer
	engine/plane: dialect/media engine engine/access engine/mux engine/plane/planepb engine/remote infer trace wire/sock
	engine/plane/planepb:
	engine/relay: engine engine/access engine/sglangserver engine/upstream engine/vllmserver infer trace wire/http1
	engine/remote:
	engine/sglang: engine engine/idstream engine/remote engine/sglangserver engine/upstream infer trace
	engine/sglangipc: disk engine engine/coreclient engine/mux engine/sglang engine/sglangserver infer trace wire/sock wire/zmtp
	engine/sglangipc/schedtest: infer wire/zmtp
	engine/sglangserver: engine engine/upstream infer trace
	engine/upstream: engine engine/access infer lifetime trace wire/http1 wire/sock
	engine/vllm: engine engine/idstream engine/upstream engine/vllmserver infer trace
	engine/vllmcore: disk engine engine/coreclient engine/mux infer trace wire/sock wire/zmtp
	engine/vllmcore/coretest: trace wire/zmtp
	engine/vllmserver: engine engine/upstream trace

	# who serves what: what a request costs where, which engines are well, what waits
	fleet: engine fleet/balance fleet/cost fleet/health fleet/judge fleet/kvevents fleet/kvindex fleet/kvsub fleet/retry fleet/route infer tenancy trace
	fleet/admission: infer tenancy tenancy/fair
	fleet/balance: fleet/cost fleet/kvindex infer/spell
	fleet/cost:
	fleet/health:
	fleet/judge: engine fleet/cost fleet/health infer trace
	fleet/kubernetes: disk disk/yamltext infer wire/bounded wire/trust
	fleet/kvevents: fleet/kvindex
	fleet/kvindex:
	fleet/kvsub: engine fleet/kvevents infer trace wire/zmtp
	fleet/peering: fleet/cost fleet/kvindex fleet/peers fleet/peers/peerspb fleet/route infer trace
	fleet/peers: fleet/cost fleet/kvindex fleet/peers/peerspb
	fleet/peers/peerspb:
	fleet/promptkey: dialect fleet/kvindex jsonlex
	fleet/queue: fleet/cost tenancy tenancy/fair
	fleet/retry:
	fleet/route: engine fleet/balance fleet/cost fleet/health fleet/judge fleet/kvevents fleet/kvindex fleet/retry infer model tenancy

	# the path of a request
	gateway: dialect dialect/allow dialect/openai dialect/responses dialect/sglang engine fleet/admission fleet/queue fleet/route gateway/answer gateway/attempt gateway/drive gateway/front gateway/place gateway/prepare gateway/record infer model observe/busy observe/metrics observe/watch tenancy trace wire/sock
	gateway/answer: dialect gateway/stream infer model/outputparse model/stop model/tokenizer trace wire/sse
	gateway/attempt: dialect dialect/openai engine fleet/admission fleet/cost fleet/health fleet/judge fleet/retry fleet/route gateway/answer gateway/drive gateway/freelist gateway/place gateway/prepare gateway/record gateway/stream infer lifetime observe/integrity observe/metrics tenancy tenancy/fair trace
	gateway/drive: engine gateway/answer gateway/front gateway/place gateway/record gateway/stream infer lifetime observe/busy observe/metrics observe/watch trace wire/epoll
	gateway/footprint: fleet/balance fleet/cost fleet/kvindex fleet/promptkey fleet/route
	gateway/freelist:
	gateway/front: dialect disk fleet/admission gateway/freelist infer observe/logs observe/metrics tenancy trace wire/http1 wire/sock wire/trust
	gateway/place: fleet/balance fleet/cost fleet/health fleet/judge fleet/kvindex fleet/queue fleet/retry fleet/route gateway/footprint gateway/stream infer observe/busy tenancy tenancy/fair trace
	gateway/prepare: dialect dialect/allow dialect/anthropic dialect/openai dialect/responses dialect/sglang fleet/admission fleet/kvindex fleet/promptkey fleet/route gateway/footprint gateway/freelist gateway/record infer model model/chat model/outputparse model/pool model/stop model/tokenizer observe/busy observe/metrics tenancy trace
	gateway/record: infer observe/logs observe/metrics observe/timeline observe/watch trace
	gateway/stream: infer

	# views
	observe/busy: trace
	observe/integrity: infer
	observe/logs:
	observe/metrics: engine fleet/admission fleet/cost fleet/health fleet/judge fleet/kvevents fleet/queue fleet/route infer model/pool model/tokenizer observe/timeline trace wire/http1
	observe/otlp: infer trace
	observe/page: wire/http1
	observe/timeline: infer trace
	observe/watch: observe/busy trace

	# what the simulated engine and the load generator both speak
	workload:
	workload/content:
	workload/gotext:
	workload/latency:

	# the simulated engine
	sim: infer workload/content
	sim/kvpub: sim wire/zmtp
	sim/offline: infer sim workload workload/latency
	sim/simserver: infer sim sim/kvpub sim/simserver/admin sim/simserver/engine sim/simserver/flags sim/simserver/guard sim/simserver/openai sim/simserver/plane sim/simserver/sglang sim/simserver/vllm sim/simserver/vocab sim/simserver/web workload/content
	sim/simserver/admin: infer sim sim/simserver/engine sim/simserver/vocab sim/simserver/web
	sim/simserver/catalog: infer sim sim/simserver/web
	sim/simserver/completion: infer sim sim/simserver/catalog sim/simserver/engine sim/simserver/exchange sim/simserver/fields sim/simserver/flags sim/simserver/pairs sim/simserver/speech sim/simserver/vocab sim/simserver/web trace
	sim/simserver/conns: sim
	sim/simserver/engine: infer sim sim/kvpub sim/simserver/conns sim/simserver/tally sim/simserver/web trace workload/latency
	sim/simserver/exchange: infer sim sim/simserver/conns sim/simserver/engine sim/simserver/vocab sim/simserver/web workload/content
	sim/simserver/exchange/exchangetest: infer sim sim/simserver/engine sim/simserver/exchange sim/simserver/vocab workload/content
	sim/simserver/fields: infer workload/content
	sim/simserver/flags: infer sim sim/kvpub
	sim/simserver/guard: sim/simserver/web
	sim/simserver/openai: infer sim/simserver/catalog sim/simserver/completion sim/simserver/engine sim/simserver/pool sim/simserver/vocab sim/simserver/web
	sim/simserver/pairs: infer sim sim/simserver/engine sim/simserver/exchange sim/simserver/fields sim/simserver/flags sim/simserver/web
	sim/simserver/plane: engine/plane/planepb infer sim sim/simserver/conns sim/simserver/engine sim/simserver/fields sim/simserver/guard sim/simserver/vocab trace workload/content
	sim/simserver/pool: infer sim sim/simserver/catalog sim/simserver/fields sim/simserver/vocab sim/simserver/web
	sim/simserver/sglang: dialect/media infer sim sim/simserver/catalog sim/simserver/completion sim/simserver/engine sim/simserver/exchange sim/simserver/fields sim/simserver/flags sim/simserver/pairs sim/simserver/pool sim/simserver/tally sim/simserver/vocab sim/simserver/web trace workload/content
	sim/simserver/speech: sim/simserver/web
	sim/simserver/tally:
	sim/simserver/vllm: infer sim sim/simserver/catalog sim/simserver/completion sim/simserver/engine sim/simserver/exchange sim/simserver/fields sim/simserver/flags sim/simserver/pool sim/simserver/speech sim/simserver/tally sim/simserver/vocab sim/simserver/web trace
	sim/simserver/vocab: dialect/media infer sim sim/simserver/fields workload/content
	sim/simserver/web: infer sim/simserver/conns
	sim/simtest: sim sim/simserver sim/simserver/exchange/exchangetest workload/content

	# the load generator, and what judges and reports its runs
	load: trace wire/epoll wire/sock wire/sse workload workload/content workload/latency
	load/experiment: config infer load/slo
	load/live: load
	load/plot:
	load/report: disk infer load load/experiment load/plot load/slo trace workload/latency
	load/slo:

	# the measuring laboratory: processes, controls, scenarios, fleets on virtual time
	lab: lab/cell lab/client lab/control lab/flood lab/loadengine lab/ports lab/proc
	lab/calibrate: lab lab/cell lab/ports lab/proc load
	lab/cell: model/tokenizer models
	lab/client: lab/cell lab/proc wire/sock
	lab/control: engine/plane/planepb lab/cell model/tokenizer models observe/watch trace
	lab/fleetsim: engine fleet/balance fleet/cost fleet/health fleet/kvindex fleet/peers fleet/route gateway/footprint gateway/place gateway/stream infer load/plot load/slo sim tenancy tenancy/fair workload workload/content
	lab/flood: lab/cell
	lab/forward:
	lab/kubeapi:
	lab/loadengine: engine/plane/planepb engine/vllmcore/coretest lab/cell trace wire/sock
	lab/nightly:
	lab/ports:
	lab/proc:
	lab/scenario: lab lab/cell lab/client lab/control lab/forward lab/ports lab/proc load model/tokenizer models observe/watch trace workload workload/content workload/latency

	# the process
	config: disk disk/yamltext infer/spell tenancy
	config/jwt: config infer tenancy wire/bounded wire/trust
	config/budget: disk tenancy
	config/keyfile: config config/jwt disk infer infer/spell tenancy
	cli: config config/budget config/keyfile dialect/allow dialect/sglang disk engine engine/access engine/auto engine/coreclient engine/plane engine/relay engine/sglang engine/sglangipc engine/vllm engine/vllmcore fleet fleet/admission fleet/balance fleet/cost fleet/health fleet/judge fleet/kubernetes fleet/kvevents fleet/peering fleet/retry fleet/route gateway gateway/attempt gateway/drive gateway/front gateway/prepare gateway/record gcpace infer infer/spell lab lab/calibrate lab/fleetsim lab/proc lab/scenario load load/experiment load/live load/report load/slo model model/pool model/tokenizer models observe/integrity observe/logs observe/metrics observe/otlp observe/page observe/timeline observe/watch sim sim/kvpub sim/offline sim/simserver tenancy tenancy/fair tenancy/shared trace wire/trust wire/zmtp workload workload/content
	cmd/weir: cli

	# beyond internal/
	models:
	test/certtest:
	test/clocktest:
	test/e2e/harness: cli disk engine/vllmcore/coretest lab/forward lab/kubeapi lab/ports load model/tokenizer models test/certtest trace workload/content
	test/e2e/neighbour: lab/proc test/e2e/harness trace
	test/mutate:
	test/scripttest:
	test/parts:
`

// served says which files of internal/cli alone may import a package. The commands
// share a package, but those that load a server, simulate an engine or read a model's
// folder do not know the gateway.
const served = `
	gateway: cores.go flags.go frontend.go keyflags.go listeners.go peers.go process.go serve.go sharedlimits.go
	gateway/attempt: flags.go
	gateway/drive: serve.go
	gateway/front: flags.go keyflags.go listeners.go peers.go process.go
	gateway/prepare: serve.go
	gateway/record: flags.go inflight.go
	engine/auto: serve.go
	engine/plane: serve.go
	engine/relay: serve.go
	engine/sglang: serve.go
	engine/sglangipc: cores.go
	engine/vllm: serve.go
	engine/vllmcore: cores.go frontend.go
`

// folders says which folders below internal/ the packages of a folder may import;
// each may import its own. ARCHITECTURE.md shows these lines.
const folders = `
models:
infer:
tenancy: infer
trace: infer
gcpace:
lifetime:
disk:
jsonlex:
wire: disk
config: infer tenancy disk wire
workload:
dialect: infer jsonlex wire
model: infer tenancy trace lifetime jsonlex
engine: infer trace lifetime disk jsonlex wire dialect
fleet: infer tenancy trace disk jsonlex wire dialect model engine
observe: infer trace wire model engine fleet
gateway: infer tenancy trace lifetime disk wire dialect model engine fleet observe
sim: infer trace wire workload dialect engine
load: infer trace disk wire config workload
lab: models infer tenancy trace wire workload model engine fleet observe gateway sim load
cli: models infer tenancy trace gcpace disk wire config workload dialect model engine fleet observe gateway sim load lab
cmd: cli
test: models trace disk workload model engine load lab cli
`

// whole returns the path of a package within the module.
func whole(name string) string {
	if first, _, _ := strings.Cut(name, "/"); slices.Contains([]string{"cmd", "models", "test"}, first) {
		return name
	}
	return "internal/" + name
}

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
		name = whole(name)
		if !slices.Equal(imports[name], files) {
			t.Errorf("%s is imported by %v of internal/cli, and may be by %v", name, imports[name], files)
		}
	}
}

// openers says which files of internal/ open files by themselves, and why. All others open what an
// operator names by package disk, within bounds.
const openers = `
	cli/listen_linux.go: /proc
	dialect/dialecttest/apitest.go: tests
	disk/disk.go: folders
	disk/open.go: itself
	engine/enginetest/fields.go: tests
	gcpace/limits.go: /proc
	observe/timeline/file.go: its own
	observe/watch/read_linux.go: /proc
	trace/clock.go: /proc
	workload/gotext/gotext.go: tests
	lab/: its own
`

// TestFilesAreOpenedByDisk holds all of weir to one way to open an operator's file.
func TestFilesAreOpenedByDisk(t *testing.T) {
	may := table(t, openers)
	opens := regexp.MustCompile(`\bos\.(Open|OpenFile|ReadFile|DirFS)\(|\bioutil\.|\btls\.LoadX509KeyPair\(|\bio\.ReadAll\((stdin|s\.in|os\.Stdin)\)`)
	err := filepath.WalkDir("internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(path), "internal/")
		first, _, _ := strings.Cut(name, "/")
		if may[name] != nil || may[first+"/"] != nil {
			return nil
		}
		text, err := os.ReadFile(path)
		if found := opens.Find(text); found != nil {
			t.Errorf("%s has %s: open what an operator names by package disk", path, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wallClock are the files that read the wall clock as a number, and why. All others measure time by times
// of time.Now, or by package trace's clock, which go on when the wall clock is set (docs/operating.md).
const wallClock = `
	config/budget/budget.go: days in a file that outlives the process
	config/jwt/jwt.go: the expiry of tokens
	disk/watched.go: a clock that was set back has the files looked at
	engine/sglang/server.go: stamps of engines
	engine/vllmcore/generate.go: stamps for engines
	engine/vllmcore/meets.go: stamps for engines
	gateway/attempt/reply.go: a time in answers
	gateway/front/directwriter.go: the field Date
	gateway/gateway.go: a time in answers
	observe/metrics/changes.go: a time to show
	observe/metrics/discovery.go: a time to show
	observe/otlp/spans.go: times of spans
	tenancy/account.go: days
	trace/clock.go: both clocks
	lab/: measures its own processes
	load/: kernel stamps
	sim/: times in answers
`

// TestWallClockIsNamed has whoever reads the wall clock as a number say why: for a duration, that is wrong
// by as much as the clock is set.
func TestWallClockIsNamed(t *testing.T) {
	may, unused := table(t, wallClock), table(t, wallClock)
	reads := regexp.MustCompile(`\.Unix(Nano|Milli|Micro)?\(\)|\.Round\(0\)`)
	err := filepath.WalkDir("internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		name := strings.TrimPrefix(filepath.ToSlash(path), "internal/")
		first, _, _ := strings.Cut(name, "/")
		if found := reads.Find(text); found != nil {
			delete(unused, name)
			delete(unused, first+"/")
			if may[name] == nil && may[first+"/"] == nil {
				t.Errorf("%s has %s: measure durations by times, or say why it is none", path, found)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range unused {
		t.Errorf("%s does not read the wall clock", name)
	}
}

// onlyOnce are the files that read authorities once, and why.
const onlyOnce = `
	wire/trust/trust.go: itself
	cli/admin_client.go: a command that ends
	cli/engine.go: the simulated engine, which reads its certificate once, too
	config/jwt/fetch.go: each fetch
`

// TestAuthoritiesAreWatched has whoever makes connections for long read authorities again.
func TestAuthoritiesAreWatched(t *testing.T) {
	may := table(t, onlyOnce)
	err := filepath.WalkDir("internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || may[strings.TrimPrefix(filepath.ToSlash(path), "internal/")] != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte("trust.Authorities(")) || bytes.Contains(text, []byte(".AppendCertsFromPEM(")) {
			t.Errorf("%s reads authorities once: use trust.Watch", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ours returns the packages of weir that a file imports.
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
	allowed := map[string][]string{}
	for name, may := range table(t, directions) {
		for _, other := range may {
			allowed[whole(name)] = append(allowed[whole(name)], whole(other))
		}
		if len(may) == 0 {
			allowed[whole(name)] = nil
		}
	}
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || slices.Contains([]string{"node_modules", "testdata", "interop", "tools", "release"}, d.Name()) || path == "bench") {
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

// TestFolders holds the folders to the directions of the packages in them, and the
// picture in ARCHITECTURE.md to both.
func TestFolders(t *testing.T) {
	folder := func(name string) string {
		first, _, _ := strings.Cut(name, "/")
		return first
	}
	imports := map[string][]string{}
	for name, may := range table(t, directions) {
		imports[folder(name)] = append(imports[folder(name)], "")
		for _, other := range may {
			if to := folder(other); to != folder(name) {
				imports[folder(name)] = append(imports[folder(name)], to)
			}
		}
	}
	order := []string{} // a folder may import those that stand before it only
	for line := range strings.Lines(folders) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		want := slices.Compact(slices.Sorted(slices.Values(imports[name])))[1:]
		got := slices.Sorted(slices.Values(strings.Fields(rest)))
		if !slices.Equal(got, want) {
			t.Errorf("%s imports packages of %v, and folders says %v", name, want, got)
		}
		for _, other := range got {
			if !slices.Contains(order, other) {
				t.Errorf("%s imports packages of %s, which stands behind it", name, other)
			}
		}
		order = append(order, name)
		delete(imports, name)
	}
	if len(imports) > 0 {
		t.Errorf("folders lacks %v", slices.Sorted(maps.Keys(imports)))
	}
	manual, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(manual), "```\n"+strings.TrimSpace(folders)+"\n```") {
		t.Error("ARCHITECTURE.md does not show the folders as they are here")
	}
}
